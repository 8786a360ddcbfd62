"""NUTS against closed-form posteriors, and what a run promises to its caller."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import arviz_io
from pyro_bnn.errors import CaptureError, DivergenceError, ModelError, OptionError, SiteError
from pyro_bnn.infer import engine
from pyro_bnn.infer.nuts import NUTS, _starts
from pyro_bnn.models import MLP, bayesian
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Program
from tests.oracle import LinearGaussian, linear_gaussian
from tests.plain_pyro import data
from tests.test_program import branching

SMALL = NUTS(num_chains=2, warmup_steps=10, num_samples=6)


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")


@pytest.fixture(scope="module")
def oracle() -> LinearGaussian:
    return linear_gaussian()


@pytest.fixture(scope="module")
def posterior(oracle: LinearGaussian) -> DrawsPosterior:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOKY_MAX_CPU_COUNT", "1")
        nuts = NUTS(num_chains=4, warmup_steps=150, num_samples=400)
        return nuts.run(oracle.model, (oracle.x, oracle.y), progress=False)


def z_scores(draws: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Errors of the means over chains and draws [C, S, P], in Monte Carlo standard errors."""
    scores: np.ndarray = np.abs(draws.mean((0, 1)) - expected) / arviz_io.mcse_mean(draws)
    return scores


# --- the exact posterior -------------------------------------------------------------------------


def test_moments_of_the_linear_gaussian_posterior(
    posterior: DrawsPosterior, oracle: LinearGaussian
) -> None:
    z = posterior.unconstrained(1_600, group_by_chain=True).numpy()
    mean, covariance = oracle.mean.numpy(), oracle.covariance.numpy()
    assert z_scores(z, mean).max() < 5
    i, j = np.triu_indices(len(mean))
    products = (z - mean)[..., i] * (z - mean)[..., j]  # [C, S, P (P+1) / 2]
    assert z_scores(products, covariance[i, j]).max() < 5
    assert arviz_io.ess(products).min() > 400  # the five standard errors are small ones


def test_mean_energy_is_that_of_the_gaussian(
    posterior: DrawsPosterior, oracle: LinearGaussian
) -> None:
    """U has mean U_min + P/2, and the kinetic energy, which a draw leaves with, P/2."""
    least = -float(oracle.log_joint(oracle.mean))
    lp, energy = (posterior.sample_stats[name][..., None] for name in ("lp", "energy"))
    assert z_scores(-lp, np.array([least + 2])).max() < 5
    assert z_scores(energy, np.array([least + 4])).max() < 5


class NoData(PyroModule):
    """y does not depend on the sites, whose priors have closed-form moments."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        pyro.sample("rate", dist.Gamma(torch.tensor(3.0).double(), torch.tensor(2.0).double()))
        fraction = dist.Beta(torch.full((2,), 2.0).double(), torch.tensor(5.0).double())
        pyro.sample("fraction", fraction.to_event(1))
        f = pyro.deterministic("f", x)
        with pyro.plate("data", len(x)):
            out: Tensor = pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
        return out


def test_without_influence_of_the_data_the_prior_comes_back() -> None:
    nuts = NUTS(num_chains=3, warmup_steps=150, num_samples=400)
    x = torch.zeros(2, 1, dtype=torch.float64)
    torch.set_default_dtype(torch.float64)
    try:
        draws = nuts.run(NoData(), (x, x[:, 0]), progress=False).sample(1_200, group_by_chain=True)
    finally:
        torch.set_default_dtype(torch.float32)
    rate, fraction = draws["rate"].numpy()[..., None], draws["fraction"].numpy()
    assert rate.dtype == np.float64
    assert z_scores(rate, np.array([3 / 2])).max() < 5
    assert z_scores((rate - 3 / 2) ** 2, np.array([3 / 4])).max() < 5
    assert z_scores(fraction, np.array([2 / 7, 2 / 7])).max() < 5
    variance = 2 * 5 / (7**2 * 8)
    assert z_scores((fraction - 2 / 7) ** 2, np.array([variance, variance])).max() < 5


# --- statistics ----------------------------------------------------------------------------------


def test_statistics_have_arviz_names_shapes_and_dtypes(posterior: DrawsPosterior) -> None:
    stats = posterior.sample_stats
    assert {name: value.dtype.kind for name, value in stats.items()} == {
        "lp": "f",
        "energy": "f",
        "tree_depth": "i",
        "n_steps": "i",
        "acceptance_rate": "f",
        "step_size": "f",
        "diverging": "b",
    }
    assert {value.shape for value in stats.values()} == {(4, 400)}
    assert (stats["energy"] >= -stats["lp"]).all()
    assert ((stats["acceptance_rate"] > 0) & (stats["acceptance_rate"] <= 1)).all()
    assert (np.ptp(stats["step_size"], axis=1) == 0).all()
    assert not stats["diverging"].any()


def test_lp_is_the_log_joint_of_each_draw(
    posterior: DrawsPosterior, oracle: LinearGaussian
) -> None:
    z = posterior.unconstrained(1_600, group_by_chain=True)
    torch.testing.assert_close(
        torch.from_numpy(posterior.sample_stats["lp"]), oracle.log_joint(z), rtol=1e-10, atol=0
    )


def test_provenance(posterior: DrawsPosterior) -> None:
    assert (posterior.method, posterior.engine, posterior.num_parameters) == ("NUTS", "NUTS", 4)
    assert (posterior.num_chains, posterior.num_stored_draws) == (4, 1_600)
    assert posterior.options["target_accept"] == 0.8
    assert posterior.wall_time > 0


# --- seeds and processes -------------------------------------------------------------------------


def draws_of(nuts: NUTS, oracle: LinearGaussian, **options: Any) -> Tensor:
    run = nuts.run(oracle.model, (oracle.x, oracle.y), progress=False, **options)
    z: Tensor = run.unconstrained(nuts.num_chains * nuts.num_samples, group_by_chain=True)
    return z


def test_a_chain_depends_on_seed_and_number_alone(oracle: LinearGaussian) -> None:
    first = draws_of(SMALL, oracle)
    torch.randn(3)
    assert torch.equal(draws_of(SMALL, oracle), first)
    one = NUTS(num_chains=1, warmup_steps=10, num_samples=6)
    assert torch.equal(draws_of(one, oracle), first[:1])
    assert not torch.equal(first[0], first[1])
    other = draws_of(SMALL, oracle, seed=1)
    assert not (other == first).any()


def test_chains_from_one_start_go_apart(oracle: LinearGaussian) -> None:
    init = {"w": torch.zeros(3, 1), "b": torch.zeros(1)}
    z = draws_of(SMALL, oracle, init=init)
    assert not (z[0] == z[1]).any()


@pytest.mark.slow
def test_draws_are_the_same_in_worker_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that only cloudpickle carries, with priors in the default dtype of the caller."""
    slope = 0.3
    activation: Callable[[Tensor], Tensor] = lambda h: torch.relu(h) + slope * h  # noqa: E731

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0).expand([2, 4]).to_event(2))
        scale = pyro.sample("scale", dist.Gamma(2.0, 2.0))
        f = pyro.deterministic("f", activation(x @ w).sum(-1, keepdim=True))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, scale).to_event(1), obs=y)

    torch.set_default_dtype(torch.float64)
    try:
        x = torch.randn(30, 2, generator=torch.Generator().manual_seed(0))
        here = SMALL.run(model, (x, x.sum(1)), progress=False)
        monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "2")
        there = SMALL.run(model, (x, x.sum(1)), progress=False)
    finally:
        torch.set_default_dtype(torch.float32)
    assert here.unconstrained(12).dtype == torch.float64
    assert torch.equal(here.unconstrained(12), there.unconstrained(12))
    for name, value in here.sample_stats.items():
        np.testing.assert_array_equal(value, there.sample_stats[name])


def test_state_of_the_caller_is_left_alone(oracle: LinearGaussian) -> None:
    store: Any = pyro.get_param_store()
    pyro.param("mine", torch.tensor(1.0))
    torch.manual_seed(11)
    before = (torch.get_rng_state(), pyro.settings.get(), torch.get_num_threads())
    numpy_before: Any = np.random.get_state()  # noqa: NPY002
    try:
        SMALL.run(oracle.model, (oracle.x, oracle.y), progress=False)
        assert list(store.keys()) == ["mine"]
    finally:
        store.clear()
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (pyro.settings.get(), torch.get_num_threads()) == before[1:]
    assert torch.get_default_dtype() == torch.float32
    numpy_after: Any = np.random.get_state()  # noqa: NPY002
    np.testing.assert_array_equal(numpy_after[1], numpy_before[1])
    assert not any(p.requires_grad for p in oracle.model.buffers())


# --- point-estimated parameters and starts -------------------------------------------------------


class Shifted(PyroModule):
    """y = w + shift + noise: with the shift held fixed, the posterior of w is Gaussian."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.tensor(shift, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros(1).double(), 1.0).to_event(1))
        f = pyro.deterministic("f", x * 0 + w + self.shift)
        with pyro.plate("data", len(x)):
            out: Tensor = pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
        return out


@pytest.mark.parametrize("from_init", [False, True])
def test_point_parameters_are_held_and_named(
    from_init: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With N = 9 rows y = 3, noise and prior sd 1: mean 9 (3 - shift) / 10, variance 1/10."""
    x = torch.zeros(9, 1, dtype=torch.float64)
    model = Shifted(0.0 if from_init else 2.0)
    nuts = NUTS(num_chains=2, warmup_steps=100, num_samples=300)
    init = Shifted(2.0) if from_init else None
    run = nuts.run(model, (x, x[:, 0] + 3), init=init, progress=False)
    own = [record.message for record in caplog.records if record.name == "pyro_bnn"]
    assert own == ["NUTS holds point-estimated parameters at their values: shift"]
    assert float(run.params["shift"]) == 2
    assert float(model.shift.detach()) == (0 if from_init else 2)
    w = run.sample(600, group_by_chain=True)["w"].numpy()
    assert z_scores(w, np.array([0.9])).max() < 5
    assert z_scores((w - 0.9) ** 2, np.array([0.1])).max() < 5


def start_points(model: Any, init: Any, num_chains: int = 3) -> tuple[Program, Tensor]:
    x = torch.linspace(-1, 1, 8).unsqueeze(-1)
    program = Program(model, x, x[:, 0])
    batch = program.batch(x, x[:, 0])
    return program, _starts(program, batch, init, num_chains, seed=0)


def test_chains_start_apart_at_draws_from_the_prior() -> None:
    _, z = start_points(MLP(1, hidden=(2,)), None)
    assert len(z.unique()) == z.numel()


def test_chains_start_at_given_values_and_elsewhere_apart() -> None:
    weight = torch.tensor([[0.5], [-2.0]])
    program, z = start_points(MLP(1, hidden=(2,)), {"layers.0.weight": weight})
    values = program.constrain(z)
    torch.testing.assert_close(values["layers.0.weight"], weight.expand(3, 2, 1))
    assert len(values["layers.1.weight"].unique()) == 6
    assert len(values["likelihood.scale"].unique()) == 3


def test_chains_start_at_different_draws_of_a_posterior() -> None:
    model = MLP(1, hidden=(2,))
    x = torch.linspace(-1, 1, 8).unsqueeze(-1)
    init = SMALL.run(model, (x, x[:, 0]), progress=False)
    _, z = start_points(model, init, num_chains=2)
    stored = init.unconstrained(12)
    where = [[i for i in range(12) if torch.equal(stored[i], row)] for row in z]
    assert all(len(found) >= 1 for found in where)
    assert len({found[0] for found in where}) == 2


def test_chains_start_at_a_trained_network() -> None:
    net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))
    program, z = start_points(bayesian(net), net)
    values = program.constrain(z)
    for name, value in net.named_parameters():
        torch.testing.assert_close(values[name], value.detach().expand(3, *value.shape))


class Reciprocal(PyroModule):
    """f = 1 / max(w, 0): not finite at half of the prior's draws, or at all of them."""

    def __init__(self, loc: float) -> None:
        super().__init__()
        self.register_buffer("loc", torch.tensor(loc))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(self.loc, 1.0))
        f = pyro.deterministic("f", x * 0 + 1 / w.relu())
        with pyro.plate("data", len(x)):
            out: Tensor = pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
        return out


def test_starts_of_no_density_are_drawn_again() -> None:
    program, z = start_points(Reciprocal(0.0), None, num_chains=8)
    assert (program.constrain(z)["w"] > 0).all()
    assert len(z.unique()) == 8


@pytest.mark.parametrize(
    ("init", "tries"),
    [(None, "20 draws from the prior"), ({"w": torch.tensor(-1.0)}, "20 tries around init")],
)
def test_chain_without_a_start_is_an_error(init: Any, tries: str) -> None:
    x = torch.zeros(3, 1)
    with pytest.raises(DivergenceError, match=r"chain 0 found no starting point") as error:
        SMALL.run(Reciprocal(-50.0), (x, x[:, 0]), init=init, progress=False)
    assert f"in {tries}: not finite at 'y'; standardise the data" in str(error.value)


def test_a_start_of_finite_density_but_no_gradient_names_the_site() -> None:
    """The derivative of sqrt(w^2) at w = 0 is 0 / 0."""

    class Kink(Reciprocal):
        def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
            w = pyro.sample("w", dist.Normal(self.loc, 1.0))
            f = pyro.deterministic("f", x * 0 + (w**2).sqrt())
            with pyro.plate("data", len(x)):
                out: Tensor = pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
            return out

    with pytest.raises(DivergenceError, match="not finite at 'w'"):
        start_points(Kink(0.0), {"w": torch.tensor(0.0)})


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_chains": 0}, "num_chains is an integer of at least 1, not 0"),
        ({"warmup_steps": -1}, "warmup_steps is an integer of at least 0, not -1"),
        ({"num_samples": 2.5}, "num_samples is an integer of at least 1, not 2.5"),
        ({"max_tree_depth": 0}, "max_tree_depth is an integer of at least 1, not 0"),
        ({"target_accept": 1.0}, "target_accept is a number between 0 and 1, not 1.0"),
        ({"target_accept": "high"}, "target_accept is a number between 0 and 1, not 'high'"),
        ({"compile": 1.5}, 'compile is "auto", True or False, not 1.5'),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as error:
        NUTS(**options)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"checkpoint": "here"}, "checkpoint and resume are not built yet"),
        ({"resume": True}, "checkpoint and resume are not built yet"),
        ({"seed": -1}, "seed is an integer of at least 0, not -1"),
        ({"init": 3}, "init is a Posterior, a trained torch module or a dict of sites, not int"),
    ],
)
def test_bad_options_of_a_run_are_refused(
    options: dict[str, Any], text: str, oracle: LinearGaussian
) -> None:
    with pytest.raises(OptionError) as error:
        SMALL.run(oracle.model, (oracle.x, oracle.y), progress=False, **options)
    assert text in str(error.value)


def test_broken_models_and_inits_are_refused_before_sampling(oracle: LinearGaussian) -> None:
    data = (oracle.x, oracle.y)
    with pytest.raises(SiteError, match="init holds 'weight', but the model's sites are w, b"):
        SMALL.run(oracle.model, data, init={"weight": oracle.y}, progress=False)

    def no_f(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(0.0, 1.0))
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(w.expand(len(x), 1), 1.0).to_event(1), obs=y)

    with pytest.raises(ModelError, match='does not record its network output "f"'):
        SMALL.run(no_f, data, progress=False)


def test_a_model_that_cannot_be_captured_is_sampled_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        SMALL.run(make_uncapturable(), (torch.zeros(3, 1), torch.zeros(3)), progress=False)
    (message,) = caplog.messages
    assert "the log density of uncapturable cannot be captured as a graph" in message


def make_uncapturable() -> Callable[..., None]:
    def uncapturable(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Normal(torch.tensor(0.0), 1.0))
        f = pyro.deterministic("f", x + (w if w > 0 else -w))  # a truth test on a tensor
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)

    return uncapturable


# --- data and starts that depend on a random state -----------------------------------------------


def test_a_shuffling_loader_gives_one_result_whatever_the_global_state(
    oracle: LinearGaussian,
) -> None:
    loader = DataLoader(TensorDataset(oracle.x, oracle.y), batch_size=4, shuffle=True)
    draws = []
    for global_seed in (1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(global_seed)
            state = torch.get_rng_state()
            posterior = SMALL.run(oracle.model, loader, progress=False)
            torch.testing.assert_close(torch.get_rng_state(), state)
            draws.append(posterior.unconstrained())
    torch.testing.assert_close(draws[0], draws[1], rtol=0, atol=0)


def test_starts_at_a_posterior_are_drawn_again_where_the_density_is_not_finite() -> None:
    """Half of this posterior's draws have no density: 20 tries at one draw would fail."""
    model = Reciprocal(0.0)
    x = torch.linspace(-1, 1, 8).unsqueeze(-1)
    program = Program(model, x, x[:, 0])
    z = torch.linspace(-1, 1, 40).reshape(1, 40, 1)
    init = DrawsPosterior(program, z, Provenance("Reciprocal", "none"))
    points = _starts(program, program.batch(x, x[:, 0]), init, num_chains=4, seed=0)
    assert bool((points > 0).all())


class FrozenOffset(PyroModule):
    """f = (a + w) x with a frozen point parameter a."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(()), requires_grad=False)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(torch.zeros_like(x[0, 0]), 1.0))
        f = pyro.deterministic("f", (self.a + w) * x)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, 0.1).to_event(1), obs=y)
        return sampled


def test_a_frozen_parameter_of_the_users_model_stays_frozen() -> None:
    model, x = FrozenOffset(), torch.ones(4, 1)
    NUTS(num_chains=1, warmup_steps=5, num_samples=5).run(model, (x, x), progress=False)
    assert not model.a.requires_grad


# --- the compiled gradient ------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("model", ["linear", "network"])
def test_compiled_the_first_draws_are_the_same(model: str) -> None:
    """Trajectories multiply rounding; over the first draws it stays far below their spread."""
    oracle = linear_gaussian()
    net = oracle.model if model == "linear" else MLP(3, hidden=(4,), activation="tanh").double()
    compiled, captured = (
        NUTS(num_chains=2, warmup_steps=3, num_samples=4, compile=option).run(
            net, (oracle.x, oracle.y), progress=False
        )
        for option in (True, False)
    )
    draws, expected = (fit.unconstrained(8, group_by_chain=True) for fit in (compiled, captured))
    torch.testing.assert_close(draws, expected, rtol=1e-6, atol=1e-6)
    for name, values in captured.sample_stats.items():
        np.testing.assert_allclose(compiled.sample_stats[name], values, rtol=1e-5)


def test_a_density_that_cannot_be_compiled_is_refused_or_runs_slower(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    nuts: dict[str, Any] = {"num_chains": 1, "warmup_steps": 2, "num_samples": 2}
    with pytest.raises(CaptureError, match=r"log density of branching cannot be compiled: .* flow"):
        NUTS(compile=True, **nuts).run(branching, data(), progress=False)
    monkeypatch.setattr(engine, "COMPILE_TIME", 0.0)
    slower = NUTS(**nuts).run(branching, data(), progress=False)
    (record,) = [record for record in caplog.records if record.name == "pyro_bnn"]
    assert "runs through plain Pyro, which is slower" in record.message
    expected = NUTS(compile=False, **nuts).run(branching, data(), progress=False)
    torch.testing.assert_close(slower.unconstrained(2), expected.unconstrained(2), rtol=0, atol=0)
