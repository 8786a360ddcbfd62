"""Errors of numbers: a mean's by hand, of differences paired, over seeds."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from pyro_bnn.diagnostics import equal_mass_ece
from pyro_bnn.report.beyond.estimate import (
    Estimate,
    Resampled,
    Statistic,
    mean_of,
    resampled,
    told_from,
    told_from_constant,
)


def of(values: np.ndarray) -> Resampled:
    """The mean of rows, of one fit."""
    return resampled([lambda rows: float(values[rows].mean())], len(values))


def fits(*values: float) -> Resampled:
    """Fits whose numbers do not depend on the rows."""

    def of_fit(value: float) -> Statistic:
        return lambda _: value

    return resampled([of_fit(value) for value in values], 10)


def test_the_error_of_a_mean_is_that_of_the_textbook() -> None:
    # relative error of a standard deviation from B resamples: 1 / sqrt(2 (B - 1))
    values = np.random.default_rng(0).normal(2.0, 3.0, size=400)
    found = of(values).estimate
    assert_allclose(found.value, values.mean(), rtol=1e-12)
    assert_allclose(found.images_error, values.std() / math.sqrt(400), rtol=4 / math.sqrt(2 * 99))
    assert found.is_of_one_fit
    assert found.error == found.images_error


def test_a_difference_is_paired() -> None:
    values = np.random.default_rng(1).normal(size=100)
    shifted = of(values + 0.5).minus(of(values))
    assert_allclose((shifted.value, shifted.error), (0.5, 0.0), atol=1e-12)


def test_the_error_over_seeds() -> None:
    found = fits(1.0, 2.0, 4.0).estimate
    assert_allclose(found.value, 7 / 3)
    assert_allclose(found.seeds_error, math.sqrt(7 / 3 / 3))  # variance of 1, 2, 4 is 7/3
    assert_allclose(found.images_error, 0.0, atol=1e-12)
    assert_allclose(found.error, found.seeds_error)


def test_fits_are_paired_by_their_seeds() -> None:
    a, b = fits(1.0, 2.0, 4.0), fits(0.0, 1.0, 3.0)
    assert_allclose((a.minus(b).value, a.minus(b).seeds_error), (1.0, 0.0), atol=1e-12)
    one = fits(0.0)
    assert_allclose(a.minus(one).seeds_error, a.estimate.seeds_error)
    assert math.isnan(one.minus(one).seeds_error)


def test_a_mean_of_numbers_has_the_error_of_their_mean() -> None:
    values = np.random.default_rng(2).normal(1.0, 1.0, size=100)
    both = mean_of([of(values), of(3 - values)])  # on every resample (v + 3 - v) / 2
    assert_allclose((both.estimate.value, both.estimate.error), (1.5, 0.0), atol=1e-12)
    seeds = mean_of([fits(1.0, 2.0, 4.0), fits(1.0, 0.0, 4.0)]).estimate
    assert_allclose((seeds.value, seeds.seeds_error), (2.0, 1.0))  # of 1, 1, 4: sqrt(3 / 3)


def test_both_errors_add_in_squares() -> None:
    assert_allclose(Estimate(0.0, 3.0, 4.0).error, 5.0)


def test_independent_equal_methods_have_the_studentised_range() -> None:
    # of pairs of K normal means the largest |t| is the studentised range over sqrt 2
    rng = np.random.default_rng(3)
    many = [Resampled(np.zeros(1), rng.normal(size=(1, 2_000))) for _ in range(8)]
    expected = stats.studentized_range.isf(0.05, 8, np.inf) / math.sqrt(2)
    limits = told_from(many)[np.triu_indices(8, 1)]
    assert_allclose(limits, expected, rtol=0.03)
    alone = stats.norm.isf((1 - 0.95 ** (1 / 8)) / 2)  # of eight at once, Sidak's
    assert_allclose(told_from_constant(many), alone, rtol=0.03)
    none = Resampled(np.zeros(1), np.full((1, 9), np.nan))
    for few in (many[:2], [many[0]] * 3, many[:1], [none] * 2):
        assert (told_from(few) == 2.0).all()  # at least
    assert_allclose(told_from_constant([none]), 2.0)


def test_who_scatters_over_fits_is_told_from_further_on_and_alone() -> None:
    rng = np.random.default_rng(4)
    each = rng.normal(size=(3, 1, 2_000)).repeat(2, axis=1)
    steady, too = (Resampled(np.full(2, 7.0), one) for one in each[:2])
    of_two = Resampled(np.array([6.0, 8.0]), each[2])  # an error of 1 that has a single degree
    limits = told_from([steady, too, of_two])
    assert 2.0 < limits[0, 1] < stats.norm.isf(0.025 / 3) * 1.05  # Bonferroni's
    t = stats.cauchy.isf(0.025 / 3) / math.sqrt(3)  # of errors 1, 1 and 1
    assert (limits[:2, 2] > 0.8 * t).all()
    few = told_from_constant([steady, of_two])
    assert few[0] < 2.5
    assert few[1] > 0.8 * stats.cauchy.isf(0.0125) / math.sqrt(2)


@pytest.mark.parametrize(
    ("counts", "images_error"),
    [((2, 2), 0.1), ((2, 2), 0.3), ((3, 3), 0.1), ((3, 3), 1.0), ((3, 3, 2), 0.3), ((3,) * 5, 0.1)],
)
def test_equal_methods_of_few_fits_are_seldom_told_apart(
    counts: tuple[int, ...], images_error: float
) -> None:
    # fits scatter by 1: an error over three of them has two degrees of freedom
    rng, told, pages = np.random.default_rng(5), 0, 200
    for _ in range(pages):
        numbers = []
        for count in counts:
            whole = images_error * rng.normal() + rng.normal(size=count)
            each = np.tile(images_error * rng.normal(size=100), (count, 1))
            numbers.append(Resampled(whole, each))
        gaps = [a.minus(b) for a, b in itertools.combinations(numbers, 2)]
        limits = told_from(numbers)[np.triu_indices(len(numbers), 1)]
        told += any(
            abs(gap.value) > limit * gap.error for gap, limit in zip(gaps, limits, strict=True)
        )
    assert told <= stats.binom.ppf(0.999, pages, 0.05)


def calibration(probs: np.ndarray, y: np.ndarray) -> Resampled:
    """The calibration error of one fit."""
    return resampled([lambda rows: equal_mass_ece(probs[rows], y[rows])], len(y))


@pytest.mark.parametrize("power", [1.0, 1.6])
def test_the_error_of_a_calibration_error_is_its_spread_over_data_sets(power: float) -> None:
    # of a calibrated method the error is far from a linear statistic: a jackknife says twice it
    rng = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(30):
        f = 2.5 * rng.normal(size=(400, 5))
        p = np.exp(f) / np.exp(f).sum(1, keepdims=True)
        y = (p.cumsum(1) > rng.uniform(size=(400, 1))).argmax(1)
        q = p**power / (p**power).sum(1, keepdims=True)
        found = calibration(q, y).estimate
        values.append(found.value)
        errors.append(found.images_error)
    ratio = np.mean(errors) / np.std(values, ddof=1)
    assert 0.6 < ratio < 1.5  # 1 / sqrt(2 * 29) = 0.13 is the error of the denominator
