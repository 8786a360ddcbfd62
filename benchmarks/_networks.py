"""The network of a problem, as a torch module and as a model of stock Pyro."""

from __future__ import annotations

import itertools
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from torch import Tensor, nn

from benchmarks._problem import NOISE_SD, PRIOR_SD, Problem


def sequential(problem: Problem) -> nn.Sequential:
    """The network as a torch module."""
    layers: list[nn.Module] = []
    for i, o in itertools.pairwise(problem.sizes):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class PyroMLP(PyroModule):
    """The network as users of stock Pyro write it; its sites are named as in ``bnn.models.MLP``.

    It makes Pyro a little faster than this package's model, which offers more, does.

    Args:
        problem: Network and data.
        device: Where the prior and the noise are.
    """

    def __init__(self, problem: Problem, device: str = "cpu") -> None:
        super().__init__()
        self.num_data = problem.num_data
        self.rows = torch.arange(problem.batch, device=device)
        zero, one = torch.zeros((), device=device), torch.ones((), device=device)
        prior, self.noise_sd = dist.Normal(zero, PRIOR_SD * one), NOISE_SD * one
        layers = []
        for i, o in itertools.pairwise(problem.sizes):
            make_layer: Any = PyroModule[nn.Linear]  # a class made on the fly
            layer = make_layer(i, o)
            layer.weight = PyroSample(prior.expand([o, i]).to_event(2))
            layer.bias = PyroSample(prior.expand([o]).to_event(1))
            layers.append(layer)
        make_list: Any = PyroModule[nn.ModuleList]
        self.layers = make_list(layers)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """Sample the weights and observe y ``[B]``, scaled by N/B; without y sample it."""
        h = self.layers[0](x)
        for layer in list(self.layers)[1:]:
            h = layer(h.relu())
        f = h.squeeze(-1)
        plate = (
            pyro.plate("data", len(x))
            if y is None
            else pyro.plate("data", self.num_data, subsample=self.rows)
        )
        with plate:
            return pyro.sample("y", dist.Normal(f, self.noise_sd), obs=y)
