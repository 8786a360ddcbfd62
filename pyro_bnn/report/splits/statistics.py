r"""Means, standard errors and paired differences over splits of one data set.

Seeds are averaged within a split first: they are repeats on the same rows, and say nothing of
other rows. Over splits k = 1..J, for a value :math:`m_k` of one method and the difference
:math:`d_k` of two,

.. math::
    \mathrm{se}(\bar m)^2 &= \tfrac1J \mathrm{var}_k(m_k) \\
    \mathrm{se}(\bar d)^2 &= \Bigl(\tfrac1J + \tfrac{n_\mathrm{test}}{n_\mathrm{train}}\Bigr)
        \mathrm{var}_k(d_k)

with sample variances (J - 1). Repeated random splits share rows, so the :math:`d_k` are
correlated, and the factor 1/J alone would call differences of nothing significant; the second term
of the factor estimates that correlation. Which methods are behind is tested over all pairs at once,
by the step-down max-t of :mod:`pyro_bnn.diagnostics.max_t`.

References:
    Nadeau & Bengio, "Inference for the Generalization Error", Machine Learning 52, 2003.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.max_t import gaussian, p_values
from pyro_bnn.diagnostics.ranking import paired

MIN_SPLITS = 3  # two splits have one difference to tell a spread from
NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class OverSplits:
    """Mean of a number over splits.

    Attributes:
        mean: Over splits, of the means over seeds within each.
        standard_error: Over splits; NaN with fewer than three.
        sd_over_seeds: With ONE split and several seeds, the standard deviation over seeds: how
            much a fit varies, and no error over data; else NaN.
    """

    mean: float
    standard_error: float = NAN
    sd_over_seeds: float = NAN


def over_splits(by_split: list[Float[np.ndarray, " R"]], correction: float = 0.0) -> OverSplits:
    r"""Averages values over seeds and splits.

    Args:
        by_split: Values of each split's seeds ``[R]``; R may differ between splits.
        correction: What stands beside 1/J in the squared standard error: 0 for the mean of one
            method, :math:`n_\mathrm{test} / n_\mathrm{train}` for a difference of two.

    Example:
        >>> over_splits([np.array([1.0, 3.0]), np.array([4.0]), np.array([6.0])]).mean
        4.0
    """
    means = np.array([values.mean() for values in by_split])  # [J]
    mean = error = sd = NAN
    with np.errstate(invalid="ignore"):  # inf - inf: NaN, as it should be
        if len(means):
            mean = float(means.mean())
        if len(means) >= MIN_SPLITS:
            error = float(np.std(means, ddof=1) * math.sqrt(1 / len(means) + correction))
        elif len(means) == 1 and len(by_split[0]) > 1:
            sd = float(np.std(by_split[0], ddof=1))
    return OverSplits(mean=mean, standard_error=error, sd_over_seeds=sd)


def behind_over_splits(
    scores: Sequence[list[Float[np.ndarray, " R"]]], correction: float
) -> Float[np.ndarray, " K"]:
    r"""Family-wise p-values ``[K]`` of "no method is better", from corrected errors of differences.

    Under the model of Nadeau and Bengio, :math:`t = \bar d / \mathrm{se}(\bar d)` of two equal
    methods has Student's t with J - 1 degrees of freedom. The largest of all pairs is that of J
    normal scores of independent methods, the worst case: few splits tell no correlations.

    Args:
        scores: Of each method, the values of each split's seeds ``[R]``; the same runs for all.
        correction: :math:`n_\mathrm{test} / n_\mathrm{train}`.

    Returns:
        ``[K]``; 1 with fewer than three splits, which have no standard error.

    Example:
        >>> splits = np.arange(5.0)[:, None]
        >>> p = behind_over_splits([list(splits), list(splits - np.cos(splits) - 3)], 0.1)
        >>> p <= 0.05
        array([False,  True])
    """
    num_methods, num_splits = len(scores), len(scores[0])
    if num_splits < MIN_SPLITS:
        return np.ones(num_methods)
    t = np.full((num_methods, num_methods), -np.inf)
    for j, k in combinations(range(num_methods), 2):
        gap = over_splits(list(map(paired, scores[j], scores[k])), correction)
        if gap.mean and not math.isnan(gap.mean):  # NaN: both have impossible rows
            is_constant = math.isinf(gap.mean) or gap.standard_error == 0
            strength = (
                math.copysign(math.inf, gap.mean) if is_constant else gap.mean / gap.standard_error
            )
            t[j, k], t[k, j] = strength, -strength
    return p_values(t, gaussian(num_methods, num_splits))
