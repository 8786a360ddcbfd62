r"""Gaussian prior, :math:`w \sim \mathcal N(m, s^2)` independently for every weight.

With ``scale="fan_in"``, :math:`s = 1/\sqrt{I}` for a weight with I inputs to each unit and
:math:`s = 1` for a bias, so that the function's prior scale does not depend on the width
(Neal, "Bayesian Learning for Neural Networks", 1996).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyro.distributions as dist
from torch import Tensor

from pyro_bnn.priors.scales import Entrywise, Scale


@dataclass(frozen=True)
class Normal(Entrywise):
    """Gaussian prior over every entry of a weight tensor.

    Args:
        scale: Standard deviation, > 0, in the units of the weights; or ``"fan_in"``:
            ``1/sqrt(I)`` for a weight of shape ``[O, I, ...]`` (``I`` counts all trailing
            dimensions), 1 for a bias.
        loc: Mean of every weight.

    Raises:
        OptionError: If ``scale`` is neither positive nor ``"fan_in"``, or ``loc`` not finite.

    Example:
        >>> import torch
        >>> Normal().distribution(torch.Size([50, 4])).base_dist.scale[0, 0].item()
        0.5
    """

    scale: Scale = "fan_in"
    loc: float = 0.0

    def family(self, loc: Tensor, scale: Tensor) -> Any:
        """Normal of one entry."""
        return dist.Normal(loc, scale)
