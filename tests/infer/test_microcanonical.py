"""MAMS and MCLMC against closed-form posteriors; what they share with HMC is tested there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch

from pyro_bnn import models, priors
from pyro_bnn.diagnostics import simulation_based_calibration
from pyro_bnn.diagnostics.energy_error import mean_energy_variance, variance_bias
from pyro_bnn.errors import ModelError, OptionError
from pyro_bnn.infer import HMC, MAMS, MCLMC
from pyro_bnn.infer.mcmc.chains import in_lockstep
from pyro_bnn.infer.mcmc.length_search import LengthSearch
from pyro_bnn.infer.mcmc.lockstep import Energy, Graphs, Lockstep
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.mcmc.microcanonical_kernel import PARTS, STRETCH, Unadjusted
from pyro_bnn.infer.mcmc.progress import Progress
from pyro_bnn.infer.mcmc.sampling import Sampling
from tests.diagnostics.test_sbc_nuts import NUM_SIMULATIONS, X, network
from tests.infer.chains import all_draws
from tests.infer.densities import scales
from tests.infer.isokinetic_laws import autocorrelations, isotropic
from tests.infer.scores import moment_scores, z_scores
from tests.oracle import LinearGaussian

# --- the exact posterior -------------------------------------------------------------------------


@pytest.mark.slow("samples chains")
@pytest.mark.parametrize(
    ("integrator", "target"), [("leapfrog", 0.5), ("leapfrog", 0.9), ("minimal_norm", 0.8)]
)
def test_moments_of_the_linear_gaussian_posterior(
    oracle: LinearGaussian, integrator: Any, target: float
) -> None:
    """MAMS is exact at every step size."""
    mams = MAMS(
        num_chains=40,
        warmup_steps=45,
        num_samples=60,
        num_steps=4,
        integrator=integrator,
        target_accept=target,
        compile=True,
    )
    run = mams.run(oracle.model, (oracle.x, oracle.y), progress=False)
    assert moment_scores(all_draws(run), oracle.mean, oracle.covariance).max() < 4.5
    stats = run.sample_stats
    assert abs(stats["acceptance_rate"].mean() - target) < 0.1
    gradients = 2 if integrator == "minimal_norm" else 1
    assert np.array_equal(stats["n_gradients"], gradients * stats["n_steps"])
    torch.testing.assert_close(
        torch.from_numpy(stats["lp"]), oracle.log_joint(all_draws(run)), rtol=1e-10, atol=0
    )


@pytest.mark.slow("samples chains")
@pytest.mark.usefixtures("all_apart")
def test_unadjusted_draws_at_a_small_energy_error(oracle: LinearGaussian) -> None:
    """Means, and variances that the energy error says to be off by 1 %, within their errors."""
    mclmc = MCLMC(
        num_chains=160,  # side by side they cost little, draws one after another much
        warmup_steps=60,
        num_samples=50,
        num_steps=16,
        energy_variance=1e-6,
        compile=True,
    )
    run = mclmc.run(oracle.model, (oracle.x, oracle.y), progress=False)
    scores = moment_scores(all_draws(run), oracle.mean, oracle.covariance)
    assert scores.max() < 4.5
    assert (run.sample_stats["n_steps"] == 4).all()
    assert (run.sample_stats["n_gradients"] == 8).all()


@pytest.mark.slow("samples chains")
@pytest.mark.parametrize("engine", [MAMS, MCLMC])
def test_moments_under_a_low_rank_mass_matrix(oracle: LinearGaussian, engine: Any) -> None:
    own = {"energy_variance": 1e-6, "num_steps": 16} if engine is MCLMC else {"num_steps": 4}
    sampler = engine(
        num_chains=40,
        warmup_steps=60,
        num_samples=100,
        mass_matrix="low_rank",
        compile=True,
        **own,
    )
    run = sampler.run(oracle.model, (oracle.x, oracle.y), progress=False)
    assert moment_scores(all_draws(run), oracle.mean, oracle.covariance).max() < 4.5


def unadjusted(
    energy_variance: float,
    num_latents: int,
    integrator: str = "leapfrog",
    seed: int = 0,
    num_samples: int = 400,
    limit: int = 12,
    parts: int = PARTS,
) -> tuple[Any, dict[str, Any]]:
    """Whitened draws ``[C, S, P]`` of a standard normal, and statistics."""
    density = scales(*[1.0] * num_latents)
    starts = density.draws(32, seed=1)
    kernel = Unadjusted(integrator)
    chains = in_lockstep(
        kernel,
        Energy(density.potential),
        starts,
        Mass(torch.ones(num_latents).double()),
        limit=limit,
        target_accept=energy_variance,
        seed=seed,
        graphs=Graphs("a density", compiled=True, strict=True),
    )
    run = Sampling(
        chains,
        warmup_steps=150,
        num_samples=num_samples,
        limit=limit,
        progress=Progress("", 32, 150 + num_samples, show=False),
        last={"parts": parts},
    )
    run.begin()
    while not run.is_done:
        run.go()
    result = run.result()
    names = (*kernel.STATISTICS, "step_size")
    return result.z, {name: result.stats[..., i] for i, name in enumerate(names)}


@pytest.mark.slow("compiles and samples chains")
@pytest.mark.parametrize("energy_variance", [5e-3, 0.05])
def test_the_bias_is_what_the_energy_error_says(energy_variance: float) -> None:
    """A standard normal, equally stiff everywhere: r and E by the step; a bound on r by E."""
    z, stats = unadjusted(energy_variance, 400)
    found = mean_energy_variance(stats["energy_variance"], stats["diverging"] > 0)
    expected, energy = isotropic(stats["step_size"].mean(), 400)
    assert found == pytest.approx(energy, rel=0.05)
    assert expected < variance_bias(found)
    # sums of squares of a draw, whose mean over P entries is the variance, up to 1 / P
    scores = z_scores(z.square().mean(-1), 1 + expected)
    error = float(z.square().mean((1, 2)).std()) / 32**0.5
    assert scores.max() < 4 + 0.02 * expected / error + 0.01 / error


@pytest.mark.slow("compiles and samples chains")
@pytest.mark.parametrize(
    ("integrator", "wanted"),
    [("leapfrog", 5e-3), ("minimal_norm", 5e-4), ("minimal_norm", 5e-3)],
)
def test_the_energy_variance_is_as_wanted(integrator: str, wanted: float) -> None:
    """In the mean over runs, whose standard deviation is 9 %: errors of trajectories are skewed."""
    runs = [unadjusted(wanted, 100, integrator, seed, 100)[1] for seed in range(8)]
    found = [mean_energy_variance(s["energy_variance"], s["diverging"] > 0) for s in runs]
    assert np.mean(found) == pytest.approx(wanted, rel=0.15)


@pytest.mark.slow("compiles and samples chains")
@pytest.mark.parametrize("stretch", [1, STRETCH])
def test_draws_forget_as_the_memory_says(stretch: int) -> None:
    """Entries of a standard normal, by lag: with a longer memory they swing longer."""
    memory, apart = 12 * stretch, 3
    z, stats = unadjusted(1e-3, 400, limit=memory, parts=PARTS * stretch)
    expected = autocorrelations(stats["step_size"].mean(), 400, apart, memory, 12)
    found = [(z[:, lag:] * z[:, : z.shape[1] - lag]).mean() for lag in range(12)]
    assert (stats["n_steps"] == apart).all()
    # errors of 32 x 400 x 400 products, and terms in 1 / P
    np.testing.assert_allclose(np.array(found) / float(found[0]), expected, rtol=0, atol=0.02)


# --- ranks of simulated truths -------------------------------------------------------------------


@pytest.mark.slow("samples hundreds of chains")
@pytest.mark.usefixtures("all_apart")
@pytest.mark.parametrize(
    ("engine", "target"),
    [
        (MAMS, 0.6),
        *(
            pytest.param(engine, target, marks=pytest.mark.soak)
            for engine, target in [(MAMS, 0.9), (HMC, 0.4), (HMC, 0.6), (HMC, 0.9), (MAMS, 0.4)]
        ),
    ],
)
def test_ranks_of_simulated_truths_are_uniform(engine: Any, target: float) -> None:
    sampler = engine(
        warmup_steps=100, num_samples=19 * 5, num_steps=10, target_accept=target, compile=True
    )
    found = simulation_based_calibration(
        network(priors.Normal()),
        X,
        sampler,
        num_simulations=NUM_SIMULATIONS,
        num_draws=19,
        progress=False,
    )
    assert found.num_failed == 0
    assert (found.p_values > 0.001).all(), found.summary()


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "options", "text"),
    [
        (MAMS, {"integrator": "euler"}, 'integrator is "leapfrog" or "minimal_norm", not \'eu'),
        (MAMS, {"num_steps": 0}, "num_steps is an integer of at least 1, not 0"),
        (MAMS, {"target_accept": 1.0}, "target_accept is a number between 0 and 1, not 1.0"),
        (MCLMC, {"integrator": None}, 'integrator is "leapfrog" or "minimal_norm", not None'),
        (MCLMC, {"energy_variance": 0.0}, "energy_variance"),
        (MCLMC, {"num_chains": 0}, "num_chains is an integer of at least 1, not 0"),
    ],
)
def test_bad_options_are_refused(engine: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as error:
        engine(**options)
    assert text in str(error.value)


@pytest.mark.parametrize("engine", [MAMS, MCLMC])
def test_a_model_of_one_latent_number_is_refused(engine: Any) -> None:
    class Mean(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
            import pyro

            m = pyro.sample("m", dist.Normal(torch.tensor(0.0), torch.tensor(1.0)))
            f = pyro.deterministic("f", m + 0 * x[:, :1])
            with pyro.plate("data", len(x)):
                drawn: torch.Tensor = pyro.sample("y", dist.Normal(f[:, 0], 1.0), obs=y)
            return drawn

    x, y, text = torch.zeros(3, 1), torch.zeros(3), "needs at least two latent.*has 1: use NUTS"
    with pytest.raises(ModelError, match=f"{engine.__name__} {text}"):
        engine().run(Mean(), (x, y), progress=False)
    with pytest.raises(ModelError, match=f"{engine.__name__} {text}"):
        engine().run_each(Mean(), x, y.expand(2, -1), progress=False)


def test_what_is_exact_says_so() -> None:
    assert HMC.is_exact
    assert MAMS.is_exact
    assert not MCLMC.is_exact


@pytest.mark.slow("samples chains")
@pytest.mark.parametrize("engine", [HMC, MAMS, MCLMC])
def test_the_length_is_found(engine: Any) -> None:
    """Short where the posterior is nearly a standard normal after whitening."""
    model = models.LinearRegression(3)
    x = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
    run = engine(num_chains=4, warmup_steps=100, num_samples=20, compile=True).run(
        model, (x, x[:, 0]), progress=False
    )
    assert run.options["num_steps"] is None
    assert 1 <= run.sample_stats["n_steps"].mean() < 12


@pytest.mark.parametrize(
    ("engine", "given", "memory", "apart"),
    [(MAMS, {}, 6, 6), (MCLMC, {}, 12, 1), (MCLMC, {"num_steps": 8}, 8, 2)],
)
def test_a_memory_is_twice_the_length_that_was_found(
    engine: Any,
    given: dict[str, int],
    memory: int,
    apart: int,
    oracle: LinearGaussian,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Draws stay a quarter of that length apart; of a memory that is given, a quarter of it."""
    lengths: list[int] = []
    restart = Lockstep.restart

    def noted(self: Lockstep, mass: Mass, *, limit: int) -> None:
        lengths.append(limit)
        restart(self, mass, limit=limit)

    monkeypatch.setattr(Lockstep, "restart", noted)
    found = property(lambda self: 6, lambda self, value: None)
    monkeypatch.setattr(LengthSearch, "steps", found, raising=False)
    sampler = engine(num_chains=2, warmup_steps=45, num_samples=4, compile=False, **given)
    run = sampler.run(oracle.model, (oracle.x, oracle.y), progress=False)
    assert lengths[-1] == memory
    assert set(lengths[:-1]) == {given.get("num_steps", 6)}
    if engine is MCLMC:
        assert (run.sample_stats["n_steps"] == apart).all()
