"""Priors over positive weights, such as the factors of rank-1 layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution

from pyro_bnn.priors.scales import check_positive


@dataclass(frozen=True)
class LogNormal:
    r"""Log-normal prior over every entry: :math:`\log w \sim \mathcal N(m, s^2)`, w > 0.

    Args:
        scale: Standard deviation of ``log w``, > 0.
        loc: Mean of ``log w``: the median of w is ``exp(loc)``.

    Raises:
        OptionError: If ``scale`` is not positive.
    """

    scale: float = 1.0
    loc: float = 0.0

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)

    def distribution(self, shape: torch.Size) -> Distribution:
        """The prior over one tensor: batch shape ``()``, event shape ``shape``."""
        loc, scale = torch.tensor(float(self.loc)), torch.tensor(float(self.scale))
        return cast(Distribution, dist.LogNormal(loc, scale).expand(shape).to_event(len(shape)))


@dataclass(frozen=True)
class HalfCauchy:
    r"""Half-Cauchy prior over every entry: the absolute value of a Cauchy one, w > 0.

    .. math:: p(w) = \frac{2}{\pi s} \frac{1}{1 + w^2 / s^2}

    Args:
        scale: Median s of every entry, > 0, in the units of the weights.

    Raises:
        OptionError: If ``scale`` is not positive.

    References:
        Gelman, "Prior distributions for variance parameters in hierarchical models", Bayesian
        Analysis 1(3), 2006.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)

    def distribution(self, shape: torch.Size) -> Distribution:
        """The prior over one tensor: batch shape ``()``, event shape ``shape``."""
        half_cauchy = dist.HalfCauchy(torch.tensor(float(self.scale)))
        return cast(Distribution, half_cauchy.expand(shape).to_event(len(shape)))
