r"""Fully connected layer whose weight and bias are Pyro sample sites, :math:`h = x W^\top + b`."""

from __future__ import annotations

import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_bnn.priors import Hierarchy, PriorLike, assign_prior, value_of


class Linear(PyroModule):
    r"""Bayesian fully connected layer.

    Args:
        num_inputs: Number of inputs I.
        num_outputs: Number of outputs O.
        weight_prior: Prior over the weight ``[O, I]``.
        bias_prior: Prior over the bias ``[O]``; None for no bias.

    Attributes:
        weight: The weight ``[O, I]``; with a hierarchical prior, the module that samples it.
        bias: The bias ``[O]``, or the module that samples it; None without one.
    """

    weight: Tensor | Hierarchy
    bias: Tensor | Hierarchy | None

    def __init__(
        self,
        num_inputs: int,
        num_outputs: int,
        weight_prior: PriorLike,
        bias_prior: PriorLike | None,
    ) -> None:
        super().__init__()
        self.num_inputs, self.num_outputs = num_inputs, num_outputs
        assign_prior(self, "weight", weight_prior, (num_outputs, num_inputs))
        assign_prior(self, "bias", bias_prior, (num_outputs,))

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``[N, I]`` to ``[N, O]``."""
        weight, bias = value_of(self.weight), self.bias
        return torch.nn.functional.linear(x, weight, None if bias is None else value_of(bias))
