"""A model in words: class, layer sizes, activation, prior, likelihood, point estimates."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor, nn

from pyro_bnn.handled import model_name, unhandled, with_handlers
from pyro_bnn.models.from_network import BayesianModule
from pyro_bnn.models.network import ACTIVATIONS
from pyro_bnn.priors import Hierarchy, PriorModule
from pyro_bnn.priors.continued import ContinuedModel
from pyro_bnn.priors.scales import fan_in

MAX_PRIORS = 3  # more different ones are counted
NAMES = {
    "_ImproperUniform": "Flat",
    "ScaleMixtureNormal": "ScaleMixture",
}  # distributions that priors of this package make


def describe(model: object) -> str:
    """Describe a model in words, for tables that compare several.

    What the words leave out (names of sites, a likelihood's options) may still differ: two models
    of one description are two models.

    Args:
        model: A Pyro model; one with a method ``describe()`` speaks for itself, and text that
            stands for a model (of a file) is taken as it is.

    Returns:
        One line.

    Example:
        >>> from pyro_bnn.models import MLP
        >>> describe(MLP(10, hidden=(50,)))
        'MLP 10-50-1 relu, Normal(fan_in) prior, Normal likelihood'
    """
    if isinstance(model, str):
        return model
    own = getattr(model, "describe", None)
    if callable(own):
        return str(own())
    if isinstance(model, ContinuedModel):
        return f"{describe(model.handled[0])}, its prior replaced by an earlier posterior"
    inner, _ = unhandled(model)
    if inner is not model:
        return with_handlers(describe(inner), model)
    if not isinstance(model, nn.Module):
        return model_name(model)
    parts = [" ".join([_name(model), *_sizes(model), *_activation(model)])]
    if priors := list(dict.fromkeys(_priors(model))):
        words = " and ".join(priors) if len(priors) <= MAX_PRIORS else f"{len(priors)} different"
        parts.append(f"{words} prior{'' if len(priors) == 1 else 's'}")
    if isinstance(likelihood := getattr(model, "likelihood", None), nn.Module):
        fixed = dict(likelihood.named_buffers(recurse=False)).get("scale")
        number = f"({float(fixed):.3g})" if fixed is not None and fixed.numel() == 1 else ""
        parts.append(f"{_name(likelihood)}{number} likelihood")
    if count := sum(1 for parameter in model.parameters() if parameter.requires_grad):
        decay = " with a weight prior" if len(getattr(model, "weight_priors", ())) else ""
        parts.append(f"{count} tensor{'' if count == 1 else 's'} point-estimated{decay}")
    return ", ".join(parts)


def _name(module: nn.Module) -> str:
    """Class of a module, without the prefix that Pyro gives to a class made on the fly."""
    if type(module) is BayesianModule:
        return f"bayesian({_name(module.net)})"
    return type(module).__name__.removeprefix("Pyro")


def _sizes(model: nn.Module) -> Iterator[str]:
    """Units from inputs to outputs, such as ``10-50-1``, where the layers tell; or of images."""
    if image_shape := getattr(model, "image_shape", None):
        yield "x".join(map(str, image_shape))
    layers = getattr(model, "layers", None)
    if isinstance(layers, nn.ModuleList) and all(hasattr(layer, "num_outputs") for layer in layers):
        sizes = [getattr(model, "num_inputs", "?"), *(layer.num_outputs for layer in layers)]
        yield "-".join(map(str, sizes))
    elif not isinstance(layers, nn.Module) and hasattr(model, "num_outputs"):  # one layer
        yield f"{getattr(model, 'num_inputs', '?')}-{model.num_outputs}"


def _activation(model: nn.Module) -> Iterator[str]:
    if (activation := getattr(model, "activation", None)) is not None:
        known = {fn: name for name, fn in ACTIVATIONS.items()}
        yield known.get(activation, getattr(activation, "__name__", type(activation).__name__))


def _priors(model: nn.Module) -> Iterator[str]:
    """The priors over the network's weights, in words."""
    hierarchies = {name: m for name, m in model.named_modules() if isinstance(m, Hierarchy)}
    inside = ("likelihood.", "weight_priors.", *(f"{name}." for name in hierarchies))
    for hierarchy in hierarchies.values():
        centred = " (centred)" if hierarchy.centred else ""
        yield f"{type(hierarchy).__name__.lstrip('_')}{centred}"
    found = [
        module.distribution
        for name, module in model.named_modules()
        if isinstance(module, PriorModule) and not name.startswith(inside)
    ]
    is_fan_in = bool(found) and all(map(_is_fan_in, found))
    for prior in found:
        yield "Normal(fan_in)" if is_fan_in or _is_fan_in(prior, weight=True) else _words(prior)


def _is_fan_in(prior: Distribution, *, weight: bool = False) -> bool:
    """Whether it is Normal around 0 with the scale of fan-in; of a weight matrix, if asked."""
    base, shape = _base(prior), prior.event_shape
    if type(base).__name__ != "Normal" or (weight and len(shape) < 2):
        return False
    expected = base.scale.new_tensor(1 / math.sqrt(fan_in(shape)))
    return bool((base.loc == 0).all()) and bool(torch.isclose(base.scale, expected).all())


def _words(prior: Distribution) -> str:
    """A prior with its parameters where they are one number each: ``Laplace(0, 0.5)``."""
    base = _base(prior)
    values = [getattr(base, name, None) for name in getattr(base, "arg_constraints", {})]
    numbers = [
        v.flatten()[0] for v in values if isinstance(v, Tensor) and bool((v == v.min()).all())
    ]
    name = NAMES.get(type(base).__name__, type(base).__name__)
    if not values or len(numbers) < len(values):
        return name
    return f"{name}({', '.join(f'{float(v):.3g}' for v in numbers)})"


def _base(prior: Distribution) -> Distribution:
    """The univariate distribution below expansions and independence."""
    while isinstance(prior, torch.distributions.Independent | ExpandedDistribution):
        prior = prior.base_dist
    return prior
