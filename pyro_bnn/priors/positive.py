"""Priors over positive weights, such as the factors of rank-1 layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
from torch import Tensor

from pyro_bnn.checks import check_finite, check_positive
from pyro_bnn.priors.scales import Entrywise


@dataclass(frozen=True)
class LogNormal(Entrywise):
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
        check_finite("loc", self.loc)

    def family(self, loc: Tensor, scale: Tensor) -> Any:
        """Log-normal of one entry."""
        return dist.LogNormal(loc, scale)


@dataclass(frozen=True)
class HalfCauchy(Entrywise):
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

    def family(self, loc: Tensor, scale: Tensor) -> Any:  # noqa: ARG002  # it has none
        """Half-Cauchy of one entry."""
        return dist.HalfCauchy(scale)
