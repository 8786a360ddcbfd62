"""What the multilayer perceptrons share: layer sizes, activations and the recursion over layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from pyro_bnn.errors import OptionError, ShapeError, UnknownNameError
from pyro_bnn.likelihoods import Likelihood

Activation: TypeAlias = Callable[[Tensor], Tensor]

ACTIVATIONS: Mapping[str, Activation] = {
    "relu": torch.relu,
    "leaky_relu": nn.functional.leaky_relu,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "silu": nn.functional.silu,
    "identity": lambda h: h,
}


def activation_function(activation: str | Activation) -> Activation:
    """The activation of a name, or a callable as it is.

    Raises:
        OptionError: If it is a class instead of an instance.
        UnknownNameError: If the name is not known; suggests the nearest.
    """
    if isinstance(activation, type):
        raise OptionError(
            f"activation is the class {activation.__name__}, but a function of one tensor is "
            f"expected: pass an instance, {activation.__name__}()"
        )
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise UnknownNameError("activation", str(activation), ACTIVATIONS)
    return ACTIVATIONS[activation]


def layer_sizes(
    num_inputs: int, num_outputs: int, hidden: Sequence[int], likelihood: Likelihood
) -> tuple[int, ...]:
    """Units from the inputs over the hidden layers to the outputs that the likelihood needs.

    Raises:
        OptionError: If a size is not a positive integer.
    """
    for size in (num_inputs, num_outputs, *hidden):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise OptionError(f"layer sizes are positive integers, not {size!r}")
    return (num_inputs, *hidden, likelihood.num_function_outputs(num_outputs))


def feed_forward(layers: Iterable[nn.Module], activation: Activation, x: Tensor) -> Tensor:
    """Map x ``[..., I]`` to f ``[..., F]``, the activation between the layers."""
    h = x
    for i, layer in enumerate(layers):
        h = layer(activation(h) if i else h)  # [..., units of the layer]
    return h


def require_columns(x: Tensor, num_inputs: int) -> None:
    """Check that x is ``[N, num_inputs]``.

    Raises:
        ShapeError: If it is not.
    """
    if x.ndim != 2 or x.shape[1] != num_inputs:
        raise ShapeError(f"x has shape {tuple(x.shape)}, but the model takes [N, {num_inputs}]")
