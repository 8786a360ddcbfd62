"""Stacking weights against a grid, EM by hand and the conditions of the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize_scalar

from pyro_bnn.diagnostics.stacking import slopes, stacked_score, stacking_weights
from pyro_bnn.errors import DataError, ShapeError


def normals(y: np.ndarray, *moments: tuple[float, float]) -> np.ndarray:
    """Log density of each y under each normal ``[N, K]``."""
    return np.stack(
        [-0.5 * ((y - m) / s) ** 2 - np.log(s) - 0.5 * np.log(2 * np.pi) for m, s in moments], 1
    )


def two_clusters(num_rows: int = 200, seed: int = 0) -> np.ndarray:
    """Rows of which 30 % are of one normal and the rest of another, under both."""
    rng = np.random.default_rng(seed)
    y = rng.normal(np.where(rng.random(num_rows) < 0.3, -2, 2), 1)
    return normals(y, (-2, 1), (2, 1))


def em(log_densities: np.ndarray, num_steps: int = 200_000) -> np.ndarray:
    """Expectation maximisation of the weights of a mixture, to its end."""
    p = np.exp(log_densities - log_densities.max(1, keepdims=True))
    w = np.full(p.shape[1], 1 / p.shape[1])
    for _ in range(num_steps):
        shares = w * p / (p @ w)[:, None]
        new = shares.mean(0)
        if np.abs(new - w).max() < 1e-14:
            break
        w = new
    return w


def test_two_weights_are_those_of_a_search_on_a_line() -> None:
    values = two_clusters()
    found = minimize_scalar(
        lambda w: -np.logaddexp(values[:, 0] + np.log(w), values[:, 1] + np.log1p(-w)).sum(),
        bounds=(1e-9, 1 - 1e-9), method="bounded", options={"xatol": 1e-10},
    )  # fmt: skip
    weights = stacking_weights(values)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights[0] == pytest.approx(found.x, abs=1e-5)
    assert weights[0] == pytest.approx(0.3, abs=4 * np.sqrt(0.3 * 0.7 / 200))


@pytest.mark.parametrize("num_distributions", [3, 8])
def test_more_weights_are_those_of_em(num_distributions: int) -> None:
    rng = np.random.default_rng(num_distributions)
    y = rng.standard_t(3, size=300)
    moments = [(float(rng.normal()), float(rng.uniform(0.5, 3))) for _ in range(num_distributions)]
    values = normals(y, *moments)
    found = stacking_weights(values)
    own, its = (len(y) * stacked_score(values, w) for w in (found, em(values)))
    assert own >= its - 2e-6
    assert_allclose(found, em(values), atol=5e-3)


@pytest.mark.parametrize("seed", range(5))
def test_the_weights_obey_the_conditions_of_the_optimum(seed: int) -> None:
    """The slope is N where there is weight, and at most N elsewhere."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 2, size=(100, 6))
    weights = stacking_weights(values)
    g = slopes(np.exp(values), weights)
    assert (g < 1 + 1e-6).all()
    assert_allclose(g[weights > 1e-3], 1, atol=1e-4)
    assert (weights >= 0).all()


def test_a_bad_one_gets_nothing_and_equal_ones_alike() -> None:
    values = two_clusters()[:, :1]
    same = np.concatenate([values, values, values], 1)
    assert_allclose(stacking_weights(same), 1 / 3, atol=1e-12)
    assert stacked_score(same, np.array([1.0, 0, 0])) == pytest.approx(
        stacked_score(same, stacking_weights(same)), abs=1e-12
    )
    bad = np.concatenate([values, values - 3.0], 1)  # e^-3 of the density of every row
    assert_allclose(stacking_weights(bad), [1, 0], atol=1e-6)


def test_one_that_is_impossible_at_one_row_may_have_weight_and_a_row_needs_one() -> None:
    values = np.array([[0.0, -np.inf], [-5.0, 0.0], [-5.0, 0.0]])
    weights = stacking_weights(values)
    # the maximum of log w + 2 log(1 - w (1 - e^-5)): 1 / w = 2 c / (1 - w c), so w = 1 / 3c
    assert weights[0] == pytest.approx(1 / (3 * (1 - np.exp(-5))), abs=1e-4)
    with pytest.raises(DataError, match="1 of 3 rows are impossible under every distribution"):
        stacking_weights(np.array([[0.0, 0.0], [-np.inf, -np.inf], [0.0, 0.0]]))
    with pytest.raises(DataError, match="NaN or"):
        stacking_weights(np.array([[np.nan, 0.0]]))
    with pytest.raises(ShapeError):
        stacking_weights(np.zeros(3))


def test_a_constant_of_each_row_changes_nothing() -> None:
    values = two_clusters()
    shifted = values + np.linspace(-900, 900, len(values))[:, None]
    assert_allclose(stacking_weights(shifted), stacking_weights(values), atol=1e-9)
