"""The trend of an objective on traces whose truth is known."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import signal

from pyro_bnn.diagnostics.trend import objective_trend
from pyro_bnn.errors import DataError, ShapeError


def _cosine(num_steps: int) -> np.ndarray:
    return 0.5 * (1 + np.cos(np.pi * np.arange(num_steps) / num_steps))


def _correlated(num_steps: int, correlation: float, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=num_steps)
    return np.asarray(signal.lfilter([1.0], [1.0, -correlation], noise))


def test_the_gain_of_a_straight_line_is_its_fall_over_the_window() -> None:
    trend = objective_trend(500.0 - 0.02 * np.arange(8_000.0))
    assert trend is not None
    assert_allclose(trend.gain, 0.02 * (trend.num_steps - 1), rtol=1e-10)
    assert trend.standard_error < 1e-6
    assert 0.24 < trend.num_steps / 8_000 <= 0.25


def test_a_rising_loss_has_a_negative_gain() -> None:
    trend = objective_trend(0.01 * np.arange(2_000.0))
    assert trend is not None
    assert trend.gain < 0


@pytest.mark.parametrize("correlation", [0.0, 0.9, 0.98])
def test_correlated_noise_without_trend_is_seldom_called_a_trend(correlation: float) -> None:
    trends = [objective_trend(_correlated(4_000, correlation, seed)) for seed in range(200)]
    alarms = [trend.gain > 2 * trend.standard_error for trend in trends if trend is not None]
    assert len(alarms) == 200
    assert np.mean(alarms) < 0.08  # about 1 in 40 expected


def test_a_clear_trend_in_noise_is_found() -> None:
    trend = objective_trend(_correlated(4_000, 0.9, 0) - 0.01 * np.arange(4_000))
    assert trend is not None
    assert trend.gain > 2 * trend.standard_error
    assert abs(trend.gain - 10) < 5 * trend.standard_error


def test_the_drop_that_a_falling_learning_rate_brings_is_not_a_trend() -> None:
    rates = _cosine(4_000)
    losses = 50.0 * rates + 0.1 * np.random.default_rng(0).normal(size=4_000)
    with_schedule = objective_trend(losses, rates)
    without = objective_trend(losses)
    assert with_schedule is not None
    assert without is not None
    assert abs(with_schedule.gain) < 3 * with_schedule.standard_error
    assert without.gain > 2 * without.standard_error  # what ignoring the schedule would say


def test_a_run_frozen_by_its_schedule_before_it_converged_is_found() -> None:
    rates = _cosine(4_000)
    travelled = rates.cumsum()
    losses = 300.0 - 0.05 * travelled  # improves as long as it may move
    trend = objective_trend(losses, rates)
    tail = objective_trend(losses)  # a plain window misses most of it
    assert trend is not None
    assert tail is not None
    share = travelled[-trend.num_steps] / travelled[-1]  # whole blocks, so a little under 1/4
    assert 0.75 < share < 0.76
    assert_allclose(trend.gain, 0.05 * travelled[-1] * (1 - share), rtol=1e-6)
    assert tail.gain < trend.gain / 3


def test_a_run_too_short_to_smooth_has_no_trend() -> None:
    assert objective_trend(np.zeros(380)) is None
    assert objective_trend(np.zeros(400)) is not None


def test_a_flat_loss_has_no_gain_and_no_error() -> None:
    trend = objective_trend(np.full(1_000, 3.0))
    assert trend is not None
    assert_allclose([trend.gain, trend.standard_error], 0.0, atol=1e-9)


def _right_skewed(num_runs: int, num_steps: int, seed: int) -> np.ndarray:
    """Noise as of one-particle ELBOs: independent, of unit variance, skewness 2.2, kurtosis 11."""
    draws = np.random.default_rng(seed).gamma(0.8, size=(num_runs, num_steps))
    return np.asarray((draws - 0.8) / np.sqrt(0.8))


@pytest.mark.parametrize(("num_steps", "schedule"), [(500, "constant"), (2_000, "cosine")])
def test_verdicts_on_traces_of_500_steps_and_more(num_steps: int, schedule: str) -> None:
    rates = np.ones(num_steps) if schedule == "constant" else _cosine(num_steps)
    elapsed = rates.cumsum() / rates.sum()
    noise = 2.0 * _right_skewed(300, num_steps, seed=3) + 10.0 * rates

    def share(fall: float) -> float:
        """Of traces found to rise, that fall by so much over the last quarter."""
        traces = [objective_trend(each - 4 * fall * elapsed, rates) for each in noise]
        return float(np.mean([trend is not None and trend.is_rising for trend in traces]))

    assert share(0.0) < 0.05 + 2 * np.sqrt(0.05 * 0.95 / 300)
    assert share(5.0) > 0.9
    assert share(20.0) == 1.0


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_what_could_have_been_seen_is_seen_in_nine_of_ten_runs(schedule: str) -> None:
    rates = np.ones(2_000) if schedule == "constant" else _cosine(2_000)
    elapsed = rates.cumsum() / rates.sum()
    noise = 10.0 * _right_skewed(400, 2_000, seed=4)
    pilot = [objective_trend(each, rates) for each in noise[:50]]
    fall = float(np.median([trend.detectable for trend in pilot if trend is not None]))
    found = [objective_trend(each - 4 * fall * elapsed, rates) for each in noise]
    power = np.mean([trend.is_rising for trend in found if trend is not None])
    assert abs(power - 0.9) < 0.06  # its error over runs is 0.015, that of the pilot 0.02


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_larger_gain_than_the_bound_is_rare(schedule: str) -> None:
    rates = np.ones(1_000) if schedule == "constant" else _cosine(1_000)
    elapsed = rates.cumsum() / rates.sum()
    noise = 5.0 * _right_skewed(2_000, 1_000, seed=5)
    # without an excess both bounds are of the same gain, and each would be passed in 5 of 100
    for excess in (3.0 * rates, 0.0):  # of which the whole fall has more than the trend
        found = [objective_trend(each + excess - 4 * 2.0 * elapsed, rates) for each in noise]
        exceeded = [trend.largest < 2.0 for trend in found if trend is not None]
        assert len(exceeded) == 2_000
        assert np.mean(exceeded) < 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2_000)


def test_the_bound_is_of_the_whole_fall_where_that_is_known_better() -> None:
    rates = _cosine(2_000)
    losses = 5.0 * rates + 10.0 * _right_skewed(1, 2_000, seed=6)[0]
    trend = objective_trend(losses, rates)
    assert trend is not None
    assert trend.largest < trend.gain + 1.7 * trend.standard_error  # of the trend alone


def test_bad_input_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"learning_rates must have shape \[400\] to match losses"):
        objective_trend(np.zeros(400), np.ones(399))
    with pytest.raises(ShapeError, match=r"losses must have shape \[T\]"):
        objective_trend(np.zeros((2, 400)))
    with pytest.raises(DataError, match="1 of 400 losses not finite"):
        objective_trend(np.append(np.zeros(399), np.nan))
    with pytest.raises(DataError, match="learning_rates must be at least 0, and not all 0"):
        objective_trend(np.zeros(400), np.zeros(400))
