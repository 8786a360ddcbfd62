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
of the factor estimates that correlation.

References:
    Nadeau & Bengio, "Inference for the Generalization Error", Machine Learning 52, 2003.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.ranking import TIED_STANDARD_ERRORS

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

    @property
    def tied(self) -> bool | None:
        """Whether a difference is under 2 standard errors; None where these are unknown."""
        if self.mean == 0:
            return True
        if not math.isfinite(self.mean):
            return False if math.isinf(self.mean) else None
        if math.isnan(self.standard_error):
            return None
        return abs(self.mean) < TIED_STANDARD_ERRORS * self.standard_error


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
    error = sd = NAN
    with np.errstate(invalid="ignore"):  # inf - inf in a standard deviation: NaN, as it should be
        if len(means) >= MIN_SPLITS:
            error = float(np.std(means, ddof=1) * math.sqrt(1 / len(means) + correction))
        elif len(means) == 1 and len(by_split[0]) > 1:
            sd = float(np.std(by_split[0], ddof=1))
    return OverSplits(
        mean=float(means.mean()) if len(means) else NAN, standard_error=error, sd_over_seeds=sd
    )


def paired(a: Float[np.ndarray, " R"], b: Float[np.ndarray, " R"]) -> Float[np.ndarray, " R"]:
    """Differences a - b of the same runs ``[R]``; 0 where both are infinite alike.

    Example:
        >>> paired(np.array([1.0, -np.inf]), np.array([0.5, -np.inf]))
        array([0.5, 0. ])
    """
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, a - b)


def chance_of_passing(num_splits: int) -> float:
    """Probability that a difference of nothing passes 2 standard errors, by Student's t.

    Its J - 1 degrees of freedom take the corrected error for right; it shrinks to 0.046.

    Example:
        >>> round(chance_of_passing(3), 3), round(chance_of_passing(20), 3)
        (0.184, 0.06)
    """
    from scipy import stats

    return float(2 * stats.t.sf(TIED_STANDARD_ERRORS, num_splits - 1))
