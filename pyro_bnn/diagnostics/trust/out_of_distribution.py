"""Unknown inputs: scores that should be high for them, and how well a score tells them apart."""

from __future__ import annotations

from typing import Literal

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.rejection import class_uncertainty
from pyro_bnn.diagnostics.shapes import check_axes
from pyro_bnn.errors import OptionError, ShapeError

RATE = 0.95  # of the positive ones that are found, in `fpr95`


def novelty_scores(
    probs: Float[np.ndarray, "S N C"], logits: Float[np.ndarray, "S N C"] | None = None
) -> dict[str, Float[np.ndarray, " N"]]:
    r"""Scores of every row that are high where the input is unlike those of the training.

    .. math:: 1 - \max_c \bar p_c, \qquad H[\bar p], \qquad H[\bar p] - \mathrm{E}_s H[p_s], \qquad
        -\tfrac1S \sum_s \log \sum_c e^{f_{sc}}

    Args:
        probs: Class probabilities given each draw ``[S, N, C]``.
        logits: Outputs f of the network before the softmax ``[S, N, C]``; needed for the energy.

    Returns:
        Scores ``[N]`` by name: ``"one minus largest probability"``, ``"entropy"`` and ``"mutual
        information"`` (0 for one draw), in nats, and ``"energy"`` where there are logits.

    Raises:
        DataError: If ``probs`` holds anything but probabilities.
        ShapeError: If the shapes do not fit.

    References:
        Hendrycks & Gimpel, "A Baseline for Detecting Misclassified and Out-of-Distribution
        Examples in Neural Networks", ICLR 2017, arXiv:1610.02136. Liu et al., "Energy-based
        Out-of-distribution Detection", NeurIPS 2020, arXiv:2010.03759.

    Example:
        >>> scores = novelty_scores(np.array([[[1.0, 0.0], [0.5, 0.5]]]))
        >>> scores["entropy"].round(4).tolist(), scores["mutual information"].tolist()
        ([0.0, 0.6931], [0.0, 0.0])
    """
    uncertainty = class_uncertainty(probs)
    scores = {
        "one minus largest probability": 1 - np.asarray(probs, dtype=float).mean(0).max(-1),
        "entropy": uncertainty.entropy,
        "mutual information": uncertainty.mutual_information,
    }
    if logits is not None:
        logits = check_axes("logits", logits, "S N C")
        if logits.shape != np.shape(probs):
            raise ShapeError(
                f"logits has shape {list(logits.shape)}, expected that of probs, "
                f"{list(np.shape(probs))}"
            )
        most = logits.max(-1, keepdims=True)  # SciPy's logsumexp takes twice the time
        scores["energy"] = -(np.log(np.exp(logits - most).sum(-1)) + most[..., 0]).mean(0)
    return scores


def auroc(known: Float[np.ndarray, " N"], unknown: Float[np.ndarray, " M"]) -> float:
    r"""Probability that an unknown row has the higher score, ties counted half.

    .. math:: P(s_{\text{unknown}} > s_{\text{known}}) +
        \tfrac12 P(s_{\text{unknown}} = s_{\text{known}})

    Args:
        known: Scores ``[N]`` of rows like those of the training.
        unknown: Scores ``[M]`` of others.

    Returns:
        1 if all unknown rows score above all known ones, 1/2 for a score that knows nothing.

    Raises:
        ShapeError: If one of them is not a row of numbers, or empty.

    References:
        Hanley & McNeil, "The meaning and use of the area under a ROC curve", Radiology 1982.

    Example:
        >>> auroc(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
        0.875
    """
    from scipy import stats

    known, unknown = check_axes("known", known, "N"), check_axes("unknown", unknown, "M")
    ranks = stats.rankdata(np.concatenate([known, unknown]))[len(known) :]
    above = ranks.sum() - len(unknown) * (len(unknown) + 1) / 2
    return float(above / (len(known) * len(unknown)))


def fpr95(
    known: Float[np.ndarray, " N"],
    unknown: Float[np.ndarray, " M"],
    *,
    positive: Literal["known", "unknown"],
) -> float:
    """Share of the one kind that is taken for the other at the threshold that finds 95 % of these.

    Two definitions are in use, and differ where the scores spread differently. With
    ``positive="known"`` (OpenOOD) the threshold keeps 95 % of the known rows, and the result is the
    share of unknown rows that are kept with them; with ``positive="unknown"`` (TorchUncertainty) it
    finds 95 % of the unknown rows, and the result is the share of known rows that it refuses.

    Args:
        known: Scores ``[N]`` of rows like those of the training.
        unknown: Scores ``[M]`` of others, which should be higher.
        positive: Which of them are to be found.

    Returns:
        A share, 0 at best; NaN if a score is.

    Raises:
        OptionError: If ``positive`` is neither.
        ShapeError: If one of them is not a row of numbers, or empty.

    References:
        Yang et al., "OpenOOD: Benchmarking Generalized Out-of-Distribution Detection", NeurIPS
        2022, arXiv:2210.07242.

    Example:
        >>> known, unknown = np.arange(100.0), np.arange(100.0) + 90
        >>> fpr95(known, unknown, positive="known"), fpr95(known, unknown, positive="unknown")
        (0.05, 0.05)
    """
    known, unknown = check_axes("known", known, "N"), check_axes("unknown", unknown, "M")
    if positive not in ("known", "unknown"):
        raise OptionError(f'positive is "known" or "unknown", not {positive!r}')
    if np.isnan(known).any() or np.isnan(unknown).any():
        return float("nan")
    if positive == "known":
        return float((unknown <= _threshold(known)).mean())
    return float((known >= -_threshold(-unknown)).mean())


def _threshold(scores: Float[np.ndarray, " N"]) -> float:
    """The least score that at least 95 % of the rows do not exceed."""
    place = int(np.ceil(RATE * len(scores) - 1e-9)) - 1  # 0.95 * 20 is 19
    return float(np.sort(scores)[place])
