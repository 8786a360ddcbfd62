"""NUTS against closed-form posteriors, and its statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor

from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.infer import NUTS
from pyro_bnn.infer.mcmc import chains as chains_module
from pyro_bnn.infer.mcmc.sampling import Sampling
from pyro_bnn.posterior import DrawsPosterior
from tests.infer.chains import all_draws, of_package, quick
from tests.infer.drive import uncaptured_step
from tests.infer.scores import moment_scores, z_scores
from tests.oracle import LinearGaussian, LinearModel, design, linear_gaussian
from tests.plain_pyro import default_dtype

SMALL = NUTS(num_chains=2, warmup_steps=10, num_samples=6, compile=False)
EXACT = NUTS(num_chains=40, warmup_steps=45, num_samples=50, compile=False)


@pytest.fixture(scope="module")
def posterior(oracle: LinearGaussian) -> DrawsPosterior:
    """Of plain steps; captured ones are those of a chain for each data set."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains_module, "Captured", uncaptured_step)
        return EXACT.run(oracle.model, (oracle.x, oracle.y), progress=False)


# --- the exact posterior -------------------------------------------------------------------------


@pytest.mark.slow("a second or more")
def test_moments_of_the_linear_gaussian_posterior(
    posterior: DrawsPosterior, oracle: LinearGaussian
) -> None:
    z = all_draws(posterior)
    assert z.dtype == torch.float64
    assert moment_scores(z, oracle.mean, oracle.covariance).max() < 4.5
    assert not posterior.sample_stats["diverging"].any()


@pytest.mark.slow("samples chains")
@pytest.mark.usefixtures("all_apart")
@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.soak)]
)
def test_moments_under_a_low_rank_mass_matrix(dtype: torch.dtype) -> None:
    """Inputs correlated at 0.99: the diagonal explains little of this posterior."""
    oracle = linear_gaussian(correlation=0.99)
    nuts = NUTS(
        num_chains=40, warmup_steps=60, num_samples=30, mass_matrix="low_rank", compile=True
    )
    model = LinearModel(3, oracle.noise, oracle.prior_scale).to(dtype)
    run = nuts.run(model, (oracle.x.to(dtype), oracle.y.to(dtype)), progress=False)
    z = all_draws(run)
    assert z.dtype == dtype
    assert moment_scores(z, oracle.mean, oracle.covariance).max() < 4.5
    # As long as on the posterior without correlation: a diagonal needs about 30 steps a draw.
    assert run.sample_stats["n_steps"].mean() < 10


@pytest.mark.slow("a second or more")
@quick
def test_mean_energy_is_that_of_the_gaussian(
    posterior: DrawsPosterior, oracle: LinearGaussian
) -> None:
    """U has mean U_min + P/2, and the kinetic energy, which a draw leaves with, P/2."""
    least = -float(oracle.log_joint(oracle.mean))
    assert z_scores(-posterior.sample_stats["lp"], least + 2) < 4
    assert z_scores(posterior.sample_stats["energy"], least + 4) < 4


class NoData(PyroModule):
    """y does not depend on the sites, whose priors have closed-form moments."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        pyro.sample("rate", dist.Gamma(3.0, 2.0))
        pyro.sample("fraction", dist.Beta(2.0, 5.0).expand([2]).to_event(1))
        pyro.sample("shares", dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0])))
        pyro.sample("factor", dist.LKJCholesky(3, 2.0))
        pyro.sample("step", dist.Uniform(-1.0, 3.0))
        f = pyro.deterministic("f", x)
        with pyro.plate("data", len(x)):
            out: Tensor = pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
        return out


@quick
@pytest.mark.slow("samples chains")
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float64, marks=pytest.mark.soak), torch.float32]
)
def test_without_influence_of_the_data_the_prior_comes_back(dtype: torch.dtype) -> None:
    """Every support: positive, unit interval, simplex, correlations, interval."""
    nuts = NUTS(num_chains=60, warmup_steps=30, num_samples=30, compile=False)
    with default_dtype(dtype):
        x = torch.zeros(2, 1)
        run = nuts.run(NoData(), (x, x[:, 0]), progress=False)
        draws = run.sample(1_800, group_by_chain=True)
    assert {value.dtype for value in draws.values()} == {dtype}
    rate, fraction, shares, step = (draws[k] for k in ("rate", "fraction", "shares", "step"))
    factor = draws["factor"]
    correlation = (factor @ factor.mT)[..., [0, 0, 1], [1, 2, 2]]  # [C, S, 3]
    mean = torch.tensor([1 / 6, 2 / 6, 3 / 6])
    expected = {
        "rate": (rate, 3 / 2),
        "rate's variance": ((rate - 3 / 2) ** 2, 3 / 4),
        "fraction": (fraction, 2 / 7),
        "fraction's variance": ((fraction - 2 / 7) ** 2, 2 * 5 / (7**2 * 8)),
        "shares": (shares, mean),
        "shares' variance": ((shares - mean) ** 2, mean * (1 - mean) / 7),
        "correlations": (correlation, 0.0),
        # of Beta(5/2, 5/2) on (-1, 1), the marginal of LKJ(2) for 3 variables: 1 / (2 * 5/2 + 1)
        "correlations' variance": (correlation**2, 1 / 6),
        "step": (step, 1.0),
        "step's variance": ((step - 1) ** 2, 4**2 / 12),
    }
    scores = {name: z_scores(*pair).max() for name, pair in expected.items()}
    assert max(scores.values()) < 4.5, scores


@pytest.mark.slow("samples chains")
@pytest.mark.usefixtures("all_apart")
def test_chains_from_the_mode_come_to_the_same_posterior(oracle: LinearGaussian) -> None:
    """All chains start at one point."""
    mode = {"w": oracle.mean[:3, None], "b": oracle.mean[3:]}
    nuts = replace(EXACT, compile=True)
    run = nuts.run(oracle.model, (oracle.x, oracle.y), init=mode, progress=False)
    assert moment_scores(all_draws(run), oracle.mean, oracle.covariance).max() < 4.5


@pytest.mark.slow("samples chains")
@pytest.mark.usefixtures("all_apart")
@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_little_warm_up_is_enough_where_chains_start_in_the_posterior(
    warmup_steps: int, oracle: LinearGaussian, posterior: DrawsPosterior
) -> None:
    nuts = NUTS(num_chains=40, warmup_steps=warmup_steps, num_samples=30, compile=True)
    run = nuts.run(oracle.model, (oracle.x, oracle.y), init=posterior, seed=3, progress=False)
    assert all_draws(run).shape == (40, 30, 4)
    assert moment_scores(all_draws(run), oracle.mean, oracle.covariance).max() < 4.5


@pytest.mark.slow("samples chains")
def test_one_chain_alone(oracle: LinearGaussian) -> None:
    """Blocks of 40 of its draws stand for chains: 40 draws are far longer than its memory."""
    nuts = NUTS(num_chains=1, warmup_steps=80, num_samples=480, compile=True)
    run = nuts.run(oracle.model, (oracle.x, oracle.y), progress=False)
    blocks = all_draws(run).reshape(12, 40, 4)
    assert moment_scores(blocks, oracle.mean, oracle.covariance).max() < 5


# --- a chain for each data set -------------------------------------------------------------------


def targets(oracle: LinearGaussian, count: int) -> Tensor:
    """Data sets ``[C, N]`` far from one another."""
    noise = torch.randn(count, len(oracle.x), generator=torch.Generator().manual_seed(1)).double()
    return noise + torch.linspace(-10, 10, count, dtype=torch.float64)[:, None]


@pytest.mark.slow("samples chains")
@pytest.mark.parametrize(
    ("mass_matrix", "path"),
    [
        ("diagonal", "captured"),
        ("low_rank", "apart"),
        pytest.param("low_rank", "eager", marks=pytest.mark.soak),
    ],
)
def test_a_chain_for_each_data_set(
    mass_matrix: Any,
    path: str,
    oracle: LinearGaussian,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whitened by the exact posterior of its own data set, every chain is standard normal."""
    if path == "eager":
        monkeypatch.setattr(chains_module, "Captured", uncaptured_step)
    paths, step = set(), Sampling.go

    def seen(self: Sampling) -> None:
        paths.add(self._chains.compile_path)
        step(self)

    monkeypatch.setattr(Sampling, "go", seen)
    ys = targets(oracle, 40)
    nuts = NUTS(warmup_steps=60, num_samples=40, mass_matrix=mass_matrix, compile=path == "apart")
    z, stats = nuts.run_each(oracle.model, oracle.x, ys, progress=False)
    assert paths == {path}
    assert z.shape == (40, 40, 4)
    assert {value.shape for value in stats.values()} == {(40, 40)}
    mean = torch.linalg.solve(oracle.precision, design(oracle.x).T @ ys.T / oracle.noise**2).T
    white = (z - mean[:, None]) @ torch.linalg.cholesky(oracle.precision)
    assert moment_scores(white, torch.zeros(4), torch.eye(4)).max() < 4.5
    assert of_package(caplog) == []  # one graph served every number of chains


@quick
def test_one_data_set_alone(oracle: LinearGaussian) -> None:
    z, stats = SMALL.run_each(oracle.model, oracle.x, oracle.y[None], progress=False)
    expected = oracle.log_joint(z)
    torch.testing.assert_close(torch.from_numpy(stats["lp"]), expected, rtol=1e-10, atol=0)


@quick
def test_data_sets_of_other_rows_are_refused(oracle: LinearGaussian) -> None:
    for ys in (oracle.y, oracle.y.expand(3, -1)[:, :5]):
        with pytest.raises(ShapeError, match=r"ys has shape \(.*\), expected \[C, 20, ...\]"):
            SMALL.run_each(oracle.model, oracle.x, ys, progress=False)
    with pytest.raises(OptionError, match="seed is an integer of at least 0, not -1"):
        SMALL.run_each(oracle.model, oracle.x, oracle.y[None], seed=-1, progress=False)


# --- statistics ----------------------------------------------------------------------------------


def test_statistics_have_arviz_names_shapes_and_dtypes(posterior: DrawsPosterior) -> None:
    stats = posterior.sample_stats
    assert {name: value.dtype.kind for name, value in stats.items()} == {
        "lp": "f",
        "energy": "f",
        "tree_depth": "i",
        "n_steps": "i",
        "acceptance_rate": "f",
        "diverging": "b",
        "step_size": "f",
    }
    assert {value.shape for value in stats.values()} == {(40, 50)}
    assert (stats["energy"] >= -stats["lp"]).all()
    assert ((stats["acceptance_rate"] > 0) & (stats["acceptance_rate"] <= 1)).all()
    assert (np.ptp(stats["step_size"], axis=1) == 0).all()
    steps = stats["step_size"]
    assert steps.max() < 1.1 * steps.min()  # shared, but for what comes in after the first keep it


def test_steps_fit_the_depth_of_the_tree(posterior: DrawsPosterior) -> None:
    """Of depth d it has 2^d - 1 steps, and those of a subtree that was thrown away."""
    depth, steps = (posterior.sample_stats[name] for name in ("tree_depth", "n_steps"))
    assert (steps >= 2**depth - 1).all()
    assert (steps < 2 ** (depth + 1)).all()


@quick
def test_a_trajectory_ends_at_the_largest_depth(oracle: LinearGaussian) -> None:
    nuts = NUTS(num_chains=3, warmup_steps=0, num_samples=5, max_tree_depth=1, compile=False)
    stats = nuts.run(oracle.model, (oracle.x, oracle.y), progress=False).sample_stats
    assert (stats["n_steps"] == 1).all()


def test_lp_is_the_log_joint_of_each_draw(
    posterior: DrawsPosterior, oracle: LinearGaussian
) -> None:
    lp = torch.from_numpy(posterior.sample_stats["lp"])
    torch.testing.assert_close(lp, oracle.log_joint(all_draws(posterior)), rtol=1e-10, atol=0)


@pytest.mark.slow("samples chains")
@pytest.mark.usefixtures("all_apart")
def test_acceptance_comes_to_its_target(oracle: LinearGaussian) -> None:
    """Within three tenths of its distance to 1, from the 40 draws of the last window.

    At 0.6 the rate of 200 chains is 0.697 to 0.709 over four seeds.
    """
    for target in (0.6, 0.95):
        nuts = NUTS(
            num_chains=200, warmup_steps=120, num_samples=20, target_accept=target, compile=True
        )
        run = nuts.run(oracle.model, (oracle.x, oracle.y), progress=False)
        rate = run.sample_stats["acceptance_rate"].mean()
        assert abs(rate - target) < 0.3 * (1 - target)


def test_provenance(posterior: DrawsPosterior) -> None:
    assert (posterior.method, posterior.engine, posterior.num_parameters) == ("NUTS", "NUTS", 4)
    assert (posterior.num_chains, posterior.num_stored_draws) == (40, 2_000)
    assert posterior.options["target_accept"] == 0.8
    assert posterior.options["compiled"] is False
    phases = posterior.provenance.phases
    assert list(phases) == ["set-up", "capture", "warm-up", "sampling"]
    assert min(phases.values()) > 0
    assert 0.5 * posterior.wall_time < sum(phases.values()) <= posterior.wall_time
