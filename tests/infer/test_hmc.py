"""HMC against closed-form posteriors; what it shares with NUTS is tested there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pyro_bnn.errors import CaptureError, OptionError
from pyro_bnn.infer import HMC
from pyro_bnn.infer.mcmc import chains as chains_module
from pyro_bnn.posterior import DrawsPosterior
from tests.infer.chains import all_draws, quick
from tests.infer.drive import uncaptured_step
from tests.infer.scores import moment_scores, z_scores
from tests.oracle import LinearGaussian, LinearModel, design, linear_gaussian

EXACT = HMC(num_chains=40, warmup_steps=45, num_samples=60, num_steps=5, compile=False)
SMALL = HMC(num_chains=3, warmup_steps=6, num_samples=5, num_steps=4, compile=False)


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
    assert moment_scores(all_draws(posterior), oracle.mean, oracle.covariance).max() < 4.5


@quick
@pytest.mark.slow("samples chains")
@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float64, marks=pytest.mark.soak), torch.float32]
)
def test_moments_under_a_low_rank_mass_matrix(dtype: torch.dtype) -> None:
    """Inputs correlated at 0.99: five steps of a diagonal matrix would hardly move the chains."""
    oracle = linear_gaussian(correlation=0.99)
    hmc = HMC(
        num_chains=40,
        warmup_steps=60,
        num_samples=40,
        num_steps=5,
        mass_matrix="low_rank",
        compile=False,
    )
    model = LinearModel(3, oracle.noise, oracle.prior_scale).to(dtype)
    run = hmc.run(model, (oracle.x.to(dtype), oracle.y.to(dtype)), progress=False)
    z = all_draws(run)
    assert z.dtype == dtype
    assert moment_scores(z, oracle.mean, oracle.covariance).max() < 4.5
    assert run.sample_stats["step_size"].mean() > 0.3  # of a standard normal it is about 0.7


@pytest.mark.slow("a second or more")
def test_mean_energy_is_that_of_the_gaussian(
    posterior: DrawsPosterior, oracle: LinearGaussian
) -> None:
    """U has mean U_min + P/2; a draw leaves with a kinetic energy of P/2, rejected or not."""
    least = -float(oracle.log_joint(oracle.mean))
    assert z_scores(-posterior.sample_stats["lp"], least + 2) < 4
    assert z_scores(posterior.sample_stats["energy"], least + 4) < 4


@pytest.mark.slow("samples chains")
def test_a_chain_for_each_data_set(oracle: LinearGaussian) -> None:
    """Whitened by the exact posterior of its own data set, every chain is standard normal."""
    noise = torch.randn(40, len(oracle.x), generator=torch.Generator().manual_seed(1)).double()
    ys = noise + torch.linspace(-10, 10, 40, dtype=torch.float64)[:, None]
    hmc = HMC(warmup_steps=45, num_samples=50, num_steps=5, compile=False)
    z, _ = hmc.run_each(oracle.model, oracle.x, ys, progress=False)
    mean = torch.linalg.solve(oracle.precision, design(oracle.x).T @ ys.T / oracle.noise**2).T
    white = (z - mean[:, None]) @ torch.linalg.cholesky(oracle.precision)
    assert moment_scores(white, torch.zeros(4), torch.eye(4)).max() < 4.5


# --- statistics ----------------------------------------------------------------------------------


def test_statistics_have_arviz_names_shapes_and_dtypes(posterior: DrawsPosterior) -> None:
    stats = posterior.sample_stats
    assert {name: value.dtype.kind for name, value in stats.items()} == {
        "lp": "f",
        "energy": "f",
        "n_steps": "i",
        "acceptance_rate": "f",
        "diverging": "b",
        "step_size": "f",
    }
    assert {value.shape for value in stats.values()} == {(40, 60)}
    assert (stats["energy"] >= -stats["lp"]).all()
    assert (np.ptp(stats["step_size"], axis=1) == 0).all()
    assert not stats["diverging"].any()


def test_lengths_are_even_from_half_to_one_and_a_half_times_the_mean(
    posterior: DrawsPosterior,
) -> None:
    """Of a mean of 5: 3, 4, 5, 6 and 7, each a fifth of all."""
    steps = posterior.sample_stats["n_steps"]
    values, counts = np.unique(steps, return_counts=True)
    assert values.tolist() == [3, 4, 5, 6, 7]
    error = np.sqrt(steps.size * 0.2 * 0.8)
    assert (np.abs(counts - steps.size / 5) / error).max() < 4


def test_lp_is_the_log_joint_of_each_draw(
    posterior: DrawsPosterior, oracle: LinearGaussian
) -> None:
    lp = torch.from_numpy(posterior.sample_stats["lp"])
    torch.testing.assert_close(lp, oracle.log_joint(all_draws(posterior)), rtol=1e-10, atol=0)


def test_draws_stay_as_often_as_they_are_rejected(posterior: DrawsPosterior) -> None:
    z, rate = all_draws(posterior), posterior.sample_stats["acceptance_rate"]
    stayed = (z[:, 1:] == z[:, :-1]).all(-1).double()  # [C, S - 1]
    assert z_scores(stayed - (1 - torch.from_numpy(rate[:, 1:])), 0.0) < 4
    assert 0 < stayed.mean() < 0.5


def test_provenance(posterior: DrawsPosterior) -> None:
    assert (posterior.method, posterior.engine, posterior.num_parameters) == ("HMC", "HMC", 4)
    assert posterior.options["num_steps"] == 5
    assert list(posterior.provenance.phases) == ["set-up", "capture", "warm-up", "sampling"]


@pytest.mark.slow("about a second")
@quick
def test_draws_repeat_for_a_seed(oracle: LinearGaussian) -> None:
    data = (oracle.x, oracle.y)
    first, again, other = (
        all_draws(SMALL.run(oracle.model, data, seed=seed, progress=False)) for seed in (2, 2, 3)
    )
    assert torch.equal(first, again)
    assert not (first == other).any()


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_steps": 0}, "num_steps is an integer of at least 1, not 0"),
        ({"num_steps": 1.5}, "num_steps is an integer of at least 1, not 1.5"),
        ({"num_chains": 0}, "num_chains is an integer of at least 1, not 0"),
        ({"target_accept": 0.0}, "target_accept is a number between 0 and 1, not 0.0"),
        ({"mass_matrix": None}, 'mass_matrix is "diagonal" or "low_rank", not None'),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as error:
        HMC(**options)
    assert text in str(error.value)


@pytest.mark.slow("about a second")
def test_a_model_that_cannot_be_compiled_is_refused() -> None:
    from tests.test_program import branching

    hmc = HMC(num_chains=2, warmup_steps=2, num_samples=2, num_steps=2, compile=True)
    x = torch.zeros(3, 3)
    with pytest.raises(CaptureError, match="the HMC step of branching cannot be compiled"):
        hmc.run(branching, (x, x[:, 0]), progress=False)
