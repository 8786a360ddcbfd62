r"""Products of densities, summed over discrete values, in log space: a backend of ``opt_einsum``.

.. math:: \log \sum_{k} \exp \Bigl( \sum_i a_i[\ldots, k, \ldots] \Bigr)

Pyro's own, ``pyro.ops.einsum.torch_log``, takes the maximum of each factor apart: in float32 the
sum is lost where each factor is 100 nats below its maximum at the other's. It also has an autograd
function that ``torch.func.vmap`` refuses. Here the factors are added first; the sum over k
of a product of two matrices takes the memory of its cubic number of terms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from pyro.ops.einsum.util import Tensordot
from torch import Tensor


def einsum(
    equation: str,
    *operands: Tensor,
    log_sum: Callable[[Tensor, tuple[int, ...]], Tensor] = torch.logsumexp,
) -> Tensor:
    """Log of the sum of products of exponentials, with one letter for each dimension.

    Args:
        equation: Dimensions of the operands and of the result, as ``"ij,j->i"``.
        operands: Logs of the factors.
        log_sum: Sums the products over the last dimensions.
    """
    inputs, output = equation.split("->")
    factors = inputs.split(",")
    summed = [symbol for symbol in dict.fromkeys(inputs) if symbol not in output + ","]
    order = [*output, *summed]
    aligned = (_aligned(a, dims, order) for a, dims in zip(operands, factors, strict=True))
    total = functools.reduce(torch.add, aligned)
    if summed:
        total = log_sum(total, tuple(range(len(output), len(order))))
    return total.clone() if len(operands) == 1 else total  # the caller names its dimensions


def transpose(value: Tensor, axes: tuple[int, ...]) -> Tensor:
    """The dimensions in another order."""
    return value.permute(axes)


tensordot = Tensordot(einsum)


def _aligned(value: Tensor, dims: str, order: list[str]) -> Tensor:
    """The tensor with its dimensions in the order of all, and one of size 1 for each other."""
    value = value.permute([dims.index(symbol) for symbol in order if symbol in dims])
    for place, symbol in enumerate(order):
        if symbol not in dims:
            value = value.unsqueeze(place)
    return value
