"""The Monte Carlo error of log scores against closed forms, and against repeats of the draws.

The posterior of a location is N(0, V), y given it is N(location, 1): the moments over draws of the
densities of two points are Normal densities of one and of both.
"""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import signal, stats

from pyro_bnn.diagnostics.ranking import rank
from pyro_bnn.diagnostics.scores import log_score, log_score_error
from pyro_bnn.errors import ShapeError

V = 0.3
PHI = 0.8  # correlation of consecutive draws of a chain
NUM_REPEATS = 200


def log_likelihoods(
    y: np.ndarray, rng: np.random.Generator, num_draws: int, num_chains: int = 1, phi: float = 0.0
) -> np.ndarray:
    """Log densities ``[C, S, N]`` given draws of stationary chains of first order."""
    shocks = rng.normal(size=(num_chains, num_draws))
    shocks[:, 1:] *= np.sqrt(1 - phi**2)
    loc = signal.lfilter([1.0], [1.0, -phi], shocks)  # phi times the one before, and a shock
    error = y - np.sqrt(V) * loc[..., None]  # [C, S, N]
    return np.asarray(-0.5 * error**2 - 0.5 * np.log(2 * np.pi))


def variance_of_a_draw(y: np.ndarray) -> float:
    """Variance over draws of the mean over points of p(y_n | draw) / p(y_n), in closed form."""
    single = stats.norm.pdf(y, 0.0, np.sqrt(1 + V))  # [N]
    pairs = np.stack(np.broadcast_arrays(y[:, None], y), -1)  # [N, N, 2]
    both = stats.multivariate_normal([0.0, 0.0], [[1 + V, V], [V, 1 + V]]).pdf(pairs)
    return float((both / np.outer(single, single) - 1).mean())


def points(num_points: int) -> np.ndarray:
    return np.random.default_rng(0).normal(0.4, 1.1, size=num_points)


@pytest.mark.slow("about a second")
def test_the_error_of_independent_draws_is_that_of_the_delta_method() -> None:
    y, num_draws = points(50), 1_000
    rng = np.random.default_rng(1)
    squares = [
        log_score_error(log_likelihoods(y, rng, num_draws), independent=True) ** 2
        for _ in range(NUM_REPEATS)
    ]
    expected = variance_of_a_draw(y) / num_draws
    z = (np.mean(squares) - expected) / (np.std(squares, ddof=1) / np.sqrt(NUM_REPEATS))
    assert abs(z) < 4


@pytest.mark.slow("many repeats")
@pytest.mark.parametrize("phi", [0.0, PHI])
def test_the_error_is_the_sd_of_the_score_over_repeats(phi: float) -> None:
    y = points(100)
    rng = np.random.default_rng(2)
    scores, squares = [], []
    for _ in range(NUM_REPEATS):
        draws = log_likelihoods(y, rng, 500, num_chains=2, phi=phi)
        scores.append(log_score(draws.reshape(-1, len(y))).mean())
        squares.append(log_score_error(draws, independent=phi == 0) ** 2)
    ratio = np.var(scores, ddof=1) / np.mean(squares)
    assert abs(np.log(ratio)) / np.sqrt(2 / (NUM_REPEATS - 1)) < 4


@pytest.mark.slow("many repeats")
@pytest.mark.parametrize("phi", [pytest.param(0.0, marks=pytest.mark.soak), PHI])
def test_draws_of_one_posterior_are_ranked_apart_as_seldom_as_is_said(phi: float) -> None:
    """Many points and few draws: the error of the points alone calls most of these different."""
    y = points(500)
    rng = np.random.default_rng(3)
    apart = by_points_alone = 0
    for _ in range(NUM_REPEATS):
        draws = {
            "direct": (log_likelihoods(y, rng, 300), True),
            "chains": (log_likelihoods(y, rng, 150, num_chains=2, phi=phi), phi == 0),
        }
        scores = {name: log_score(of.reshape(-1, len(y))) for name, (of, _) in draws.items()}
        errors = {name: log_score_error(of, independent=free) for name, (of, free) in draws.items()}
        apart += rank(scores, errors)[1].is_behind
        by_points_alone += rank(scores)[1].is_behind
    assert apart <= stats.binom.ppf(0.999, NUM_REPEATS, 0.05)
    assert by_points_alone > 0.3 * NUM_REPEATS


def test_two_draws_by_hand() -> None:
    densities = np.array([[[0.1, 0.6], [0.3, 0.2]]])  # means 0.2 and 0.4: w is 1 and 1
    assert_allclose(log_score_error(np.log(densities), independent=True), 0.0, atol=1e-15)
    densities = np.array([[[0.1, 0.2], [0.3, 0.6]]])  # w is 0.5 and 1.5, their variance 1 / 2
    assert_allclose(log_score_error(np.log(densities), independent=True), 0.5, rtol=1e-12)


def test_a_draw_alone_has_no_error() -> None:
    assert log_score_error(np.array([[[-1.0, -2.0]]])) == 0.0


def test_three_draws_of_a_chain_do_not_tell_their_error() -> None:
    assert np.isnan(log_score_error(np.log([[[0.1], [0.3], [0.2]]])))


def test_an_impossible_point_adds_nothing() -> None:
    densities = np.array([[[0.1, 0.0], [0.3, 0.0]]])  # w is 0.25 and 0.75
    with np.errstate(divide="ignore"):
        assert_allclose(log_score_error(np.log(densities), independent=True), 0.25, rtol=1e-12)


def test_draws_without_chains_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"log_likelihood must have shape \[C, S, N\]"):
        log_score_error(np.zeros((5, 3)))
