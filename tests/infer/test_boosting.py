"""Boosting: each component raises the ELBO, as sums over a grid show, and weights are optimal."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import optimize
from torch import Tensor, nn
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import boost, guides
from pyro_bnn.errors import DivergenceError, OptionError
from pyro_bnn.guides.parts.components import Components
from pyro_bnn.infer.svi.boosting import NewComponent
from pyro_bnn.infer.svi.mixture_weights import fit_weights, mixture_elbo
from pyro_bnn.program import Program
from tests.guides.bimodal import (
    GRID,
    STEP,
    Square,
    few_rows,
    log_integral,
    log_joint_of_square,
    posterior_of_known,
    rows,
)
from tests.laws import objective

OPTIONS: dict[str, Any] = {
    "num_steps": 600,
    "learning_rate": 0.05,
    "num_particles": 8,
    "compile": False,
    "progress": False,
}


def grid_elbo(log_q: Tensor) -> float:
    """The ELBO on ``Square`` of a density on the grid."""
    log_p = log_joint_of_square(GRID, *rows())
    return float((log_q.exp() * (log_p - log_q)).sum() * STEP)


def elbo_of(posterior: Any) -> float:
    with torch.no_grad():
        return grid_elbo(posterior.guide.log_prob(GRID.unsqueeze(-1)))


@pytest.fixture(scope="module")
def grown() -> list[Any]:
    """Posteriors of one, two, three and four components."""
    options = {**OPTIONS, "compile": True}  # in C, which takes less than steps without
    svi = bnn.SVI(
        guides.AutoNormal, num_steps=600, learning_rate=0.05, num_particles=8, compile=True
    )
    found: list[Any] = [svi.run(Square(), rows(), progress=False)]
    for seed in range(3):
        found.append(boost(found[-1], rows(), seed=seed, **options))
    return found


@pytest.mark.slow("whole fits")
def test_two_components_reach_the_evidence_and_the_elbo_never_falls(grown: list[Any]) -> None:
    log_p = log_joint_of_square(GRID, *rows())
    log_evidence = log_integral(log_p)
    share = math.exp(log_integral(log_p[GRID > 0]) - log_evidence)
    values = [elbo_of(posterior) for posterior in grown]
    own = share if float(grown[0].guide.centre()) > 0 else 1 - share
    assert values[0] == pytest.approx(log_evidence + math.log(own), abs=0.01)
    assert log_evidence - 0.01 < values[1] < log_evidence
    for before, after, posterior in zip(values, values[1:], grown[1:], strict=False):
        assert after > before - 1e-4
        assert after < log_evidence
        assert posterior.options["gain"] == pytest.approx(after - before, abs=0.01)
    assert [posterior.guide.num_components for posterior in grown[1:]] == [2, 3, 4]


@pytest.mark.slow("whole fits")
def test_components_that_are_there_stay(grown: list[Any]) -> None:
    before, after = grown[1].guide, grown[2].guide
    assert_close(after.loc[:2], before.loc, rtol=0, atol=0)
    assert_close(after.scale[:2], before.scale, rtol=1e-12, atol=0)
    assert grown[2].num_parameters == 3 * 2 + 3
    assert grown[2].wall_time > grown[1].wall_time > grown[0].wall_time


@pytest.mark.slow("whole fits")
def test_losses_are_those_of_the_whole_mixture(grown: list[Any]) -> None:
    """Of weights 1/2, before their fit; the step size has decayed over the last steps."""
    guide = grown[1].guide
    with torch.no_grad():
        joint = torch.distributions.Normal(guide.loc, guide.scale).log_prob(GRID)  # [K, grid]
    expected = -grid_elbo(joint.logsumexp(0) - math.log(2))
    last = grown[1].losses[-200:]
    log_joint = log_joint_of_square(guide.sample(1_000)[:, 0], *rows())
    error = math.hypot(last.std() / 200**0.5, 0.5 * float(log_joint.std()) / 1_000**0.5)
    assert abs(last.mean() - expected) < 4 * error


@pytest.mark.slow("whole fits")
def test_it_goes_through_a_file_and_is_reproducible(grown: list[Any], tmp_path: Path) -> None:
    grown[2].save(tmp_path / "fit.pt")
    loaded = bnn.Posterior.load(tmp_path / "fit.pt", Square())
    assert loaded.method == "AutoNormalMixture"
    assert loaded.engine == "boost"
    assert loaded.options == grown[2].options
    assert_close(loaded.unconstrained(20), grown[2].unconstrained(20), rtol=0, atol=0)
    state = torch.get_rng_state()
    options = {**OPTIONS, "num_steps": 20}
    first, second = (boost(grown[0], rows(), **options) for _ in range(2))
    assert_close(torch.get_rng_state(), state)
    assert_close(first.unconstrained(20), second.unconstrained(20), rtol=0, atol=0)


@pytest.mark.slow("whole fits")
def test_the_start_is_where_the_likelihood_is_high_and_q_has_no_mass(grown: list[Any]) -> None:
    options = {**OPTIONS, "num_steps": 1, "learning_rate": 1e-9, "num_candidates": 400}
    started: Any = boost(grown[0], rows(), **options)
    there, new = started.guide.loc[:, 0].tolist()
    assert abs(abs(new) - abs(there)) < 0.1
    assert there * new < 0  # the other mode


def test_a_component_of_no_use_ends_without_weight() -> None:
    """Beside the posterior of a linear model of orthogonal inputs, which is mean-field itself.

    One tiny step leaves the new component far too narrow.
    """
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(15, 1, generator=generator, dtype=torch.float64)
    x = x - x.mean()
    model = bnn.models.LinearRegression(1).double()
    exact = bnn.CAVI().run(model, (x, x[:, 0]), progress=False)
    evidence = exact.options["log_evidence"]
    more: Any = boost(exact, (x, x[:, 0]), **{**OPTIONS, "num_steps": 1})
    assert float(more.guide.weights[1]) < 0.05
    value, error = more.elbo((x, x[:, 0]), 2_000)
    assert value > evidence - 1e-3 - 4 * error
    assert more.options["gain"] > -1e-3


class Slope(pyro.nn.PyroModule):
    """A latent offset and a point-estimated slope."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(x.new_tensor(0.0), 1.0))
        f = pyro.deterministic("f", self.slope * x + w)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, 0.5).to_event(1), obs=y)
        return sampled


def test_point_estimates_stay_at_their_fitted_values() -> None:
    x = torch.linspace(-1, 1, 12).unsqueeze(-1)
    model = Slope()
    svi = bnn.SVI(guides.AutoNormal, num_steps=200, compile=False)
    posterior = svi.run(model, (x, 2 * x[:, 0]), progress=False)
    assert float(posterior.params["slope"]) > 1
    more = boost(posterior, (x, 2 * x[:, 0]), batch_size=5, **{**OPTIONS, "num_steps": 30})
    assert_close(more.params["slope"], posterior.params["slope"], rtol=0, atol=0)
    assert float(model.slope.detach()) == 0.5
    assert model.slope.requires_grad


# The two fits


def test_the_new_component_s_gradient_is_that_of_the_mixture_s_elbo() -> None:
    x, y = rows()
    model = Square()
    log_held = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    loc = torch.tensor([[1.0], [0.4]], dtype=torch.float64)
    scale = torch.tensor([[0.3], [0.5]], dtype=torch.float64)
    guide = NewComponent(model, Components(loc, scale, log_weights=log_held), init_scale=0.6)
    guide.setup(x[:1])
    guide.double()
    guide.move_to(torch.tensor([-0.4], dtype=torch.float64))
    program = Program(model, x, y)
    program.prepare(guide)
    _, evaluate = objective(guide, program, captured=False)
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(80))
    weights = weights / weights.sum()
    terms = [evaluate(node.expand(1, 3), program.batch(x, y)) for node in nodes]
    value, *gradients = (
        -sum(w * part for w, part in zip(weights, parts, strict=True))
        for parts in zip(*terms, strict=True)
    )
    log_p = log_joint_of_square(GRID, x, y)
    q = torch.distributions.Normal(
        torch.cat([loc[:, 0], guide.loc]), torch.cat([scale[:, 0], guide.scale])
    )
    shares = torch.tensor([0.2, 0.7 * 2 / 3, 1 / 3], dtype=torch.float64)
    parts = q.log_prob(GRID.unsqueeze(-1)) + shares.log()  # [grid, K]
    log_q = parts.logsumexp(-1)
    elbo = (log_q.exp() * (log_p - log_q)).sum() * STEP
    rest = ((parts[:, :2].exp().sum(-1) * log_p).sum() * STEP).detach()
    assert float(value) / 3 == pytest.approx(float((elbo - rest).detach()), abs=1e-6)
    expected = torch.autograd.grad(elbo, list(guide.parameters()))
    for gradient, truth in zip(gradients, expected, strict=True):
        assert_close(gradient / 3, truth, rtol=1e-5, atol=1e-6)


def draws_of(loc: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Evenly spread draws ``[K, S]`` of Gaussians, and their log densities ``[K, S, K]``."""
    u = (torch.arange(4_000, dtype=torch.float64) + 0.5) / 4_000
    z = loc.unsqueeze(-1) + scale.unsqueeze(-1) * torch.special.ndtri(u)
    return z, torch.distributions.Normal(loc, scale).log_prob(z.unsqueeze(-1))


def test_weights_are_those_of_the_posterior_where_it_is_the_mixture() -> None:
    x, y = few_rows()
    exact = posterior_of_known(x, y)
    z, log_q = draws_of(exact.loc, exact.scale)
    q = torch.distributions.MixtureSameFamily(
        torch.distributions.Categorical(exact.weights),
        torch.distributions.Normal(exact.loc, exact.scale),
    )
    log_joint = q.log_prob(z) + exact.log_evidence
    log_weights = fit_weights(log_joint, log_q)
    assert_close(log_weights.exp(), exact.weights, rtol=0, atol=1e-6)
    value = mixture_elbo(log_joint, log_q, log_weights)
    assert value == pytest.approx(exact.log_evidence, abs=1e-9)


@pytest.mark.parametrize(
    ("second", "is_used"), [(-1.2, True), (1.22, True), (1.3, True), (0.8, False)]
)
def test_weights_are_the_best_of_the_grid(second: float, is_used: bool) -> None:
    """Against a search over the integral: apart, overlapping, beside it, and where p is low."""
    loc = torch.tensor([1.15, second], dtype=torch.float64)
    scale = torch.tensor([0.06, 0.08], dtype=torch.float64)
    z, log_q = draws_of(loc, scale)
    log_weights = fit_weights(log_joint_of_square(z, *rows()), log_q)
    parts = torch.distributions.Normal(loc, scale).log_prob(GRID.unsqueeze(-1))  # [grid, K]

    def loss(weight: float) -> float:
        shares = torch.tensor([1 - weight, weight], dtype=torch.float64)
        return -grid_elbo((parts + shares.log()).logsumexp(-1))

    best = optimize.minimize_scalar(loss, bounds=(1e-9, 1 - 1e-9), method="bounded")
    assert (0.01 < best.x < 0.99) == is_used
    assert float(log_weights[1].exp()) == pytest.approx(best.x, abs=1e-3)
    assert loss(float(log_weights[1].exp())) < best.fun + 1e-6


# Refusals


def test_other_posteriors_and_options_out_of_range_are_refused(grown: list[Any]) -> None:
    svi = bnn.SVI(guides.AutoMultivariateNormal, num_steps=1, compile=False)
    other = svi.run(Square(), rows(), progress=False)
    with pytest.raises(OptionError, match="AutoNormalMixture, not of AutoMultivariateNormal"):
        boost(other, rows(), seed=np.int64(1), **OPTIONS)  # type: ignore[arg-type]  # taken by run
    for name in ("num_candidates", "num_draws", "num_steps"):
        with pytest.raises(OptionError, match=f"{name} is an integer of at least 1, not 0"):
            boost(grown[0], rows(), **{**OPTIONS, name: 0})
    for name in ("flipout", "analytic", "last_layer"):
        with pytest.raises(OptionError, match=f'estimator="{name}" does not: take one of auto, w'):
            boost(grown[0], rows(), estimator=name, **{**OPTIONS, "num_particles": 1})
    with pytest.raises(OptionError, match="init_scale is a positive standard deviation"):
        boost(grown[0], rows(), init_scale=-1.0, **OPTIONS)


def test_a_divergence_holds_the_posterior_as_it_came(grown: list[Any]) -> None:
    sgd = functools.partial(torch.optim.SGD, lr=1e200)
    with pytest.raises(DivergenceError) as caught:
        boost(grown[0], rows(), num_steps=20, optimizer=sgd, compile=False, progress=False)
    assert caught.value.posterior is grown[0]
