"""Class labels: which are taken, how they are coded, which are refused."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data.labels import (
    array_labels,
    check_counts,
    check_task,
    encode_labels,
    infer_task,
)
from pyro_bnn.errors import DataError, OptionError, ShapeError


@pytest.mark.parametrize(
    ("y", "task"),
    [
        ([0.0, 1.0], "regression"),
        (torch.zeros(2), "regression"),
        (np.zeros(2, dtype=np.float32), "regression"),
        ([0, 1], "classification"),
        (torch.tensor([0, 1]), "classification"),
        (np.array([True, False]), "classification"),
        (pd.Series(["a", "b"]), "classification"),
        (pd.Series(["a", "b"], dtype="category"), "classification"),
    ],
)
def test_the_task_follows_the_dtype(y: Any, task: str) -> None:
    assert infer_task(y) == task


def test_an_unknown_task_is_refused() -> None:
    check_task(None)
    with pytest.raises(OptionError, match=r"task must be .* or None, got 'ranking'"):
        check_task("ranking")


@pytest.mark.parametrize(
    ("y", "labels", "names"),
    [
        ([2, 0, 1, 2], [2, 0, 1, 2], ("0", "1", "2")),
        ([[1], [0]], [1, 0], ("0", "1")),
        ([1.0, 0.0], [1, 0], ("0", "1")),
        (torch.tensor([1, 0]), [1, 0], ("0", "1")),
        ([True, False], [1, 0], ("False", "True")),
        (["well", "ill"], [1, 0], ("ill", "well")),
        (pd.Series(["b", "a", "b"], dtype="category"), [1, 0, 1], ("a", "b")),
    ],
)
def test_labels_of_arrays(y: Any, labels: list[int], names: tuple[str, ...]) -> None:
    found, class_names = array_labels(y)
    assert_close(found, torch.tensor(labels))
    assert class_names == names


def test_encoding_follows_the_order_of_numbers_not_of_their_digits() -> None:
    for values in (np.array([10, 9, 100]), np.array([10, 9, 100], dtype=object)):
        labels, names = encode_labels(values)
        assert labels.tolist() == [1, 0, 2]
        assert names == ("9", "10", "100")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([1, 2, 3], "got 3 different labels: 1, 2, 3; recode them"),
        ([0, 2, 0], "y: class labels must be 0 .. C-1 with every class present, got 2 different"),
        ([-1, 1], "different labels: -1, 1;"),
        (list(range(1, 11)), "got 10 different labels: 1, 2, 3, 4, 5, 6, 7, 8, ...;"),
        ([0, 0, 0], "y holds one class only, '0', in all 3 rows"),
        (["a", "a"], "y holds one class only, 'a', in all 2 rows"),
        ([0.0, 0.5, 1.5], "y: class labels must be whole numbers, got 0.5 in row 1 (2 of 3 rows)"),
        ([0.0, float("nan")], "y: class labels must be whole numbers, got nan in row 1"),
        (pd.Series(["a", None, "b"]), "y has 1 missing of 3 values, first in row 1"),
        (np.zeros(0, dtype=np.int64), "y: the data are empty, there are no class labels"),
    ],
)
def test_labels_that_cannot_be_used(y: Any, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        array_labels(y)


def test_encoded_values_must_be_whole_and_differ() -> None:
    with pytest.raises(DataError, match=re.escape("quality: class labels must be whole numbers")):
        encode_labels(np.array([1.0, 2.5]), "quality")
    with pytest.raises(DataError, match=re.escape("quality holds one class only, '7', in all 2")):
        encode_labels(np.array([7, 7]), "quality")


def test_labels_must_be_one_column() -> None:
    with pytest.raises(ShapeError, match=re.escape("y: class labels must be [N], got [2, 2]")):
        array_labels([[0, 1], [1, 0]])


def test_a_row_holds_counts_where_all_of_its_targets_are_counts() -> None:
    y = torch.tensor([[0.0, 3.0], [2.0, -1.0], [0.5, 1.0], [4.0, 4.0]])
    expected = "y: counts are whole numbers from 0, got [2.0, -1.0] in row 1 (2 of 4 rows)"
    with pytest.raises(DataError, match=re.escape(expected)):
        check_counts(y)
    check_counts(y[[0, 3]])


@pytest.mark.parametrize("dtype", [object, "string", "category"])
def test_missing_values_of_pandas_are_told_by_row(dtype: Any) -> None:
    for missing in (pd.NA, None, np.nan):
        y = pd.Series(["ill", missing, "well"], dtype=dtype)
        for values in (y, y.to_numpy(dtype=object), y.tolist()):
            with pytest.raises(DataError, match="y has 1 missing of 3 values, first in row 1"):
                array_labels(values)
