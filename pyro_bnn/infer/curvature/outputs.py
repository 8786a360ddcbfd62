r"""Likelihoods of rows as functions of f, with slope and Fisher information in closed form.

Of y given the natural parameters f ``[B, C]``, with mean :math:`\mu(f)` and variance V(f),

.. math:: \nabla_f (-\log p) = (\mu - y) / s, \qquad
          F = \operatorname{diag} V \;\text{(Gaussian, Bernoulli, Poisson)}, \qquad
          F = \operatorname{diag} p - p p^\top \;\text{(classes)}

s being the variance of Gaussian noise, 1 for the others. F is minus the Hessian of log p in f, so
that a layer in which f is linear has a convex problem, and its generalised Gauss-Newton matrix is
the Hessian.

References:
    McCullagh & Nelder, "Generalized Linear Models", 1989, chapter 2.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, softplus

from pyro_bnn.likelihoods.counts import PoissonOfLogRate
from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.handlers import log_prob
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

ROUNDING = 1e-4  # of log densities, by which a model's own may differ from these


class Outputs(ABC):
    """The likelihood of one family, of f ``[B, C]``."""

    @abstractmethod
    def nll(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Minus the log densities ``[B]``, and their slopes in f ``[B, C]``."""

    @abstractmethod
    def variance(self, f: Tensor) -> Tensor:
        """The diagonal of F, ``[B, C]``."""

    def times(self, f: Tensor, v: Tensor) -> Tensor:
        """F v ``[B, C]`` of v ``[B, C]``."""
        return self.variance(f) * v

    def summed(self, f: Tensor, weights: Tensor) -> Tensor:
        """The sum of F over rows of weights ``[B]``, ``[C, C]``."""
        return (weights @ self.variance(f)).diag()

    def row(self, f: Tensor, k: int) -> Tensor:
        """Row k of F for each of some rows, ``[B, C]``."""
        out = torch.zeros_like(f)
        out[:, k] = self.variance(f)[:, k]
        return out


class Gaussian(Outputs):
    """Gaussian noise of known scales ``[C]``."""

    def __init__(self, scale: Tensor) -> None:
        self._precision = scale.square().reciprocal()
        self._log = scale.log() + 0.5 * math.log(2 * math.pi)

    def nll(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the normal distribution."""
        gap = f - y.reshape(f.shape)
        slope = gap * self._precision
        return (0.5 * gap * slope + self._log).sum(-1), slope

    def variance(self, f: Tensor) -> Tensor:
        """The precisions of the noise."""
        return self._precision.expand_as(f)


class BinaryLogits(Outputs):
    """Numbers 0 and 1, f their logits."""

    def nll(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the Bernoulli distribution."""
        y = y.reshape(f.shape)
        return (softplus(f) - y * f).sum(-1), f.sigmoid() - y

    def variance(self, f: Tensor) -> Tensor:
        """The variances p (1 - p)."""
        return f.sigmoid() * (-f).sigmoid()


class LogRates(Outputs):
    """Counts, f their log rates."""

    def nll(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the Poisson distribution."""
        y, rate = y.reshape(f.shape), f.exp()
        return (rate - y * f + torch.lgamma(y + 1)).sum(-1), rate - y

    def variance(self, f: Tensor) -> Tensor:
        """The rates."""
        return f.exp()


class Classes(Outputs):
    """One of C classes, f their logits."""

    def nll(self, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the categorical distribution."""
        label = y.reshape(-1, 1).long()
        log_p = log_softmax(f, -1)
        nll = -log_p.gather(-1, label)[:, 0]
        return nll, log_p.exp_().scatter_add_(-1, label, log_p.new_full(label.shape, -1.0))

    def variance(self, f: Tensor) -> Tensor:
        """The variances p (1 - p)."""
        p = f.softmax(-1)
        return p * (1 - p)

    def times(self, f: Tensor, v: Tensor) -> Tensor:
        """(diag p - p p^T) v."""
        p = f.softmax(-1)
        scaled = p * v
        return scaled - p * scaled.sum(-1, keepdim=True)

    def summed(self, f: Tensor, weights: Tensor) -> Tensor:
        """Its sum over rows."""
        p = f.softmax(-1)
        weighted = weights.unsqueeze(-1) * p
        return weighted.sum(0).diag() - weighted.mT @ p

    def row(self, f: Tensor, k: int) -> Tensor:
        """Row k of it."""
        p = f.softmax(-1)
        out = -p * p[:, k : k + 1]
        out[:, k] += p[:, k]
        return out


def outputs_of(program: Program, z: Tensor, params: Params | None = None) -> Outputs | None:
    """The likelihood of a program at z ``[P]``; None where it is another function of f.

    The log densities of two rows, at two values of f, have to be those of the family. What other
    rows have of their own, such as the sd of their noise, is not seen here.
    """
    values, rows = program.constrain(z), program.example
    with torch.no_grad():
        own = program.run(values, rows, params)
        found = None if own.y["mask"] is not None else _family(own.y["fn"], own.f)
        if found is None:
            return None
        for f in (own.f, 0.5 * own.f - 0.3):
            run = program.run(values, rows, params, output=f)
            expected, actual = -log_prob(run.y), found.nll(f, rows.y)[0]
            fits = expected.shape == actual.shape and torch.allclose(
                expected, actual, rtol=ROUNDING, atol=ROUNDING
            )
            if not fits:
                return None
    return found


def _family(fn: dist.TorchDistribution, f: Tensor) -> Outputs | None:
    """By the kind of a distribution."""
    base = base_distribution(fn)
    if isinstance(base, dist.Categorical):
        return Classes()
    if isinstance(base, dist.Bernoulli):
        return BinaryLogits()
    if isinstance(base, PoissonOfLogRate | dist.Poisson):
        return LogRates()
    if isinstance(base, dist.Normal) and base.loc.numel() == f.numel():
        scale = base.scale.expand(base.loc.shape).reshape(f.shape)
        return Gaussian(scale[0]) if torch.equal(scale[:1].expand_as(scale), scale) else None
    return None
