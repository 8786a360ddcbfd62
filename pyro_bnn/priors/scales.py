"""What priors over every entry share: their scale, and how it follows a weight's shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.checks import check_finite, check_positive

Scale: TypeAlias = float | Literal["fan_in"]


class Entrywise:
    """A prior of one family, independent over the entries, with a scale.

    A subclass is a dataclass with this field, and ``loc`` where it has one. It has ``family``, and
    where its fan-in scale is not that of a Gaussian, ``fan_in_scale``.
    """

    scale: Scale

    def __post_init__(self) -> None:
        check_positive("scale", self.scale, also="fan_in")
        check_finite("loc", self._loc)

    @property
    def _loc(self) -> float:
        return getattr(self, "loc", 0.0)

    def family(self, loc: Tensor, scale: Tensor) -> Any:
        """The distribution of one entry."""
        raise NotImplementedError(f"{type(self).__name__} has no family(loc, scale)")

    def distribution(self, shape: torch.Size) -> Distribution:
        """The prior over one tensor: batch shape ``()``, event shape ``shape``."""
        scale = scale_for(shape, self.scale, self.fan_in_scale)
        one = self.family(torch.tensor(float(self._loc)), torch.tensor(scale))
        return cast(Distribution, one.expand(shape).to_event(len(shape)))

    def fan_in_scale(self, fan_in: float) -> float:
        """The scale for I inputs to each unit."""
        return 1 / math.sqrt(fan_in)


def fan_in(shape: torch.Size) -> int:
    """Inputs to each unit of a weight ``[O, I, ...]``; 1 for a bias ``[O]``."""
    return math.prod(shape[1:])


def scale_for(shape: torch.Size, scale: Scale, fan_in_scale: Callable[[float], float]) -> float:
    """The scale itself, or that for the inputs to each unit of a weight of this shape."""
    return fan_in_scale(fan_in(shape)) if scale == "fan_in" else float(scale)
