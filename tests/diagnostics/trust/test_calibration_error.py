"""Calibration errors: by hand, unbiased where they say so, at their floor where calibrated."""

import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import optimize, stats

from pyro_bnn.diagnostics import (
    classwise_ece,
    debiased_squared_ece,
    debiased_squared_ece_sd,
    ece,
    equal_mass_ece,
    equal_mass_floor,
    skce,
    smooth_ece,
    smooth_ece_floor,
)
from pyro_bnn.errors import OptionError, ShapeError


def calibrated(num_rows: int, seed: int, num_classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.ones(num_classes), size=num_rows)
    return probs, (rng.uniform(size=(num_rows, 1)) > probs.cumsum(1)).sum(1)


def z_of(values: list[float], expected: float) -> float:
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    return float(abs(np.mean(values) - expected) / error)


def test_bins_of_equal_mass_by_hand() -> None:
    probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4], [0.55, 0.45]])
    y = np.array([0, 1, 0, 1, 0])
    # two rows in the first bin, one of them right; three in the second, two of them right
    expected = (2 * abs(1 / 2 - 0.575) + 3 * abs(2 / 3 - 0.8)) / 5
    assert_allclose(equal_mass_ece(probs, y, num_bins=2), expected, rtol=1e-12)


def test_rows_of_equal_confidence_count_alike_in_any_order() -> None:
    rng = np.random.default_rng(0)
    probs = np.repeat([[0.9, 0.1], [0.6, 0.4]], 10, axis=0)
    y = rng.integers(0, 2, 20)
    order = rng.permutation(20)
    found = equal_mass_ece(probs, y, num_bins=3)
    assert_allclose(equal_mass_ece(probs[order], y[order], num_bins=3), found, rtol=1e-12)


def test_a_calibrated_forecast_is_at_its_floor() -> None:
    probs, _ = calibrated(6_000, seed=0)
    cumulative, rng = probs.cumsum(1), np.random.default_rng(1)
    found = [
        equal_mass_ece(probs, (rng.uniform(size=(6_000, 1)) > cumulative).sum(1))
        for _ in range(200)
    ]
    assert z_of(found, equal_mass_floor(probs)) < 5
    assert np.mean(found) == pytest.approx(equal_mass_floor(probs), rel=0.05)


def test_classes_may_be_off_where_the_largest_probability_is_right() -> None:
    """Right in 60 % at 0.6, but the rest is all of class 1, which has 0.3."""
    probs, y = np.tile([0.6, 0.3, 0.1], (10, 1)), np.array([0] * 6 + [1] * 4)
    assert equal_mass_ece(probs, y) == pytest.approx(0, abs=1e-12)
    assert_allclose(classwise_ece(probs, y), (0 + 0.1 + 0.1) / 3, rtol=1e-12)


def test_the_debiased_error_is_zero_in_the_mean_where_the_plug_in_is_not() -> None:
    rng = np.random.default_rng(2)
    confidence = np.repeat([0.6, 0.7, 0.8, 0.9], 10)
    probs = np.stack([confidence, 1 - confidence], -1)
    labels = [(rng.uniform(size=40) > confidence).astype(int) for _ in range(2_000)]
    assert z_of([debiased_squared_ece(probs, y, num_bins=4) for y in labels], 0.0) < 5
    biased = [
        np.mean([(np.mean(y[i : i + 10] == 0) - confidence[i]) ** 2 for i in range(0, 40, 10)])
        for y in labels
    ]
    assert z_of(biased, float((confidence * (1 - confidence)).mean() / 10)) < 5
    assert np.mean([ece(probs, y) for y in labels]) > 0.05


def test_the_debiased_error_of_a_miscalibrated_forecast_is_its_square() -> None:
    rng = np.random.default_rng(3)
    probs = np.tile([0.9, 0.1], (60, 1))
    labels = [(rng.uniform(size=60) > 0.6).astype(int) for _ in range(2_000)]
    found = [debiased_squared_ece(probs, y, num_bins=3) for y in labels]
    assert z_of(found, 0.3**2) < 5


def test_the_spread_of_the_debiased_error_by_hand() -> None:
    # in one bin of equal confidence it is the mean of (a_i - p) (a_j - p) over pairs i != j
    expected = 0.7 * 0.3 * np.sqrt(2 / 40 / 39)
    found = debiased_squared_ece_sd(np.tile([0.7, 0.3], (40, 1)), num_bins=1)
    assert_allclose(found, expected, rtol=1e-12)
    assert debiased_squared_ece_sd(np.eye(2).repeat(4, 0)) == 0.0


def test_the_spread_of_the_debiased_error_is_that_over_outcomes() -> None:
    # few rows a bin, some of them nearly certain: the skewness of an outcome counts
    confidence = np.linspace(0.5, 0.999, 40)
    probs = np.stack([confidence, 1 - confidence], -1)
    rng = np.random.default_rng(4)
    labels = [(rng.uniform(size=40) > confidence).astype(int) for _ in range(4_000)]
    squares = [debiased_squared_ece(probs, y, 8) ** 2 for y in labels]
    assert z_of(squares, debiased_squared_ece_sd(probs, 8) ** 2) < 5  # its mean is about 0


@pytest.mark.parametrize(
    ("confidence", "first"),
    [([0.6, 0.7, 0.8, 1, 1, 1], 3), ([0.6, 0.8, 0.8, 0.8, 0.9, 1], 4)],  # the third, the first
)
def test_a_row_that_ties_leave_alone_joins_another_bin(confidence: list[float], first: int) -> None:
    c = np.array(confidence)
    probs = np.stack([c, 1 - c], -1)
    outcomes = np.array(list(itertools.product([0, 1], repeat=6)))
    chance = np.where(outcomes == 0, c, 1 - c).prod(1)
    found = np.array([debiased_squared_ece(probs, y, num_bins=3) for y in outcomes])
    expected = np.zeros(len(outcomes))
    for rows in (slice(first), slice(first, None)):
        right, n = (outcomes[:, rows] == 0).mean(1), len(c[rows])
        expected += n / 6 * ((right - c[rows].mean()) ** 2 - right * (1 - right) / (n - 1))
    assert_allclose(found, expected, rtol=1e-12, atol=1e-15)
    sd = np.sqrt(chance @ (found - chance @ found) ** 2)
    assert_allclose(debiased_squared_ece_sd(probs, num_bins=3), sd, rtol=1e-12)


@pytest.mark.parametrize(("power", "least", "most"), [(1.0, 0.023, 0.05), (1.6, 0.8, 1.0)])
def test_two_standard_deviations_of_chance_tell_who_is_off(
    power: float, least: float, most: float
) -> None:
    """Of calibrated forecasts between a normal number and one bin, chi-squared of one degree."""
    off, rng = [], np.random.default_rng(0)
    for _ in range(400):
        f = 2.5 * rng.normal(size=(400, 5))
        p = np.exp(f) / np.exp(f).sum(1, keepdims=True)
        y = (p.cumsum(1) > rng.uniform(size=(400, 1))).argmax(1)
        q = p**power / (p**power).sum(1, keepdims=True)
        off.append(debiased_squared_ece(q, y) > 2 * debiased_squared_ece_sd(q))
    error = np.sqrt(0.05 * 0.95 / 400)
    assert least - 4 * error < np.mean(off) < most + 4 * error


def test_the_kernel_error_by_hand() -> None:
    probs = np.array([[0.8, 0.2], [0.6, 0.4], [0.1, 0.9]])
    y = np.array([0, 1, 1])
    residual = np.array([[0.2, -0.2], [-0.6, 0.6], [-0.1, 0.1]])
    distance = {(0, 1): 0.2, (0, 2): 0.7, (1, 2): 0.5}  # half the L1 distance; median 0.5
    pairs = [np.exp(-d / 0.5) * residual[i] @ residual[j] for (i, j), d in distance.items()]
    assert_allclose(skce(probs, y), np.mean(pairs), rtol=1e-12)


def test_the_kernel_error_is_zero_in_the_mean_of_calibrated_forecasts() -> None:
    found = [skce(*calibrated(50, seed=s)) for s in range(400)]
    assert z_of(found, 0.0) < 5
    probs, y = calibrated(50, seed=0)
    assert skce(probs[:, [1, 2, 0]], y) > 5 * np.std(found)


def test_many_rows_are_compared_in_blocks() -> None:
    """A forecast of one vector: all pairs alike, whatever the blocks."""
    y = np.zeros(2_500, dtype=int)
    assert_allclose(skce(np.tile([0.75, 0.25], (2_500, 1)), y), 0.125, rtol=1e-12)


def test_the_smooth_error_of_residuals_of_one_sign_is_the_size_of_their_mean() -> None:
    """Whatever the width: the kernel integrates to 1, up to 0 and 1 too, where it is reflected."""
    probs = np.array([[0.7, 0.3]] * 10)
    assert_allclose(smooth_ece(probs, np.array([0] * 5 + [1] * 5)), 0.2, rtol=1e-9)
    certain = np.linspace(0.5, 1, 101)  # and wrong in every row
    probs = np.stack([certain, 1 - certain], -1)
    assert_allclose(smooth_ece(probs, np.ones(101)), 0.75, rtol=1e-9)
    assert smooth_ece(np.array([[1.0, 0.0]]), np.array([1])) == pytest.approx(1, rel=1e-9)


def test_the_smooth_error_of_two_confidences_is_the_root_of_a_series() -> None:
    """Right in 80 % at 0.6 and in 60 % at 0.8: as much too low as too high.

    The integral is 0.2 times how far apart two reflected normals about 0.6 and 0.8 are in
    variation; here by their images beyond 0 and 1, in place of a cosine series.
    """
    probs = np.repeat([[0.6, 0.25, 0.15], [0.8, 0.15, 0.05]], 10, axis=0)
    y = np.array([0] * 8 + [1] * 2 + [0] * 6 + [1] * 4)
    t = (np.arange(20_000) + 0.5) / 20_000

    def density(centre: float, width: float) -> np.ndarray:
        images = [2 * k + side * centre for k in range(-8, 9) for side in (1, -1)]
        found: np.ndarray = np.sum([stats.norm.pdf(t, image, width) for image in images], axis=0)
        return found

    def integral(width: float) -> float:
        return float(0.1 * np.abs(density(0.6, width) - density(0.8, width)).mean())

    expected = optimize.brentq(lambda width: integral(width) - width, 0.01, 1)
    assert_allclose(smooth_ece(probs, y), expected, rtol=1e-5)


def test_the_smooth_error_is_zero_where_every_confidence_is_right() -> None:
    probs = np.repeat([[0.6, 0.4], [0.8, 0.2]], 5, axis=0)
    assert smooth_ece(probs, np.array([0, 0, 0, 1, 1, 0, 0, 0, 0, 1])) < 1e-12


def test_two_confidences_that_nearly_agree_have_a_small_smooth_error() -> None:
    """By bins they are off by 0.4; by the smooth error, by the less the closer they are."""
    apart = 1e-4
    probs = np.repeat(
        [[0.6 - apart / 2, 0.4 + apart / 2], [0.6 + apart / 2, 0.4 - apart / 2]], 5, 0
    )
    y = np.array([0] * 5 + [0] + [1] * 4)  # right in 100 %, and in 20 %
    assert equal_mass_ece(probs, y, num_bins=2) == pytest.approx(0.4, abs=1e-3)
    # 0.4 (2 Phi(apart / 2 width) - 1) = width, where apart is small
    assert_allclose(smooth_ece(probs, y), np.sqrt(0.4 * apart / np.sqrt(2 * np.pi)), rtol=0.01)


def test_the_smooth_floor_of_one_confidence_is_a_mean_deviation_of_counts() -> None:
    """By de Moivre; the mean over 20 sets of outcomes is within 5 standard errors."""
    n, p = 200, 0.7
    counts = stats.binom(n, p)
    mean = counts.expect(lambda k: np.abs(k / n - p))
    error = np.sqrt((p * (1 - p) / n - mean**2) / 20)
    assert abs(smooth_ece_floor(np.array([[p, 1 - p]] * n)) - mean) < 5 * error
    found = [smooth_ece_floor(np.array([[p, 1 - p]] * n), seed=s) for s in range(50)]
    assert z_of(found, float(mean)) < 5


def test_a_calibrated_forecast_is_at_its_smooth_floor() -> None:
    probs, _ = calibrated(1_000, seed=0)
    cumulative, rng = probs.cumsum(1), np.random.default_rng(1)
    found = [
        smooth_ece(probs, (rng.uniform(size=(1_000, 1)) > cumulative).sum(1)) for _ in range(100)
    ]
    floors = [smooth_ece_floor(probs, seed=s) for s in range(5)]
    error = np.hypot(np.std(found) / np.sqrt(100), np.std(found) / np.sqrt(100))  # 5 floors of 20
    assert abs(np.mean(found) - np.mean(floors)) < 5 * error


def test_what_one_row_cannot_say() -> None:
    probs, y = np.array([[0.7, 0.3]]), np.array([0])
    assert np.isnan(debiased_squared_ece(probs, y))
    assert np.isnan(debiased_squared_ece_sd(probs))
    assert np.isnan(skce(probs, y))


def test_the_error_of_probabilities_that_are_not_known_is_not_known() -> None:
    probs, y = np.array([[0.7, 0.3], [np.nan, np.nan], [0.4, 0.6]]), np.array([0, 1, 1])
    for error in (ece, equal_mass_ece, classwise_ece, debiased_squared_ece, skce, smooth_ece):
        assert np.isnan(error(probs, y)), error.__name__


def test_shapes_and_bins_are_checked() -> None:
    probs = np.full((3, 2), 0.5)
    for error in (equal_mass_ece, classwise_ece, debiased_squared_ece, skce, smooth_ece):
        with pytest.raises(ShapeError, match=r"y must have shape \[3\] to match probs"):
            error(probs, np.zeros((3, 1)))
    for error in (equal_mass_ece, classwise_ece, debiased_squared_ece):
        with pytest.raises(OptionError, match="num_bins"):
            error(probs, np.zeros(3), 0)
    for floor in (equal_mass_floor, smooth_ece_floor, debiased_squared_ece_sd):
        with pytest.raises(ShapeError, match=r"probs must have shape \[N, C\]"):
            floor(np.zeros(3))
