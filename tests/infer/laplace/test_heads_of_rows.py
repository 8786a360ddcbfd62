"""Laplace's approximation of heads where some rows, none of the first two, have more than a head.

Expected values are those of weighted least squares, and derivatives of the log joint density.
"""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import Laplace, bayesian, likelihoods, priors
from pyro_bnn.infer.laplace.head import explains_rows, head_of
from pyro_bnn.models.from_network import BayesianModule
from pyro_bnn.models.outputs import record_output
from pyro_bnn.program.head import Head
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch

GENERATOR = torch.Generator().manual_seed(0)
N = 40
X = torch.randn(N, 2, generator=GENERATOR, dtype=torch.float64)
X = X[X[:, 0].argsort()]  # the first rows have the smaller sd, and no exposure
NOISE = torch.randn(N, generator=GENERATOR, dtype=torch.float64)
PHI = torch.cat([X, torch.ones(N, 1, dtype=torch.float64)], 1)


def sd_of(x: Tensor) -> Tensor:
    return torch.where(x[:, 0] > 0, 3.0, 0.1).to(x)


class OfRows(BayesianModule):
    """A network, whose rows have what ``distribution`` makes of f and x."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        """The model."""
        f = record_output(self, self.network, x)
        with pyro.plate("data", len(x), dim=-1):
            drawn: Tensor = pyro.sample("y", self.distribution(f, x), obs=y)
        return drawn

    def distribution(self, f: Tensor, x: Tensor) -> Any:
        """Noise of an sd that is known, and another one in some rows."""
        return dist.Normal(f[:, 0], sd_of(x))


class Exposed(OfRows):
    """Counts, over times that are others than 1 in some rows."""

    def distribution(self, f: Tensor, x: Tensor) -> Any:
        """Counts of log rates f plus the log of a time."""
        return dist.Poisson((f[:, 0] + x[:, 0].clamp(min=0)).exp())


class Bounded(OfRows):
    """Noise around f within bounds."""

    def distribution(self, f: Tensor, x: Tensor) -> Any:
        """Of the same sd in all rows."""
        return dist.Normal(f[:, 0].clamp(-3, 3), torch.full_like(f[:, 0], 0.5))


class Plain(OfRows):
    """Noise of one sd, as most models have it."""

    def distribution(self, f: Tensor, x: Tensor) -> Any:
        """Of the same sd in all rows."""
        return dist.Normal(f[:, 0], torch.full_like(f[:, 0], 0.5))


def of(kind: Any, net: nn.Module | None = None) -> Any:
    net = nn.Linear(2, 1) if net is None else net
    return kind(net.double(), priors.Normal(1.0), likelihoods.Normal(1.0))


def fit(model: Any, y: Tensor, **options: Any) -> Any:
    engine = Laplace(compile=False, **{"num_steps": 300} | options)
    return engine.run(model, (X, y), progress=False)


def covariance(guide: Any) -> Tensor:
    eye = torch.eye(guide.noise_dim, dtype=torch.float64)
    with torch.no_grad():
        root = guide.transport(eye) - guide.transport(torch.zeros_like(eye[0]))
    product: Tensor = root.mT @ root
    return product


def least_squares(phi: Tensor, y: Tensor, sd: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of weights under standard normal priors."""
    weighted = phi / sd.square().unsqueeze(-1)
    found = torch.linalg.inv(phi.mT @ weighted + torch.eye(phi.shape[1], dtype=phi.dtype))
    return found @ (weighted.mT @ y), found


@pytest.mark.parametrize("num_steps", [0, 300])
def test_an_sd_that_is_another_in_later_rows_counts(num_steps: int) -> None:
    y = X @ torch.tensor([1.0, -1.0], dtype=torch.float64) + sd_of(X) * NOISE
    posterior = fit(of(OfRows), y, num_steps=num_steps)
    mean, spread = least_squares(PHI, y, sd_of(X))
    assert_close(posterior.guide.centre().detach(), mean, rtol=1e-6, atol=1e-9)
    assert_close(covariance(posterior.guide), spread, rtol=1e-6, atol=1e-9)


def test_an_sd_that_is_another_in_later_rows_counts_beside_other_layers() -> None:
    y = X[:, 0].sin() + 0.1 * sd_of(X) * NOISE
    torch.manual_seed(0)
    model = of(OfRows, nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)))
    posterior = fit(model, y, subset="last_layer")
    program, z = posterior.program, posterior.guide.centre().detach()
    head = Head.of(program)
    assert head is not None
    phi = head.of_rows(program, z, X)
    _, spread = least_squares(phi, y, sd_of(X))
    assert_close(covariance(posterior.guide.parts[0]), spread, rtol=1e-6, atol=1e-9)


def test_exposures_of_later_rows_count() -> None:
    y = (2 * NOISE.abs()).round()
    posterior = fit(of(Exposed), y)
    program, rows = posterior.program, posterior.batch((X, y))
    z = posterior.guide.centre().detach()

    def value(z: Tensor) -> Tensor:
        density: Tensor = program.log_joint(z, program.arguments(rows))
        return -density

    gradient, hessian = torch.func.grad(value)(z), torch.func.hessian(value)(z)
    assert float(gradient @ torch.linalg.solve(hessian, gradient)) < 1e-9
    assert_close(covariance(posterior.guide), torch.linalg.inv(hessian), rtol=1e-6, atol=1e-9)


class Clamped(nn.Module):
    def __init__(self, *, in_place: bool) -> None:
        super().__init__()
        self.layer, self.in_place = nn.Linear(2, 1), in_place

    def forward(self, x: Tensor) -> Tensor:
        f: Tensor = self.layer(x)
        return f.clamp_(-3, 3) if self.in_place else f.clamp(-3, 3)


def test_a_network_with_bounds_that_the_first_rows_do_not_reach_has_no_head() -> None:
    """The posterior is that of the rows within the bounds, which the others do not move."""
    order = X[:, 0].abs().argsort()
    x = X[order]
    y = (4 * x[:, 0] + 0.5 * NOISE).clamp(-3, 3)
    model = bayesian(
        Clamped(in_place=False).double(),
        prior=priors.Normal(1.0),
        likelihood=likelihoods.Normal(0.5),
    )
    assert Head.of(Program(model, x, y)) is None
    engine = Laplace(compile=False, num_steps=1_000, predictive="weights")
    posterior = engine.run(model, (x, y), progress=False)
    z = posterior.guide.centre().detach()
    phi = PHI[order]
    inside = (phi @ z).abs() < 3
    assert 10 < int(inside.sum()) < N
    assert bool(inside[:2].all())
    mean, spread = least_squares(phi[inside], y[inside], torch.full_like(y[inside], 0.5))
    assert_close(z, mean, rtol=1e-5, atol=1e-6)
    assert_close(covariance(posterior.guide), spread, rtol=1e-6, atol=1e-9)


def test_what_is_written_into_the_output_is_seen() -> None:
    model = bayesian(Clamped(in_place=True).double(), likelihood=likelihoods.Normal(0.5))
    y = 0.1 * NOISE
    assert Head.of(Program(model, 0.01 * X, y)) is None


def test_bounds_in_the_likelihood_are_seen_where_no_row_reaches_them() -> None:
    x, y = 0.01 * X, 0.1 * NOISE
    for kind, expected in ((Bounded, False), (Plain, True)):
        program = Program(of(kind), x, y)
        head = head_of(program)
        assert head is not None
        assert explains_rows(program, head, Batch(x, y), program.initial) == expected
