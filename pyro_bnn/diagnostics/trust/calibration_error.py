r"""Calibration errors of classes: by bins, class by class, debiased, smoothed, by a kernel.

Every one of them is of finite data: a calibrated method has a plug-in error above 0
(`equal_mass_floor`, `smooth_ece_floor`), and an unbiased one that scatters about 0. None ranks
methods: log scores do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from pyro_bnn.checks import check_positive_int
from pyro_bnn.diagnostics.shapes import check_axes, check_classes

NUM_BINS = 15
BLOCK = 1_000  # rows of which all pairs are compared
CELLS = 1 << 11  # of [0, 1], on which confidences are smoothed
LABELS = 20  # sets of outcomes that a floor is the mean of


@dataclass(frozen=True, kw_only=True)
class _Bins:
    """Rows in bins: how many, their mean confidence and their share of outcomes ``[B]``."""

    count: Float[np.ndarray, " B"]
    confidence: Float[np.ndarray, " B"]
    accuracy: Float[np.ndarray, " B"]

    @property
    def error(self) -> float:
        r""":math:`\sum_b \tfrac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|`."""
        gap = np.abs(self.accuracy - self.confidence)
        return float((self.count * gap).sum() / self.count.sum())


def equal_mass_ece(
    probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"], num_bins: int = NUM_BINS
) -> float:
    r"""Expected calibration error of the largest probability, in bins of as many rows each.

    .. math:: \mathrm{ECE} = \sum_b \tfrac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|

    Rows of equal confidence are in one bin, so that their order does not matter.

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.
        num_bins: Number of bins B; those that ties or too few rows leave empty do not count.

    Raises:
        OptionError: If ``num_bins`` is not a positive integer.
        DataError: If y holds anything but 0..C-1.
        ShapeError: If the shapes do not fit.

    References:
        Nixon et al., "Measuring Calibration in Deep Learning", CVPR workshops 2019,
        arXiv:1904.01685 (adaptive calibration error).

    Example:
        >>> probs = np.array([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.6, 0.4]])
        >>> round(equal_mass_ece(probs, np.array([0, 0, 0, 1]), num_bins=2), 4)
        0.1
    """
    confidence, correct = _top_label(probs, y)
    return _equal_mass(confidence, correct, num_bins).error


def equal_mass_floor(probs: Float[np.ndarray, "N C"], num_bins: int = NUM_BINS) -> float:
    r"""About what `equal_mass_ece` is if the probabilities are exactly right.

    .. math:: \sqrt{\tfrac2\pi}\,\sum_b \tfrac{n_b}{N} \sqrt{\tfrac{\overline{p (1 - p)}_b}{n_b}}

    the mean size of a normal number whose variance is that of the bin's accuracy.

    Args:
        probs: Predictive class probabilities ``[N, C]``.
        num_bins: Number of bins.

    Raises:
        OptionError: If ``num_bins`` is not a positive integer.
        ShapeError: If ``probs`` is not ``[N, C]``.

    Example:
        >>> round(equal_mass_floor(np.full((500, 2), 0.5)), 4)  # sqrt(2 / pi) sqrt(1 / 4 / 500)
        0.0178
    """
    confidence = check_axes("probs", probs, "N C").max(1)
    noise = _equal_mass(confidence, confidence * (1 - confidence), num_bins)
    sizes = np.sqrt(noise.accuracy / noise.count)
    return float(np.sqrt(2 / np.pi) * (noise.count * sizes).sum() / noise.count.sum())


def classwise_ece(
    probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"], num_bins: int = NUM_BINS
) -> float:
    r"""Mean over classes of the calibration error of each class's probability, in equal-mass bins.

    .. math:: \frac1C \sum_c \sum_b \frac{n_b}{N} \bigl| \overline{[y = c]}_b - \bar p_{c, b} \bigr|

    The largest probability may be calibrated while those of single classes are not.

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.
        num_bins: Number of bins of each class.

    Raises:
        OptionError: If ``num_bins`` is not a positive integer.
        DataError: If y holds anything but 0..C-1.
        ShapeError: If the shapes do not fit.

    References:
        Kull et al., "Beyond temperature scaling", NeurIPS 2019, arXiv:1910.12656.

    Example:
        >>> probs = np.array([[0.5, 0.5]] * 4)
        >>> classwise_ece(probs, np.array([0, 0, 0, 1]))
        0.25
    """
    probs, y = check_classes("probs", probs, y)
    each = [_equal_mass(p, y == c, num_bins).error for c, p in enumerate(probs.T)]
    return float(np.mean(each))


def debiased_squared_ece(
    probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"], num_bins: int = NUM_BINS
) -> float:
    r"""Squared calibration error without the plug-in's bias: about 0 if calibrated, and may be < 0.

    .. math:: \sum_b \frac{n_b}{N} \Bigl[ (\mathrm{acc}_b - \mathrm{conf}_b)^2 -
        \frac{\mathrm{acc}_b (1 - \mathrm{acc}_b)}{n_b - 1} \Bigr]

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.
        num_bins: Number of bins of as many rows each; N/2 where it is more. A row that ties leave
            alone in its bin joins the bin below.

    Returns:
        The error in squared probabilities; NaN for one row.

    Raises:
        OptionError: If ``num_bins`` is not a positive integer.
        DataError: If y holds anything but 0..C-1.
        ShapeError: If the shapes do not fit.

    References:
        Kumar, Liang & Ma, "Verified Uncertainty Calibration", NeurIPS 2019, arXiv:1909.10155.

    Example:
        >>> y = np.array([0] * 8 + [1] * 2)
        >>> round(debiased_squared_ece(np.array([[0.8, 0.2]] * 10), y, num_bins=1), 6)
        -0.017778
    """
    confidence, correct = _top_label(probs, y)
    bins = _equal_mass(confidence, correct, num_bins, of_two=True)
    if (bins.count < 2).any():
        return float("nan")
    noise = bins.accuracy * (1 - bins.accuracy) / (bins.count - 1)
    squares = (bins.accuracy - bins.confidence) ** 2 - noise
    return float((bins.count * squares).sum() / bins.count.sum())


def debiased_squared_ece_sd(probs: Float[np.ndarray, "N C"], num_bins: int = NUM_BINS) -> float:
    r"""Standard deviation of `debiased_squared_ece` if the probabilities are exactly right.

    Over outcomes :math:`a_i` that are drawn from the confidences :math:`c_i`, exactly:

    .. math:: \mathrm{var} = \sum_b \frac{n_b^2}{N^2 (n_b - 1)^2} \Bigl[ 2 \bar w_b^2 +
        \tfrac{1}{n_b} \bigl( \overline{w (1 - 6 w)}_b + g_b^2\, \bar w_b -
        2 g_b\, \overline{w (1 - 2 c)}_b \bigr) \Bigr]

    for :math:`w = c (1 - c)` and :math:`g_b = 1 - 2\, \mathrm{conf}_b`. It is no error where the
    probabilities are off. Neither is a bootstrap's: the error is a sum over pairs of rows, and a
    row that is drawn twice pairs with itself.

    Args:
        probs: Predictive class probabilities ``[N, C]``.
        num_bins: Number of bins of as many rows each; N/2 where it is more. A row that ties leave
            alone in its bin joins the bin below.

    Returns:
        In squared probabilities; NaN for one row.

    Raises:
        OptionError: If ``num_bins`` is not a positive integer.
        ShapeError: If ``probs`` is not ``[N, C]``.

    Example:
        >>> round(debiased_squared_ece_sd(np.full((50, 2), 0.5)), 6)  # sqrt(2 / 50 / 49) / 4
        0.007143
    """
    c = check_axes("probs", probs, "N C").max(1)
    w = c * (1 - c)
    bins, third, fourth = (
        _equal_mass(c, moment, num_bins, of_two=True)
        for moment in (w, w * (1 - 2 * c), w * (1 - 6 * w))
    )
    n, mean, g = bins.count, bins.accuracy, 1 - 2 * bins.confidence
    if (n < 2).any():
        return float("nan")
    skewed = (fourth.accuracy + g**2 * mean - 2 * g * third.accuracy) / n
    variance = (n / len(c) / (n - 1)) ** 2 * (2 * mean**2 + skewed)
    return float(np.sqrt(max(0.0, variance.sum())))


def smooth_ece(probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"]) -> float:
    r"""Smooth calibration error of the largest probability: no bins, and no width to choose.

    .. math:: \sigma = \int_0^1 \Bigl| \tfrac1N \sum_n K_\sigma(t, c_n)\, (a_n - c_n) \Bigr| dt

    for the confidence :math:`c_n` of a row and whether its class is the observed one, :math:`a_n`;
    :math:`K_\sigma(\cdot, c)` is the normal density about c of sd :math:`\sigma`, reflected at 0
    and 1. The right-hand side falls as the width grows: the error is the one width that equals it.
    It moves little where confidences do, which bins do not promise.

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.

    Returns:
        The error; NaN if a probability is.

    Raises:
        DataError: If y holds anything but 0..C-1.
        ShapeError: If the shapes do not fit.

    References:
        Blasiok & Nakkiran, "Smooth ECE: Principled Reliability Diagrams via Kernel Smoothing",
        2023, arXiv:2309.12236.

    Example:
        >>> probs = np.array([[0.9, 0.1]] * 4)
        >>> round(smooth_ece(probs, np.array([0, 0, 0, 1])), 4)  # |3/4 - 0.9|, whatever the width
        0.15
    """
    return _smooth_ece(*_top_label(probs, y))


def smooth_ece_floor(probs: Float[np.ndarray, "N C"], *, seed: int = 0) -> float:
    """About what `smooth_ece` is if the probabilities are exactly right.

    The mean over 20 sets of outcomes that are drawn from the confidences.

    Args:
        probs: Predictive class probabilities ``[N, C]``.
        seed: Seed of the outcomes.

    Raises:
        ShapeError: If ``probs`` is not ``[N, C]``.

    Example:
        >>> smooth_ece_floor(np.eye(2))  # who is certain, and right, is not off
        0.0
    """
    confidence = check_axes("probs", probs, "N C").max(1)
    drawn = np.random.default_rng(seed).uniform(size=(LABELS, len(confidence))) < confidence
    return float(np.mean([_smooth_ece(confidence, correct) for correct in drawn]))


def _smooth_ece(confidence: Float[np.ndarray, " N"], correct: Float[np.ndarray, " N"]) -> float:
    from scipy import optimize

    if np.isnan(confidence).any():
        return float("nan")
    error = _error_of_width(confidence, correct - confidence)
    return float(optimize.brentq(lambda width: error(width) - width, 0.0, 2.0))


def _error_of_width(
    confidence: Float[np.ndarray, " N"], residual: Float[np.ndarray, " N"]
) -> Callable[[float], float]:
    """The integral of the smoothed residuals' size, as a function of the width.

    A residual is split between the middles of the two cells next to its confidence. Reflected at
    both ends, a normal density is a product in the cosine series of the cells.
    """
    from scipy import fft

    place = confidence * CELLS - 0.5
    below = np.floor(place).astype(int)
    share = place - below
    mass = np.zeros(CELLS)
    for cell, part in ((below, 1 - share), (below + 1, share)):
        mass += np.bincount(cell.clip(0, CELLS - 1), part * residual, CELLS)
    series = fft.dct(mass / len(residual))
    order = np.pi * np.arange(CELLS)
    return lambda width: float(np.abs(fft.idct(series * np.exp(-((order * width) ** 2) / 2))).sum())


def skce(probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"], *, seed: int = 0) -> float:
    r"""Squared kernel calibration error of all probabilities: 0 in the mean if calibrated.

    .. math:: \binom n2^{-1} \sum_{i < j} k(p_i, p_j)\, (e_{y_i} - p_i)^\top (e_{y_j} - p_j),
        \qquad k(p, p') = \exp(-\tfrac1{2h} \|p - p'\|_1)

    with the median distance for h. It is unbiased, without bins, and all C probabilities count.
    Beyond 1,000 rows it is the mean over blocks of so many, of rows in a random order, which is
    unbiased as well.

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.
        seed: Seed of the order.

    Returns:
        The error, which may be < 0; NaN for one row.

    Raises:
        DataError: If y holds anything but 0..C-1.
        ShapeError: If the shapes do not fit.

    References:
        Widmann, Lindsten & Zachariah, "Calibration tests in multi-class classification", NeurIPS
        2019, arXiv:1910.11385.

    Example:
        >>> round(skce(np.array([[0.75, 0.25]] * 2), np.array([0, 0])), 4)  # (1/4)^2 + (1/4)^2
        0.125
    """
    probs, y = check_classes("probs", probs, y)
    if len(probs) < 2:
        return float("nan")
    residual = (np.arange(probs.shape[1]) == y[:, None]) - probs  # [N, C]
    order = np.random.default_rng(seed).permutation(len(probs))
    blocks = np.array_split(order, -(-len(probs) // BLOCK))
    values = [_skce_of_block(probs[rows], residual[rows]) for rows in blocks]
    sizes = [len(rows) for rows in blocks]
    return float(np.average(values, weights=sizes))


def _skce_of_block(probs: Float[np.ndarray, "n C"], residual: Float[np.ndarray, "n C"]) -> float:
    from scipy.spatial.distance import pdist

    distance = 0.5 * pdist(probs, "cityblock")  # [n (n - 1) / 2], pairs of i < j by rows
    width = np.median(distance)
    kernel = np.exp(-distance / width) if width > 0 else (distance == 0).astype(float)
    products = (residual @ residual.T)[np.triu_indices(len(probs), 1)]
    return float((kernel * products).mean())


def _top_label(
    probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"]
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """The largest probability of each row, and whether its class is the observed one."""
    probs, y = check_classes("probs", probs, y)
    return probs.max(1), (probs.argmax(1) == y).astype(float)


def _equal_mass(
    confidence: Float[np.ndarray, " N"],
    outcome: Float[np.ndarray, " N"],
    num_bins: int,
    *,
    of_two: bool = False,
) -> _Bins:
    """Bins of as many rows each, in the order of their confidence; ties stay together.

    With ``of_two`` each has two rows or more: there are N/2 bins at most, and a row that ties leave
    alone joins the bin below, or the lowest one.
    """
    check_positive_int("num_bins", num_bins)
    if of_two:
        num_bins = min(num_bins, max(1, len(confidence) // 2))
    _, group, sizes = np.unique(confidence, return_inverse=True, return_counts=True)
    middle = (sizes.cumsum() - sizes / 2)[group]  # of the places of rows of equal confidence
    which = np.floor(middle / len(confidence) * num_bins).astype(int)
    _, which = np.unique(which, return_inverse=True)  # bins without rows are left out
    if of_two:
        which = (np.cumsum(np.bincount(which) > 1) - 1).clip(min=0)[which]
    count = np.bincount(which).astype(float)
    return _Bins(
        count=count,
        confidence=np.bincount(which, confidence) / count,
        accuracy=np.bincount(which, outcome) / count,
    )
