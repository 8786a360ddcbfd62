"""Models whose evidence is known: conjugate ones, and a network by its conjugate last layer."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample
from scipy.special import betaln, gammaln
from torch import Tensor

from pyro_bnn import likelihoods, models


class OneNumber(PyroModule):
    """One latent number, of which f is a function and y a draw, alike in all rows.

    Args:
        prior: Of the number.
        output: Maps it to f.
        family: Maps f ``[N, 1]`` to the distribution of y ``[N]``.
    """

    def __init__(self, prior: Any, output: Any, family: Any) -> None:
        super().__init__()
        self.number = PyroSample(prior)
        self.output, self.family = output, family

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        f = self.output(self.number).expand(len(x), 1)
        pyro.deterministic("f", f)
        with pyro.plate("data", len(x)):
            return pyro.sample("y", self.family(f), obs=y)


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def beta_bernoulli(ones: int, rows: int, a: float = 2.0, b: float = 3.0) -> tuple[Any, Any, float]:
    """Model, data, and log B(a + k, b + n - k) / B(a, b)."""
    model = OneNumber(
        dist.Beta(number(a), number(b)),
        lambda p: p.logit(),
        lambda f: dist.Bernoulli(logits=f.squeeze(-1)),
    )
    y = (torch.arange(rows) < ones).double()
    evidence = betaln(a + ones, b + rows - ones) - betaln(a, b)
    return model, (torch.zeros(rows, 1, dtype=torch.float64), y), float(evidence)


def gamma_poisson(counts: list[int], a: float = 2.0, b: float = 0.5) -> tuple[Any, Any, float]:
    """Model, data, and the evidence of counts whose rate has a Gamma(a, b) prior."""
    model = OneNumber(
        dist.Gamma(number(a), number(b)),
        lambda rate: rate.log(),
        lambda f: dist.Poisson(f.squeeze(-1).exp()),
    )
    y = torch.tensor(counts, dtype=torch.float64)
    total, rows = sum(counts), len(counts)
    evidence = (
        a * math.log(b)
        - gammaln(a)
        + gammaln(a + total)
        - (a + total) * math.log(b + rows)
        - sum(gammaln(count + 1) for count in counts)
    )
    return model, (torch.zeros(rows, 1, dtype=torch.float64), y), float(evidence)


def two_peaks(apart: float = 10.0, share: float = 0.2) -> tuple[Any, Any, float]:
    """A posterior of two Gaussian peaks, the left one with this share, so many sds apart.

    Under a prior N(0, 10^2) a likelihood of peaks at -apart / 2 and apart / 2 of sd s gives two of
    variance 1 / (1 / s^2 + 1 / 100) = 1, and as much evidence to the one as to the other.
    """
    variance = 1 / (1 - 1 / 100)
    at = 0.5 * apart * variance
    places = torch.tensor([at, -at], dtype=torch.float64)

    def family(f: Tensor) -> Any:
        weights = dist.Categorical(torch.tensor([share, 1 - share], dtype=torch.float64))
        return dist.MixtureSameFamily(weights, dist.Normal(f + places, math.sqrt(variance)))

    model = OneNumber(dist.Normal(number(0.0), number(10.0)), lambda z: z, family)
    total = variance + 100
    evidence = -0.5 * (at**2 / total + math.log(2 * math.pi * total))
    zero = torch.zeros(1, 1, dtype=torch.float64)
    return model, (zero, zero[:, 0]), evidence


NOISE = 0.2


def network() -> tuple[models.MLP, tuple[Tensor, Tensor]]:
    """A tanh network 1-3-1 of known noise, and 20 rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(-2, 2, 20).unsqueeze(-1)
    y = (1.5 * x[:, 0]).sin() + NOISE * torch.randn(20, generator=generator)
    likelihood = likelihoods.Normal(NOISE)
    return models.MLP(1, hidden=(3,), activation="tanh", likelihood=likelihood), (x, y)


def evidence_of_the_network(num_draws: int, seed: int = 1) -> tuple[float, float]:
    """Its log evidence and standard error, by draws of the first layer from the prior.

    Given the first layer the model is linear in the last one, whose evidence has a closed form:
    log N(y | 0, noise^2 I + A A^T), A the units times the prior's sds, and their bias.
    """
    _, (x, y) = network()
    x, y = x.double(), y.double()
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(num_draws // 10_000):
        w, b = torch.randn(2, 10_000, 1, 3, generator=generator, dtype=torch.float64)
        units = torch.tanh(w * x + b) / 3**0.5  # [n, N, 3]; weights have sd 1 / sqrt(3)
        a = torch.cat([units, torch.ones_like(units[..., :1])], -1) / NOISE
        root = torch.linalg.cholesky(a.mT @ a + torch.eye(4, dtype=torch.float64))
        right = (a.mT @ (y / NOISE)).unsqueeze(-1)
        whitened = torch.linalg.solve_triangular(root, right, upper=False)
        quadratic = (y / NOISE).square().sum() - whitened.square().sum((-2, -1))
        log_det = 2 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        found.append(-0.5 * (quadratic + log_det))
    log_w = torch.cat(found) - len(y) * math.log(NOISE * math.sqrt(2 * math.pi))
    value = float(log_w.logsumexp(0)) - math.log(len(log_w))
    w = (log_w - value).exp()
    return value, float(w.std()) / math.sqrt(len(w))
