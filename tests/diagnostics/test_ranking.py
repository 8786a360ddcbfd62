"""Paired differences against a direct computation; ties by their definition."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pyro_bnn.diagnostics.ranking import paired_difference, rank
from pyro_bnn.errors import DataError, ShapeError


def test_paired_difference_matches_a_paired_t_test() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=30), rng.normal(0.3, size=30)
    difference = paired_difference(a, b)
    expected = stats.ttest_rel(a, b)
    assert_allclose(difference.mean / difference.standard_error, expected.statistic, rtol=1e-12)
    assert_allclose(difference.total, (a - b).sum(), rtol=1e-12)
    ratio = difference.total_standard_error / difference.standard_error
    assert_allclose(ratio, 30, rtol=1e-12)


def test_pairing_removes_the_spread_that_points_share() -> None:
    rng = np.random.default_rng(1)
    hard = rng.normal(0, 10, size=50)
    difference = paired_difference(hard, hard + 0.1 + 0.01 * rng.normal(size=50))
    assert difference.standard_error < 0.002
    assert not difference.tied


@pytest.mark.parametrize(("gap", "tied"), [(1.9, True), (2.1, False)])
def test_a_difference_under_two_standard_errors_is_tied(gap: float, tied: bool) -> None:
    noise = np.array([-1.0, 1.0] * 8)
    error = noise.std(ddof=1) / 4
    assert paired_difference(noise + gap * error, np.zeros(16)).tied is tied


def test_a_difference_of_exactly_two_standard_errors_is_no_tie() -> None:
    difference = paired_difference(np.array([1.0, 3.0]), np.zeros(2))  # sd sqrt(2), of 2 rows
    assert (difference.mean, difference.standard_error) == (2.0, 1.0)
    assert not difference.tied


def test_errors_of_points_and_of_draws_add_as_squares() -> None:
    a, b = np.array([-1.0, 1.0] * 8), np.zeros(16)  # the error of points is 1 / sqrt(15)
    difference = paired_difference(a + 0.6, b, monte_carlo=(0.3, 0.4))
    assert_allclose(difference.points_error, 1 / np.sqrt(15), rtol=1e-12)
    assert_allclose(difference.draws_error, 0.5, rtol=1e-12)
    assert_allclose(difference.standard_error, np.sqrt(1 / 15 + 1 / 4), rtol=1e-12)
    assert_allclose(difference.total_standard_error, 16 * np.sqrt(1 / 15 + 1 / 4), rtol=1e-12)
    assert difference.tied
    assert not paired_difference(a + 0.6, b).tied


def test_a_rank_counts_the_draws_of_both_methods_and_none_between_a_method_and_itself() -> None:
    scores = {"a": np.array([1.0, 2.0, 3.0]), "b": np.array([0.9, 1.9, 2.9])}
    best, other = rank(scores, {"a": 0.3, "b": 0.4})
    assert best.difference.standard_error == 0
    assert_allclose(best.standard_error, np.sqrt(1 / 3 + 0.09), rtol=1e-12)
    assert (best.draws_error, other.draws_error) == (0.3, 0.4)
    assert_allclose(other.difference.standard_error, 0.5, rtol=1e-12)
    assert other.rank == 1
    assert rank(scores)[1].rank == 2


def test_an_unknown_error_of_draws_resolves_nothing() -> None:
    difference = paired_difference(np.full(9, 5.0), np.zeros(9), monte_carlo=(0.0, np.nan))
    assert np.isnan(difference.standard_error)
    assert difference.tied


def test_identical_scores_are_tied_with_no_error() -> None:
    scores = np.array([1.0, -np.inf, 2.0])
    difference = paired_difference(scores, scores.copy(), monte_carlo=(0.3, 0.3))
    assert (difference.mean, difference.standard_error, difference.tied) == (0.0, 0.0, True)


def test_an_impossible_point_is_never_a_tie() -> None:
    difference = paired_difference(np.array([0.0, -np.inf]), np.array([0.0, -1.0]))
    assert difference.mean == -np.inf
    assert np.isnan(difference.standard_error)
    assert not difference.tied


def test_one_point_resolves_nothing() -> None:
    difference = paired_difference(np.array([5.0]), np.array([1.0]))
    assert np.isnan(difference.standard_error)
    assert difference.tied


def test_rank_orders_by_mean_and_shares_the_first_place_among_ties() -> None:
    rng = np.random.default_rng(2)
    base = rng.normal(size=40)
    noise = rng.normal(size=40)
    noise -= noise.mean()
    places = rank({"worst": base - 3, "tied": base - 0.01 + noise, "best": base, "bad": base - 2})
    assert [(place.name, place.rank) for place in places] == [
        ("best", 1),
        ("tied", 1),
        ("bad", 3),
        ("worst", 4),
    ]
    assert_allclose(places[-1].difference.mean, -3, rtol=1e-12)
    assert_allclose(places[0].standard_error, base.std(ddof=1) / np.sqrt(40), rtol=1e-12)


def test_the_error_of_an_infinite_score_is_unknown() -> None:
    (place,) = rank({"only": np.array([-np.inf, 0.0])})
    assert np.isnan(place.standard_error)


def test_nothing_to_rank_is_refused() -> None:
    with pytest.raises(DataError, match="no scores to rank: give at least one method"):
        rank({})


def test_nan_scores_are_refused_by_name() -> None:
    with pytest.raises(DataError, match=r"the scores of 'a' hold 1 NaN of 2"):
        rank({"a": np.array([np.nan, 0.0])})


def test_different_points_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"b must have shape \[2\] to match a, got \[3\]"):
        paired_difference(np.zeros(2), np.zeros(3))
