"""Datasets: what they take, keep and refuse; validation rows."""

import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data.dataset import Dataset, random_rows
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.errors import DataError, OptionError, ShapeError

X = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
Y = [0.5, 1.5, 2.5]


@pytest.mark.parametrize("convert", [list, np.array, pd.DataFrame, torch.tensor])
def test_arrays_of_every_kind_become_float32(convert: Callable[[Any], Any]) -> None:
    data = Dataset(convert(X), np.array(Y))
    assert_close(data.x, torch.tensor(X))
    assert_close(data.y, torch.tensor(Y))
    assert len(data) == 3
    assert data.num_classes is None


def test_float64_tensors_stay_and_take_the_rest_along() -> None:
    data = Dataset(torch.tensor(X, dtype=torch.float64), Y)
    assert data.x.dtype == data.y.dtype == torch.float64
    data = Dataset(X, torch.tensor(Y, dtype=torch.float64))
    assert data.x.dtype == data.y.dtype == torch.float64


def test_whole_numbers_stay_and_are_labels_in_y() -> None:
    data = Dataset([[1, 2], [3, 4]], [0, 2])
    assert_close(data.x, torch.tensor([[1, 2], [3, 4]]))
    assert_close(data.to(dtype=torch.float64).x, data.x)
    units = Standardiser(torch.zeros(2), torch.ones(2))
    assert_close(Dataset([[1, 2]], [0.5], inputs=units).x, torch.tensor([[1.0, 2.0]]))
    assert_close(data.y, torch.tensor([0, 2]))
    assert data.num_classes == 3
    assert Dataset(X, [0, 1, 0], class_names=("a", "b", "c", "d")).num_classes == 4


def test_images_and_several_targets_keep_their_shapes() -> None:
    data = Dataset(torch.zeros(5, 3, 8, 8), torch.zeros(5, 2))
    assert data.x.shape == (5, 3, 8, 8)
    assert data.y.shape == (5, 2)


def test_names_come_from_pandas_or_the_caller() -> None:
    frame = pd.DataFrame(X, columns=["age", "bmi"])
    data = Dataset(frame, pd.Series(Y, name="progression"))
    assert data.input_names == ("age", "bmi")
    assert data.target_name == "progression"
    data = Dataset(frame, Y, input_names=["u", "v"], target_name="w")
    assert (data.input_names, data.target_name) == (("u", "v"), "w")


def test_raw_carries_back_to_the_units_of_the_user() -> None:
    inputs = Standardiser(torch.tensor([10.0, 20.0]), torch.tensor([2.0, 3.0]))
    target = Standardiser(torch.tensor(-1.0), torch.tensor(4.0))
    x, y = Dataset([[1.0, -1.0]], [0.5], inputs, target).raw()
    assert_close(x, torch.tensor([[12.0, 17.0]]))
    assert_close(y, torch.tensor([1.0]))
    data = Dataset(X, [0, 1, 1])
    assert data.raw()[0] is data.x
    assert data.raw()[1] is data.y


def test_rows_keep_units_and_names() -> None:
    inputs = Standardiser(torch.zeros(2), torch.ones(2))
    data = Dataset(X, [0, 1, 1], inputs, input_names=("a", "b"), class_names=("no", "yes"))
    part = data.rows([2, 0])
    assert_close(part.x, torch.tensor([X[2], X[0]]))
    assert part.y.tolist() == [1, 0]
    assert (part.inputs, part.input_names, part.class_names) == (inputs, ("a", "b"), ("no", "yes"))


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor, pd.Series])
def test_a_mask_keeps_its_rows(convert: Callable[[Any], Any]) -> None:
    data = Dataset(X, Y)
    for mask in ([False, False, True], [True, False, True], [True, True, True]):
        assert data.rows(convert(mask)).y.tolist() == np.array(Y)[mask].tolist()
    assert data.rows(convert([-1, 0])).y.tolist() == [2.5, 0.5]


@pytest.mark.parametrize("index", [[0.9, 1.7], [True, False], [3], ["0"]])
def test_what_numbers_no_rows_is_refused(index: Any) -> None:
    with pytest.raises(OptionError, match="index has numbers of 3 rows, or as many truth values"):
        Dataset(X, Y).rows(index)


def test_split_is_an_exact_partition_and_reproducible() -> None:
    data = Dataset(torch.arange(100.0)[:, None], torch.arange(100.0))
    train, validation = data.split(0.23, seed=4)
    assert (len(train), len(validation)) == (77, 23)
    assert sorted(torch.cat([train.y, validation.y]).tolist()) == list(range(100))
    assert_close(train.x[:, 0], train.y)
    assert_close(data.split(0.23, seed=4)[1].y, validation.y)
    assert data.split(0.23, seed=5)[1].y.tolist() != validation.y.tolist()
    assert validation.y.tolist() != list(range(23))


def test_to_changes_floating_data_but_neither_labels_nor_units() -> None:
    units = Standardiser(torch.zeros(2), torch.ones(2))
    data = Dataset(X, [0, 1, 1], units).to(dtype=torch.float64)
    assert data.x.dtype == torch.float64
    assert data.y.dtype == torch.int64
    assert data.inputs is not None
    assert data.inputs.loc.dtype == torch.float32
    target = Standardiser(torch.tensor(1e9 + 1, dtype=torch.float64), torch.tensor(1.0))
    data = Dataset(X, Y, None, target).to("cpu", torch.float32)
    assert data.y.dtype == torch.float32
    assert data.target is not None
    assert data.target.loc == 1e9 + 1
    assert data.raw()[1].tolist() == [1e9 + 1.5, 1e9 + 2.5, 1e9 + 3.5]


def test_datasets_are_frozen_and_go_to_other_processes() -> None:
    data = Dataset(X, Y, target_name="t")
    with pytest.raises(AttributeError, match="cannot assign to field 'x'"):
        data.x = torch.zeros(1)  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(data))
    assert_close(copy.x, data.x)
    assert repr(copy) == "Dataset(x [3, 2] float32, y [3] float32, target_name='t')"


NAN = float("nan")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0, 2.0], [1.0, 2.0]), ShapeError, "write x[:, None] for one input"),
        ((X, [1.0]), ShapeError, "x [3, 2] and y [1]"),
        ((np.zeros((0, 2)), np.zeros(0)), DataError, "the data are empty"),
        (([[1.0, NAN]], [1.0]), DataError, "x holds NaN or infinity in column 1 (1 row) of 1"),
        ((X, [0.0, NAN, 1.0]), DataError, "y holds NaN or infinity in 1 row of 3, first in row 1"),
        (([["a"]], [1.0]), DataError, "x must hold real numbers, got dtype <U1"),
        ((X, [1j, 1j, 1j]), DataError, "y must hold real numbers, got dtype complex128"),
        (([[1e300]], [1.0]), DataError, "x does not fit torch.float32"),
        (([[1.0]], [1e300]), DataError, "y does not fit torch.float32"),
        ((X, [0, -1, 1]), DataError, "y: class labels must be 0 .. C-1, got -1; pass floating y"),
        (
            (X, [0, 1, 2], None, None, None, None, "ab"),
            DataError,
            "0 .. 1 for 2 class_names, got 2",
        ),
        ((X, Y, None, None, ["a"]), ShapeError, "x has 2 columns but 1 input_names"),
        (
            (X, [0, 1, 1], None, Standardiser(torch.tensor(0.0), torch.tensor(1.0))),
            DataError,
            "y holds whole numbers (class labels or counts), which are not standardised",
        ),
        (
            (X, Y, Standardiser(torch.zeros(3), torch.ones(3))),
            ShapeError,
            "values have shape [1, 2], but these units are those of [3]",
        ),
        (
            (X, Y, None, Standardiser(torch.zeros(3), torch.ones(3))),
            ShapeError,
            "values have shape [1], but these units are those of [3]",
        ),
    ],
)
def test_what_is_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        Dataset(*arguments)


@pytest.mark.parametrize("fraction", [0, 1, -0.1, 1.5, NAN, "half"])
def test_a_fraction_out_of_range_is_refused(fraction: Any) -> None:
    expected = f"fraction must be between 0 and 1, both excluded, got {fraction!r}"
    with pytest.raises(OptionError, match=re.escape(expected)):
        Dataset(X, Y).split(fraction)


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_a_bad_seed_is_refused(seed: Any) -> None:
    with pytest.raises(OptionError, match=f"seed must be a whole number >= 0, got {seed!r}"):
        Dataset(X, Y).split(0.5, seed)


def test_a_part_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match=r"fraction=0\.1 of 3 rows leaves 3 and 0 rows; both parts"):
        random_rows(3, 0.1, 0, "fraction")
    with pytest.raises(DataError, match=r"test=0\.9 of 3 rows leaves 0 and 3 rows"):
        random_rows(3, 0.9, 0, "test")


@pytest.mark.parametrize(
    "y",
    [
        ["ill", "well", "ill"],
        np.array(["ill", "well", "ill"]),
        np.array(["ill", "well", "ill"], dtype=object),
        np.array([b"ill", b"well", b"ill"]),
        pd.Series(["ill", "well", "ill"], dtype="category"),
        [["ill"], ["well"], ["ill"]],
    ],
    ids=["list", "array", "objects", "bytes", "pandas", "column"],
)
def test_text_is_coded_by_the_names_of_the_classes(y: Any) -> None:
    data = Dataset(X, y)
    assert (data.y.tolist(), data.class_names) == ([0, 1, 0], ("ill", "well"))
    names = ("well", "odd", "ill")
    data = Dataset(X, y, class_names=names)
    assert (data.y.tolist(), data.class_names, data.num_classes) == ([2, 0, 2], names, 3)


@pytest.mark.parametrize(
    ("y", "names", "error", "message"),
    [
        (["ill", "x", "y"], ("ill", "odd"), DataError, "y holds 'x', which is no class, in 2 of 3"),
        (["ill", None, "ill"], ("ill", "odd"), DataError, "y holds None, which is no class, in 1"),
        (["ill", None, "odd"], None, DataError, "y has 1 missing of 3 values"),
        ([["a", "b"]] * 3, ("a", "b"), ShapeError, "y: class labels must be [N], got [3, 2]"),
    ],
)
def test_text_that_is_no_class(y: Any, names: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        Dataset(X, y, class_names=names)
