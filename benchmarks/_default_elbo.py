r"""The ELBO of a q that a process has written down, and when its course comes near to its end.

One estimator for every library: the mean of the log joint over draws made of the same noise, and
the entropy in closed form,

.. math:: z_s = m + d \circ (C \epsilon_s + \epsilon'_s), \qquad
          \mathcal L = \tfrac1S \sum_s \log p(y, z_s) + H(q)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import pyro_bnn as bnn

SMOOTHED = 10  # marks that a smoothed ELBO is the mean of: 1,000 steps
MARGIN = 1.0  # nats
Array = NDArray[np.float64]


class ELBO:
    """Of a q over the unconstrained sites of a model.

    A point estimate has the log joint of the sites' values, which is what it maximises.

    Args:
        model: The model.
        x: Inputs of all rows ``[N, I]``.
        y: Targets ``[N]``.
        num_draws: S.
    """

    def __init__(self, model: Any, x: Tensor, y: Tensor, num_draws: int) -> None:
        self._program = bnn.Program(model, x, y)
        self._batch = self._program.batch(x, y)
        self._num_draws = num_draws

    def __call__(self, q: Mapping[str, Any]) -> Array:
        """A value a draw ``[S]`` in nats, whose mean is the ELBO; ``[1]`` of a point estimate.

        Args:
            q: ``loc`` m ``[P]``, of a Gaussian ``scale`` d ``[P]``, and of one with correlations
                ``factor`` C ``[P, R]``.
        """
        loc, *others = (
            torch.as_tensor(q[name]) for name in ("loc", "scale", "factor") if name in q
        )
        with torch.no_grad():
            if not others:
                value = self._program.log_joint(loc, self._batch, jacobian=False)
                return np.array([float(value)])
            z = self._draws(loc, *others)
            values = self._program.log_joint(z, self._batch).double() + entropy(*others)
        return values.numpy()

    def _draws(self, loc: Tensor, scale: Tensor, factor: Tensor | None = None) -> Tensor:
        """Draws ``[S, P]``."""
        generator = torch.Generator().manual_seed(12345)

        def noise(size: int) -> Tensor:
            return torch.randn(self._num_draws, size, generator=generator, dtype=loc.dtype)

        w = noise(len(loc))
        if factor is not None:
            w = w + noise(factor.shape[1]) @ factor.mT
        return loc + scale * w


def entropy(scale: Tensor, factor: Tensor | None = None) -> float:
    """Of a Gaussian, in nats."""
    total = scale.double().log().sum() + 0.5 * len(scale) * (1 + math.log(2 * math.pi))
    if factor is not None:
        C = factor.double()
        total = total + 0.5 * torch.logdet(torch.eye(C.shape[1]) + C.mT @ C)
    return float(total)


class End(NamedTuple):
    """Where a course ends: its ELBO, averaged over the last marks, and the standard error."""

    elbo: float
    error: float


def end(values: Array) -> End:
    """The end of a course ``[T, S]``, a row a mark; the error is that of its draws."""
    last = values[-SMOOTHED:].mean(0)  # [S]
    error = last.std(ddof=1) / math.sqrt(len(last)) if len(last) > 1 else 0.0
    return End(float(last.mean()), float(error))


def reached(values: Array, target: float) -> int | None:
    """The mark at which the smoothed ELBO first is within a nat of a target; None if at none.

    The smoothed ELBO is a mean over neighbouring marks, and counts for the middle one.
    """
    width = min(SMOOTHED, len(values))
    smoothed = np.convolve(values.mean(1), np.full(width, 1 / width), mode="valid")
    (near,) = np.nonzero(smoothed >= target - MARGIN)
    return int(near[0]) + width // 2 if len(near) else None


def time_at(mark: int | None, seconds: Sequence[float]) -> float | None:
    """Seconds of a mark."""
    return None if mark is None else seconds[mark]
