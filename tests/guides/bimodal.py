r"""Models of one or two weights whose posteriors have two modes and are known.

``Known``: :math:`w \sim \sum_k p_k \mathcal N(l_k, t_k^2)`, :math:`y_n \sim \mathcal N(w x_n,
\sigma^2)`: the posterior is a mixture of Gaussians of closed form (the product of each component
with the likelihood, weighted by its evidence), and so is the evidence.

``Square``: :math:`w_j \sim \mathcal N(l_j, 1)`, :math:`y_n \sim \mathcal N(x_n \sum_j w_j^2,
\sigma^2)` with one weight: two modes near :math:`\pm\sqrt{y/x}`; the evidence is a sum over a grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from pyro.distributions import constraints
from pyro.nn import PyroModule
from torch import Tensor

GRID = torch.linspace(-6, 6, 24_001, dtype=torch.float64)
STEP = float(GRID[1] - GRID[0])


class RealMixture(dist.MixtureSameFamily):  # type: ignore[misc]  # Pyro leaves it untyped
    """Whose support torch has a transform for."""

    support = constraints.real


class Known(PyroModule):
    """The conjugate model; P = 1, noise 0.5."""

    shares: Tensor
    centres: Tensor
    spreads: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shares", torch.tensor([0.3, 0.7], dtype=torch.float64))
        self.register_buffer("centres", torch.tensor([-1.2, 1.1], dtype=torch.float64))
        self.register_buffer("spreads", torch.tensor([0.5, 0.8], dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        prior = RealMixture(dist.Categorical(self.shares), dist.Normal(self.centres, self.spreads))
        w = pyro.sample("w", prior)
        f = pyro.deterministic("f", x * w)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)
        return sampled


class Square(PyroModule):
    """The model that sees w squared; P = 1, noise 0.3."""

    loc: Tensor

    def __init__(self, loc: float = 0.15) -> None:
        super().__init__()
        self.register_buffer("loc", torch.tensor(loc, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(self.loc, torch.ones_like(self.loc)))
        f = pyro.deterministic("f", x * w**2)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, 0.3).to_event(1), obs=y)
        return sampled


def rows() -> tuple[Tensor, Tensor]:
    """Inputs and observations ``[4, 1]``, of w near 1.2 or -1.2."""
    x = torch.tensor([[-0.6], [0.5], [1.0], [-1.1]], dtype=torch.float64)
    return x, 1.44 * x + 0.1 * torch.tensor([[1.0], [-2.0], [1.0], [0.5]], dtype=torch.float64)


def few_rows() -> tuple[Tensor, Tensor]:
    """Two rows that say little of w."""
    x = torch.tensor([[0.3], [-0.5]], dtype=torch.float64)
    return x, torch.tensor([[0.2], [0.1]], dtype=torch.float64)


@dataclass(frozen=True)
class Mixture:
    """The posterior of ``Known`` given rows: means, sds, weights ``[2]``; the log evidence."""

    loc: Tensor
    scale: Tensor
    weights: Tensor
    log_evidence: float


def posterior_of_known(x: Tensor, y: Tensor) -> Mixture:
    model = Known()
    x, y = x[:, 0], y[:, 0]
    precision = model.spreads**-2 + x @ x / 0.25
    loc = (model.centres / model.spreads**2 + x @ y / 0.25) / precision
    log_evidences = []
    for centre, spread in zip(model.centres, model.spreads, strict=True):
        covariance = 0.25 * torch.eye(len(x), dtype=x.dtype) + spread**2 * torch.outer(x, x)
        marginal = torch.distributions.MultivariateNormal(centre * x, covariance)
        log_evidences.append(marginal.log_prob(y))
    joint = model.shares.log() + torch.stack(log_evidences)
    return Mixture(loc, precision.rsqrt(), joint.softmax(0), float(joint.logsumexp(0)))


def log_joint_of_square(w: Tensor, x: Tensor, y: Tensor, loc: float = 0.15) -> Tensor:
    """Log p(y, w | x) of w ``[...]``, by ``torch.distributions``."""
    likelihood = torch.distributions.Normal(w.unsqueeze(-1) ** 2 * x[:, 0], 0.3)
    prior = torch.distributions.Normal(loc, 1.0)
    total: Tensor = likelihood.log_prob(y[:, 0]).sum(-1) + prior.log_prob(w)
    return total


def log_integral(log_values: Tensor) -> float:
    """Log of the integral of a function of the grid, whose logs are given."""
    return float(log_values.logsumexp(-1)) + math.log(STEP)
