r"""Gaussian weights whose scale is half-Cauchy: a layer, a unit or an input finds its own.

.. math:: \tau \sim \mathrm{HalfCauchy}(s), \qquad w \mid \tau \sim \mathcal N(m, \tau^2)

With one :math:`\tau` an input this is automatic relevance determination (Neal, "Bayesian Learning
for Neural Networks", 1996) with the heavy-tailed scale that Gelman (2006) recommends: near zero
its density is flat, so that data may switch a group off, and its tail lets them keep a large one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyro
import torch
from torch import Tensor

from pyro_bnn.checks import check_choice, check_finite, check_positive
from pyro_bnn.priors.hierarchy import Hierarchy
from pyro_bnn.priors.positive import HalfCauchy
from pyro_bnn.priors.prior import PriorModule
from pyro_bnn.priors.scales import Scale, fan_in

Group: TypeAlias = Literal["layer", "unit", "input"]


@dataclass(frozen=True)
class HalfCauchyScale:
    r"""Half-Cauchy scale over Gaussian weights, one scale a layer, a unit or an input.

    The sites of a weight ``layers.0.weight`` are ``layers.0.weight.scale`` and, non-centred,
    ``layers.0.weight.raw``; the weight itself is recorded as a deterministic value.

    Args:
        scale: Median of :math:`\tau`, > 0, in the units of the weights; or ``"fan_in"``, with which
            the scale of a unit's sum over I inputs of order one does not depend on I: ``1/sqrt(I)``
            where its weights share one :math:`\tau`, ``1/I`` per input (``1/(I sqrt(K))`` with a
            kernel of K entries), as a sum of independent half-Cauchy variances grows like
            :math:`I^2`; 1 for a bias.
        per: What shares one :math:`\tau`: ``"layer"``, the tensor; ``"unit"``, a row, shape
            ``[O, 1]``; ``"input"``, a column, ``[1, I]``. In a bias each entry is a unit, and
            ``"input"`` means the same there.
        loc: Mean of every weight.
        centred: Whether the weight is a sample site, ``.value``, in place of ``.raw``. It helps
            where the data determine every weight, and is a funnel elsewhere: a comparison, not a
            default.

    Raises:
        OptionError: If ``scale`` is neither positive nor ``"fan_in"``, or ``per`` is unknown.

    References:
        Gelman, "Prior distributions for variance parameters in hierarchical models", Bayesian
        Analysis 1(3), 2006.

    Example:
        >>> import torch
        >>> hierarchy = HalfCauchyScale(per="unit").hierarchy(torch.Size([50, 4]))
        >>> hierarchy.scale_prior().event_shape, hierarchy().shape
        (torch.Size([50, 1]), torch.Size([50, 4]))
    """

    scale: Scale = "fan_in"
    per: Group = "layer"
    loc: float = 0.0
    centred: bool = False

    def __post_init__(self) -> None:
        check_positive("scale", self.scale, also="fan_in")
        check_choice("per", self.per, Group)
        check_finite("loc", self.loc)

    def hierarchy(self, shape: torch.Size) -> Hierarchy:
        """A module that samples one tensor of ``shape``."""
        scale = self._fan_in_scale(shape) if self.scale == "fan_in" else float(self.scale)
        return _HalfCauchyScale(shape, self, scale, _shared_shape(shape, self.per))

    def _fan_in_scale(self, shape: torch.Size) -> float:
        if self.per == "input" and len(shape) > 1:
            return 1.0 / (shape[1] * math.sqrt(math.prod(shape[2:])))
        return self.fan_in_scale(fan_in(shape))

    def fan_in_scale(self, fan_in: float) -> float:
        """The median of a scale of the layer, or of a unit, for I inputs to each unit."""
        return 1.0 / math.sqrt(fan_in)


class _HalfCauchyScale(Hierarchy):
    """A weight with one half-Cauchy scale for each entry of ``scale_shape``."""

    def __init__(
        self, shape: torch.Size, prior: HalfCauchyScale, scale: float, scale_shape: torch.Size
    ) -> None:
        super().__init__(shape, loc=prior.loc, centred=prior.centred)
        self.median = scale
        self.scale_prior = PriorModule(HalfCauchy(scale).distribution(scale_shape))

    def sample_scale(self, name: str) -> Tensor:
        return pyro.sample(f"{name}.scale", self.scale_prior())

    def scale_values(self, deviation: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        scale = root_mean_square(deviation, self.scale_prior().event_shape, self.median)
        return {"scale": scale}, scale


def _shared_shape(shape: torch.Size, per: Group) -> torch.Size:
    """Shape of the scales of a weight ``[O, I, ...]`` or a bias ``[O]``."""
    if per == "layer":
        return torch.Size([])
    if len(shape) < 2:
        return shape
    kept = 0 if per == "unit" else 1
    return torch.Size([n if i == kept else 1 for i, n in enumerate(shape)])


def root_mean_square(deviation: Tensor, shape: torch.Size, default: float) -> Tensor:
    """Root mean square of all entries that one of ``shape`` stands for, ``default`` where zero."""
    mean = deviation.square().sum_to_size(shape) * (shape.numel() / deviation.numel())
    return torch.where(mean > 0, mean.sqrt(), torch.full_like(mean, default))
