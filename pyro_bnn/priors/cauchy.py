r"""Cauchy prior, :math:`w \sim \mathrm{Cauchy}(m, s)` independently for every weight.

With ``scale="fan_in"``, :math:`s = 1/I` for a weight with I inputs to each unit and :math:`s = 1`
for a bias: a sum of I such entries is Cauchy with scale 1, so that the function's prior scale does
not depend on the width, and wide networks tend to a stable process instead of a Gaussian one
(Neal, "Bayesian Learning for Neural Networks", 1996). It has no mean and no variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution

from pyro_bnn.priors.scales import Scale, check_positive, heavy_tailed_scale


@dataclass(frozen=True)
class Cauchy:
    """Cauchy prior over every entry of a weight tensor: most are small, a few very large.

    Args:
        scale: Half width at half maximum, > 0, in the units of the weights; or ``"fan_in"``:
            ``1/I`` for a weight of shape ``[O, I, ...]`` (``I`` counts all trailing dimensions),
            1 for a bias.
        loc: Median of every weight.

    Raises:
        OptionError: If ``scale`` is neither positive nor ``"fan_in"``.

    Example:
        >>> import torch
        >>> Cauchy().distribution(torch.Size([50, 4])).base_dist.scale[0, 0].item()
        0.25
    """

    scale: Scale = "fan_in"
    loc: float = 0.0

    def __post_init__(self) -> None:
        check_positive("scale", self.scale, also="fan_in")

    def distribution(self, shape: torch.Size) -> Distribution:
        """The prior over one tensor: batch shape ``()``, event shape ``shape``."""
        scale = torch.tensor(heavy_tailed_scale(self.scale, shape))
        cauchy = dist.Cauchy(torch.tensor(float(self.loc)), scale)
        return cast(Distribution, cauchy.expand(shape).to_event(len(shape)))

    def fan_in_scale(self, fan_in: float) -> float:
        """The scale for I inputs to each unit."""
        return 1 / fan_in
