"""Flat prior, p(w) = 1: with ``AutoDelta`` the fit is maximum likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch.distributions import constraints

from pyro_bnn.priors.normal import fan_in


class _ImproperUniform(dist.ImproperUniform):
    """An improper density with a proposal, so that a model can be traced and initialised."""

    def sample(self, sample_shape: torch.Size = torch.Size()) -> torch.Tensor:  # noqa: B008
        shape = self._extended_shape(sample_shape)
        return torch.randn(shape) / fan_in(self.event_shape) ** 0.5


@dataclass(frozen=True)
class Flat:
    """Improper prior of constant density 1 over the real numbers.

    Draws from it are fan-in Gaussian: they serve as starting points and have no other meaning.
    An ELBO or a model evidence does not exist under it.
    """

    def distribution(self, shape: torch.Size) -> Distribution:
        """The improper prior over one tensor: batch shape ``()``, event shape ``shape``."""
        return cast(Distribution, _ImproperUniform(constraints.real, torch.Size(), shape))
