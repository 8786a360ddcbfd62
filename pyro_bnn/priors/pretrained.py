r"""Gaussian prior centred on a trained network, :math:`w \sim \mathcal N(w_0, s^2)`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor, nn

from pyro_bnn.checks import check_positive
from pyro_bnn.data.arrays import ArrayLike, float_dtype, to_tensor
from pyro_bnn.errors import DataError, OptionError, ShapeError, SiteError
from pyro_bnn.priors.prior import PriorLike
from pyro_bnn.priors.scales import Scale, scale_for


class Pretrained:
    r"""Gaussian around each weight of a trained network: fine-tuning that stays close to it.

    The network's parameters are taken by name where all weights of the model are among them,
    otherwise by order, with equal numbers of tensors, as the ``init`` of an engine takes them. They
    are copied: training the network on changes nothing here.

    Args:
        net: The trained network, or its parameters by name, such as a state dict, as tensors or
            arrays; those of half precision are widened.
        scale: Standard deviation s, > 0, in the units of the weights; or ``"fan_in"``:
            ``1/sqrt(I)`` for a weight of shape ``[O, I, ...]``, 1 for a bias, so wide that the
            centre hardly matters in a small network.

    Raises:
        OptionError: If ``net`` is neither, a parameter is not finite or no array of numbers, or
            ``scale`` neither positive nor ``"fan_in"``.

    Example:
        >>> import torch
        >>> from pyro_bnn.models import MLP
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
        >>> model = MLP(3, hidden=(8,), prior=Pretrained(net, scale=0.1))
        >>> prior = model.layers[1].weight_prior()
        >>> torch.equal(prior.mean, net[2].weight)
        True
    """

    def __init__(self, net: nn.Module | Mapping[str, ArrayLike], scale: Scale = "fan_in") -> None:
        if isinstance(net, nn.Module):
            net = dict(net.named_parameters())
        elif not isinstance(net, Mapping):
            raise OptionError(
                f"net is a trained torch module or a mapping from names to tensors, not {net!r}"
            )
        self.weights = {name: _trained(name, value) for name, value in net.items()}
        check_positive("scale", scale, also="fan_in")
        self.scale = scale

    def by_name(self, names: Sequence[str]) -> Mapping[str, PriorLike]:
        """The Gaussian of each weight.

        Raises:
            SiteError: If the weights are not the network's, neither by name nor by order.
            ShapeError: If one has another shape.
        """
        if all(name in self.weights for name in names):
            return {name: _Around(name, self.weights[name], self.scale) for name in names}
        if len(names) != len(self.weights):
            raise SiteError(
                f"the trained network fits the model neither by name nor by order: it has "
                f"{', '.join(self.weights)}; the prior is for {', '.join(names)}"
            )
        pairs = zip(names, self.weights.items(), strict=True)
        return {name: _Around(own, value, self.scale) for name, (own, value) in pairs}


def _trained(name: str, value: ArrayLike) -> Tensor:
    """A copy of one parameter, in the dtype of a network that is fitted."""
    try:
        found = to_tensor(value, f"{name!r} of the trained network")
    except (DataError, ShapeError) as error:
        raise OptionError(str(error)) from error
    if not bool(found.isfinite().all()):
        raise OptionError(
            f"{name!r} of the trained network has values that are NaN or infinite: did its "
            "training diverge?"
        )
    return found.to(float_dtype(value), copy=True)


@dataclass(frozen=True, eq=False)
class _Around:
    """Gaussian around the value of a trained tensor of this name."""

    name: str
    loc: Tensor
    scale: Scale

    def distribution(self, shape: torch.Size) -> Distribution:
        """The prior over one tensor: batch shape ``()``, event shape ``shape``."""
        if self.loc.shape != shape:
            raise ShapeError(
                f"{self.name!r} of the trained network has shape {tuple(self.loc.shape)}, but the "
                f"weight that it is to centre has {tuple(shape)}"
            )
        scale = scale_for(shape, self.scale, self.fan_in_scale)
        normal = dist.Normal(self.loc.clone(), torch.full_like(self.loc, scale))
        return cast(Distribution, normal.to_event(len(shape)))

    def fan_in_scale(self, fan_in: float) -> float:
        """The scale for I inputs to each unit."""
        return 1 / math.sqrt(fan_in)
