"""Averages over splits, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from benchmarks.verdict_rates import ranking as rates
from pyro_bnn.diagnostics.ranking import paired
from pyro_bnn.report.splits.statistics import behind_over_splits, over_splits


def test_seeds_are_averaged_within_a_split_first() -> None:
    # means of the splits 2, 5, 8, whatever the number of seeds in each
    result = over_splits([np.array([1.0, 3.0]), np.array([5.0]), np.array([6.0, 8.0, 10.0])])
    assert result.mean == 5.0
    assert_allclose(result.standard_error, 3.0 / math.sqrt(3), rtol=1e-14)
    assert math.isnan(result.sd_over_seeds)


def test_the_correction_stands_beside_one_over_the_number_of_splits() -> None:
    values = [np.array([v]) for v in (0.0, 1.0, 2.0, 5.0)]
    sd = math.sqrt(sum((v - 2.0) ** 2 for v in (0.0, 1.0, 2.0, 5.0)) / 3)
    plain, corrected = over_splits(values), over_splits(values, correction=1 / 9)
    assert_allclose(plain.standard_error, sd / 2, rtol=1e-14)
    assert_allclose(corrected.standard_error, sd * math.sqrt(1 / 4 + 1 / 9), rtol=1e-14)
    assert corrected.mean == plain.mean == 2.0


@pytest.mark.parametrize("num_splits", [0, 1, 2])
def test_few_splits_have_no_standard_error(num_splits: int) -> None:
    result = over_splits([np.array([float(k)]) for k in range(num_splits)])
    assert math.isnan(result.standard_error)
    assert math.isnan(result.sd_over_seeds)
    assert math.isnan(result.mean) is (num_splits == 0)


def test_one_split_has_a_spread_over_seeds_and_no_error() -> None:
    result = over_splits([np.array([1.0, 2.0, 6.0])])
    assert result.mean == 3.0
    assert math.isnan(result.standard_error)
    assert_allclose(result.sd_over_seeds, math.sqrt((4 + 1 + 9) / 2), rtol=1e-14)
    assert math.isnan(over_splits([np.ones(3), np.ones(2)]).sd_over_seeds)


def test_infinite_scores_leave_no_error_and_no_warning() -> None:
    result = over_splits([np.array([v]) for v in (-np.inf, 1.0, 2.0)])
    assert result.mean == -np.inf
    assert math.isnan(result.standard_error)


def test_infinite_scores_of_both_are_no_difference() -> None:
    a, b = np.array([1.0, -np.inf, -np.inf]), np.array([3.0, -np.inf, 0.0])
    assert paired(a, b).tolist() == [-2.0, 0.0, -np.inf]


# --- who is behind -------------------------------------------------------------------------------


def by_split(*values: float) -> list[np.ndarray]:
    return [np.array([value]) for value in values]


def test_the_p_value_of_two_methods_is_that_of_students_t() -> None:
    d = np.array([0.15, 1.15, 2.15, 0.4])
    p = behind_over_splits([by_split(*d), by_split(0.0, 0.0, 0.0, 0.0)], 1 / 9)
    t = d.mean() / (d.std(ddof=1) * math.sqrt(1 / 4 + 1 / 9))
    expected = 2 * stats.t.sf(t, 3)
    assert abs(p[1] - expected) < 5 * math.sqrt(expected * (1 - expected) / 5_000)
    assert p[0] > 0.5


@pytest.mark.parametrize(
    ("scores", "is_behind"),
    [
        ([(0.0, 1.0, 2.0), (0.0, 1.0, 2.0)], [False, False]),  # a method and itself
        ([(0.0, 1.0, 2.0), (-1.0, 0.0, 1.0)], [False, True]),  # the same difference in all splits
        ([(0.0, 1.0), (-9.0, -8.1)], [False, False]),  # two splits have no standard error
        ([(0.0, 1.0, 2.0), (5.0, -math.inf, 6.0)], [False, True]),
        ([(-math.inf, 1.0, 2.0), (5.0, -math.inf, 6.0)], [False, False]),
        ([(0.0, 1.0, 2.0)], [False]),
    ],
)
def test_exact_and_infinite_differences(
    scores: list[tuple[float, ...]], is_behind: list[bool]
) -> None:
    p = behind_over_splits([by_split(*values) for values in scores], 0.1)
    assert (p <= 0.05).tolist() == is_behind


@pytest.mark.parametrize("make", rates.EQUAL_OVER_SPLITS)
@pytest.mark.parametrize(("num_methods", "num_splits"), [(2, 4), (7, 4), (7, 20)])
def test_equal_methods_are_seldom_called_behind(
    make: rates.ByRuns, num_methods: int, num_splits: int
) -> None:
    """Least squares on equal features of one data set, and normal scores correlated like splits.

    Two corrected standard errors call one of seven behind in more than half of the cases.
    """
    rng = np.random.default_rng(0)
    repeats = 150
    given = sum(
        any(rates.is_behind_over_splits(make(rng, num_splits, num_methods))) for _ in range(repeats)
    )
    assert given <= stats.binom.ppf(0.999, repeats, 0.05)


@pytest.mark.soak
@pytest.mark.parametrize("make", rates.EQUAL_OVER_SPLITS)
@pytest.mark.parametrize("num_methods", [2, 7, 20])
@pytest.mark.parametrize("num_splits", [3, 4, 5, 10, 20])
def test_the_error_holds_for_all_settings(
    make: rates.ByRuns, num_methods: int, num_splits: int
) -> None:
    found = rates.false_alarms_over_splits(make, num_methods, num_splits)
    assert found.given <= stats.binom.ppf(0.999, found.simulated, 0.05)


@pytest.mark.slow("a second or more")
def test_a_method_that_is_behind_in_many_splits_is_found() -> None:
    found = rates.power_over_splits(num_methods=7, num_splits=10, gap=7.0, simulated=100)
    assert found.given >= 90


def test_the_corrected_error_is_that_of_random_splits_of_one_data_set() -> None:
    """Independent splits share no rows; correlated ones do: Nadeau & Bengio's model, drawn.

    Differences with correlation rho = n_test / (n_test + n_train) have a mean of variance
    (1/J + rho/(1 - rho)) E var_k, and rho / (1 - rho) is n_test / n_train.
    """
    rng = np.random.default_rng(1)
    num_splits, ratio, repeats = 10, 1 / 9, 20_000
    rho = ratio / (1 + ratio)
    shared = math.sqrt(rho) * rng.normal(size=(repeats, 1))
    d = shared + math.sqrt(1 - rho) * rng.normal(size=(repeats, num_splits))  # [R, J]
    squared = [
        over_splits([np.array([v]) for v in row], ratio).standard_error ** 2 for row in d[:2_000]
    ]
    true = d.mean(1).var()
    error = true * math.sqrt(2 / repeats) + np.std(squared) / math.sqrt(len(squared))
    assert abs(np.mean(squared) - true) / error < 5
    assert d.var(1, ddof=1).mean() / num_splits < 0.6 * true  # uncorrected: too small
