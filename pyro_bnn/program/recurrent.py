r"""Recurrent layers of torch in plain operations, which can be batched over draws and compiled.

.. math::
    \text{GRU:} \quad & h' = (1 - \zeta) \circ n + \zeta \circ h, \quad
        n = \tanh\bigl(a_n + \rho \circ b_n\bigr) \\
    \text{LSTM:} \quad & c' = \sigma_f \circ c + \sigma_i \circ \tanh(a_g + b_g), \quad
        h' = \sigma_o \circ \tanh c'

with :math:`a = W_i x + b_i` of the input and :math:`b = W_h h + b_h` of the state, and gates
:math:`\rho, \zeta, \sigma_i, \sigma_f, \sigma_o` that are logistic functions of :math:`a + b`.
Torch's kernels of whole layers have no rule for ``torch.func.vmap``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

HiddenState: TypeAlias = tuple[Tensor, ...]
Step: TypeAlias = Callable[[Tensor, Tensor, HiddenState], HiddenState]
"""Maps W_i x + b_i and W_h h + b_h, and the state, to the next state, h first."""


def _gru(of_x: Tensor, of_h: Tensor, state: HiddenState) -> HiddenState:
    (a_reset, a_update, a), (b_reset, b_update, b) = of_x.chunk(3, -1), of_h.chunk(3, -1)
    reset, update = torch.sigmoid(a_reset + b_reset), torch.sigmoid(a_update + b_update)
    return ((1 - update) * torch.tanh(a + reset * b) + update * state[0],)


def _lstm(of_x: Tensor, of_h: Tensor, state: HiddenState) -> HiddenState:
    enter, forget, cell, leave = (of_x + of_h).chunk(4, -1)
    c = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(cell)
    return torch.sigmoid(leave) * torch.tanh(c), c


_STEPS: Mapping[Any, Step] = {
    torch.gru: _gru,
    torch.lstm: _lstm,
    torch.rnn_tanh: lambda of_x, of_h, _: (torch.tanh(of_x + of_h),),
    torch.rnn_relu: lambda of_x, of_h, _: (torch.relu(of_x + of_h),),
}
NUM_ARGUMENTS = 9  # of a layer on tensors; on packed sequences the third is no list


def is_plain(func: Any, args: Sequence[Any]) -> bool:
    """Whether a call of torch is a recurrent layer that :func:`recurrence` computes.

    Not those on packed sequences, with projections, or with dropout.
    """
    if func not in _STEPS or len(args) != NUM_ARGUMENTS or not isinstance(args[2], list):
        return False
    _, _, weights, has_biases, num_layers, dropout, trains, both_ways, _ = args
    num_weights = (4 if has_biases else 2) * num_layers * (2 if both_ways else 1)
    return len(weights) == num_weights and not (dropout and trains)


def recurrence(func: Any, args: Sequence[Any]) -> tuple[Tensor, ...]:
    """What ``torch.gru``, ``torch.lstm``, ``torch.rnn_tanh`` and ``torch.rnn_relu`` return.

    Args:
        func: One of them.
        args: Its arguments: inputs ``[T, B, I]`` or ``[B, T, I]``, the first state, weights, and
            the layer's options.

    Returns:
        The states of the last layer ``[T, B, H]`` or ``[B, T, H]``, and the last state.
    """
    x, first, weights, has_biases, num_layers, _, _, both_ways, batch_first = args
    firsts: HiddenState = first if isinstance(first, tuple) else (first,)
    size, ways = (4 if has_biases else 2), (2 if both_ways else 1)
    parts = [weights[i : i + size] for i in range(0, len(weights), size)]
    rows = x.transpose(0, 1) if batch_first else x
    ends: list[HiddenState] = []
    for layer in range(num_layers):
        outputs = []
        for way in range(ways):
            number = layer * ways + way
            start = tuple(part[number] for part in firsts)
            states = _along(_STEPS[func], rows.flip(0) if way else rows, start, parts[number])
            ends.append(states[-1])
            whole = torch.stack([state[0] for state in states])
            outputs.append(whole.flip(0) if way else whole)
        rows = torch.cat(outputs, -1)
    last = [torch.stack(values) for values in zip(*ends, strict=True)]
    return (rows.transpose(0, 1) if batch_first else rows, *last)


def _along(
    step: Step, x: Tensor, state: HiddenState, weights: Sequence[Tensor]
) -> list[HiddenState]:
    """States after each step of x ``[T, B, I]``."""
    of_input, of_state, *biases = weights
    bias_in, bias = biases or (None, None)
    states = []
    for of_x in linear(x, of_input, bias_in):
        state = step(of_x, linear(state[0], of_state, bias), state)
        states.append(state)
    return states
