r"""Cauchy prior, :math:`w \sim \mathrm{Cauchy}(m, s)` independently for every weight.

With ``scale="fan_in"``, :math:`s = 1/I` for a weight with I inputs to each unit and :math:`s = 1`
for a bias: a sum of I such entries is Cauchy with scale 1, so that the function's prior scale does
not depend on the width, and wide networks tend to a stable process instead of a Gaussian one
(Neal, "Bayesian Learning for Neural Networks", 1996). It has no mean and no variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
from torch import Tensor

from pyro_bnn.priors.scales import Entrywise, Scale


@dataclass(frozen=True)
class Cauchy(Entrywise):
    """Cauchy prior over every entry of a weight tensor: most are small, a few very large.

    Args:
        scale: Half width at half maximum, > 0, in the units of the weights; or ``"fan_in"``:
            ``1/I`` for a weight of shape ``[O, I, ...]`` (``I`` counts all trailing dimensions),
            1 for a bias.
        loc: Median of every weight.

    Raises:
        OptionError: If ``scale`` is neither positive nor ``"fan_in"``, or ``loc`` not finite.

    Example:
        >>> import torch
        >>> Cauchy().distribution(torch.Size([50, 4])).base_dist.scale[0, 0].item()
        0.25
    """

    scale: Scale = "fan_in"
    loc: float = 0.0

    def family(self, loc: Tensor, scale: Tensor) -> Any:
        """Cauchy of one entry."""
        return dist.Cauchy(loc, scale)

    def fan_in_scale(self, fan_in: float) -> float:
        """The scale for I inputs to each unit."""
        return 1 / fan_in
