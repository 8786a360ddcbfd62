r"""Gaussian prior, :math:`w \sim \mathcal N(m, s^2)` independently for every weight.

With ``scale="fan_in"``, :math:`s = 1/\sqrt{I}` for a weight with I inputs to each unit and
:math:`s = 1` for a bias, so that the function's prior scale does not depend on the width
(Neal, "Bayesian Learning for Neural Networks", 1996).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution

from pyro_bnn.errors import OptionError


@dataclass(frozen=True)
class Normal:
    """Gaussian prior over every entry of a weight tensor.

    Args:
        scale: Standard deviation, > 0, in the units of the weights; or ``"fan_in"``:
            ``1/sqrt(I)`` for a weight of shape ``[O, I, ...]`` (``I`` counts all trailing
            dimensions), 1 for a bias.
        loc: Mean of every weight.

    Raises:
        OptionError: If ``scale`` is neither positive nor ``"fan_in"``.

    Example:
        >>> import torch
        >>> Normal().distribution(torch.Size([50, 4])).base_dist.scale[0, 0].item()
        0.5
    """

    scale: float | Literal["fan_in"] = "fan_in"
    loc: float = 0.0

    def __post_init__(self) -> None:
        if self.scale != "fan_in" and not (
            isinstance(self.scale, int | float)
            and not isinstance(self.scale, bool)
            and 0 < self.scale < math.inf
        ):
            raise OptionError(
                f"scale is a positive standard deviation or 'fan_in', not {self.scale!r}"
            )

    def distribution(self, shape: torch.Size) -> Distribution:
        """The prior over one tensor: batch shape ``()``, event shape ``shape``."""
        scale = self.fan_in_scale(fan_in(shape)) if self.scale == "fan_in" else float(self.scale)
        normal = dist.Normal(torch.tensor(float(self.loc)), torch.tensor(scale))
        return cast(Distribution, normal.expand(shape).to_event(len(shape)))

    def fan_in_scale(self, fan_in: float) -> float:
        """The scale for I inputs to each unit."""
        return 1.0 / math.sqrt(fan_in)


def fan_in(shape: torch.Size) -> int:
    """Inputs to each unit of a weight ``[O, I, ...]``; 1 for a bias ``[O]``."""
    return math.prod(shape[1:])
