"""Errors of means over independent chains, in their standard errors."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def z_scores(draws: Tensor | NDArray[np.floating], expected: object) -> NDArray[np.float64]:
    """Absolute z-scores of the means over chains and draws ``[C, S, ...]``, at least 8 chains.

    The chains' own means are independent, so their spread is the error, whatever the draws'
    autocorrelation.
    """
    means = torch.as_tensor(draws).double().mean(1)  # [C, ...]
    assert len(means) >= 8
    error = means.std(0) / len(means) ** 0.5
    scores: NDArray[np.float64] = (
        ((means.mean(0) - torch.as_tensor(expected)) / error).abs().numpy()
    )
    return scores


def moment_scores(draws: Tensor, mean: Tensor, covariance: Tensor) -> NDArray[np.float64]:
    """Absolute z-scores of means and of all second moments of draws ``[C, S, P]``."""
    i, j = np.triu_indices(len(mean))
    centred = draws.double() - mean
    second = z_scores(centred[..., i] * centred[..., j], covariance[i, j])
    return np.concatenate([z_scores(draws, mean), second])
