"""Tests of uniform ranks against enumeration and hand-computed statistics."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pyro_bnn.diagnostics.simulation.uniformity import equal_bins, rank_among, rank_uniformity
from pyro_bnn.errors import OptionError, ShapeError

# of 100 truths spread as N(0, 1), among draws of N(1, 1)
HIGH = [int(100 * stats.norm.cdf(stats.norm.ppf((n + 0.5) / 100) - 1)) for n in range(100)]


def test_chi_square_by_hand() -> None:
    # counts 9, 1, 1, 9 of 5 expected: chi-square = 4 * 16 / 5 = 12.8 with 3 degrees of freedom,
    # and Pr(X > x) = erfc(sqrt(x/2)) + sqrt(2 x/pi) exp(-x/2)
    ranks = np.repeat([0, 5, 10, 15], [9, 1, 1, 9])
    found = rank_uniformity(ranks, num_draws=19, num_bins=4)
    assert found.counts.tolist() == [9, 1, 1, 9]
    np.testing.assert_allclose(found.p_value, 0.00508967, rtol=1e-5)


@pytest.mark.parametrize(
    ("shift", "width"), [(0.0, 1.0), (0.4, 1.0), (0.0, 0.7), (0.0, 1.5), (-0.4, 1.5)]
)
def test_z_scores_tell_shift_from_width(shift: float, width: float) -> None:
    # the truth, in units of a right posterior N(0, 1), among draws of N(shift, width^2): with
    # q = (truth - shift)/width its scores have mean -shift/width and variance 1/width^2
    count, num_draws = 40_000, 1999
    truth = np.random.default_rng(0).standard_normal(count)
    place = stats.norm.cdf((truth - shift) / width)
    ranks = np.random.default_rng(1).binomial(num_draws, place)
    found = rank_uniformity(ranks, num_draws, 20)
    # a rank in 0 .. L cuts the largest scores off, and rounds the others
    np.testing.assert_allclose(found.bias, shift / width * count**0.5, rtol=0.05, atol=4)
    np.testing.assert_allclose(
        found.width, (1 - 1 / width**2) * (count / 2) ** 0.5, rtol=0.05, atol=4
    )


@pytest.mark.slow("a second or more")
def test_z_scores_are_standard_for_uniform_ranks() -> None:
    ranks = np.random.default_rng(0).integers(0, 20, (2000, 100))
    found = [rank_uniformity(row, 19, 20) for row in ranks]
    z = np.array([(uniformity.bias, uniformity.width) for uniformity in found])  # [2000, 2]
    assert np.abs(z.mean(0) * 2000**0.5).max() < 6  # s^2 with divisor D is 1 % low: 0.07 of a z
    np.testing.assert_allclose(z.std(0), 1, atol=4 / (2 * 2000) ** 0.5)
    for p in (
        np.array([uniformity.p_value for uniformity in found]),
        np.array([uniformity.smooth_p_value for uniformity in found]),
    ):
        assert abs((p < 0.05).mean() - 0.05) < 4 * (0.05 * 0.95 / 2000) ** 0.5


def test_smooth_test_by_hand() -> None:
    # ranks 0 .. 4: centred -2 .. 2, m2 = 2, m4 = 6.8; of 2, 2, 2, -2 the sums are 4 and 4 (4 - 2):
    # 16/(4 * 2) + 64/(4 * 2.8), and chi-square with two degrees of freedom is exponential
    statistic = 16 / 8 + 64 / 11.2
    found = rank_uniformity(np.array([4, 4, 4, 0]), num_draws=4, num_bins=5)
    np.testing.assert_allclose(found.smooth_p_value, np.exp(-statistic / 2), rtol=1e-12)
    assert found.smallest[0] == "smooth-test"


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([0] * 30 + [99] * 30, ("too narrow",)),
        ([49] * 30 + [50] * 30, ("too wide",)),
        (HIGH, ("biased high",)),
        ([99 - rank for rank in HIGH], ("biased low",)),
        ([0] * 60, ("biased high",)),
        ([0] * 50 + [99] * 10, ("too narrow", "biased high")),
        (list(range(5, 100, 10)) * 6, ("uneven",)),
    ],
)
def test_shapes_have_their_words(ranks: list[int], words: tuple[str, ...]) -> None:
    assert rank_uniformity(np.array(ranks), 99, 10).shapes == words


def test_ranks_count_draws_below_and_break_ties_evenly() -> None:
    generator = np.random.default_rng(0)
    draws = np.array([[1.0, 5.0, 2.0], [2.0, 6.0, 2.0], [3.0, 7.0, 2.0]])
    ranks = np.array([rank_among(np.array([2.5, 5.0, 2.0]), draws, generator) for _ in range(4000)])
    assert (ranks[:, 0] == 2).all()
    assert set(ranks[:, 1]) == {0, 1}  # one tie
    counts = np.bincount(ranks[:, 2], minlength=4)  # three ties: 0, 1, 2, 3 alike
    z = (counts - 1000) / np.sqrt(4000 * 0.25 * 0.75)
    assert np.abs(z).max() < 4


@pytest.mark.parametrize(("num_simulations", "expected"), [(20, 4), (50, 10), (99, 10), (100, 20)])
def test_bins_expect_five_simulations(num_simulations: int, expected: int) -> None:
    assert equal_bins(num_simulations, 99) == expected


def test_refusals() -> None:
    with pytest.raises(OptionError, match=r"num_simulations=19 is too few .* at least 20"):
        equal_bins(19, 99)
    with pytest.raises(OptionError, match=r"101 ranks among num_draws=100 .* take num_draws=99"):
        equal_bins(200, 100)
    with pytest.raises(OptionError, match="take num_draws=19"):
        equal_bins(200, 1)
    with pytest.raises(ShapeError, match=r"from 0 to 9; got shape \[2\]"):
        rank_uniformity(np.array([3, 10]), 9, 5)
