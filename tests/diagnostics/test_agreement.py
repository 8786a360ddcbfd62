"""What chains agree on: shares of variance and pooled scores against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyro_bnn.diagnostics import between_share, function_convergence, pooled_score
from pyro_bnn.errors import ShapeError


def test_share_between_chains_is_of_the_pooled_variance() -> None:
    rng = np.random.default_rng(0)
    f = rng.normal(size=(3, 200, 4, 2)) + rng.normal(size=(3, 1, 4, 2))
    within = np.mean([f[c].var(0) for c in range(3)], 0)
    pooled = f.reshape(-1, 4, 2).var(0)  # the law of total variance
    np.testing.assert_allclose(between_share(f), 1 - within / pooled, rtol=1e-10)


def test_share_of_chains_that_stand_still_is_one_and_of_equal_draws_unknown() -> None:
    f = np.broadcast_to(np.array([0.0, 1.0]).reshape(2, 1, 1, 1), (2, 9, 1, 1))
    assert between_share(f) == 1.0
    assert np.isnan(between_share(np.zeros((2, 9, 1, 1))))
    mixed = np.random.default_rng(1).normal(size=(4, 1_000, 5, 1))
    assert between_share(mixed).max() < 0.01
    assert function_convergence(mixed).converged


def test_pooled_score_is_of_the_mean_density_and_above_the_mean_of_the_chains() -> None:
    density = np.array([[[0.1, 0.8], [0.3, 0.4]], [[0.5, 0.2], [0.1, 0.6]]])  # [C, S, N]
    score = pooled_score(np.log(density))
    assert score.pooled == pytest.approx((math.log(0.25) + math.log(0.5)) / 2, rel=1e-12)
    each = ((math.log(0.2) + math.log(0.6)) / 2, (math.log(0.3) + math.log(0.4)) / 2)
    assert score.each == pytest.approx(each, rel=1e-12)
    assert score.gain == pytest.approx(score.pooled - sum(each) / 2, rel=1e-12)
    assert score.gain > 0


def test_pooled_score_of_tiny_densities_does_not_underflow() -> None:
    score = pooled_score(np.full((2, 3, 4), -5_000.0))
    assert (score.pooled, score.gain) == (-5_000.0, 0.0)
    lost = pooled_score(np.full((2, 3, 4), -np.inf))
    assert lost.pooled == -np.inf


@pytest.mark.parametrize("check", [between_share, pooled_score])
def test_axes_are_checked(check: object) -> None:
    with pytest.raises(ShapeError, match="must have shape"):
        check(np.zeros(3))  # type: ignore[operator]
