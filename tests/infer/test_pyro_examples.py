"""Scripts of Pyro's own examples and tutorials, as its users have them, against sums of their own.

Sources: ``baseball`` and ``bayesian_regression`` of pyro.ai/examples; a network of tutorials.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule, PyroSample
from scipy import special
from torch import Tensor, nn

import pyro_bnn as bnn
from pyro_bnn.data import Call

AT_BATS = 45
HITS = torch.tensor([18.0, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])
"""Of 18 players in their first 45 at bats in 1970: Efron & Morris, JASA 1975."""


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def baseball(at_bats: Tensor, hits: Tensor) -> None:
    """Pyro's ``partially_pooled``."""
    m = pyro.sample("m", dist.Uniform(0, 1))
    kappa = pyro.sample("kappa", dist.Pareto(1, 1.5))
    with pyro.plate("num_players", at_bats.shape[0]):
        phi = pyro.sample("phi", dist.Beta(m * kappa, (1 - m) * kappa))
        pyro.sample("obs", dist.Binomial(at_bats, probs=phi), obs=hits)


def chances_of_hits() -> np.ndarray:
    """E[phi_i | hits]: the chances are summed out, m and kappa lie on a grid of 400 by 800."""
    hits = HITS.numpy()
    m = (np.arange(400) + 0.5)[:, None, None] / 400
    log_kappa = (np.arange(800) + 0.5)[None, :, None] / 800 * 14  # kappa up to a million
    kappa = np.exp(log_kappa)
    a, b = m * kappa, (1 - m) * kappa
    log_p = (special.betaln(a + hits, b + AT_BATS - hits) - special.betaln(a, b)).sum(-1)
    log_p += -1.5 * log_kappa[..., 0]  # Pareto(1, 1.5), and the Jacobian of log kappa
    p = np.exp(log_p - log_p.max())
    of_grid = (a + hits) / (kappa + AT_BATS)
    chances: np.ndarray = (p[..., None] * of_grid).sum((0, 1)) / p.sum()
    return chances


@pytest.mark.slow("long chains")
def test_baseball_by_nuts() -> None:
    call = Call(torch.full_like(HITS, AT_BATS), HITS)
    posterior = bnn.NUTS(num_samples=1_000).run(baseball, call, progress=False)
    found = posterior.summary().loc[[f"phi[{i}]" for i in range(18)]]
    error = np.abs(found["mean"].to_numpy() - chances_of_hits())
    mcse = posterior.sample()["phi"].std(0).numpy() / np.sqrt(found["ess_bulk"].to_numpy())
    assert (error / mcse).max() < 4
    assert posterior.predictive()["obs"].shape == (4_000, 18)


class BayesianRegression(PyroModule):
    """Of Pyro's tutorial on regression, word for word but for the number of inputs."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        linear: Any = PyroModule[nn.Linear]
        self.linear = linear(in_features, out_features)
        self.linear.weight = PyroSample(
            dist.Normal(0.0, 1.0).expand([out_features, in_features]).to_event(2)
        )
        self.linear.bias = PyroSample(dist.Normal(0.0, 10.0).expand([out_features]).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        sigma = pyro.sample("sigma", dist.Uniform(0.0, 10.0))
        mean: Tensor = self.linear(x).squeeze(-1)
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mean, sigma), obs=y)
        return mean


def rows(count: int = 30) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 3, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(count, generator=torch.Generator().manual_seed(1))
    return x, x @ torch.tensor([1.0, -0.5, 0.0]) + 2 + 0.7 * noise


def regression_moments(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and sd of weights and bias: Gaussians for each sigma, of which 2,000 are summed."""
    design = torch.cat([x, torch.ones(len(x), 1)], 1)
    prior = torch.diag(torch.tensor([1.0, 1.0, 1.0, 0.01]))
    log_p, means, squares = [], [], []
    for sigma in (torch.arange(2_000) + 0.5) / 2_000 * 2.0:  # beyond 2 there is no mass
        precision = prior + design.T @ design / sigma**2
        mean = torch.linalg.solve(precision, design.T @ y / sigma**2)
        fit = -0.5 * (y @ y) / sigma**2 + 0.5 * mean @ precision @ mean
        log_p.append(fit - len(y) * sigma.log() - 0.5 * torch.logdet(precision))
        means.append(mean)
        squares.append(mean**2 + torch.linalg.inv(precision).diagonal())
    p = torch.stack(log_p).softmax(0)
    mean = p @ torch.stack(means)
    return mean, (p @ torch.stack(squares) - mean**2).sqrt()


# SVI ends where less than half a nat is to gain: a fifth of an sd in one mean is .02 nats
@pytest.mark.parametrize(
    ("engine", "most"),
    [(bnn.NUTS(), 0.1), (bnn.SVI(bnn.guides.AutoMultivariateNormal), 0.2)],
    ids=["NUTS", "SVI"],
)
def test_regression_of_the_tutorial(engine: Any, most: float) -> None:
    x, y = rows()
    posterior = engine.run(BayesianRegression(3, 1), Call(x, y), progress=False)
    draws = posterior.sample(4_000)
    found = torch.cat([draws["linear.weight"].flatten(1), draws["linear.bias"]], 1)
    mean, sd = regression_moments(x, y)
    assert ((found.mean(0) - mean) / sd).abs().max() < most
    assert (found.std(0) / sd - 1).abs().max() < most  # a Gaussian has no tails of a t of 26
    anew = posterior.predictive(Call(x[:4]), num_samples=4_000)["obs"]
    design = torch.cat([x[:4], torch.ones(4, 1)], 1)
    assert (anew.mean(0) - design @ mean).abs().max() < 0.06


class TutorialNetwork(PyroModule):
    """A network as tutorials on Pyro write it: no f, and what is observed is called obs."""

    def __init__(self, hidden: int = 10) -> None:
        super().__init__()
        self.activation = nn.Tanh()
        linear: Any = PyroModule[nn.Linear]
        self.layer1 = linear(1, hidden)
        self.layer2 = linear(hidden, 1)
        self.layer1.weight = PyroSample(dist.Normal(0.0, 5.0).expand([hidden, 1]).to_event(2))
        self.layer1.bias = PyroSample(dist.Normal(0.0, 5.0).expand([hidden]).to_event(1))
        self.layer2.weight = PyroSample(dist.Normal(0.0, 5.0).expand([1, hidden]).to_event(2))
        self.layer2.bias = PyroSample(dist.Normal(0.0, 5.0).expand([1]).to_event(1))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        x = x.reshape(-1, 1)
        mu: Tensor = self.layer2(self.activation(self.layer1(x))).squeeze()
        sigma = pyro.sample("sigma", dist.Gamma(0.5, 1))
        with pyro.plate("data", x.shape[0]):
            pyro.sample("obs", dist.Normal(mu, sigma * sigma), obs=y)
        return mu


@pytest.mark.slow("chains through a network")
def test_a_network_of_tutorials_predicts_within_its_noise() -> None:
    x = torch.linspace(-1.5, 1.5, 60)
    truth = torch.sin(2 * x)
    y = truth + 0.1 * torch.randn(60, generator=torch.Generator().manual_seed(2))
    engine = bnn.NUTS(num_samples=300, warmup_steps=300, num_chains=2)
    posterior = engine.run(TutorialNetwork(), Call(x, y), progress=False)
    anew = posterior.predictive(Call(x))["obs"]
    error = (anew.mean(0) - truth).square().mean().sqrt()
    assert error < 0.06  # 23 hidden numbers at most of 60 rows of noise .1: .1 * sqrt(23 / 60)
    assert 0.08 < anew.std(0).mean() < 0.13
