r"""Ranks of true values among posterior draws: are they uniform, and if not, in which way?

The rank of the truth among L draws of the right posterior is uniform on 0 .. L (Talts, Betancourt,
Simpson, Vehtari & Gelman, "Validating Bayesian Inference Algorithms with Simulation-Based
Calibration", 2018, arXiv:1804.06788).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from pyro_bnn.errors import OptionError, ShapeError

BINS = (20, 10, 5, 4)  # numbers of equal bins, each of which divides the first
EXPECTED_IN_BIN = 5  # below it chi-square is a poor law of the statistic
SHAPE_ERRORS = 3.0  # standard errors beyond which a shape is named

SHAPES: Mapping[str, str] = {
    "too narrow": "the true value lies beyond most draws too often",
    "too wide": "the true value lies in the middle of the draws too often",
    "biased high": "the draws lie above the true value too often",
    "biased low": "the draws lie below the true value too often",
    "uneven": "some ranks come too often",
}
"""What a posterior is whose ranks are not uniform, and what that means."""


@dataclass(frozen=True, kw_only=True)
class Uniformity:
    """How uniform the ranks of one quantity are.

    Attributes:
        counts: Simulations in each of J equal bins of ranks ``[J]``.
        p_value: Of the chi-square test that all bins are equally likely.
        smooth_p_value: Of the smooth test, which sees a slope, a U and a hump in fewer simulations
            than bins do.
        bias: How far the draws lie above the truth, in standard errors: minus the z-score of the
            mean normal score.
        width: How much wider the posterior is than the right one, in standard errors: minus the
            z-score of the variance of the normal scores.
    """

    counts: Int[np.ndarray, " J"]
    p_value: float
    smooth_p_value: float
    bias: float
    width: float

    @property
    def smallest(self) -> tuple[str, float]:
        """The test with the smaller p-value, and that value."""
        tests = {"chi-square": self.p_value, "smooth-test": self.smooth_p_value}
        return min(tests.items(), key=lambda test: test[1])

    @property
    def shapes(self) -> tuple[str, ...]:
        """Words of `SHAPES` for the deviation, the largest first, whether or not it is real.

        A second word stands where its z-score is at least half of the first one's: ranks that all
        pile up at one end also vary less.
        """
        sizes = {
            "too narrow": -self.width,
            "too wide": self.width,
            "biased high": self.bias,
            "biased low": -self.bias,
        }
        least = max(SHAPE_ERRORS, max(sizes.values()) / 2)
        words = [word for word, size in sizes.items() if size >= least]
        return tuple(sorted(words, key=lambda word: -sizes[word])) or ("uneven",)


def rank_uniformity(ranks: Int[np.ndarray, " D"], num_draws: int, num_bins: int) -> Uniformity:
    r"""Tests of uniform ranks, with z-scores that tell a shift from a wrong width.

    The chi-square test is of J equal bins, Neyman's smooth test of the first two moments:

    .. math:: \chi^2 = \sum_j \frac{(n_j - D/J)^2}{D/J} \sim \chi^2_{J - 1}, \qquad
        \frac{(\sum_d c_d)^2}{D\, m_2} + \frac{\bigl(\sum_d (c_d^2 - m_2)\bigr)^2}{D (m_4 - m_2^2)}
        \sim \chi^2_2, \qquad c_d = r_d - \tfrac L2

    with the moments m of a uniform rank. The z-scores are those of mean and variance of the normal
    scores

    .. math:: q_d = \Phi^{-1}\Bigl(\frac{r_d + 1/2}{L + 1}\Bigr).

    Where the posterior is Gaussian, draws that are shifted by b and scaled by c (in its standard
    deviations) have scores of mean -b/c and standard deviation 1/c.

    Args:
        ranks: Rank of the true value among the draws of each of D simulations, 0 .. L.
        num_draws: Number of draws L.
        num_bins: Number of equal bins J, as :func:`equal_bins` chooses it.

    Raises:
        ShapeError: If ``ranks`` is not ``[D]``, or has values outside 0 .. L.

    References:
        Neyman, "'Smooth test' for goodness of fit", Skandinavisk Aktuarietidskrift 1937.

    Example:
        >>> result = rank_uniformity(np.arange(100) % 10, num_draws=9, num_bins=10)
        >>> result.p_value, abs(result.bias) < 1e-9, abs(result.width) < 1e-9
        (1.0, True, True)
    """
    from scipy import stats

    ranks = np.asarray(ranks)
    if ranks.ndim != 1 or not ranks.size or ranks.min() < 0 or ranks.max() > num_draws:
        raise ShapeError(
            f"ranks are one for each simulation, [D], from 0 to {num_draws}; got shape "
            f"{list(ranks.shape)}"
        )
    counts = np.bincount(ranks * num_bins // (num_draws + 1), minlength=num_bins)  # [J]
    middle = np.arange(num_draws + 1) - num_draws / 2  # of each rank, [L + 1]
    smooth = _z(ranks, middle) ** 2 + _z(ranks, middle**2) ** 2
    score = stats.norm.ppf((np.arange(num_draws + 1) + 0.5) / (num_draws + 1))  # [L + 1]
    around = (score - score[ranks].mean()) ** 2  # so that a shift is no width
    return Uniformity(
        counts=counts,
        p_value=float(stats.chisquare(counts).pvalue),
        smooth_p_value=float(stats.chi2.sf(smooth, 2)),
        bias=-_z(ranks, score),
        width=-_z(ranks, around, null=score**2),
    )


def _z(
    ranks: Int[np.ndarray, " D"],
    values: Float[np.ndarray, " R"],
    null: Float[np.ndarray, " R"] | None = None,
) -> float:
    """Z-score of the mean of ``values[rank]``, whose law for uniform ranks is that of ``null``."""
    null = values if null is None else null
    error = null.std() / math.sqrt(len(ranks))
    return float((values[ranks].mean() - null.mean()) / error)


def equal_bins(num_simulations: int, num_draws: int) -> int:
    """Number of equal bins of the ranks 0 .. L: at most 20, of 5 expected simulations or more.

    Raises:
        OptionError: If there are fewer than 20 simulations, or L + 1 is no multiple of 20.

    Example:
        >>> equal_bins(200, 99), equal_bins(30, 99)
        (20, 5)
    """
    least = BINS[-1] * EXPECTED_IN_BIN
    if num_simulations < least:
        raise OptionError(
            f"num_simulations={num_simulations} is too few to see ranks that are not uniform: run "
            f"at least {least}, better 200"
        )
    if num_draws < 1 or (num_draws + 1) % BINS[0]:
        nearest = max(round((num_draws + 1) / BINS[0]), 1) * BINS[0] - 1
        raise OptionError(
            f"the {num_draws + 1} ranks among num_draws={num_draws} draws do not fall into "
            f"{BINS[0]} equal bins: take num_draws={nearest}"
        )
    return next(bins for bins in BINS if bins * EXPECTED_IN_BIN <= num_simulations)


def rank_among(
    truth: Float[np.ndarray, " Q"],
    draws: Float[np.ndarray, "L Q"],
    generator: np.random.Generator,
) -> Int[np.ndarray, " Q"]:
    """How many draws of each quantity lie below its true value; ties go either way by lot.

    Example:
        >>> rank_among(np.array([0.5]), np.array([[0.1], [0.7], [0.3]]), np.random.default_rng(0))
        array([2])
    """
    below = (draws < truth).sum(0)
    ties = (draws == truth).sum(0)
    return np.asarray(below + generator.integers(0, ties + 1))
