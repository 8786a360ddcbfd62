r"""Weights of particles between two inverse temperatures, in double precision on the CPU.

.. math:: w_i = e^{(b' - b)\, l_i}, \qquad
          \mathrm{ESS}(b') = \frac{(\sum_i w_i)^2}{\sum_i w_i^2}, \qquad
          \log \frac{Z_{b'}}{Z_b} \approx \log \frac1n \sum_i w_i

for log likelihoods l of n particles of equal weight at b.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

HALVINGS = 200  # of the interval of b: to its last digit, however steep the likelihood

FloatArray = Float[np.ndarray, " n"]


class Evidence(NamedTuple):
    """Log evidence in nats, and its standard error over islands; NaN of one island."""

    value: float
    error: float


def effective_share(log_likelihoods: FloatArray, step: float) -> float:
    """ESS over n of the weights exp(step l); those of particles of density 0 are 0."""
    w, _ = _weights(log_likelihoods, step)
    return float(w.sum() ** 2 / (w @ w) / len(w))


def next_temperature(log_likelihoods: FloatArray, b: float, share: float) -> float:
    """The largest b' in (b, 1] at which the ESS is at least a share of the particles.

    Particles of density 0 are lost at every b' alike, and do not count.

    Args:
        log_likelihoods: l of each particle, of which one is finite; -inf where the density is 0.
        b: The inverse temperature that they are at, below 1.
        share: Of the particles, in (0, 1).

    Example:
        >>> next_temperature(np.array([-1.0, -1.1, -1.3]), 0.0, 0.5)
        1.0
        >>> b = next_temperature(np.array([-10.0, -40.0, -90.0, -200.0]), 0.0, 0.5)
        >>> round(effective_share(np.array([-10.0, -40.0, -90.0, -200.0]), b), 6)
        0.5
    """
    finite = log_likelihoods[log_likelihoods > -np.inf]
    low, high = b, 1.0
    if effective_share(finite, high - b) >= share:
        return high
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        if effective_share(finite, middle - b) >= share:
            low = middle
        else:
            high = middle
    return high  # above b, even where no double between them is


def log_mean_weight(log_likelihoods: FloatArray, step: float) -> float:
    """Log of the mean of exp(step l): the increase of log Z."""
    w, largest = _weights(log_likelihoods, step)
    return largest + math.log(w.mean())


def systematic(
    log_likelihoods: FloatArray, step: float, count: int, uniform: float
) -> Int[np.ndarray, " m"]:
    """Ascending numbers of particles, each drawn by its weight exp(step l), by one uniform number.

    A particle of share s is drawn floor(s count) or that plus 1 times.

    References:
        Carpenter, Clifford & Fearnhead, "Improved Particle Filter for Nonlinear Problems", IEE
        Proceedings 1999.
    """
    cumulative = _weights(log_likelihoods, step)[0].cumsum()
    points = (np.arange(count) + uniform) / count * cumulative[-1]
    chosen: Int[np.ndarray, " m"] = np.searchsorted(cumulative, points, side="right")
    return chosen.clip(max=len(cumulative) - 1)


def combined(log_evidences: Float[np.ndarray, " M"]) -> Evidence:
    r"""One log evidence of those of M independent islands.

    Each :math:`Z_m` is an estimate of the evidence, unbiased but for what islands adapt, so their
    mean is taken, and not that of their logs:

    .. math:: \log \hat Z = \log \frac1M \sum_m Z_m, \qquad
              \mathrm{error} = \mathrm{sd}_m(\log Z_m) / \sqrt M

    The error is that of the log of the mean where islands differ by less than a nat. Where they
    differ by more, that of the mean of Z would be bounded by 1, as one island makes the whole of
    it; the spread of the logs still says that they disagree.

    Example:
        >>> value, error = combined(np.array([-3.0, -3.2, -2.9, -3.1]))
        >>> round(value, 3), round(error, 3)
        (-3.044, 0.065)
    """
    count = len(log_evidences)
    value = log_mean_weight(log_evidences, 1.0)
    error = float(np.std(log_evidences, ddof=1)) / math.sqrt(count) if count > 1 else math.nan
    return Evidence(value, error)


def correlation(a: FloatArray, b: FloatArray) -> float:
    """Correlation of log likelihoods before and after moves; 1 where one of them is constant."""
    both = np.isfinite(a) & np.isfinite(b)
    if both.sum() < 2 or a[both].std() == 0 or b[both].std() == 0:
        return 1.0
    return float(np.corrcoef(a[both], b[both])[0, 1])


def _weights(log_likelihoods: FloatArray, step: float) -> tuple[FloatArray, float]:
    """Weights exp(step l) over the largest of them, and the log of that one."""
    largest = log_likelihoods.max()
    return np.exp(step * (log_likelihoods - largest)), step * float(largest)
