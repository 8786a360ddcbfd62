r"""Roots of the Fisher information of a likelihood in the tensors of its distribution.

.. math:: F = E_{y \sim p}[\nabla_u \log p \; \nabla_u \log p^\top] = R R^\top

with u the tensors that a row's distribution is made of: loc and scale, logits, a rate. Of a
Gaussian of fixed scale and of logits it is the Hessian of the negative log likelihood in u, and
:math:`J^\top F J`, J the Jacobian of u, is the generalised Gauss-Newton matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyro.distributions as dist
import torch
from torch import Tensor

from pyro_bnn.likelihoods.counts import PoissonOfLogRate

Root: TypeAlias = Callable[[Tensor], Tensor]
"""R^T J ``[K, P]`` of the Jacobian J ``[K, P]``."""


def _normal(fn: Any) -> tuple[Tensor, Root]:
    loc, scale = (value.reshape(-1) for value in torch.broadcast_tensors(fn.loc, fn.scale))
    weights = torch.cat([1 / scale, math.sqrt(2) / scale]).detach()
    return torch.cat([loc, scale]), lambda J: weights.unsqueeze(-1) * J


def _bernoulli(fn: Any) -> tuple[Tensor, Root]:
    logits = fn.logits.reshape(-1)
    sd = (torch.sigmoid(logits) * torch.sigmoid(-logits)).sqrt().detach()
    return logits, lambda J: sd.unsqueeze(-1) * J


def _categorical(fn: Any) -> tuple[Tensor, Root]:
    # diag(p) - p p^T = R R^T with R = diag(sqrt p) (I - v v^T), v = sqrt p of length 1
    logits = fn.logits.reshape(-1)
    v = logits.softmax(-1).sqrt().detach()

    def root(J: Tensor) -> Tensor:
        scaled = v.unsqueeze(-1) * J
        projected: Tensor = scaled - v.unsqueeze(-1) * (v @ scaled)
        return projected

    return logits, root


def _poisson(fn: Any) -> tuple[Tensor, Root]:
    rate = fn.rate.reshape(-1)
    weights = rate.rsqrt().detach()
    return rate, lambda J: weights.unsqueeze(-1) * J


def _poisson_of_log_rate(fn: Any) -> tuple[Tensor, Root]:
    log_rate = fn.log_rate.reshape(-1)
    sd = (0.5 * log_rate).exp().detach()
    return log_rate, lambda J: sd.unsqueeze(-1) * J


FISHER: Mapping[type, Callable[[Any], tuple[Tensor, Root]]] = {
    dist.Normal: _normal,
    dist.Bernoulli: _bernoulli,
    dist.Categorical: _categorical,
    dist.Poisson: _poisson,
    PoissonOfLogRate: _poisson_of_log_rate,
}
"""Of the distribution of one row, its tensors u ``[K]`` and the root of their information."""
