"""Paired differences against a direct computation; the ranking by its error rate and its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from benchmarks.verdict_rates import ranking as rates
from pyro_bnn.diagnostics.ranking import Ranked, paired_difference, rank
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


def test_errors_of_points_and_of_draws_add_as_squares() -> None:
    a, b = np.array([-1.0, 1.0] * 8), np.zeros(16)  # the error of points is 1 / sqrt(15)
    difference = paired_difference(a + 0.6, b, monte_carlo=(0.3, 0.4))
    assert_allclose(difference.points_error, 1 / np.sqrt(15), rtol=1e-12)
    assert_allclose(difference.draws_error, 0.5, rtol=1e-12)
    assert_allclose(difference.standard_error, np.sqrt(1 / 15 + 1 / 4), rtol=1e-12)
    assert_allclose(difference.total_standard_error, 16 * np.sqrt(1 / 15 + 1 / 4), rtol=1e-12)


def test_identical_scores_have_no_difference_and_no_error() -> None:
    scores = np.array([1.0, -np.inf, 2.0])
    difference = paired_difference(scores, scores.copy(), monte_carlo=(0.3, 0.3))
    assert (difference.mean, difference.standard_error) == (0.0, 0.0)


def test_an_impossible_point_makes_an_infinite_difference() -> None:
    difference = paired_difference(np.array([0.0, -np.inf]), np.array([0.0, -1.0]))
    assert difference.mean == -np.inf
    assert np.isnan(difference.standard_error)


# --- who is behind -------------------------------------------------------------------------------


def behind(scores: dict[str, np.ndarray], errors: dict[str, float] | None = None) -> list[str]:
    return [place.name for place in rank(scores, errors) if place.is_behind]


def p_of(places: list[Ranked]) -> dict[str, float]:
    return {place.name: place.p_value for place in places}


@pytest.mark.parametrize("num_methods", [3, 7, 11])
def test_equal_methods_are_seldom_called_behind(num_methods: int) -> None:
    """Of 44 rows, two standard errors to the best called one behind in 12, 44 and 67 % of cases."""
    rng = np.random.default_rng(0)
    repeats = 100
    given = 0
    for _ in range(repeats):
        common = 0.6 * rng.standard_normal(44)
        own = 0.2 * rng.standard_normal((num_methods, 44))
        given += bool(behind({str(k): common + own[k] for k in range(num_methods)}))
    assert given <= stats.binom.ppf(0.999, repeats, 0.05)


@pytest.mark.parametrize(
    ("make", "num_methods", "num_rows"),
    [
        (rates.log_normal, 2, 20),  # a t-test calls 12 % of these behind, a bootstrap-t 10 %
        (rates.log_normal, 7, 44),  # signs drawn at random 40 %
        (rates.chi_square, 7, 20),
        (rates.predictives, 3, 30),
        (rates.heavy_predictives, 3, 44),
        (rates.sparse, 2, 20),  # a bootstrap-t calls 13 % of these behind
        (rates.sparse, 4, 44),
        (rates.student, 2, 60),
    ],
)
def test_the_error_holds_for_skewed_and_heavy_tailed_scores(
    make: rates.ByRows, num_methods: int, num_rows: int
) -> None:
    rng = np.random.default_rng(1)
    repeats = 300
    given = sum(any(rates.is_behind(make(rng, num_rows, num_methods))) for _ in range(repeats))
    assert given <= stats.binom.ppf(0.999, repeats, 0.05)


@pytest.mark.slow("a second or more")
def test_the_error_holds_beside_methods_that_are_behind() -> None:
    """Three are far behind and leave the test, which goes on with the four equal ones."""
    rng = np.random.default_rng(2)
    repeats = 200
    gap = 3.0 * (np.arange(7) >= 4)
    given = [rates.is_behind(rates.normal(rng, 60, 7) - gap) for _ in range(repeats)]
    assert all(all(of[4:]) for of in given)
    assert sum(any(of[:4]) for of in given) <= stats.binom.ppf(0.999, repeats, 0.05)


@pytest.mark.parametrize(("num_rows", "gap", "at_least"), [(44, 6.0, 0.9), (200, 5.0, 0.9)])
def test_a_method_that_is_behind_is_found(num_rows: int, gap: float, at_least: float) -> None:
    """One of seven, by 6 or 5 standard errors of its paired difference to any other."""
    rng = np.random.default_rng(3)
    repeats = 100
    shift = gap * np.sqrt(2 / num_rows) * (np.arange(7) == 0)
    found = sum(rates.is_behind(rates.normal(rng, num_rows, 7) - shift)[0] for _ in range(repeats))
    assert found >= stats.binom.ppf(0.001, repeats, at_least)


@pytest.mark.parametrize("num_methods", [3, 7])
def test_a_method_that_fails_on_one_row_hides_no_other(num_methods: int) -> None:
    """Resamples without that row have draws of a hundred, which are those of its pairs alone."""
    rng = np.random.default_rng(6)
    repeats = 50
    shift = 6.0 * np.sqrt(2 / 44) * (np.arange(num_methods) == 0)
    scores = [rates.beside_a_failure(rng, 44, num_methods) - shift for _ in range(repeats)]
    found = [rates.is_behind(one) for one in scores]
    assert sum(one[0] for one in found) >= stats.binom.ppf(0.001, repeats, 0.9)
    assert sum(any(one[1:]) for one in found) <= stats.binom.ppf(0.999, repeats, 0.05)


def test_a_few_large_losses_of_many_rows_are_found() -> None:
    """3 nats lost in a tenth of 200 rows: 5 standard errors, and no row speaks for the loser."""
    rng = np.random.default_rng(4)
    repeats = 100
    found = 0
    for _ in range(repeats):
        lost = 3.0 * (rng.random(200) < 0.1)
        noise = 0.1 * rng.standard_normal((2, 200))
        found += behind({"steady": noise[0], "fails": noise[1] - lost}) == ["fails"]
    assert found >= 90


def test_the_p_value_of_two_methods_by_hand() -> None:
    """The paired t, less three points as far below the mean as any is off it, among resamples."""
    d = np.random.default_rng(5).exponential(size=40) - 0.35
    rows = np.random.default_rng(0).integers(40, size=(4_999, 40))
    equal = stats.ttest_1samp((d - d.mean())[rows], 0.0, axis=1).statistic
    t = stats.ttest_1samp(d, 3 / 39 * np.abs(d - d.mean()).max()).statistic
    expected = (1 + (np.abs(equal) >= t).sum()) / 5_000
    places = p_of(rank({"a": d, "b": np.zeros(40)}))
    assert_allclose(places["b"], expected, rtol=1e-12)
    assert 0.001 < expected < 0.05  # so that the count is of many
    assert places["a"] > 0.9


@pytest.mark.slow("a second or more")
def test_draws_of_one_posterior_do_not_separate_methods() -> None:
    rng = np.random.default_rng(6)
    given = by_rows_alone = 0
    for _ in range(200):
        scores = rates.of_draws(rng, 50, 3)
        given += any(rates.is_behind(scores, rates.SD_OF_DRAWS))
        by_rows_alone += any(rates.is_behind(scores))
    assert given <= stats.binom.ppf(0.999, 200, 0.05)
    assert by_rows_alone > 150


def test_a_rank_counts_the_draws_of_both_methods_and_none_between_a_method_and_itself() -> None:
    first = np.array([1.0, 2.0, 3.0, 2.0] * 3)
    scores = {"a": first, "b": first - 0.1}
    best, other = rank(scores, {"a": 0.3, "b": 0.4})
    assert best.difference.standard_error == 0
    assert_allclose(best.standard_error, np.hypot(first.std(ddof=1) / np.sqrt(12), 0.3), rtol=1e-12)
    assert (best.draws_error, other.draws_error) == (0.3, 0.4)
    assert_allclose(other.difference.standard_error, 0.5, rtol=1e-12)
    assert other.rank == 1
    assert rank(scores)[1].rank == 2


def test_an_unknown_error_of_draws_resolves_nothing_about_its_method_alone() -> None:
    scores = {"a": np.zeros(9), "b": np.full(9, -5.0), "c": np.full(9, -6.0)}
    assert behind(scores, {"b": np.nan}) == ["c"]
    assert np.isnan(rank(scores, {"b": np.nan})[1].difference.standard_error)


def test_duplicates_are_equal_and_change_no_other_p_value() -> None:
    rng = np.random.default_rng(7)
    scores = {"a": rng.normal(size=60), "b": rng.normal(size=60) - 0.5}
    once, twice = p_of(rank(scores)), p_of(rank(scores | {"a again": scores["a"].copy()}))
    assert 0.001 < once["b"] == twice["b"] < 0.9
    assert twice["a"] == twice["a again"]
    alone = rank({"a": scores["a"], "a again": scores["a"].copy()}, {"a": 0.3, "a again": 0.3})
    assert [(place.rank, place.p_value) for place in alone] == [(1, 1.0), (1, 1.0)]


@pytest.mark.parametrize(("num_points", "expected"), [(1, []), (5, []), (6, ["b"])])
def test_five_points_resolve_nothing(num_points: int, expected: list[str]) -> None:
    scores = {"a": np.full(num_points, 5.0), "b": np.ones(num_points)}
    assert behind(scores) == expected
    assert behind(scores, {"a": 0.01, "b": 0.01}) == expected


def test_a_method_is_behind_from_a_p_value_of_five_per_cent_down() -> None:
    (place,) = rank({"a": np.zeros(9)})
    for p_value, is_behind in ((0.05, True), (np.nextafter(0.05, 1), False)):
        assert replace(place, p_value=p_value).is_behind == is_behind


def test_an_impossible_point_is_behind_every_method_without_one() -> None:
    scores = {
        "a": np.array([0.0, -1.0]),
        "b": np.array([-np.inf, 0.0]),
        "c": np.array([0.0, -np.inf]),
        "d": np.array([-1.0, 0.0]),
    }
    assert sorted(behind(scores)) == ["b", "c"]
    assert behind({name: scores[name] for name in "bc"}) == []  # neither is shown to be better


def test_a_point_impossible_for_both_decides_nothing() -> None:
    first = np.r_[-np.inf, np.random.default_rng(8).normal(size=50)]
    assert behind({"a": first, "b": first - 1.0}) == ["b"]
    assert behind({"a": first, "b": first.copy()}) == []


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


def test_the_ranking_leaves_the_random_state_alone_and_repeats_itself() -> None:
    scores = {"a": np.arange(20.0), "b": np.arange(20.0)[::-1] - 3}
    np.random.seed(0)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    first = p_of(rank(scores))
    assert np.random.random() == expected  # noqa: NPY002
    assert p_of(rank(scores)) == first


def test_the_rates_tell_false_alarms_from_power() -> None:
    found = list(rates.rows(quick=True))
    assert all(0 <= rate.given <= rate.simulated == 5 for rate in found)
    assert len({(rate.verdict, rate.setting) for rate in found}) == len(found)
    power = [rate.given for rate in found if rate.is_true]
    assert power == [5] * len(power)


@pytest.mark.soak
@pytest.mark.parametrize("make", rates.EQUAL)
@pytest.mark.parametrize("num_methods", [2, 7, 20])
@pytest.mark.parametrize("num_rows", [20, 44, 200, 2_000])
def test_the_error_holds_for_all_settings(
    make: Callable[[np.random.Generator, int, int], np.ndarray], num_methods: int, num_rows: int
) -> None:
    found = rates.false_alarms(make, num_methods, num_rows)
    assert found.given <= stats.binom.ppf(0.999, found.simulated, 0.05)


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
