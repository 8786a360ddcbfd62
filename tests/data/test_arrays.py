"""Conversion of arrays, and what is said of arrays that cannot be used."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data.arrays import (
    cast,
    check_finite,
    check_rows,
    column_names,
    float_dtype,
    in_order,
    to_numpy,
    to_tensor,
)
from pyro_bnn.errors import DataError, ShapeError


def object_array(values: list[int]) -> Any:
    return np.array(values, dtype=object)


THIRD = torch.tensor([1 / 3, 2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    "values",
    [
        [1 / 3, 2.0],
        (1 / 3, 2.0),
        np.array([1 / 3, 2.0]),
        np.array([1 / 3, 2.0], dtype=">f8"),
        np.array([1 / 3, 2.0], dtype=object),
        pd.Series([1 / 3, 2.0]),
        pd.Series([1 / 3, 2.0], dtype="Float64"),
        THIRD,
        THIRD.clone().requires_grad_(),
    ],
    ids=lambda v: type(v).__name__,
)
def test_floating_numbers_keep_their_precision(values: Any) -> None:
    result = to_tensor(values, "x")
    assert_close(result, THIRD, rtol=0, atol=0)
    assert not result.requires_grad


@pytest.mark.parametrize(
    "values",
    [
        [0, 1],
        [False, True],
        np.array([0, 1], dtype=np.uint16),
        pd.Series([0, 1]),
        pd.Series([False, True], dtype="boolean"),
        torch.tensor([0, 1], dtype=torch.uint8),
        torch.tensor([False, True]),
    ],
    ids=lambda v: type(v).__name__,
)
def test_whole_numbers_and_truth_values_become_int64(values: Any) -> None:
    assert_close(to_tensor(values, "y"), torch.tensor([0, 1]))


def test_data_frames_become_matrices_and_keep_their_names() -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5]})
    assert_close(to_tensor(frame, "x"), torch.tensor([[1, 0.5], [2, 1.5]], dtype=torch.float64))
    assert_close(to_tensor(frame[["a"]], "x"), torch.tensor([[1], [2]]))
    assert column_names(frame) == ("a", "b")
    assert column_names(np.zeros((2, 2))) is None


ROW = pd.DataFrame([[1.0, 2.0, 3.0]], columns=["a", "b", "c"])


@pytest.mark.parametrize("names", ["abc", "cab", "cba"])
def test_columns_are_found_by_name_in_any_order(names: str) -> None:
    frame = in_order(ROW[list(names)], ("a", "b", "c"), "x")
    assert frame.to_numpy().tolist() == [[1.0, 2.0, 3.0]]


@pytest.mark.parametrize(
    ("values", "known"),
    [
        (ROW, None),  # the fit had no names
        (ROW.to_numpy(), ("c", "b", "a")),  # these have none
        (pd.DataFrame(ROW.to_numpy()), ("c", "b", "a")),  # numbers of columns are no names
    ],
    ids=["no names of the fit", "array", "numbered"],
)
def test_without_names_columns_stay_where_they_are(values: Any, known: Any) -> None:
    assert np.asarray(in_order(values, known, "x")).tolist() == [[1.0, 2.0, 3.0]]


def test_numbered_columns_of_a_fit_are_names() -> None:
    fitted = pd.DataFrame(ROW.to_numpy())
    again = in_order(fitted[[2, 0, 1]], column_names(fitted), "x")
    assert again.to_numpy().tolist() == [[1.0, 2.0, 3.0]]
    selected = column_names(fitted[[2, 0, 1]])  # a fit to these meets all of them, from 0
    assert in_order(fitted, selected, "x").to_numpy().tolist() == [[3.0, 1.0, 2.0]]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (
            ROW.rename(columns={"a": "d"}),
            "x has the columns 'd', 'b', 'c', but the fit was to 'a', 'b', 'c': "
            "missing are 'a', unknown are 'd'; pass the columns of the fit, in any order",
        ),
        (ROW[["b", "a"]], "x has the columns 'b', 'a', but .* missing are 'c'; pass"),
        (ROW.assign(d=0.0), "x has the columns 'a', 'b', 'c', 'd', but .*: unknown are 'd'; pass"),
        (ROW[["a", "b", "b", "c"]], "'a', 'b', 'b', 'c', but .*: a name stands twice; pass"),
        (pd.DataFrame([[1.0, 2.0]]), "'0', '1', but .*: missing are 'a', 'b', 'c', unknown are"),
    ],
    ids=["renamed", "fewer", "more", "twice", "numbered"],
)
def test_other_columns_are_refused_with_both_lists(frame: pd.DataFrame, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        in_order(frame, ("a", "b", "c"), "x")


def test_of_many_columns_the_first_are_listed() -> None:
    frame = pd.DataFrame(np.zeros((1, 30)), columns=[f"n{i}" for i in range(30)])
    with pytest.raises(DataError, match=r"'n18', 'n19' and 10 more, but the fit was to 'a': "):
        in_order(frame, ("a",), "x")


def test_missing_values_of_pandas_become_nan() -> None:
    series = pd.Series([1, None], dtype="Int64")
    assert to_tensor(series, "y").isnan().tolist() == [False, True]
    frame = pd.DataFrame({"a": pd.Series([1, None], dtype="Int64")})
    assert to_tensor(frame, "x").isnan().tolist() == [[False], [True]]


def test_numpy_arrays_are_copied_even_when_read_only() -> None:
    array = np.array([1.0, 2.0])
    result = to_tensor(array, "x")
    array[0] = 5.0
    assert_close(result, torch.tensor([1.0, 2.0], dtype=torch.float64))
    array.flags.writeable = False  # torch.from_numpy would warn
    assert to_tensor(array, "x")[0] == 5.0


def test_to_numpy_takes_tensors_and_keeps_text() -> None:
    assert to_numpy(torch.tensor([1, 2]), "y").tolist() == [1, 2]
    assert to_numpy(torch.tensor([1.5], dtype=torch.bfloat16), "y").tolist() == [1.5]
    assert to_numpy(pd.Series(["a", "b"]), "y").tolist() == ["a", "b"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b"], "x must hold real numbers, got dtype <U1, for instance "),
        ([1 + 2j], "x must hold real numbers, got dtype complex128"),
        (np.array([{}, 1], dtype=object), "x must hold real numbers, got dtype object"),
        (torch.tensor([1j]), "x must hold real numbers, got dtype complex64"),
        (pd.DataFrame({"a": [1], "town": ["Rome"]}), "x: column 'town' holds "),
    ],
)
def test_what_is_no_number_is_refused(values: Any, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        to_tensor(values, "x")


def test_ragged_lists_are_refused() -> None:
    with pytest.raises(ShapeError, match="x is not rectangular: its rows have different lengths"):
        to_tensor([[1.0, 2.0], [3.0]], "x")


def test_only_tensors_decide_the_floating_dtype() -> None:
    single, double = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    assert float_dtype(np.zeros(1), [1.0]) == torch.float32
    assert float_dtype(single, double) == float_dtype(double, single) == torch.float64
    assert float_dtype(double, torch.zeros(1, dtype=torch.int64)) == torch.float64
    assert float_dtype(torch.zeros(1, dtype=torch.float16)) == torch.float32


@pytest.mark.parametrize("convert", [torch.tensor, np.array, list, pd.Series, object_array])
@pytest.mark.parametrize("sign", [1, -1])
def test_whole_numbers_beyond_those_that_float64_has_are_refused(sign: int, convert: Any) -> None:
    exact = [sign * 2**53, 5]
    assert to_tensor(convert(exact), "x").to(torch.int64).tolist() == exact
    expected = f"x holds whole numbers beyond 2^53, such as {sign * (2**53 + 1)}: float64 does not"
    with pytest.raises(DataError, match=re.escape(expected)):
        to_tensor(convert([5, sign * (2**53 + 1)]), "x")


def test_a_number_too_large_for_the_dtype_is_refused() -> None:
    values = torch.tensor([1.0, -1e300], dtype=torch.float64)
    assert_close(cast(values, torch.float64, "x"), values)
    with pytest.raises(DataError, match=re.escape("x does not fit torch.float32: its largest")):
        cast(values, torch.float32, "x")


@pytest.mark.parametrize(
    ("x", "y", "error", "message"),
    [
        ((3,), (3,), ShapeError, "x must be [N, I] (or [N, C, H, W] for images), got [3]; write x"),
        ((), (3,), ShapeError, "x must be [N, I] (or [N, C, H, W] for images), got []"),
        ((3, 2), (), ShapeError, "y must be [N] or [N, O], got []"),
        ((3, 2), (3, 1, 1), ShapeError, "y must be [N] or [N, O], got [3, 1, 1]"),
        ((3, 2), (2,), ShapeError, "same number of rows, got x [3, 2] and y [2]"),
        ((0, 2), (0,), DataError, "the data are empty: x is [0, 2], y is [0]"),
        ((3, 0), (3,), DataError, "at least one column is needed: x is [3, 0], y is [3]"),
        ((3, 2), (3, 0), DataError, "at least one column is needed: x is [3, 2], y is [3, 0]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    x: tuple[int, ...], y: tuple[int, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        check_rows(torch.zeros(x), torch.zeros(y))


def test_non_finite_values_are_named_by_column_and_counted() -> None:
    x = torch.zeros(6, 3)
    x[4, 0], x[2, 2], x[5, 2] = torch.nan, torch.inf, -torch.inf
    expected = "x holds NaN or infinity in column 0 ('a') (1 row), column 2 ('c') (2 rows) of 6, "
    with pytest.raises(DataError, match=re.escape(expected + "first in row 2")):
        check_finite(x, "x", ["a", "b", "c"])
    with pytest.raises(DataError, match=re.escape("in column 0 (1 row), column 2 (2 rows) of 6")):
        check_finite(x, "x")
    with pytest.raises(DataError, match=re.escape("y holds NaN or infinity in 2 rows of 6, first")):
        check_finite(x[:, 2], "y")


def test_non_finite_values_of_images_are_named_by_place() -> None:
    x = torch.zeros(4, 2, 3, 3)
    x[3, 1, 0, 2] = torch.nan
    with pytest.raises(DataError, match=re.escape("x holds NaN or infinity in element [1, 0, 2] ")):
        check_finite(x, "x")


def test_many_bad_columns_are_summed_up() -> None:
    with pytest.raises(DataError, match=re.escape("column 4 (2 rows) and 3 more columns of 2")):
        check_finite(torch.full((2, 8), torch.nan), "x")
