r"""Fully connected layer whose weight and bias are Pyro sample sites, :math:`h = x W^\top + b`."""

from __future__ import annotations

import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor

from pyro_bnn.priors import Prior, PriorModule
from pyro_bnn.priors.prior import ModulePrior


class Linear(PyroModule):
    r"""Bayesian fully connected layer.

    Args:
        num_inputs: Number of inputs I.
        num_outputs: Number of outputs O.
        weight_prior: Prior over the weight ``[O, I]``.
        bias_prior: Prior over the bias ``[O]``.
    """

    weight: Tensor
    bias: Tensor

    def __init__(
        self, num_inputs: int, num_outputs: int, weight_prior: Prior, bias_prior: Prior
    ) -> None:
        super().__init__()
        self.num_inputs, self.num_outputs = num_inputs, num_outputs
        self.weight_prior = PriorModule(
            weight_prior.distribution(torch.Size([num_outputs, num_inputs]))
        )
        self.bias_prior = PriorModule(bias_prior.distribution(torch.Size([num_outputs])))
        self.weight = PyroSample(ModulePrior("weight_prior"))  # type: ignore[assignment]  # reads as a Tensor
        self.bias = PyroSample(ModulePrior("bias_prior"))  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        """Map x ``[N, I]`` to ``[N, O]``."""
        return torch.nn.functional.linear(x, self.weight, self.bias)
