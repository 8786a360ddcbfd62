"""A Bayesian Gaussian process latent variable model, as in Pyro's example, as a plain model."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.data import Call
from pyro_bnn.program import Joint
from tests.plain_pyro import default_dtype

NOISE = 0.1


@pytest.fixture(autouse=True)
def double() -> Any:
    with default_dtype(torch.float64):
        yield


def outputs() -> tuple[Tensor, Tensor]:
    """Where 10 rows lie on a line, and four smooth functions of that ``[4, 10]``."""
    generator = torch.Generator().manual_seed(0)
    at = torch.linspace(-1.5, 1.5, 10).double()
    waves = torch.stack([at, at.square() - 0.8, at.sin(), (2 * at).cos()])
    return at, waves + NOISE * torch.randn(4, 10, generator=generator).double()


def kernel(a: Tensor, b: Tensor, length: Tensor) -> Tensor:
    square = (a.unsqueeze(-1) - b.unsqueeze(-2)).square()
    return (-0.5 * square / length.square()[..., None, None]).exp()


def exact(y: Tensor, prior: Tensor) -> None:
    """Each output is a Gaussian process of the latent places of the rows."""
    at = pyro.sample("at", dist.Normal(prior, 0.5).to_event(1))
    length = pyro.sample("length", dist.LogNormal(0.0, 0.3))
    covariance = kernel(at, at, length) + NOISE**2 * torch.eye(y.shape[-1])
    with pyro.plate("outputs", len(y)):
        seen = dist.MultivariateNormal(torch.zeros(y.shape[-1]), covariance)
        pyro.sample("y", seen, obs=y)


def inducing(y: Tensor, prior: Tensor) -> None:
    """The same by five inducing points: low rank and a diagonal, as ``FITC``."""
    at = pyro.sample("at", dist.Normal(prior, 0.5).to_event(1))
    length = pyro.sample("length", dist.LogNormal(0.0, 0.3))
    points = torch.linspace(-2, 2, 5)
    inner = torch.linalg.cholesky(kernel(points, points, length) + 1e-6 * torch.eye(5))
    factor = torch.linalg.solve_triangular(inner, kernel(points, at, length), upper=False).mT
    rest = 1 - factor.square().sum(-1) + NOISE**2
    with pyro.plate("outputs", len(y)):
        seen = dist.LowRankMultivariateNormal(torch.zeros(y.shape[-1]), factor, rest)
        pyro.sample("y", seen, obs=y)


@pytest.mark.parametrize("model", [exact, inducing])
def test_the_log_joint_is_pyros(model: Any) -> None:
    at, y = outputs()
    joint = Joint(model, (y, at))
    values = {"at": at + 0.1, "length": torch.tensor(1.3)}
    trace = poutine.trace(poutine.condition(model, values)).get_trace(y, at)
    expected = trace.log_prob_sum() + math.log(1.3)  # length is exp(z)
    assert_close(joint.log_joint(joint.unconstrain(values)), expected)


SVI = bnn.SVI(bnn.guides.AutoMultivariateNormal, num_steps=800, learning_rate=0.02)
NUTS = bnn.NUTS(num_samples=100, warmup_steps=100, num_chains=2)


@pytest.mark.parametrize(("model", "engine"), [(exact, SVI), (inducing, SVI), (exact, NUTS)])
def test_places_of_rows_are_found(model: Any, engine: Any) -> None:
    """From a prior that is .3 off, so that neighbours change places; the scale stays open."""
    at, y = outputs()
    wrong = at + 0.3 * torch.tensor([1.0, -1.0]).repeat(5)
    start = {"at": wrong, "length": torch.tensor(1.0)}  # there are other modes far from it
    posterior = engine.run(model, Call(y, wrong), init=start, progress=False)
    found = posterior.sample(200)["at"]
    assert (wrong.diff() < 0).any()
    assert (found.mean(0).diff() > 0).all()
    assert (found.mean(0) - at).abs().mean() < 0.25
    assert (found.std(0) < 0.35).all()
