r"""Laplace prior, :math:`p(w) = \frac{1}{2b} e^{-|w - m|/b}` independently for every weight.

Its mode under data has weights at exactly m, as the lasso has; its draws have none. With
``scale="fan_in"``, :math:`b = 1/\sqrt{2I}` for a weight with I inputs to each unit and
:math:`b = 1/\sqrt 2` for a bias: the variance :math:`2 b^2` is that of the fan-in Gaussian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
from torch import Tensor

from pyro_bnn.priors.scales import Entrywise, Scale


@dataclass(frozen=True)
class Laplace(Entrywise):
    """Laplace prior over every entry of a weight tensor: a peak at its centre, exponential tails.

    Its KL from Gaussian marginals is in closed form.

    Args:
        scale: Mean absolute deviation b, > 0, in the units of the weights, as in
            ``torch.distributions.Laplace``; the standard deviation is ``sqrt(2) b``. Or
            ``"fan_in"``: ``1/sqrt(2 I)`` for a weight of shape ``[O, I, ...]`` (``I`` counts all
            trailing dimensions) and ``1/sqrt(2)`` for a bias, with the VARIANCE of
            ``Normal("fan_in")``.
        loc: Mean, median and mode of every weight.

    Raises:
        OptionError: If ``scale`` is neither positive nor ``"fan_in"``, or ``loc`` not finite.

    References:
        Williams, "Bayesian Regularization and Pruning Using a Laplace Prior", Neural Computation
        7(1), 1995.

    Example:
        >>> import torch
        >>> Laplace().distribution(torch.Size([50, 8])).base_dist.scale[0, 0].item()
        0.25
    """

    scale: Scale = "fan_in"
    loc: float = 0.0

    def family(self, loc: Tensor, scale: Tensor) -> Any:
        """Laplace of one entry."""
        return dist.Laplace(loc, scale)

    def fan_in_scale(self, fan_in: float) -> float:
        """The scale for I inputs to each unit."""
        return 1 / math.sqrt(2 * fan_in)
