r"""Moments and log mean densities over draws that come in chunks and are not kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


class RunningMoments:
    r"""Mean and variance over draws, merged chunk by chunk.

    .. math:: \bar v \mathrel{+}= \frac{m}{n + m}\,\delta, \qquad
              M_2 \mathrel{+}= M_2^{(m)} + \frac{n\,m}{n + m}\,\delta^2, \qquad
              \delta = \bar v^{(m)} - \bar v

    for m new draws after n. No difference of large sums is taken, so values far from 0 keep their
    variance. Sums are kept in double precision.

    References:
        Chan, Golub & LeVeque, "Algorithms for computing the sample variance: analysis and
        recommendations", The American Statistician 1983.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean = self._squares = torch.zeros((), dtype=torch.float64)
        self._dtype = torch.float64

    def add(self, values: Tensor) -> None:
        """Take the values ``[s, ...]`` of s more draws in."""
        new, self._dtype = len(values), values.dtype
        values = values.double()
        mean = values.mean(0)
        squares = (values - mean).square().sum(0)
        if self.count == 0:
            self._mean, self._squares = mean, squares
        else:
            total = self.count + new
            delta = mean - self._mean
            moved = self._mean + delta * (new / total)
            self._mean = torch.where(delta.isfinite(), moved, self._mean + mean)  # inf stays inf
            self._squares = self._squares + squares + delta.square() * (self.count * new / total)
        self.count += new

    @classmethod
    def joined(cls, parts: Sequence[RunningMoments]) -> RunningMoments:
        """The moments of several blocks of rows, over the same draws."""
        whole = cls()
        whole.count, whole._dtype = parts[0].count, parts[0]._dtype
        whole._mean = torch.cat([part._mean for part in parts])
        whole._squares = torch.cat([part._squares for part in parts])
        return whole

    @property
    def mean(self) -> Float[Tensor, "*N"]:
        """Mean over all draws so far ``[...]``, in the dtype of the values."""
        return self._mean.to(self._dtype)

    @property
    def variance(self) -> Float[Tensor, "*N"]:
        """Variance over all draws so far ``[...]``, their number as divisor."""
        return (self._squares / self.count).to(self._dtype)


class RunningLogMean:
    r"""Log of the mean of densities, :math:`\log \tfrac1S \sum_s e^{l_s}`, chunk by chunk."""

    def __init__(self) -> None:
        self.count = 0
        self._total = torch.tensor(-math.inf)

    def add(self, log_values: Float[Tensor, "s N"]) -> None:
        """Take the log densities ``[s, N]`` of s more draws in."""
        total = log_values.logsumexp(0)
        self._total = torch.logaddexp(self._total.to(total), total)
        self.count += len(log_values)

    @classmethod
    def joined(cls, parts: Sequence[RunningLogMean]) -> RunningLogMean:
        """The log means of several blocks of rows, over the same draws."""
        whole = cls()
        whole.count = parts[0].count
        whole._total = torch.cat([part._total for part in parts])
        return whole

    def shift(self, by: Tensor) -> None:
        """Add the same to the log density of every draw."""
        self._total = self._total + by

    @property
    def value(self) -> Float[Tensor, " N"]:
        """Log of the mean over all draws so far ``[N]``."""
        return self._total - math.log(self.count)


def log_mean(parts: Iterable[Tensor]) -> RunningLogMean:
    """The log of the mean of densities that come in chunks ``[s, N]`` of draws."""
    found = RunningLogMean()
    for part in parts:
        found.add(part)
    return found


def entropy(probs: Float[Tensor, "*N C"]) -> Float[Tensor, "*N"]:
    """Entropy of class probabilities, nats."""
    value: Tensor = torch.special.entr(probs).sum(-1)
    return value
