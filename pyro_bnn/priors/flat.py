"""Flat prior, p(w) = 1: with ``AutoDelta`` the fit is maximum likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor
from torch.distributions import constraints

from pyro_bnn.priors.scales import fan_in


class _ImproperUniform(dist.ImproperUniform):
    """An improper density with a proposal, so that a model can be traced and initialised."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__(constraints.real, torch.Size(), shape)  # type: ignore[no-untyped-call]
        self.like = torch.empty(0)  # moves with the model: dtype and device of the draws

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        shape = self._extended_shape(torch.Size(sample_shape))
        draw = torch.randn(shape, dtype=self.like.dtype, device=self.like.device)
        return draw / math.sqrt(fan_in(self.event_shape))


@dataclass(frozen=True)
class Flat:
    """Improper prior of constant density 1 over the real numbers.

    Draws from it are fan-in Gaussian: they serve as starting points and have no other meaning.
    An ELBO or a model evidence does not exist under it: the ``kl`` of a fit is then minus the
    entropy of q, up to a constant, and may be negative.
    """

    def distribution(self, shape: torch.Size) -> Distribution:
        """The improper prior over one tensor: batch shape ``()``, event shape ``shape``."""
        return cast(Distribution, _ImproperUniform(shape))
