r"""Gated recurrent unit in plain operations, which can be batched over draws of its weights.

.. math::
    \rho = \sigma(W_{i\rho} x + b_{i\rho} + W_{h\rho} h + b_{h\rho}), \quad
    \zeta = \sigma(W_{i\zeta} x + b_{i\zeta} + W_{h\zeta} h + b_{h\zeta}), \\
    n = \tanh\bigl(W_{in} x + b_{in} + \rho \circ (W_{hn} h + b_{hn})\bigr), \quad
    h' = (1 - \zeta) \circ n + \zeta \circ h

Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine
Translation", EMNLP 2014, arXiv:1406.1078.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GRUCell(nn.GRUCell):
    """One step of a gated recurrent unit, with the parameters of ``torch.nn.GRUCell``.

    A network that unrolls it over time becomes a model by :func:`pyro_bnn.bayesian`, where
    ``torch.nn.GRU`` and ``torch.nn.LSTM`` are refused: their kernels cannot be batched over draws.
    A state dict of ``torch.nn.GRUCell`` fits.

    Args:
        input_size: Number of inputs I of a step.
        hidden_size: Number of units H.
        bias: Whether there are biases.

    References:
        Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for Statistical
        Machine Translation", EMNLP 2014, arXiv:1406.1078.

    Example:
        >>> cell, h = GRUCell(2, 3), torch.zeros(5, 3)
        >>> for x in torch.zeros(4, 5, 2):  # four steps of five rows
        ...     h = cell(x, h)
        >>> h.shape
        torch.Size([5, 3])
    """

    def forward(self, x: Tensor, h: Tensor | None = None) -> Tensor:
        """Map x ``[..., I]`` and the state h ``[..., H]``, by default 0, to the next state."""
        if h is None:
            h = x.new_zeros(*x.shape[:-1], self.hidden_size)
        of_x = nn.functional.linear(x, self.weight_ih, self.bias_ih).chunk(3, -1)
        of_h = nn.functional.linear(h, self.weight_hh, self.bias_hh).chunk(3, -1)
        reset, update = (torch.sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2], strict=True))
        new = torch.tanh(of_x[2] + reset * of_h[2])
        return (1 - update) * new + update * h
