"""Spread and mean row by row: closed forms, and errors that are the spread over simulations."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pyro_bnn.diagnostics import row_by_row
from pyro_bnn.diagnostics.row_by_row import mean_shift, sd_ratio
from pyro_bnn.errors import ShapeError


def test_half_the_rows_too_narrow_and_half_too_wide_are_both_seen() -> None:
    """The mean over rows before dividing gives 0.994."""
    rng = np.random.default_rng(0)
    reference = rng.standard_normal((4, 300, 44, 1))
    scale = np.where(np.arange(44) % 2, 0.3, 1.7)[:, None]
    ratio = sd_ratio(scale * rng.standard_normal((400, 44, 1)), reference)
    # an sd of 400 draws has a relative error of 1 / sqrt(800), of 1,200 of 1 / sqrt(2,400)
    error = np.hypot(1 / np.sqrt(800), 1 / np.sqrt(2_400))
    assert_allclose(ratio.values, scale[:, 0], rtol=5 * error)
    for level, expected in ((0.1, 0.3), (0.9, 1.7)):
        value, of_value = ratio.quantile(level)
        assert abs(value / expected - 1) < 4 * error
        assert of_value < 2 * error * expected


def test_a_mean_three_sds_off_is_a_shift_and_no_spread() -> None:
    rng = np.random.default_rng(1)
    reference = 0.2 * rng.standard_normal((4, 300, 44, 1))
    f = 0.2 * (rng.standard_normal((400, 44, 1)) - 3)
    assert_allclose(mean_shift(f, reference).values, 3, atol=0.5)
    assert abs(mean_shift(f, reference).value - 3) < 0.05
    assert abs(sd_ratio(f, reference).value - 1) < 0.05


def test_quantiles_are_over_rows_and_their_errors_of_the_draws() -> None:
    """Of independent rows with one ratio, whose order is all noise, they are too large at most."""
    rng = np.random.default_rng(2)
    found = [
        sd_ratio(rng.normal(size=(400, 60, 1)), rng.normal(size=(4, 100, 60, 1)))
        for _ in range(200)
    ]
    for level in (0.1, 0.5, 0.9):
        values, errors = np.array([ratio.quantile(level) for ratio in found]).T
        assert 0.9 < np.sqrt(np.mean(errors**2)) / values.std() < 2


def test_errors_of_rows_that_share_their_draws_are_those_of_one_row() -> None:
    """A function of one weight: all ratios move together, and rows add no knowledge."""
    rng = np.random.default_rng(3)
    x = np.linspace(1, 2, 50)[:, None]
    found = [
        sd_ratio(x * rng.normal(size=(400, 1, 1)), x * rng.normal(size=(4, 100, 1, 1)))
        for _ in range(200)
    ]
    values, errors = np.array([ratio.quantile(0.5) for ratio in found]).T
    expected = np.sqrt(1 / 800 + 1 / 800)
    assert 0.8 < values.std() / expected < 1.2
    assert 0.8 < np.sqrt(np.mean(errors**2)) / expected < 1.2


def test_the_error_of_a_shift_is_its_spread_over_simulations() -> None:
    rng = np.random.default_rng(4)
    found = [
        mean_shift(1 + rng.normal(size=(400, 1, 1)), rng.normal(size=(4, 100, 1, 1)))
        for _ in range(300)
    ]
    values, errors = np.array([shift.quantile(0.5) for shift in found]).T
    # means of 400 draws on either side, and the sd that the shift of 1 is divided by
    expected = np.sqrt(1 / 400 + 1 / 400 + 1 / 800)
    assert 0.85 < values.std() / expected < 1.15
    assert 0.8 < np.sqrt(np.mean(errors**2)) / expected < 1.2


def test_a_chain_of_correlated_draws_has_a_larger_error() -> None:
    rng = np.random.default_rng(5)
    f = rng.normal(size=(400, 20, 1))
    free = rng.normal(size=(4, 200, 20, 1))
    stuck = np.repeat(rng.normal(size=(4, 10, 20, 1)), 20, axis=1)  # ten draws a chain, kept
    errors = [sd_ratio(f, reference).standard_error for reference in (free, stuck)]
    assert errors[1] > 2 * errors[0]


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0])
def test_sd_ratio_of_scaled_draws_is_the_scale_within_its_error(scale: float) -> None:
    rng = np.random.default_rng(7)
    ratios = [
        sd_ratio(scale * rng.normal(size=(400, 1, 1)), rng.normal(size=(4, 100, 1, 1)))
        for _ in range(200)
    ]
    values = np.array([ratio.value for ratio in ratios])
    assert abs(values.mean() - scale) < 5 * values.std() / np.sqrt(200) + 0.01 * scale
    errors = np.array([ratio.standard_error for ratio in ratios])
    assert 0.7 < errors.mean() / values.std() < 1.4  # the stated error is the actual spread


def test_the_sd_of_chains_that_disagree_is_that_of_all_their_draws() -> None:
    chains = np.array([[-4.0, -2.0, -4.0, -2.0], [2.0, 4.0, 2.0, 4.0]])  # means -3, 3; sds 1
    f = np.tile([-1.0, 1.0], 8).reshape(16, 1, 1)
    assert_allclose(sd_ratio(f, chains.reshape(2, 4, 1, 1)).value, 1 / np.sqrt(9 + 1), rtol=1e-14)


def test_sd_ratio_of_a_point_estimate_is_exactly_zero() -> None:
    reference = np.random.default_rng(8).normal(size=(2, 50, 3, 1))
    ratio = sd_ratio(np.full((10, 3, 1), 0.1), reference)
    assert (ratio.value, ratio.standard_error) == (0.0, 0.0)


def test_the_error_of_a_ratio_from_few_draws_is_unknown() -> None:
    reference = np.random.default_rng(9).normal(size=(2, 50, 3, 1))
    assert np.isnan(sd_ratio(reference[0, :5], reference).standard_error)


def test_a_ratio_to_a_reference_without_spread_is_undefined() -> None:
    f = np.random.default_rng(10).normal(size=(50, 3, 1))
    assert np.isnan(sd_ratio(f, np.ones((2, 50, 3, 1))).value)


def test_rows_where_the_reference_has_no_spread_that_matters_are_left_out() -> None:
    rng = np.random.default_rng(11)
    scale = np.array([0.0, 0.005, 0.02, 1.0])[:, None]
    reference, f = scale * rng.normal(size=(4, 300, 4, 1)), rng.normal(size=(400, 4, 1))
    assert sd_ratio(f, reference).values.shape == (3,)
    assert sd_ratio(f, reference, least_sd=0.01).values.shape == (2,)
    near = reference[0] + 0.009 * np.sign(scale)  # means that do not matter either
    assert mean_shift(near, reference, least_sd=0.01).values.shape == (2,)


def test_a_mean_that_is_off_where_the_reference_is_certain_is_a_shift() -> None:
    """Nine of ten rows with a probability of 0.99, of which the method says 0.6."""
    rng = np.random.default_rng(12)
    sd = np.where(np.arange(100) < 95, 0.005, 0.05)[:, None]
    reference = 0.99 + sd * rng.normal(size=(4, 300, 100, 1))
    f = np.where(sd < 0.01, 0.6, 0.99) + sd * rng.normal(size=(400, 100, 1))
    shift = mean_shift(f, reference, least_sd=0.01)
    assert_allclose(np.sort(shift.values)[-95:], 0.39 / 0.01, rtol=0.02)
    assert shift.values.shape == (100,)
    assert sd_ratio(f, reference, least_sd=0.01).values.shape == (5,)
    assert shift.errors.max() < 0.3  # of means of 400 and 1,200 draws over the least sd


def test_columns_at_a_time_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(12)
    f, reference = rng.normal(size=(40, 9, 2)), rng.normal(size=(2, 30, 9, 2))
    whole = sd_ratio(f, reference)
    monkeypatch.setattr(row_by_row, "NUMBERS_AT_ONCE", 200)
    parts = sd_ratio(f, reference)
    assert_allclose(parts.values, whole.values, rtol=1e-12)
    assert_allclose(parts.quantile(0.1), whole.quantile(0.1), rtol=1e-12)


def test_values_without_a_block_are_those_of_the_other_draws() -> None:
    rng = np.random.default_rng(13)
    f, reference = rng.normal(size=(80, 5, 1)), 2 + rng.normal(size=(4, 30, 5, 1))
    ratio, shift = sd_ratio(f, reference), mean_shift(f, reference)
    rest, chains = f[10:, :, 0], reference[1:, :, :, 0].reshape(-1, 5)
    whole = reference[..., 0].reshape(-1, 5)
    assert_allclose(ratio.without[0][0], rest.std(0) / whole.std(0), rtol=1e-12)
    assert_allclose(ratio.without[1][0], f[..., 0].std(0) / chains.std(0), rtol=1e-12)
    expected = np.abs(f[..., 0].mean(0) - chains.mean(0)) / chains.std(0)
    assert_allclose(shift.without[1][0], expected, rtol=1e-12)


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"f and reference must agree on points and outputs"):
        sd_ratio(np.zeros((5, 2, 1)), np.zeros((2, 5, 3, 1)))
    with pytest.raises(ShapeError, match=r"the reference needs at least 2 draws to be halved"):
        mean_shift(np.zeros((5, 2, 1)), np.zeros((1, 1, 2, 1)))
