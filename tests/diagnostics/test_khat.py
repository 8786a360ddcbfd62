"""k-hat where the tail of the importance ratios is known."""

import numpy as np
import pytest
from scipy import stats

from pyro_bnn.diagnostics.khat import khat, khat_threshold
from pyro_bnn.errors import DataError, ShapeError


@pytest.mark.parametrize("scale", [0.5, 0.7])
def test_khat_of_a_normal_too_narrow_is_the_known_tail_index(scale: float) -> None:
    # r = p/q has a Pareto tail of index 1/k with k = 1 - scale^2 up to a slowly varying factor
    rng = np.random.default_rng(0)
    estimates = []
    for _ in range(20):
        z = rng.normal(0, scale, size=20_000)
        estimates.append(khat(stats.norm.logpdf(z), stats.norm.logpdf(z, 0, scale)))
    assert abs(np.mean(estimates) - (1 - scale**2)) < 0.12


def test_khat_of_the_exact_posterior_passes_and_a_constant_does_not_matter() -> None:
    z = np.random.default_rng(1).normal(size=1_000)
    log_p = stats.norm.logpdf(z)
    noise = 0.01 * z
    first, second = khat(log_p, log_p + noise), khat(log_p + 300.0, log_p + noise)
    assert first < 0.5
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_a_draw_outside_the_support_has_weight_zero() -> None:
    z = np.random.default_rng(2).normal(size=1_000)
    log_p = stats.norm.logpdf(z)
    log_p[0] = -np.inf
    assert np.isfinite(khat(log_p, stats.norm.logpdf(z) + 0.1 * z))


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(ShapeError, match="k-hat needs at least 25 draws, got 24"):
        khat(np.zeros(24), np.zeros(24))


@pytest.mark.parametrize(("log_p", "log_q"), [(np.nan, 0.0), (0.0, -np.inf), (-np.inf, -np.inf)])
def test_undefined_ratios_are_refused(log_p: float, log_q: float) -> None:
    p, q = np.zeros(30), np.zeros(30)
    p[3], q[3] = log_p, log_q
    with pytest.raises(DataError, match=r"1 of 30 importance ratios log_p - log_q are NaN or \+in"):
        khat(p, q)


def test_different_numbers_of_draws_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"log_q must have shape \[30\] to match log_p"):
        khat(np.zeros(30), np.zeros(31))


def test_the_threshold_falls_with_fewer_draws() -> None:
    assert khat_threshold(1_000) == pytest.approx(2 / 3)
    assert khat_threshold(10_000) == 0.7
