r"""How many inputs reach each unit of a layer, where its weight is not of shape ``[O, I, ...]``.

A prior of fan-in scale keeps the size of what a layer gives: with inputs of mean square 1 and I of
them to each unit, weights of variance 1/I give outputs of variance 1. The weight's shape says I
for ``[O, I, ...]`` alone, as ``torch.nn.init`` takes every weight to be.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from pyro_bnn.errors import OptionError
from pyro_bnn.layers import FilterResponseNorm
from pyro_bnn.priors import HalfCauchyScale
from pyro_bnn.priors.prior import AnyPrior

NORMS = (
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
    nn.modules.batchnorm._NormBase,  # batch and instance normalisation
    FilterResponseNorm,
)
"""Layers of normalisation, whose ``weight`` is a gain of each entry or channel."""


def suited_to_layers(net: nn.Module, priors: Mapping[str, AnyPrior]) -> dict[str, AnyPrior]:
    """Priors of fan-in scale, with the fan-in of the layer that each weight belongs to.

    Args:
        net: The network.
        priors: The prior of each parameter that has one.

    Raises:
        OptionError: If a layer has no fan-in, or the layers that share a weight have several.
    """
    suited = dict(priors)
    for name, prior in priors.items():
        if getattr(prior, "scale", None) != "fan_in" or not hasattr(prior, "fan_in_scale"):
            continue
        parameter = net.get_parameter(name)
        by_shape = math.prod(parameter.shape[1:])
        layers = [(module, own) for _, module, own in places(net, parameter)]
        found = {fan_in(module, own, name) for module, own in layers}
        if len(found) > 1:
            kinds = " and ".join(
                f"{type(m).__name__} ({fan_in(m, own, name):g})" for m, own in layers
            )
            raise OptionError(
                f"{name} is shared by layers of several fan-ins, {kinds}: {_give_scale(name)}"
            )
        (count,) = found
        if any(isinstance(m, nn.modules.conv._ConvTransposeNd) for m, _ in layers):
            _check_groups(name, prior)
        if count != by_shape:
            known: Any = prior  # all priors with a fan-in rule are dataclasses
            suited[name] = dataclasses.replace(known, scale=known.fan_in_scale(count))
    return suited


def fan_in(module: nn.Module, own: str, name: str = "") -> float:
    r"""Inputs that reach each unit through one parameter of a layer.

    Of a transposed convolution of stride s they are :math:`\tfrac{I}{g} \prod_d k_d / s_d`, the
    mean over the places of its output away from the edges: each of them lies under that many
    entries of the kernel. An embedding looks one row up, which is one input. A bias, and a gain or
    shift of a normalisation, acts on one entry.

    Args:
        module: The layer.
        own: Name of its parameter.
        name: Name of the parameter in the network, for messages.

    Raises:
        OptionError: If the number depends on the data, as in an ``EmbeddingBag``.
    """
    shape = module.get_parameter(own).shape
    if own.startswith("bias") or isinstance(module, (*NORMS, nn.Embedding)):
        return 1.0
    if isinstance(module, nn.EmbeddingBag):
        raise OptionError(
            f"{name or own} is of an EmbeddingBag, whose fan-in is the number of rows in a bag, "
            f"which the network does not say: {_give_scale(name or own)}"
        )
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        channels = module.in_channels // module.groups
        return channels * math.prod(module.kernel_size) / math.prod(module.stride)
    return float(math.prod(shape[1:]))


def places(net: nn.Module, parameter: nn.Parameter) -> Iterator[tuple[str, nn.Module, str]]:
    """Names of a parameter, which may be tied, the layer of each and its name there."""
    for prefix, module in net.named_modules():
        for own, value in module.named_parameters(recurse=False, remove_duplicate=False):
            if value is parameter:
                yield f"{prefix}.{own}" if prefix else own, module, own


def _check_groups(name: str, prior: AnyPrior) -> None:
    """Refuse scales of units or inputs over ``[I, O/g, ...]``, where these change places."""
    if isinstance(prior, HalfCauchyScale) and prior.per != "layer":
        raise OptionError(
            f"per={prior.per!r} is for weights [O, I, ...], but {name}, of a transposed "
            "convolution, is [I, O/groups, ...]: give it a prior with per='layer'"
        )


def _give_scale(name: str) -> str:
    return (
        f"give it a prior with a scale, such as {{{name!r}: pyro_bnn.priors.Normal(1.0), "
        '"*": pyro_bnn.priors.Normal()}'
    )
