r"""Classes: uncertainty taken apart, and how much accuracy rejecting uncertain rows buys.

.. math:: H[\mathrm{E}_s\, p_s] = \mathrm{E}_s H[p_s] + I(y, \theta), \qquad
    p_s = p(y \mid x, \theta_s)

Total entropy is expected entropy (aleatoric: noise that no data remove) plus mutual information
(epistemic: what the draws disagree about); both are >= 0, in nats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from pyro_bnn.diagnostics.shapes import check_axes, check_rows
from pyro_bnn.errors import DataError

ROUNDING = 1e-6  # by which a probability may leave [0, 1]
EQUAL = 1e-12  # nats: two entropies that differ by less are those of equal draws


@dataclass(frozen=True, kw_only=True)
class ClassUncertainty:
    """Uncertainty about the class of every row, in nats.

    Attributes:
        entropy: Total, of the mean probabilities ``[N]``.
        expected_entropy: Aleatoric, the mean over draws ``[N]``.
        mutual_information: Epistemic ``[N]``: the mean KL of the draws from their mixture.
    """

    entropy: Float[np.ndarray, " N"]
    expected_entropy: Float[np.ndarray, " N"]
    mutual_information: Float[np.ndarray, " N"]


def class_uncertainty(probs: Float[np.ndarray, "S N C"]) -> ClassUncertainty:
    """Total, aleatoric and epistemic uncertainty of classes.

    Args:
        probs: Class probabilities given each draw ``[S, N, C]``.

    Raises:
        ShapeError: If ``probs`` is not ``[S, N, C]``.
        DataError: If it holds anything but probabilities, such as logits.

    References:
        Depeweg et al., "Decomposition of Uncertainty in Bayesian Deep Learning for Efficient and
        Risk-sensitive Learning", ICML 2018, arXiv:1710.07283.

    Example:
        >>> both = class_uncertainty(np.array([[[1.0, 0.0]], [[0.0, 1.0]]]))  # draws disagree
        >>> both.entropy.round(4), both.expected_entropy.round(4), both.mutual_information.round(4)
        (array([0.6931]), array([0.]), array([0.6931]))
    """
    from scipy import special

    probs = check_axes("probs", probs, "S N C")
    if not ((probs >= -ROUNDING) & (probs <= 1 + ROUNDING)).all():
        raise DataError("probs holds values outside [0, 1]: pass probabilities, not logits")
    probs = probs.clip(0, 1)
    total = special.entr(probs.mean(0)).sum(-1)  # [N]
    expected = special.entr(probs).sum(-1).mean(0)  # [N]
    between = total - expected
    return ClassUncertainty(
        entropy=total,
        expected_entropy=expected,
        mutual_information=np.where(between > EQUAL, between, 0.0),
    )


@dataclass(frozen=True, kw_only=True)
class RejectionCurve:
    r"""Accuracy of the rows that are kept when the most uncertain are rejected.

    Attributes:
        retained: Share of rows kept ``[N]``: 1/N, 2/N, ..., 1.
        accuracy: Accuracy of these rows ``[N]``; the last one is that of all.
        area: Mean of ``accuracy``: the accuracy at a share drawn at random; higher is better.
        random: The area of rejecting at random: the accuracy of all rows.
        best: The area of rejecting every wrong row first, which no uncertainty can beat.
    """

    retained: Float[np.ndarray, " N"]
    accuracy: Float[np.ndarray, " N"]
    area: float
    random: float
    best: float

    @property
    def gain(self) -> float:
        """How far the area lies from ``random`` (0) to ``best`` (1); NaN where these are equal."""
        room = self.best - self.random
        return (self.area - self.random) / room if room > 0 else float("nan")


def rejection_curve(
    uncertainty: Float[np.ndarray, " N"], correct: Bool[np.ndarray, " N"]
) -> RejectionCurve:
    r"""Accuracy against the share of rows kept, the least uncertain ones.

    .. math:: a_k = \tfrac1k \sum_{n \in R_k} [\hat y_n = y_n], \qquad
        A = \tfrac1N \sum_{k=1}^N a_k

    with :math:`R_k` the k rows of least uncertainty. Rows of equal uncertainty are kept in the mean
    over their orders, so that a constant uncertainty scores as rejecting at random.

    Args:
        uncertainty: Any score of every row ``[N]``, such as its entropy or mutual information;
            only its order counts.
        correct: Whether the predicted class is the observed one ``[N]``.

    Raises:
        ShapeError: If the shapes differ.
        DataError: If ``correct`` holds anything but truth values, such as labels.

    References:
        Nadeem, Zucker & Hanczar, "Accuracy-Rejection Curves (ARCs) for Comparing Classification
        Methods with a Reject Option", MLSB 2009.
        Leibig et al., "Leveraging uncertainty information from deep neural networks for disease
        detection", Scientific Reports 2017.

    Example:
        >>> correct = np.array([True, False, True, True])
        >>> curve = rejection_curve(np.array([0.1, 0.9, 0.2, 0.5]), correct)
        >>> curve.accuracy, curve.area == curve.best
        (array([1.  , 1.  , 1.  , 0.75]), True)
    """
    expected = kept_rates(uncertainty, correct)
    right = np.asarray(correct, dtype=float)
    accuracy = _running_mean(expected)
    return RejectionCurve(
        retained=np.arange(1, len(right) + 1) / len(right),
        accuracy=accuracy,
        area=float(accuracy.mean()),
        random=float(right.mean()),
        best=float(_running_mean(np.sort(right)[::-1]).mean()),
    )


def kept_rates(
    uncertainty: Float[np.ndarray, " N"], correct: Bool[np.ndarray, " N"]
) -> Float[np.ndarray, " N"]:
    """Whether the rows are right ``[N]``, the least uncertain first; ties share their rate.

    Raises:
        ShapeError: If the shapes differ.
        DataError: If ``correct`` holds anything but truth values, such as labels.
    """
    uncertainty = check_axes("uncertainty", uncertainty, "N")
    correct = check_rows("correct", correct, len(uncertainty), of="uncertainty")
    if not np.isin(correct, (0, 1)).all():
        raise DataError("correct holds truth values: whether each predicted class is the observed")
    right = correct.astype(float)
    _, group, sizes = np.unique(uncertainty, return_inverse=True, return_counts=True)
    return np.asarray((np.bincount(group, right) / sizes)[np.sort(group)])


def _running_mean(values: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    return np.asarray(values.cumsum() / np.arange(1, len(values) + 1))
