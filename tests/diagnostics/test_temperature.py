"""Temperatures: the mean, its error for correlated draws, and when they count as off."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyro_bnn.diagnostics import temperature_of
from pyro_bnn.errors import OptionError, ShapeError


def autoregression(mean: float, correlation: float, rng: np.random.Generator) -> np.ndarray:
    """Four chains of 2,000 draws of sd 1 about a mean."""
    values = rng.normal(size=(4, 2_000))
    for s in range(1, values.shape[1]):
        fresh = math.sqrt(1 - correlation**2) * values[:, s]
        values[:, s] = correlation * values[:, s - 1] + fresh
    return mean + values


@pytest.mark.parametrize("correlation", [0.0, 0.9])
def test_the_error_counts_correlated_draws_once(correlation: float) -> None:
    found = temperature_of(autoregression(3.0, correlation, np.random.default_rng(0)), 3.0)
    # the variance of a mean of an AR(1) process: (1 + rho) / (1 - rho) over the number of draws
    expected = math.sqrt((1 + correlation) / (1 - correlation) / 8_000)
    assert found.error == pytest.approx(expected, rel=0.25)
    assert abs(found.mean - 3.0) < 5 * expected


@pytest.mark.parametrize(
    ("mean", "wanted", "is_off"), [(1.2, 1.0, True), (1.05, 1.0, False), (0.4, 0.5, True)]
)
def test_a_tenth_is_off(mean: float, wanted: float, is_off: bool) -> None:
    values = autoregression(0.0, 0.0, np.random.default_rng(1)) * 0.1 + mean
    assert temperature_of(values, wanted).is_off is is_off


def test_what_is_beyond_a_tenth_by_chance_is_not_off() -> None:
    values = np.random.default_rng(2).normal(1.2, 1.0, (4, 20))
    assert abs(values.mean() - 1) > 0.1
    assert not temperature_of(values).is_off


def test_bad_values_are_refused() -> None:
    with pytest.raises(ShapeError, match="at least 4 draws a chain, got 3"):
        temperature_of(np.ones((4, 3)))
    with pytest.raises(OptionError, match="wanted is a temperature above 0, not 0"):
        temperature_of(np.ones((4, 30)), 0.0)
