r"""Whether a network is as torch made it, so that its weights say nothing yet.

Layers of torch draw their weights by ``reset_parameters``: those of linear, convolutional and
recurrent ones are uniform between :math:`\pm b`, those of embeddings standard normal, gains and
shifts of normalisations 1 and 0. Training moves weights out of such a range or changes their mean
square, of which that of n uniform weights has

.. math:: E\,\overline{w^2} = \frac{b^2}{3}, \qquad
          \mathrm{sd}\,\overline{w^2} = b^2 \sqrt{\frac{4}{45\,n}}
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pyro_bnn.models.fan_in import NORMS

STANDARD_ERRORS = 5.0  # by which the mean square of a tensor may be off
FARTHEST = 7.0  # sds of the farthest of a billion standard normal draws
UNIFORM = (nn.Linear, nn.Bilinear, nn.modules.conv._ConvNd)
RECURRENT = (nn.RNNBase, nn.RNNCellBase)
NORMAL = (nn.Embedding, nn.EmbeddingBag)


def is_untrained(net: nn.Module) -> bool:
    """Whether all layers that are known here are as their ``reset_parameters`` left them.

    A network of other layers alone counts as trained, as does one whose weights another rule drew.
    A few weights cannot tell: of a network with less than some twenty, a trained one may pass for
    an untrained one.

    Args:
        net: The network.

    Example:
        >>> net = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 1))
        >>> is_untrained(net)
        True
        >>> _ = net[0].weight.data.mul_(0.5)
        >>> is_untrained(net)
        False
    """
    known = False
    for module in net.modules():
        batches = getattr(module, "num_batches_tracked", None)
        if isinstance(batches, Tensor) and int(batches) > 0:
            return False
        for name, value in module._parameters.items():
            found = None if value is None else _is_as_made(module, name, value.detach())
            if found is False:
                return False
            known |= found is True
    return known


def _is_as_made(module: nn.Module, name: str, value: Tensor) -> bool | None:
    """Whether one parameter is as its layer made it; None of a layer that is not known here."""
    if isinstance(module, NORMS) and name in ("weight", "bias"):
        return bool((value == (1.0 if name == "weight" else 0.0)).all())
    if isinstance(module, NORMAL) and name == "weight":
        return _is_standard_normal(value)
    if isinstance(module, RECURRENT):
        return _is_uniform(value, 1 / math.sqrt(module.hidden_size))
    if isinstance(module, nn.MultiheadAttention):
        return _is_as_attention_made(name, value)
    if type(module) is nn.modules.linear.NonDynamicallyQuantizableLinear and name == "bias":
        return not bool(value.any())  # of attention
    if isinstance(module, UNIFORM) and name in ("weight", "bias"):
        weight = getattr(module, "weight", None)  # where it is parametrised, computed
        return (
            None if weight is None else _is_uniform(value, 1 / math.sqrt(_inputs(module, weight)))
        )
    return None


def _is_as_attention_made(name: str, value: Tensor) -> bool | None:
    """Of attention's own parameters: uniform by Xavier's rule, and biases of 0."""
    if name == "in_proj_bias":
        return not bool(value.any())
    if value.ndim == 2:
        return _is_uniform(value, math.sqrt(6 / sum(value.shape)))
    return None  # the biases of keys and values


def _inputs(module: nn.Module, weight: Tensor) -> int:
    """Fan-in as ``reset_parameters`` counts it."""
    if isinstance(module, nn.Bilinear):
        return weight.shape[1]
    return max(1, math.prod(weight.shape[1:]))


def _is_uniform(value: Tensor, bound: float) -> bool:
    """Whether entries may be draws of a uniform distribution between plus and minus the bound."""
    if not value.numel():
        return True
    entries = value.double() / bound
    deviation = (entries.square().mean() - 1 / 3).abs()
    most = STANDARD_ERRORS * math.sqrt(4 / 45 / value.numel())
    farthest = 1 + torch.finfo(value.dtype).eps  # a bound is rounded as well
    return bool((entries.abs() <= farthest).all() & (deviation <= most))


def _is_standard_normal(value: Tensor) -> bool:
    """Whether rows may be standard normal draws; a row of padding is 0."""
    rows = value[value.flatten(1).any(-1)].double()
    if not rows.numel():
        return False
    deviation = (rows.square().mean() - 1).abs()
    most = STANDARD_ERRORS * math.sqrt(2 / rows.numel())
    return bool((rows.abs() <= FARTHEST).all() & (deviation <= most))
