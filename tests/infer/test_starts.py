"""Where chains start."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn

from pyro_bnn.errors import DivergenceError, OptionError, SiteError
from pyro_bnn.guides import AutoDelta, AutoNormal
from pyro_bnn.infer import SVI
from pyro_bnn.infer.starting_points import MEDIAN_DRAWS
from pyro_bnn.infer.steps.potentials import TargetDensity
from pyro_bnn.infer.steps.starts import MAX_STARTS, find_starts
from pyro_bnn.models import MLP, bayesian
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Batch, Program
from tests.infer.scores import moment_scores

X = torch.linspace(-1, 1, 8).unsqueeze(-1)


def potential_of(program: Program) -> Any:
    batch = program.batch(X, X[:, 0])

    def potential(z: Tensor) -> tuple[Tensor, Tensor]:
        z = z.detach().requires_grad_()
        value = -program.log_joint(z, batch)
        return value.detach(), torch.autograd.grad(value.sum(), z)[0]

    return potential


def target_of(program: Program, potential: Any, *batches: Batch) -> TargetDensity:
    """Of a potential of z alone, and the data of all chains or of each."""
    batches = batches or (program.batch(X, X[:, 0]),)
    return TargetDensity(program, lambda z, *_: potential(z), batches[0], batches)


def start_points(
    model: Any, init: Any = None, num_chains: int = 3, seed: int = 0
) -> tuple[Program, Tensor]:
    program = Program(model, X, X[:, 0])
    target = target_of(program, potential_of(program))
    return program, find_starts(target, init, num_chains, seed)


# --- from the prior ------------------------------------------------------------------------------


class Normals(PyroModule):
    """Sites of known prior moments."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.tensor([1.0, -2.0]), 3.0).to_event(1))
        s = pyro.sample("s", dist.LogNormal(0.5, 0.25))  # its log is N(0.5, 0.25^2)
        f = pyro.deterministic("f", x * w.sum())
        with pyro.plate("data", len(x)):
            out: Tensor = pyro.sample("y", dist.Normal(f, s).to_event(1), obs=y)
        return out


def test_weights_start_at_independent_draws_from_the_prior_and_scales_at_a_median() -> None:
    _, z = start_points(Normals(), num_chains=500)
    mean, variance = torch.tensor([1.0, -2.0]), torch.tensor([9.0, 9.0])
    assert moment_scores(z[:, None, :2], mean.double(), variance.diag().double()).max() < 4
    assert len(z[:, 0].unique()) == 500
    (scale,) = z[:, 2].unique()
    of_median = 0.25 * math.sqrt(math.pi / 2 / MEDIAN_DRAWS)  # its standard deviation, about
    assert abs(float(scale) - 0.5) < 4 * of_median


def test_starts_repeat_for_a_seed_and_leave_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    (_, first), (_, again), (_, other) = (start_points(Normals(), seed=s) for s in (0, 0, 1))
    assert torch.equal(first, again)
    assert not (first == other).any()
    assert torch.equal(torch.get_rng_state(), before)


# --- from values, networks and posteriors --------------------------------------------------------


def test_chains_start_at_given_values_and_elsewhere_apart() -> None:
    weight = torch.tensor([[0.5], [-2.0]])
    program, z = start_points(MLP(1, hidden=(2,)), {"layers.0.weight": weight})
    values = program.constrain(z)
    torch.testing.assert_close(values["layers.0.weight"], weight.expand(3, 2, 1))
    assert len(values["layers.1.weight"].unique()) == 6
    assert len(values["likelihood.scale"].unique()) == 1  # a median


def test_chains_start_at_a_trained_network() -> None:
    net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    program, z = start_points(bayesian(net), net)
    values = program.constrain(z)
    for name, value in net.named_parameters():
        torch.testing.assert_close(values[name], value.detach().expand(3, *value.shape))


def test_chains_start_at_the_mode_of_a_map_fit() -> None:
    model = MLP(1, hidden=(2,))
    mode = SVI(AutoDelta, num_steps=3, compile=False).run(model, (X, X[:, 0]), progress=False)
    _, z = start_points(model, mode)
    torch.testing.assert_close(z, mode.unconstrained(1).expand(3, -1), rtol=0, atol=0)


def test_chains_start_at_draws_of_a_fitted_guide() -> None:
    """A normal guide that has not moved: its draws are close to the fit, each a draw of its own."""
    model = MLP(1, hidden=(2,))
    fit = SVI(AutoNormal, num_steps=1, compile=False).run(model, (X, X[:, 0]), progress=False)
    _, z = start_points(model, fit, num_chains=5)
    torch.testing.assert_close(z, fit.unconstrained(5, seed=0), rtol=0, atol=0)
    assert len(z[:, 0].unique()) == 5


def test_chains_start_at_different_stored_draws_of_all_chains() -> None:
    model = MLP(1, hidden=(2,))
    program = Program(model, X, X[:, 0])
    stored = torch.randn(2, 6, program.num_latents)
    _, z = start_points(model, DrawsPosterior(program, stored, Provenance("Made", "none")), 4)
    flat = stored.flatten(0, 1)
    where = [[i for i in range(12) if torch.equal(flat[i], row)] for row in z]
    assert all(len(found) == 1 for found in where)
    assert len({found[0] for found in where}) == 4
    assert {found[0] // 6 for found in where} == {0, 1}


@pytest.mark.parametrize(
    ("init", "error", "text"),
    [
        ({"weight": X}, SiteError, "init holds 'weight', but the model's sites are"),
        (nn.Linear(1, 5), SiteError, "fit the model neither by name nor by order"),
        ([X], OptionError, 'a trained torch module, a dict of sites or "prior", not list'),
    ],
)
def test_what_does_not_fit_is_refused(init: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        start_points(MLP(1, hidden=(2,)), init)


# --- tries ---------------------------------------------------------------------------------------


class Reciprocal(PyroModule):
    """f = 1 / max(w, 0): not finite at half of the prior's draws, or at all of them."""

    def __init__(self, loc: float) -> None:
        super().__init__()
        self.register_buffer("loc", torch.tensor(loc))

    def network(self, w: Tensor) -> Tensor:
        return 1 / w.relu()

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(self.loc, 1.0))
        f = pyro.deterministic("f", x * 0 + self.network(w))
        with pyro.plate("data", len(x)):
            out: Tensor = pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
        return out


class Kink(Reciprocal):
    """f = sqrt(w^2), whose derivative at w = 0 is 0 / 0."""

    def network(self, w: Tensor) -> Tensor:
        return (w**2).sqrt()


def test_only_starts_of_no_density_are_drawn_again() -> None:
    program, tries = Program(Reciprocal(0.0), X, X[:, 0]), []
    potential = potential_of(program)

    def seen(z: Tensor) -> tuple[Tensor, Tensor]:
        tries.append(z.clone())
        value, grad = potential(z)
        return value, grad

    z = find_starts(target_of(program, seen), None, 8, 0)
    assert (z > 0).all()
    assert len(z.unique()) == 8
    good = tries[0] > 0
    assert 0 < good.sum() < 8
    assert torch.equal(z[good], tries[0][good])


def test_starts_at_a_posterior_are_drawn_again_where_the_density_is_not_finite() -> None:
    """Half of this posterior's draws have no density: 20 tries at one draw would fail."""
    program = Program(Reciprocal(0.0), X, X[:, 0])
    z = torch.linspace(-1, 1, 40).reshape(1, 40, 1)
    init = DrawsPosterior(program, z, Provenance("Reciprocal", "none"))
    _, points = start_points(Reciprocal(0.0), init, num_chains=4)
    assert (points > 0).all()


@pytest.mark.parametrize(
    ("init", "tries"),
    [(None, "20 draws from the prior"), ({"w": torch.tensor(-1.0)}, "20 tries around init")],
)
def test_tries_are_bounded(init: Any, tries: str) -> None:
    program, count = Program(Reciprocal(-50.0), X, X[:, 0]), 0
    potential = potential_of(program)

    def counted(z: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal count
        count += 1
        value, grad = potential(z)
        return value, grad

    with pytest.raises(DivergenceError, match=r"chain 0 found no starting point") as error:
        find_starts(target_of(program, counted), init, 3, 0)
    assert count == MAX_STARTS == 20
    assert f"in {tries}: not finite at 'y'; standardise the data" in str(error.value)


def test_a_start_of_finite_density_but_no_gradient_names_the_site() -> None:
    with pytest.raises(DivergenceError, match="not finite at 'w'"):
        start_points(Kink(0.0), {"w": torch.tensor(0.0)})


def test_the_chain_without_a_start_is_named() -> None:
    """Of three chains the second one finds none: a density that is not finite for it alone."""
    program = Program(Normals(), X, X[:, 0])
    given = potential_of(program)

    def potential(z: Tensor) -> tuple[Tensor, Tensor]:
        value, grad = given(z)
        return torch.where(torch.arange(3) == 1, torch.inf, value), grad

    with pytest.raises(DivergenceError, match="chain 1 found no starting point"):
        find_starts(target_of(program, potential), None, 3, 0)


def test_the_sites_are_those_at_the_data_of_the_chain() -> None:
    """Each chain has data of its own, and the second one's are not finite."""
    program = Program(Normals(), X, X[:, 0])
    good = program.batch(X, X[:, 0])
    bad = Batch(good.x, good.y + torch.inf)

    def potential(z: Tensor) -> tuple[Tensor, Tensor]:
        value = torch.stack([-program.log_joint(z[i], b) for i, b in enumerate((good, bad))])
        return value.detach(), torch.zeros_like(z)

    with pytest.raises(DivergenceError, match=r"chain 1 found .* not finite at 'y'"):
        find_starts(target_of(program, potential, good, bad), None, 2, 0)
