r"""Which of K methods are behind, by a step-down max-t test with family-wise error.

Method k is behind if the mean score of some other method is higher. Where :math:`t_{jk}` is the
studentised evidence that j is better than k, k is tested by its strongest rival,

.. math:: T_k = \max_{j \ne k} \frac{t_{jk}}{q_{jk}}, \qquad
    \mathrm{reject}\ k \in M \iff T_k > c(M), \quad
    \Pr\Bigl(\max_{k \in M} \max_{j \ne k} \frac{t^*_{jk}}{q_{jk}} > c(M)\Bigr) = \alpha

with :math:`t^*` drawn as if all methods were equal, first for M = all methods, then for those that
are left, until none is rejected. As c falls with M, the chance that ANY method that is as good as
the best is called behind is at most :math:`\alpha`, whichever method looks best and however many
are truly behind. Where pairs have tails of their own :math:`q_{jk}` is a quantile of
:math:`|t^*_{jk}|` (`balanced`), else 1.

References:
    Romano & Wolf, "Exact and Approximate Stepdown Methods for Multiple Hypothesis Testing", JASA
    100, 2005; "Stepwise Multiple Testing as Formalized Data Snooping", Econometrica 73, 2005;
    "Balanced Control of Generalized Error Rates", Annals of Statistics 38, 2010.
"""

from __future__ import annotations

import functools
import math
from typing import TypeAlias

import numpy as np
from jaxtyping import Float, UInt16

FAMILY_WISE_ERROR = 0.05  # chance that any method is called behind of which none is better
NUM_SIMULATED = 4_999  # statistics of equal methods: a p-value of 0.05 has an error of 0.003
SMALLEST_SHARE = 0.001  # of draws beyond the unit of a pair: five
ALIKE = 1.5  # times the smallest unit, up to which units are taken for one
MAX_GROUPS = 1_000  # more rows are resampled in this many groups
MAX_COUNTS = 2_000_000  # counts of a resampling that are drawn at a time


def p_values(
    t: Float[np.ndarray, "K K"], equal: Float[np.ndarray, "B P"]
) -> Float[np.ndarray, " K"]:
    """Adjusted p-values of "no method is better than k", by the step-down max-t.

    Those at most `FAMILY_WISE_ERROR` are rejected together.

    Args:
        t: Evidence ``[K, K]`` that the method of the row is better than that of the column;
            ``-inf`` where there is none.
        equal: B draws of the statistic of every pair ``[B, P]`` as if all methods were equal, in
            the order of ``np.triu_indices(K, 1)``; that of the opposite pair is its negative.

    Returns:
        One p-value a method ``[K]``, at least 1 / (B + 1).

    References:
        Romano & Wolf, "Efficient computation of adjusted p-values for resampling-based stepdown
        multiple testing", Statistics & Probability Letters 113, 2016.

    Example:
        >>> t = np.array([[-np.inf, 5.0], [-5.0, -np.inf]])
        >>> p_values(t, np.array([[1.0], [-6.0], [2.0]]))
        array([1. , 0.5])
    """
    num_methods = len(t)
    first, second = np.triu_indices(num_methods, 1)
    strongest = t.max(0)  # [K]
    order = np.argsort(-strongest)
    by_pair = np.ascontiguousarray(equal.T)  # [P, B], the draws of a pair side by side
    rivals = np.full((num_methods, len(equal)), -np.inf)  # [K, B], the largest over j
    for pair, (j, k) in enumerate(zip(first, second, strict=True)):
        np.maximum(rivals[k], by_pair[pair], out=rivals[k])
        np.maximum(rivals[j], -by_pair[pair], out=rivals[j])
    largest = np.maximum.accumulate(rivals[order[::-1]], axis=0)[::-1]  # over those left
    p = (1 + (largest >= strongest[order, None]).sum(1)) / (len(equal) + 1)
    adjusted = np.empty(num_methods)
    adjusted[order] = np.maximum.accumulate(p)
    return adjusted


def units_of_pairs(equal: Float[np.ndarray, "B P"]) -> Float[np.ndarray, " P"]:
    r"""A quantile of the draws of each pair, signs left out: the unit of its statistic.

    .. math:: q_{jk}: \quad \Pr(|t^*_{jk}| > q_{jk}) = \alpha / P \quad \text{of } P
        \text{ pairs, at least } 0.001

    The draws of a pair have long tails where one of the two fails on a single row: a resample
    without that row has a small error. The largest draw over all pairs is then one of that method,
    and tells nothing of the others. In these units, near those of Bonferroni's test, each pair
    counts by its own draws. They are the same in both directions, as the symmetric studentised
    bootstrap is the more exact one (Hall). Pairs whose quantile is within one and a half of the
    smallest share that: of alike tails it is the scatter of five draws that differs.

    Args:
        equal: As `p_values` takes it.

    References:
        Hall, "On Symmetric Bootstrap Confidence Intervals", JRSS B 50, 1988.
    """
    share = max(FAMILY_WISE_ERROR / max(equal.shape[1], 1), SMALLEST_SHARE)
    by_pair = np.abs(equal.T, order="C")  # [P, B], the draws of a pair side by side
    units = np.quantile(by_pair, 1 - share, axis=1, overwrite_input=True)
    smallest = units[units > 0].min(initial=np.inf)  # of pairs that are tested
    units = np.where(units <= ALIKE * smallest, smallest, units)
    units[~np.isfinite(units)] = 1.0
    return np.asarray(units)


def balanced(
    t: Float[np.ndarray, "K K"], equal: Float[np.ndarray, "B P"]
) -> tuple[Float[np.ndarray, "K K"], Float[np.ndarray, "B P"]]:
    """Statistics and draws in the units of `units_of_pairs`.

    Args:
        t: As `p_values` takes it.
        equal: As `p_values` takes it.

    Example:
        >>> t = np.array([[-np.inf, 5.0], [-5.0, -np.inf]])
        >>> balanced(t, np.array([[-2.0], [0.0], [2.0]]))
        (array([[-inf,  2.5],
               [-2.5, -inf]]), array([[-1.],
               [ 0.],
               [ 1.]]))
    """
    of_pairs = units_of_pairs(equal)
    units = np.ones_like(t)
    units[np.triu_indices(len(t), 1)] = of_pairs
    return t / (units * units.T), equal / of_pairs


def centred_sums(differences: Float[np.ndarray, " N"]) -> Float[np.ndarray, " G"]:
    """Sums of centred differences over groups of consecutive rows; over single rows up to 1,000.

    Groups leave the skewness of the mean as it is, which is what a resampling of many rows is for.

    Example:
        >>> centred_sums(np.array([1.0, 2.0, 6.0]))
        array([-2., -1.,  3.])
    """
    num_groups = min(len(differences), MAX_GROUPS)
    starts = np.arange(num_groups) * len(differences) // num_groups
    return np.add.reduceat(differences - differences.mean(), starts)


def resampled(
    sums: Float[np.ndarray, "G P"],
    num_rows: int,
    draws_errors: Float[np.ndarray, " K"],
    degrees_of_freedom: float = math.inf,
) -> Float[np.ndarray, "B P"]:
    r"""Statistics of equal methods by a studentised bootstrap of rows.

    Groups of rows are drawn again with replacement, the same for all pairs, and every resample is
    divided by its own standard error. That carries the skewness of the differences over, which
    quantiles of t or signs drawn at random do not. The errors of posterior draws are added as
    independent normal errors of each method. Where their variance is an estimate itself, of
    :math:`\nu` degrees of freedom, these errors are Student's, as in the Behrens-Fisher test:

    .. math:: t^*_{jk} = \frac{\bar d^*_{jk} + (s_j \varepsilon_j - s_k \varepsilon_k)
        \sqrt{\nu / \chi^2_\nu}}{\sqrt{\mathrm{se}^{*2}_{jk} + s_j^2 + s_k^2}}

    Args:
        sums: `centred_sums` of the differences of every pair ``[G, P]``, in the order of
            ``np.triu_indices(K, 1)``.
        num_rows: Rows N of all groups.
        draws_errors: Monte Carlo standard error of the mean of each method ``[K]``.
        degrees_of_freedom: Of their common variance; infinite where it is known.

    Returns:
        ``[B, P]``, 0 where a resample has no spread.

    References:
        Hall, "The Bootstrap and Edgeworth Expansion", Springer 1992, section 3.10.
    """
    num_groups, num_pairs = sums.shape
    num_methods = len(draws_errors)
    first, second = np.triu_indices(num_methods, 1)
    squares = sums**2
    of_draws = num_rows**2 * (draws_errors[first] ** 2 + draws_errors[second] ** 2)  # [P]
    largest = np.zeros((NUM_SIMULATED, num_pairs))
    widths = np.ones((NUM_SIMULATED, 1))  # standard deviations over their estimate
    if math.isfinite(degrees_of_freedom):
        chi2 = np.random.default_rng(1).chisquare(degrees_of_freedom, widths.shape)
        widths = np.sqrt(degrees_of_freedom / chi2)
    start = 0
    for drawn, normal in _resamples(num_groups, num_methods):
        counts, part = drawn.astype(float), largest[start : start + len(drawn)]
        total = counts @ sums  # [b, P]
        spread = counts @ squares - total**2 / num_groups
        spread[spread < 1e-12 * total**2] = 0.0  # one group drawn again and again: rounding
        spread *= num_groups
        spread /= max(num_groups - 1, 1)
        if draws_errors.any():
            spread += of_draws
            error = normal * draws_errors * num_rows * widths[start : start + len(drawn)]  # [b, K]
            total += error.take(first, axis=1) - error.take(second, axis=1)
        np.divide(total, np.sqrt(spread), out=part, where=spread > 0)
        start += len(drawn)
    return largest


Resample: TypeAlias = tuple[UInt16[np.ndarray, "b G"], Float[np.ndarray, "b K"]]


@functools.lru_cache(maxsize=1)
def _resamples(num_groups: int, num_methods: int) -> list[Resample]:
    """How often each resample draws each group, and normal errors, by parts; always the same."""
    rng = np.random.default_rng(0)
    at_a_time = max(MAX_COUNTS // num_groups, 1)
    parts = []
    for start in range(0, NUM_SIMULATED, at_a_time):
        num = min(at_a_time, NUM_SIMULATED - start)
        drawn = rng.integers(num_groups, size=(num, num_groups))
        drawn += np.arange(num)[:, None] * num_groups
        counts = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        parts.append((counts.astype(np.uint16), rng.standard_normal((num, num_methods))))
    return parts


@functools.lru_cache(maxsize=1)
def gaussian(num_methods: int, num_repeats: int) -> Float[np.ndarray, "B P"]:
    """Statistics of equal methods over a few repeats: paired t of independent normal scores.

    A few repeats do not tell the correlations of methods. Independent scores of one variance serve
    for all: with known variances they have the largest maximum of |t| over all pairs (the
    generalised Tukey conjecture, proven for independent means of any variances). For variances
    estimated pair by pair there is no proof; benchmarks/verdict_rates/ranking.py simulates it.

    Args:
        num_methods: K.
        num_repeats: Repeats J, at least 2; t has J - 1 degrees of freedom.

    Returns:
        ``[B, P]``, in the order of ``np.triu_indices(K, 1)``; the same array at every call, which
        cannot be written to.

    References:
        Hayter, "A Proof of the Conjecture that the Tukey-Kramer Multiple Comparisons Procedure is
        Conservative", Annals of Statistics 12, 1984.
    """
    first, second = np.triu_indices(num_methods, 1)
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((NUM_SIMULATED, num_repeats, num_methods))
    means = scores.mean(1)  # [B, K]
    centred = scores - means[:, None]
    products = centred.transpose(0, 2, 1) @ centred  # [B, K, K]
    of_each = np.diagonal(products, axis1=1, axis2=2)  # [B, K]
    squares = of_each[:, first] + of_each[:, second] - 2 * products[:, first, second]
    error = np.sqrt(squares / (num_repeats - 1) / num_repeats)
    t = np.asarray((means[:, first] - means[:, second]) / error)
    t.flags.writeable = False
    return t
