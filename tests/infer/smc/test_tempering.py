"""Weights between two temperatures, against sums written out."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyro_bnn.infer.smc import tempering

L = np.array([-3.0, -1.0, -7.0, -2.0, -40.0])


def test_the_ess_is_the_sum_squared_over_the_sum_of_squares() -> None:
    w = np.exp(0.4 * L)
    assert tempering.effective_share(L, 0.4) == pytest.approx(w.sum() ** 2 / (w**2).sum() / 5)
    assert tempering.log_mean_weight(L, 0.4) == pytest.approx(math.log(w.mean()))


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e9])
def test_the_next_temperature_has_the_share(scale: float) -> None:
    b = tempering.next_temperature(scale * L, 0.25, 0.5)
    assert 0.25 < b <= 1
    # doubles near 0.25 are 6e-17 apart
    share = tempering.effective_share(scale * L, b - 0.25)
    assert share == pytest.approx(0.5, rel=max(1e-9, 1e-15 * scale))


def test_it_ends_at_one() -> None:
    assert tempering.next_temperature(1e-3 * L, 0.25, 0.5) == 1


def test_particles_without_density_do_not_count_for_temperatures_but_for_the_evidence() -> None:
    lost = np.concatenate([L, [-np.inf] * 15])
    b = tempering.next_temperature(lost, 0.0, 0.5)
    assert b == tempering.next_temperature(L, 0.0, 0.5)
    four = tempering.log_mean_weight(L, b) - math.log(4)
    assert tempering.log_mean_weight(lost, b) == pytest.approx(four)
    chosen = tempering.systematic(lost, b, 100, 0.3)
    assert chosen.max() < 5


def test_each_is_drawn_as_often_as_its_weight_says() -> None:
    w = np.exp(0.7 * L)
    wanted = 50 * w / w.sum()
    counts = np.zeros(5)
    for uniform in (np.arange(1_000) + 0.5) / 1_000:
        chosen = tempering.systematic(L, 0.7, 50, uniform)
        assert bool((np.diff(chosen) >= 0).all())
        own = np.bincount(chosen, minlength=5)
        assert bool((np.abs(own - wanted) < 1).all())
        counts += own
    np.testing.assert_allclose(counts / 1_000, wanted, atol=2e-3)


def test_islands_are_combined_by_the_mean_of_their_evidences() -> None:
    found = np.array([-10.0, -11.0, -10.5])
    value, error = tempering.combined(found)
    assert value == pytest.approx(math.log(np.exp(found).mean()))
    assert error == pytest.approx(0.5 / 3**0.5)
    alone, unknown = tempering.combined(found[:1])
    assert alone == pytest.approx(-10)
    assert math.isnan(unknown)


def test_correlations() -> None:
    a = np.arange(5.0)
    assert tempering.correlation(a, 2 * a + 1) == pytest.approx(1)
    assert tempering.correlation(a, np.array([1.0, 0, 2, 0, 1])) == pytest.approx(0)
    assert tempering.correlation(a, np.ones(5)) == 1
    assert tempering.correlation(a, np.array([-np.inf, 4, 3, 2, 1])) == pytest.approx(-1)
