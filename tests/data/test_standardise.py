"""Standardising against NumPy and by hand, and the way back."""

import re

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data.standardise import Standardiser, check_steps, constant_columns
from pyro_bnn.errors import DataError, ShapeError

DOUBLE = torch.float64


def test_loc_and_scale_by_hand() -> None:
    values = torch.tensor([[1.0, 10.0], [3.0, 10.0], [5.0, 40.0]], dtype=DOUBLE)
    units = Standardiser.fit(values)
    assert_close(units.loc, torch.tensor([3.0, 20.0], dtype=DOUBLE))
    # variances ((-2)^2 + 0 + 2^2) / 3 and (2 (-10)^2 + 20^2) / 3
    assert_close(units.scale, torch.tensor([8 / 3, 200.0], dtype=DOUBLE).sqrt())
    expected = torch.tensor([-1.0, -1.0, 2.0], dtype=DOUBLE) / 2**0.5
    assert_close(units.transform(values)[:, 1], expected)


def test_whole_numbers_have_a_mean() -> None:
    units = Standardiser.fit(torch.tensor([[1, 7], [3, 7], [5, 7], [2, 7]]))
    assert_close(units.loc, torch.tensor([11 / 4, 7], dtype=DOUBLE))
    assert_close(units.scale, torch.tensor([35 / 16, 1], dtype=DOUBLE).sqrt())


def test_a_constant_column_gets_scale_one() -> None:
    values = torch.full((10_741, 2), 0.998, dtype=DOUBLE)
    values[:, 1] = torch.linspace(0, 1, 10_741, dtype=DOUBLE)
    units = Standardiser.fit(values)
    assert units.scale[0] == 1
    assert units.loc[0] == 0.998
    assert_close(units.transform(values)[:, 0], torch.zeros(10_741, dtype=DOUBLE), rtol=0, atol=0)
    assert_close(units.transform(torch.tensor([[3.998, 0.5]], dtype=DOUBLE))[0, 0].item(), 3.0)


def test_a_constant_whose_sd_does_not_round_to_zero_gets_scale_one() -> None:
    values = torch.full((7,), 0.998, dtype=DOUBLE)
    assert values.std(0, correction=0) > 0  # 1e-16: the mean rounds
    units = Standardiser.fit(values)
    assert units.scale == 1
    assert units.loc == 0.998


def test_numbers_within_two_roundings_are_one_and_within_three_are_not() -> None:
    rounding = torch.finfo(DOUBLE).eps
    values = 1 + rounding * torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 3.0]], dtype=DOUBLE)
    assert constant_columns(values).tolist() == [[True, False]]
    units = Standardiser.fit(values)
    assert units.loc[0] == 1
    assert_close(units.scale, torch.tensor([1.0, rounding * (14 / 9) ** 0.5], dtype=DOUBLE))


@pytest.mark.parametrize(
    ("shape", "axes", "loc_shape"),
    [
        ((50,), 0, ()),
        ((50, 3), 0, (3,)),
        ((50, 3, 4), (0, 2), (3, 1)),
        ((50, 3, 4, 5), (0, 2, 3), (3, 1, 1)),
    ],
)
def test_fit_agrees_with_numpy_and_inverse_undoes_transform(
    shape: tuple[int, ...], axes: int | tuple[int, ...], loc_shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(0).normal(5.0, 3.0, shape)
    units = Standardiser.fit(torch.tensor(values))
    assert units.loc.shape == units.scale.shape == loc_shape
    assert_close(units.loc.numpy().ravel(), np.atleast_1d(values.mean(axes)), rtol=1e-12, atol=0)
    assert_close(units.scale.numpy().ravel(), np.atleast_1d(values.std(axes)), rtol=1e-12, atol=0)
    back = units.inverse(units.transform(torch.tensor(values)))
    assert_close(back, torch.tensor(values), rtol=1e-12, atol=1e-12)


def test_inverse_carries_predictions_of_any_leading_shape() -> None:
    units = Standardiser(torch.tensor(10.0), torch.tensor(2.0))
    assert_close(units.inverse(torch.ones(4, 3, 1)), torch.full((4, 3, 1), 12.0))


def test_float32_values_keep_their_precision_beside_a_large_loc() -> None:
    units = Standardiser(torch.tensor(1e9 + 1, dtype=DOUBLE), torch.tensor(2.0, dtype=DOUBLE))
    back = units.inverse(torch.tensor([0.0, 0.25]))
    assert_close(back, torch.tensor([1e9 + 1, 1e9 + 1.5], dtype=DOUBLE), rtol=0, atol=0)
    assert_close(units.transform(back), torch.tensor([0.0, 0.25], dtype=DOUBLE), rtol=0, atol=0)


def test_single_precision_is_carried_to_the_units_of_a_vector_in_double_precision() -> None:
    units = Standardiser(torch.tensor(1e9 + 1, dtype=DOUBLE), torch.tensor(2.0, dtype=DOUBLE))
    found = units.transform(torch.tensor([1e9, 1e9 + 64]))  # both are float32 numbers
    assert_close(found, torch.tensor([-0.5, 31.5], dtype=DOUBLE), rtol=0, atol=0)


def test_rows_of_other_columns_than_the_units_are_refused() -> None:
    units = Standardiser(torch.zeros(2), torch.ones(2))
    expected = "values have shape [3, 1], but these units are those of [2]: one column for each"
    for carry in (units.transform, units.inverse):
        with pytest.raises(ShapeError, match=re.escape(expected)):
            carry(torch.zeros(3, 1))


def test_to_changes_the_dtype() -> None:
    units = Standardiser(torch.tensor(10.0), torch.tensor(2.0)).to(dtype=DOUBLE)
    assert units.loc.dtype == units.scale.dtype == DOUBLE


@pytest.mark.parametrize("offset", [1e17, -1e17, 1e20])
def test_large_numbers_that_have_lost_their_differences_are_refused(offset: float) -> None:
    values = torch.randn(30, dtype=DOUBLE, generator=torch.Generator().manual_seed(0)) * 20
    values = values + offset + offset * torch.tensor([1e-15] + 29 * [0.0], dtype=DOUBLE)
    assert 1 < values.unique().numel() < 30
    with pytest.raises(DataError, match=r"y holds numbers near .*1e\+.*subtract an offset"):
        check_steps(values, "y")


@pytest.mark.parametrize("values", [[1e17, 1e17], [1e17, 2e17], [1e200, -1e200], [0.3, 0.1 + 0.2]])
def test_large_numbers_that_range_widely_or_not_at_all_have_units(values: list[float]) -> None:
    column = torch.tensor(values, dtype=DOUBLE)
    check_steps(column, "y")
    assert Standardiser.fit(column).scale.isfinite()


@pytest.mark.parametrize(
    ("loc", "scale", "message"),
    [
        ([0.0], [1.0, 1.0], "must have one shape, got [1] and [2]"),
        ([float("nan")], [1.0], "loc of a Standardiser must be finite, got nan"),
        (
            [0.0],
            [0.0],
            "scale of a Standardiser must be finite and positive, got 0; a constant",
        ),
        ([0.0], [-1.0], "scale of a Standardiser must be finite and positive"),
        ([0.0], [float("inf")], "scale of a Standardiser must be finite and positive"),
    ],
)
def test_units_that_have_no_way_back_are_refused(
    loc: list[float], scale: list[float], message: str
) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        Standardiser(torch.tensor(loc), torch.tensor(scale))
