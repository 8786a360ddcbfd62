"""Calibration on synthetic forecasts whose truth is known, and bands against scipy."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import stats

from pyro_bnn.diagnostics.bands import binomial_band
from pyro_bnn.diagnostics.calibration import (
    coverage,
    ece,
    ece_floor,
    pit,
    pit_difference,
    pit_histogram,
    reliability_curve,
)
from pyro_bnn.diagnostics.scores import crps
from pyro_bnn.errors import OptionError, ShapeError


@pytest.mark.parametrize("num_draws", [1, 9, 400])
def test_pit_of_a_calibrated_forecast_is_uniform_at_any_number_of_draws(num_draws: int) -> None:
    rng = np.random.default_rng(0)
    values = pit(rng.normal(size=(num_draws, 5_000)), rng.normal(size=5_000))
    assert stats.kstest(values, "uniform").pvalue > 0.01


def test_pit_of_calibrated_counts_is_uniform_in_spite_of_ties() -> None:
    rng = np.random.default_rng(1)
    values = pit(rng.poisson(2.0, size=(50, 5_000)), rng.poisson(2.0, size=5_000))
    assert stats.kstest(values, "uniform").pvalue > 0.01


def test_what_is_not_known_has_no_pit() -> None:
    rng = np.random.default_rng(0)
    draws, y = rng.normal(size=(99, 40)), rng.normal(size=40)
    expected = pit(draws, y)
    y[3], draws[5, 7] = np.nan, np.nan  # an observation, one draw of another
    is_lost = np.isin(np.arange(40), [3, 7])
    found = pit(draws, y)
    assert_array_equal(found, np.where(is_lost, np.nan, expected))
    assert_array_equal(np.isnan(crps(draws, y)), is_lost)
    assert np.isnan(coverage(found).observed)
    simulated = rng.uniform(size=(199, 40))
    assert pit_histogram(found, simulated).counts.sum() == 38
    assert np.isnan(pit_difference(found, simulated).difference).all()


def test_pit_of_a_forecast_that_is_too_wide_is_known() -> None:
    rng = np.random.default_rng(2)
    values = pit(2 * rng.normal(size=(1_000, 5_000)), rng.normal(size=5_000))
    exact = 2 * stats.norm.cdf(-0.5 * stats.norm.ppf(0.75) * 4)  # |z| beyond the wide quartiles
    observed = np.mean((values < 0.25) | (values > 0.75))
    error = np.sqrt(exact * (1 - exact) / 5_000)
    assert abs(observed - exact) < 5 * error


@pytest.mark.parametrize(("n", "p"), [(44, 0.95), (200, 0.5), (10, 1.0), (10, 0.0)])
def test_binomial_band_is_the_tightest_with_half_a_percent_in_each_tail(n: int, p: float) -> None:
    low, high = binomial_band(n, p)
    law = stats.binom(n, p)
    assert law.cdf(low - 1) <= 0.005 + 1e-12 < law.cdf(low) + 1e-12
    assert law.sf(high) <= 0.005 + 1e-12
    assert high == 0 or law.sf(high - 1) > 0.005 - 1e-12


def test_coverage_of_a_calibrated_forecast_is_nominal() -> None:
    rng = np.random.default_rng(3)
    result = coverage(pit(rng.normal(size=(60, 4_000)), rng.normal(size=4_000)))
    assert result.consistent
    assert abs(result.observed - 0.95) < 5 * np.sqrt(0.95 * 0.05 / 4_000)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_coverage_of_a_wrong_width_is_known_and_leaves_the_band(scale: float) -> None:
    rng = np.random.default_rng(4)
    result = coverage(pit(scale * rng.normal(size=(2_000, 4_000)), rng.normal(size=4_000)))
    exact = 1 - 2 * stats.norm.cdf(scale * stats.norm.ppf(0.025))
    assert abs(result.observed - exact) < 5 * np.sqrt(exact * (1 - exact) / 4_000)
    assert not result.consistent


def test_the_band_of_coverage_is_the_binomial_one() -> None:
    result = coverage(np.full(44, 0.5))
    assert (result.low * 44, result.high * 44) == binomial_band(44, 0.95)
    assert result.num_points == 44
    assert result.consistent  # 44 of 44 is no rare count at 95 %


@pytest.mark.parametrize("level", [0.0, 1.0, 95.0])
def test_a_level_outside_zero_to_one_is_refused(level: float) -> None:
    with pytest.raises(OptionError, match=r"level must lie between 0 and 1 \(0.95 for 95 %\)"):
        coverage(np.full(3, 0.5), level)


def _calibrated(num_points: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(3), size=num_points)
    y = (rng.uniform(size=(num_points, 1)) > probs.cumsum(1)).sum(1)
    return probs, y


def test_ece_of_a_calibrated_forecast_falls_to_zero() -> None:
    errors = [ece(*_calibrated(n)) for n in (100, 10_000, 1_000_000)]
    assert errors[0] > 0  # the plug-in bias
    assert errors[1] < errors[0] / 3
    assert errors[2] < 0.002


def test_ece_by_hand() -> None:
    probs = np.array([[0.9, 0.1], [0.9, 0.1], [0.4, 0.6], [0.4, 0.6], [0.4, 0.6]])
    y = np.array([0, 1, 1, 1, 1])  # accuracy 1/2 at 0.9, 1 at 0.6
    assert_allclose(ece(probs, y), 2 / 5 * 0.4 + 3 / 5 * 0.4, rtol=1e-12)
    probs[2:] = [0.25, 0.75]
    assert_allclose(ece(probs, y), 2 / 5 * 0.4 + 3 / 5 * 0.25, rtol=1e-12)


def test_ece_floor_is_the_ece_of_a_calibrated_forecast() -> None:
    probs, _ = _calibrated(200)
    own = [
        ece(probs, (np.random.default_rng(s).uniform(size=(200, 1)) > probs.cumsum(1)).sum(1))
        for s in range(400)
    ]
    error = np.std(own) * np.sqrt(1 / 400 + 1 / 200)
    assert abs(ece_floor(probs) - np.mean(own)) < 5 * error


def test_reliability_bins_hold_every_point_once() -> None:
    probs = np.array([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8], [0.8, 0.2]])
    curve = reliability_curve(probs, np.array([0, 0, 0, 0]), num_bins=10)
    assert curve.count.tolist() == [0, 0, 0, 0, 1, 0, 0, 2, 0, 1]
    assert_allclose(curve.accuracy[[4, 7, 9]], [1.0, 0.5, 1.0])
    assert_allclose(curve.confidence[[4, 7, 9]], [0.5, 0.8, 1.0])
    assert np.isnan(curve.accuracy[0])


def test_reliability_band_is_binomial_around_the_confidence() -> None:
    probs = np.array([[0.8, 0.2]] * 40)
    curve = reliability_curve(probs, np.zeros(40, dtype=int))
    low, high = binomial_band(40, 0.8)
    assert_allclose([curve.low[11], curve.high[11]], [low / 40, high / 40])


def test_shapes_are_checked() -> None:
    with pytest.raises(ShapeError, match=r"y must have shape \[3\] to match draws"):
        pit(np.zeros((5, 3)), np.zeros((3, 1)))
    with pytest.raises(ShapeError, match=r"pit must have shape \[N\]"):
        coverage(np.zeros((3, 1)))
    with pytest.raises(ShapeError, match=r"y must have shape \[3\] to match probs"):
        ece(np.ones((3, 2)), np.zeros((3, 1)))
    with pytest.raises(ShapeError, match=r"probs must have shape \[N, C\]"):
        ece_floor(np.zeros(3))
