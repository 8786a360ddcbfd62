"""Pure tensor functions captured as one graph of tensor operations, without Pyro or autograd.

``make_fx`` records the operations of one call, gradient included; replaying them costs the
arithmetic and a Python call each. A graph is specialised to the shapes and dtypes of its inputs,
so one is kept for each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_bnn.effects import without_validation
from pyro_bnn.simplify import simplify

logger = logging.getLogger("pyro_bnn")

TensorFunction = Callable[..., tuple[Tensor, ...]]


class Captured:
    """A tensor function that replays a captured graph where it can, and says where it cannot.

    Args:
        fn: Pure function of tensors that returns a tuple of tensors. It draws no random numbers:
            noise is an input.
        name: What it is, for the one line that says it could not be captured.
        enabled: With False the function runs as it is.

    Attributes:
        is_captured: False once a capture failed; the function then runs through plain Pyro.
    """

    def __init__(self, fn: TensorFunction, name: str, *, enabled: bool = True) -> None:
        self._fn, self._name = fn, name
        self._graphs: dict[object, TensorFunction] = {}
        self.is_captured = enabled

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        """The function's outputs, detached."""
        if not self.is_captured:
            return tuple(value.detach() for value in self._fn(*args))
        key = tuple((a.shape, a.dtype, a.device) for a in args)
        if key not in self._graphs:
            try:
                self._graphs[key] = capture(self._fn, args)
            except Exception as error:
                self.is_captured = False
                reason = str(error).strip().splitlines() or [type(error).__name__]
                logger.warning(
                    "%s cannot be captured as a graph and runs through plain Pyro, which is "
                    "slower: %s",
                    self._name,
                    reason[0],
                )
                return tuple(value.detach() for value in self._fn(*args))
        with torch.no_grad():
            return self._graphs[key](*args)


def capture(fn: TensorFunction, args: Sequence[Tensor]) -> TensorFunction:
    """Record one call of ``fn`` as a graph for inputs of these shapes and dtypes.

    Two inputs that are one tensor object would become one input of the graph, so the recording
    runs on distinct clones.
    """
    clones = [a.detach().clone() for a in args]
    with without_validation():
        graph = make_fx(fn)(*clones)
    simplify(graph)
    return graph.forward


def value_and_grad(
    fn: Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, tuple[Tensor, ...]]],
    num_variables: int,
) -> TensorFunction:
    """A function of tensors that returns (value, auxiliary..., gradients...).

    Args:
        fn: Maps (variables, other inputs) to (scalar, auxiliary tensors).
        num_variables: How many leading inputs are variables to differentiate by.
    """

    def with_gradients(*args: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            variables = [a.detach().requires_grad_() for a in args[:num_variables]]
            value, auxiliary = fn(variables, args[num_variables:])
            gradients = torch.autograd.grad(
                value, variables, allow_unused=True, materialize_grads=True
            )
        return (value, *auxiliary, *gradients)

    return with_gradients
