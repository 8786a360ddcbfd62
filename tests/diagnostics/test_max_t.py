"""The step-down test against closed forms, other libraries and direct computations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pyro_bnn.diagnostics.max_t import (
    MAX_GROUPS,
    NUM_SIMULATED,
    balanced,
    centred_sums,
    gaussian,
    p_values,
    resampled,
)


def _within(share: float, probability: float) -> bool:
    """Whether a share of the simulated statistics is within 5 binomial errors."""
    return abs(share - probability) < 5 * math.sqrt(probability * (1 - probability) / NUM_SIMULATED)


def test_steps_go_down_from_all_methods_to_those_that_are_left() -> None:
    # pairs (0, 1), (0, 2), (1, 2); 0 beats 2 by 4 and 1 by 2, 1 beats 2 by 1
    t = np.array([[-np.inf, 2.0, 4.0], [-2.0, -np.inf, 1.0], [-4.0, -1.0, -np.inf]])
    equal = np.array(
        [
            [0.0, 4.5, 0.0],  # 0 over 2: counts against 2 alone
            [0.0, 0.0, -3.0],  # 2 over 1: counts against 1
            [2.5, 0.0, 0.0],  # 0 over 1
            [-5.0, 0.0, 0.0],  # 1 over 0: in the first two steps, where 0 is among those left
            [0.1, 0.2, 0.3],
        ]
    )
    # method 2 first, T = 4: rows 0, 3 reach it; 1, T = 2, left are 1, 0: rows 1, 2, 3; 0, T = -2
    assert p_values(t, equal).tolist() == [1.0, 4 / 6, 3 / 6]


def test_a_p_value_is_never_below_that_of_an_earlier_step() -> None:
    t = np.array([[-np.inf, 3.0, 4.0], [-3.0, -np.inf, -9.0], [-4.0, 9.0, -np.inf]])
    # method 1, T = 9; then 2, T = 4; then 0
    equal = np.array([[9.5, 0.0, 0.0], [9.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    p = p_values(t, equal)
    assert p.tolist() == [1.0, 3 / 4, 3 / 4]


def test_pairs_count_by_their_own_draws_where_their_tails_are_longer() -> None:
    equal = np.random.default_rng(0).standard_normal((NUM_SIMULATED, 6))
    t = np.arange(16.0).reshape(4, 4)
    np.fill_diagonal(t, -np.inf)
    alike, draws = balanced(t, equal)
    quantiles = np.quantile(np.abs(equal), 1 - 0.05 / 6, axis=0)  # Bonferroni's of six
    assert_allclose(draws, equal / quantiles.min())
    assert_allclose(alike, t / quantiles.min())
    long = equal * [1.0, 1.0, 9.0, 1.0, 1.0, 1.0]  # of methods 0 and 3
    apart, draws = balanced(t, long)
    unit, own = np.delete(quantiles, 2).min(), 9 * quantiles[2]
    assert_allclose(np.delete(draws, 2, 1), np.delete(equal, 2, 1) / unit)
    assert_allclose(draws[:, 2], long[:, 2] / own)
    assert_allclose([apart[0, 3], apart[3, 0], apart[0, 1]], [3 / own, 12 / own, 1 / unit])


def test_a_pair_that_is_not_tested_has_no_unit() -> None:
    equal = np.zeros((9, 3))
    equal[:, 0] = np.linspace(-2, 2, 9)
    t = np.array([[0.0, 4.0, np.inf], [-4.0, 0.0, -np.inf], [-np.inf, np.inf, 0.0]])
    units, draws = balanced(t, equal)
    assert_allclose(draws[:, 0], equal[:, 0] / np.quantile(np.abs(equal[:, 0]), 1 - 0.05 / 3))
    assert not draws[:, 1:].any()
    assert np.isinf(units[0, 2])
    units, draws = balanced(t, np.zeros((9, 3)))
    assert units.tolist() == t.tolist()
    assert not draws.any()


def test_a_method_alone_has_nothing_to_be_behind() -> None:
    assert p_values(np.full((1, 1), -np.inf), np.empty((9, 0))).tolist() == [1.0]


def test_the_resampled_statistic_is_the_paired_t_of_the_rows_drawn() -> None:
    d = np.random.default_rng(0).exponential(size=30) - 0.3
    equal = resampled(centred_sums(d)[:, None], 30, np.zeros(2))[:, 0]
    rows = np.random.default_rng(0).integers(30, size=(NUM_SIMULATED, 30))
    expected = stats.ttest_1samp((d - d.mean())[rows], 0.0, axis=1).statistic
    assert_allclose(equal, expected, rtol=1e-8, atol=1e-12)


def test_groups_hold_all_rows_and_keep_the_skewness_of_the_mean() -> None:
    d = np.random.default_rng(0).exponential(size=20 * MAX_GROUPS + 7)
    sums = centred_sums(d)
    assert sums.shape == (MAX_GROUPS,)
    assert_allclose(sums.sum(), 0.0, atol=1e-8)
    assert_allclose(sums[0], (d - d.mean())[:20].sum(), rtol=1e-12)
    # third cumulants add, so that of the sum over groups is N times that of a row; its error is
    # about sqrt(6 G) sd(group)^3
    third, error = (sums**3).sum(), np.sqrt(6 * MAX_GROUPS) * 20**1.5
    assert abs(third - 2 * len(d)) < 5 * error
    equal = resampled(sums[:, None], len(d), np.zeros(2))
    assert _within(float((np.abs(equal) >= stats.norm.isf(0.025)).mean()), 0.05)


def test_errors_of_draws_are_normal_and_shared_by_the_pairs_of_a_method() -> None:
    errors = np.array([1.0, 2.0, 0.5])
    equal = resampled(np.zeros((8, 3)), 8, errors)  # rows without spread: draws alone
    assert stats.kstest(equal[:, 0], stats.norm.cdf).pvalue > 1e-4
    # methods 0 - 1 and 0 - 2 share the error of 0
    expected = 1.0 / np.sqrt(5.0 * 1.25)
    correlation = np.corrcoef(equal.T)[0, 1]
    assert abs(np.arctanh(correlation) - np.arctanh(expected)) < 5 / np.sqrt(NUM_SIMULATED)


@pytest.mark.parametrize("freedom", [2, 9])
def test_errors_of_a_variance_that_is_estimated_have_students_t(freedom: int) -> None:
    """One variance for all methods: the largest |t| is the studentised range over sqrt 2."""
    equal = resampled(np.zeros((8, 10)), 8, np.full(5, 0.3), freedom)
    assert stats.kstest(equal[:, 0], stats.t(freedom).cdf).pvalue > 1e-4
    limit = stats.studentized_range.isf(0.05, 5, freedom) / np.sqrt(2)
    assert _within(float((np.abs(equal).max(1) > limit).mean()), 0.05)


def test_errors_of_rows_and_draws_add_as_squares() -> None:
    d = np.random.default_rng(1).normal(size=900)
    mc = float(d.std(ddof=1) / 30)  # as large as the error of the rows
    equal = resampled(centred_sums(d)[:, None], 900, np.array([mc, 0.0]))[:, 0]
    assert stats.kstest(equal, stats.norm.cdf).pvalue > 1e-4


def test_a_resample_without_spread_says_nothing() -> None:
    equal = resampled(centred_sums(np.array([0.0, 1.0]))[:, None], 2, np.zeros(2))
    assert set(equal[:, 0]) == {0.0}


@pytest.mark.parametrize("num_repeats", [3, 10])
def test_two_normal_methods_have_students_t(num_repeats: int) -> None:
    (equal,) = gaussian(2, num_repeats).T
    assert stats.kstest(equal, stats.t(num_repeats - 1).cdf).pvalue > 1e-4


def test_many_repeats_have_the_studentised_range() -> None:
    """The largest |t| of all pairs of K normal means is the studentised range over sqrt 2."""
    largest = np.abs(gaussian(7, 300)).max(1)
    limit = stats.studentized_range.isf(0.05, 7, np.inf) / np.sqrt(2)
    assert _within(float((largest > limit).mean()), 0.05)
