"""AutoDelta: the maximum a posteriori, and maximum likelihood under a flat prior."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_bnn import SVI, likelihoods, models, priors
from pyro_bnn.guides import AutoDelta
from tests.guides.exact import assert_stationary, at, expected_elbo
from tests.oracle import design, linear_gaussian


def test_the_posterior_mode_is_the_optimum() -> None:
    oracle = linear_gaussian()
    guide = at(AutoDelta(oracle.model), oracle, loc=oracle.mean)
    assert_stationary(guide, oracle)
    objective, _ = expected_elbo(guide, oracle)
    assert objective == pytest.approx(float(oracle.log_joint(oracle.mean)), rel=1e-12)


def test_svi_reaches_the_exact_mode() -> None:
    oracle = linear_gaussian()
    engine = SVI(AutoDelta, num_steps=1_000, learning_rate=0.1)
    posterior = engine.run(oracle.model, (oracle.x, oracle.y), progress=False)
    draws = posterior.unconstrained(3)
    torch.testing.assert_close(draws, oracle.mean.expand(3, -1), rtol=1e-6, atol=1e-6)
    assert posterior.losses[-1] == pytest.approx(-float(oracle.log_joint(oracle.mean)), rel=1e-9)
    assert posterior.elbo_kind == "none"


def test_it_says_that_it_maximises_the_log_joint() -> None:
    oracle = linear_gaussian()
    engine = SVI(AutoDelta, num_steps=1)
    posterior = engine.run(oracle.model, (oracle.x, oracle.y), progress=False)
    assert posterior.objective == "log joint"


def test_a_flat_prior_gives_least_squares() -> None:
    oracle = linear_gaussian()
    model = models.MLP(
        3, hidden=(), prior=priors.Flat(), likelihood=likelihoods.Normal(0.5)
    ).double()
    engine = SVI(AutoDelta, num_steps=1_000, learning_rate=0.1)
    posterior = engine.run(model, (oracle.x, oracle.y), progress=False)
    expected = torch.linalg.lstsq(design(oracle.x), oracle.y[:, None]).solution.squeeze(-1)
    torch.testing.assert_close(posterior.unconstrained(1)[0], expected, rtol=1e-6, atol=1e-6)


class ScaleOnly(PyroModule):
    """Noise scale s with prior Gamma(a, b) and N observations of mean 0."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shape", torch.tensor([3.0, 2.0], dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        a, b = self.shape
        precision = pyro.sample("precision", dist.Gamma(a, b))
        f = pyro.deterministic("f", torch.zeros_like(x))
        with pyro.plate("data", x.shape[0]):
            noise = dist.Normal(f, precision**-0.5).to_event(1)
            sampled: Tensor = pyro.sample("y", noise, obs=y)
        return sampled


def test_the_mode_is_that_of_the_value_not_of_its_logarithm() -> None:
    """Gamma(a + N/2, b + sum y^2 / 2) has mode (a + N/2 - 1) / rate, its logarithm a + N/2."""
    y = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)
    x = torch.zeros(4, 1, dtype=torch.float64)
    engine = SVI(AutoDelta, num_steps=1_000, learning_rate=0.05)
    posterior = engine.run(ScaleOnly(), (x, y), progress=False)
    expected = (3 + 4 / 2 - 1) / (2 + float(y.square().sum()) / 2)
    assert float(posterior.sample(1)["precision"][0]) == pytest.approx(expected, rel=1e-6)


def test_quantiles_are_the_estimate() -> None:
    oracle = linear_gaussian()
    guide = at(AutoDelta(oracle.model), oracle, loc=oracle.mean)
    quantiles = guide.quantiles([0.1, 0.9])
    torch.testing.assert_close(quantiles["b"], oracle.mean[3:].expand(2, -1))
    torch.testing.assert_close(guide.median()["w"], oracle.mean[:3, None])


def test_its_distribution_is_a_point_mass() -> None:
    oracle = linear_gaussian()
    guide = at(AutoDelta(oracle.model), oracle, loc=oracle.mean)
    point = guide.get_posterior()
    assert point.event_shape == (4,)
    torch.testing.assert_close(point.sample(), oracle.mean)
