"""Wasserstein distances of draws to Gaussians, where they are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import linalg

from pyro_bnn.diagnostics import gaussian_w2, mean_field_distance, w1
from pyro_bnn.diagnostics.mean_field.distance import transport
from pyro_bnn.errors import DataError, ShapeError
from tests.diagnostics.test_mean_field_error import autoregressive, correlated

REPEATS = 12


def draws_of(covariance: np.ndarray, num_draws: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal((REPEATS, num_draws, len(covariance)))
    return np.asarray(noise @ np.linalg.cholesky(covariance).T)


def test_gaussian_w2_is_the_formula_with_matrix_roots() -> None:
    A, B = correlated(6, seed=1), correlated(6, seed=2)
    m = np.arange(6.0)
    root = linalg.sqrtm(A)
    squared = (m**2).sum() + np.trace(A + B - 2 * linalg.sqrtm(root @ B @ root))
    np.testing.assert_allclose(gaussian_w2(m, A, np.zeros(6), B), np.sqrt(squared), rtol=1e-9)
    np.testing.assert_allclose(gaussian_w2(np.zeros(6), B, m, A), np.sqrt(squared), rtol=1e-9)


def test_gaussian_w2_of_diagonal_and_of_singular_covariances() -> None:
    s, t = np.array([1.0, 2.0, 0.0]), np.array([4.0, 2.5, 1.0])
    m, k = np.array([0.0, 1.0, 2.0]), np.array([1.0, 1.0, 0.0])
    expected = np.sqrt(((s - t) ** 2).sum() + ((m - k) ** 2).sum())
    np.testing.assert_allclose(gaussian_w2(m, np.diag(s**2), k, np.diag(t**2)), expected)
    assert gaussian_w2(m, np.diag(t**2), m, np.diag(t**2)) < 1e-6


def test_gaussian_w2_of_shapes_that_do_not_fit_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"of one P, got \[2\], \[2, 2\], \[3\], \[2, 2\]"):
        gaussian_w2(np.zeros(2), np.eye(2), np.zeros(3), np.eye(2))


def test_transport_on_a_line_is_between_sorted_points() -> None:
    a, b = np.random.default_rng(0).standard_normal((2, 40, 1))
    expected = np.sqrt(((np.sort(a[:, 0]) - np.sort(b[:, 0])) ** 2).mean())
    np.testing.assert_allclose(transport(a, b), expected, rtol=1e-12)
    assert transport(a, b) >= w1(a, b)[0]
    np.testing.assert_allclose(transport(a, a[::-1] + 3.0), 3.0, rtol=1e-12)


@pytest.mark.parametrize("num_weights", [2, 30])
def test_draws_without_correlations_are_as_far_from_both(num_weights: int) -> None:
    covariance = np.diag(np.geomspace(0.1, 10, num_weights))
    found = mean_field_distance(draws_of(covariance, 400))
    z = found.value / found.standard_error
    assert abs(z.mean()) * np.sqrt(REPEATS) < 4
    assert abs((found.gaussian / found.gaussian_error).mean()) < 1.2  # the jackknife leaves P/n
    if num_weights == 30:  # fitted correlations alone make a difference, which is subtracted
        uncorrected = found.to_diagonal - found.to_full
        assert uncorrected.mean() / (uncorrected.std(ddof=1) / np.sqrt(REPEATS)) > 5
        assert (found.gaussian_bias > 3 * np.abs(found.gaussian)).all()


@pytest.mark.slow("a second or more")
def test_correlations_show_in_both_distances() -> None:
    covariance = correlated(10)
    found = mean_field_distance(draws_of(covariance, 800))
    assert (found.value > 5 * found.standard_error).all()
    exact = gaussian_w2(np.zeros(10), covariance, np.zeros(10), np.diag(np.diag(covariance))) ** 2
    z = (found.gaussian - exact) / found.gaussian_error
    assert abs(z.mean()) * np.sqrt(REPEATS) < 4
    spread = found.value.std(ddof=1) / np.sqrt((found.standard_error**2).mean())
    assert 0.5 < spread < 1.9  # 4 sds of the sd of 12
    np.testing.assert_allclose(found.spread.mean(), np.sqrt(np.trace(covariance)), rtol=0.05)


@pytest.mark.slow("a second or more")
def test_draws_of_a_gaussian_are_as_far_from_it_as_the_floor() -> None:
    found = mean_field_distance(draws_of(correlated(4), 800))
    differences = found.to_full - found.floor
    assert abs(differences.mean()) < 4 * differences.std(ddof=1) / np.sqrt(REPEATS)
    assert (found.floor > 0.1).all()


def test_two_humps_are_above_the_floor_and_as_far_from_both_gaussians() -> None:
    draws = draws_of(np.eye(2), 400)
    draws[:, ::2, 0] += 8.0
    found = mean_field_distance(draws)
    differences = found.to_full - found.floor
    assert differences.mean() > 8 * differences.std(ddof=1) / np.sqrt(REPEATS)
    assert abs((found.value / found.standard_error).mean()) * np.sqrt(REPEATS) < 4


def test_slow_chains_are_thinned_and_one_seed_gives_one_answer() -> None:
    draws = autoregressive((1, 4_000, 3), np.full(3, 0.9))
    first, second = mean_field_distance(draws, seed=1), mean_field_distance(draws, seed=1)
    assert 14 < first.every[0] < 24  # (1 + phi) / (1 - phi) = 19
    assert first.num_points == -(-4_000 // int(first.every[0])) // 8
    assert str(first) == str(second)
    assert first.to_full != mean_field_distance(draws, seed=2).to_full
    head, chain, _ = first.summary().splitlines()
    assert head.endswith(f"of 3 weights, from clouds of {first.num_points} points")
    assert f"- {first.null[0]:.2g} of uncorrelated draws (floor {first.floor[0]:.4g}, " in chain


def test_more_weights_than_draws_is_all_null() -> None:
    draws = np.random.default_rng(3).standard_normal((2, 100, 150))
    found = mean_field_distance(draws)
    assert (np.abs(found.value) < 4 * found.standard_error).all()
    assert (found.null > 4 * np.abs(found.value)).all()
    assert np.isnan([found.gaussian, found.gaussian_bias, found.gaussian_error]).all()
    assert "squared W between the Gaussians needs 1,200 draws; spread" in str(found)


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(DataError, match=r"70 draws of a chain are left.*clouds need 80"):
        mean_field_distance(np.random.default_rng(4).standard_normal((1, 70, 2)))
