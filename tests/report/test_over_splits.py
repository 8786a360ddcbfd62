"""Averages over splits, by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pyro_bnn.report.over_splits import chance_of_passing, over_splits, paired


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


def test_a_tie_is_under_two_standard_errors() -> None:
    def tied(*values: float) -> bool | None:
        return over_splits([np.array([v]) for v in values]).tied

    # sd of (d - 1, d, d + 1) is 1, its standard error 1 / sqrt 3, twice that 1.1547
    assert tied(0.15, 1.15, 2.15) is True
    assert tied(0.16, 1.16, 2.16) is False
    assert tied(-0.16, -1.16, -2.16) is False
    assert tied(-1.0, 0.0, 1.0) is True
    assert tied(0.0, 0.0) is True  # a method and itself
    assert tied(1.0, 2.0) is None
    assert tied(1.0, -np.inf, 2.0) is False
    assert tied() is None


def test_infinite_scores_leave_no_error_and_no_warning() -> None:
    result = over_splits([np.array([v]) for v in (-np.inf, 1.0, 2.0)])
    assert result.mean == -np.inf
    assert math.isnan(result.standard_error)


def test_infinite_scores_of_both_are_no_difference() -> None:
    a, b = np.array([1.0, -np.inf, -np.inf]), np.array([3.0, -np.inf, 0.0])
    assert paired(a, b).tolist() == [-2.0, 0.0, -np.inf]


def test_the_chance_of_passing_is_that_of_student_draws() -> None:
    """Three splits of two equal methods, drawn: the share beyond 2 standard errors."""
    draws = np.random.default_rng(0).normal(size=(40_000, 3))
    t = draws.mean(1) / (draws.std(1, ddof=1) / math.sqrt(3))
    share, p = np.mean(np.abs(t) >= 2), chance_of_passing(3)
    assert abs(share - p) / math.sqrt(p * (1 - p) / 40_000) < 5
    assert_allclose(chance_of_passing(10**6), 2 * stats.norm.sf(2), rtol=1e-4)


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
