"""Scores against closed forms."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pyro_bnn.diagnostics.scores import (
    accuracy,
    brier,
    crps,
    log_score,
    moment_matched_log_score,
    rmse,
)
from pyro_bnn.errors import ShapeError


def test_log_score_is_the_log_of_the_mean_density() -> None:
    densities = np.array([[0.1, 2.0, 1e-3], [0.3, 4.0, 1e-5]])
    assert_allclose(log_score(np.log(densities)), np.log(densities.mean(0)), rtol=1e-12)


def test_log_score_of_densities_that_underflow_is_finite() -> None:
    assert_allclose(log_score(np.full((4, 1), -5_000.0)), [-5_000.0], rtol=1e-14)


def test_log_score_of_one_impossible_draw_among_two_loses_log_two() -> None:
    assert_allclose(log_score(np.array([[-np.inf], [0.0]])), [-np.log(2)], rtol=1e-14)


def test_mixture_nll_is_at_most_the_mean_nll_of_draws() -> None:
    log_likelihood = np.random.default_rng(0).normal(size=(50, 200))
    mixture_nll, mean_nll = -log_score(log_likelihood), -log_likelihood.mean(0)
    assert (mixture_nll < mean_nll).all()


def test_moment_matched_score_differs_from_the_mixture_of_two_far_components() -> None:
    means, y = np.array([[-3.0], [3.0]]), np.array([3.0])
    mixture = log_score(stats.norm.logpdf(y, means, 1.0))
    matched = moment_matched_log_score(means.mean(0), np.array([np.sqrt(1 + 9)]), y)
    assert_allclose(matched, stats.norm.logpdf(3.0, 0.0, np.sqrt(10)), rtol=1e-12)
    assert mixture[0] - matched[0] > 0.5


def test_crps_of_normal_draws_matches_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    y = np.array([-1.0, 0.0, 2.5])
    loc, scale = 0.5, 2.0
    z = (y - loc) / scale
    exact = scale * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / np.sqrt(np.pi))
    repeats = np.stack([crps(rng.normal(loc, scale, size=(40, 3)), y) for _ in range(2_000)])
    error = repeats.std(0, ddof=1) / np.sqrt(len(repeats))
    assert (np.abs(repeats.mean(0) - exact) / error < 5).all()


def test_crps_equals_the_double_sum() -> None:
    rng = np.random.default_rng(1)
    draws, y = rng.normal(size=(7, 4)), rng.normal(size=4)
    pairs = np.abs(draws[:, None] - draws[None]).sum((0, 1))
    expected = np.abs(draws - y).mean(0) - pairs / (2 * 7 * 6)
    assert_allclose(crps(draws, y), expected, rtol=1e-12)


def test_crps_of_one_draw_is_the_absolute_error() -> None:
    assert_allclose(crps(np.array([[1.0, 5.0]]), np.array([3.0, 4.0])), [2.0, 1.0])


def test_rmse_by_hand() -> None:
    assert_allclose(rmse(np.array([1.0, 2.0]), np.array([4.0, -2.0])), np.sqrt((9 + 16) / 2))


def test_accuracy_counts_the_most_probable_class() -> None:
    probs = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.4, 0.35, 0.25]])
    assert accuracy(probs, np.array([1, 0, 2, 1])) == 0.75


def test_brier_by_hand_and_at_its_ends() -> None:
    probs = np.array([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    assert_allclose(brier(probs, np.array([1, 1, 0])), [0.04 + 0.25 + 0.09, 0.0, 2.0], atol=1e-15)


def test_brier_expects_its_minimum_at_the_true_probabilities() -> None:
    truth = np.array([0.7, 0.3])

    def expected(p: float) -> float:
        probs = np.array([[p, 1 - p]] * 2)
        return float(truth @ brier(probs, np.array([0, 1])))

    assert expected(0.7) < min(expected(0.65), expected(0.75))


def test_shapes_that_would_broadcast_are_refused() -> None:
    y = np.zeros((3, 1))
    with pytest.raises(ShapeError, match=r"y must have shape \[3\] to match draws, got \[3, 1\]"):
        crps(np.zeros((5, 3)), y)
    with pytest.raises(ShapeError, match=r"y must have shape \[3\] to match mean, got \[3, 1\]"):
        rmse(np.zeros(3), y)
    with pytest.raises(ShapeError, match=r"sd must have shape \[3\] to match mean, got \[3, 1\]"):
        moment_matched_log_score(np.zeros(3), y, np.zeros(3))
    with pytest.raises(ShapeError, match=r"y must have shape \[3\] to match probs, got \[3, 1\]"):
        accuracy(np.ones((3, 2)), y)
    with pytest.raises(ShapeError, match=r"y must have shape \[3\] to match probs, got \[3, 1\]"):
        brier(np.ones((3, 2)), y)
    with pytest.raises(ShapeError, match=r"log_likelihood must have shape \[S, N\]"):
        log_score(np.zeros(3))
