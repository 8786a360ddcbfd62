"""Evidence and posterior against closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pyro_bnn import SMC, likelihoods, models, priors
from pyro_bnn.posterior import Posterior
from tests.infer.smc.problems import (
    beta_bernoulli,
    evidence_of_the_network,
    gamma_poisson,
    network,
    two_peaks,
)

SMALL: dict[str, Any] = {"num_islands": 8, "num_particles": 64, "compile": False}


def fit(model: Any, data: Any, **options: Any) -> Any:
    seed = options.pop("seed", 0)
    return SMC(**{**SMALL, **options}).run(model, data, progress=False, seed=seed)


def z_score(posterior: Any, exact: float) -> float:
    value, error = float(posterior.log_evidence), float(posterior.log_evidence_error)
    return abs(value - exact) / error


@pytest.mark.parametrize(("rows", "scale", "noise"), [(12, 1.0, 0.5), (60, 3.0, 0.2)])
def test_linear_regression(rows: int, scale: float, noise: float) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 2, generator=generator, dtype=torch.float64)
    noisy = noise * torch.randn(rows, generator=generator, dtype=torch.float64)
    y = x @ torch.tensor([1.0, -0.5], dtype=torch.float64) + noisy
    model = models.LinearRegression(
        2, prior=priors.Normal(scale), likelihood=likelihoods.Normal(noise)
    ).double()
    posterior = fit(model, (x, y), num_islands=6)
    exact = model.exact_posterior((x, y))
    assert z_score(posterior, exact.log_evidence) < 3
    assert posterior.log_evidence_error < 0.15
    z = posterior.unconstrained(posterior.num_stored_draws, group_by_chain=True)  # [C, S, P]
    means, sd = z.mean(1), exact.covariance.diagonal().sqrt()
    error = means.std(0) / len(means) ** 0.5
    assert bool(((means.mean(0) - exact.mean).abs() < 5 * error).all())
    torch.testing.assert_close(z.flatten(0, 1).std(0), sd, rtol=0.15, atol=0)


@pytest.mark.parametrize(
    ("problem", "mean"),
    [
        (beta_bernoulli(9, 30), (2 + 9) / (2 + 3 + 30)),
        (gamma_poisson([3, 7, 4, 6, 8, 5]), (2 + 33) / (0.5 + 6)),
    ],
    ids=["Beta, Bernoulli", "Gamma, Poisson"],
)
def test_one_number(problem: Any, mean: float) -> None:
    model, data, exact = problem
    posterior = fit(model, data)
    assert z_score(posterior, exact) < 3
    assert posterior.log_evidence_error < 0.1
    values = posterior.sample(posterior.num_stored_draws, group_by_chain=True)["number"].mean(1)
    error = float(values.std()) / len(values) ** 0.5
    assert abs(float(values.mean()) - mean) < 5 * error


def test_two_peaks_have_their_weights() -> None:
    """Ten sds apart, of which one has a fifth: no chain goes from the one to the other."""
    model, data, exact = two_peaks()
    posterior = fit(model, data, num_islands=8, num_particles=256)
    assert z_score(posterior, exact) < 3
    z = posterior.unconstrained(posterior.num_stored_draws, group_by_chain=True).squeeze(-1)
    shares = (z < 0).double().mean(1)  # [C]
    error = float(shares.std()) / len(shares) ** 0.5
    assert abs(float(shares.mean()) - 0.2) < 3 * error
    assert error < 0.02
    torch.testing.assert_close(z[z > 0].mean(), z.new_tensor(5.0), rtol=0, atol=0.1)
    torch.testing.assert_close(z[z > 0].std(), z.new_tensor(1.0), rtol=0.1, atol=0)


def test_a_network() -> None:
    """Whose modes are many: the truth is from draws of its first layer."""
    exact, its_error = evidence_of_the_network(200_000)
    assert its_error < 0.02
    model, data = network()
    posterior = fit(model, data, num_islands=6, num_particles=128, compile="auto")
    error = (posterior.log_evidence_error**2 + its_error**2) ** 0.5
    assert abs(posterior.log_evidence - exact) < 3 * error
    assert error < 0.2


def test_what_is_told_adds_up() -> None:
    model, data, _ = gamma_poisson([3, 7, 4, 6, 8, 5])
    posterior = fit(model, data, num_islands=3, num_particles=50)
    stages, options = posterior.stages, posterior.options
    assert {len(values) for values in stages.values()} == {sum(options["num_temperatures"])}
    for island in range(3):
        own = {name: values[stages["island"] == island] for name, values in stages.items()}
        b = own["inverse_temperature"]
        assert bool((b[1:] > b[:-1]).all())
        assert b[-1] == 1
        assert own["log_evidence"][-1] == options["log_evidences"][island]
        # the last temperature may be nearer
        assert own["ess"][:-1] == pytest.approx(0.7 * 50, rel=1e-6)
        assert own["ess"][-1] >= 0.7 * 50
        assert own["ancestors"][-1] == options["ancestors"][island]
        drawn = posterior.sample_stats["ancestor"][island]
        assert len(set(drawn.tolist())) == options["ancestors"][island]
        assert bool((own["moves"] >= 2).all())
        assert own["moves"].max() <= 10
    steps = (stages["moves"] * stages["num_steps"]).sum() * 50
    others = (
        len(stages["moves"]) * 50 + 3 * 2 * 50
    )  # of each temperature, and of draws of the prior
    assert options["num_gradients"] == pytest.approx(steps + others)
    assert options["smallest_ess"] == pytest.approx(0.7 * 50)
    assert posterior.stored.shape == (3, 100, 1)
    z = posterior.stored.flatten(0, 1)
    log_joint = posterior.program.log_joint(z, posterior.program.batch(*data))
    lp = torch.from_numpy(posterior.sample_stats["lp"]).flatten()
    torch.testing.assert_close(lp, log_joint.double(), rtol=1e-9, atol=1e-9)


def test_save_and_load(tmp_path: Any) -> None:
    model, data, _ = gamma_poisson([3, 7, 4])
    posterior = fit(model, data, num_islands=2, num_particles=20)
    posterior.save(tmp_path / "fit")
    read: Any = Posterior.load(tmp_path / "fit", model)
    assert type(read) is type(posterior)
    assert (read.log_evidence, read.log_evidence_error) == (
        posterior.log_evidence,
        posterior.log_evidence_error,
    )
    assert read.options == posterior.options
    assert {k: v.tolist() for k, v in read.stages.items()} == {
        k: v.tolist() for k, v in posterior.stages.items()
    }
    torch.testing.assert_close(read.stored, posterior.stored, rtol=0, atol=0)
    assert read.sample_stats["ancestor"].tolist() == posterior.sample_stats["ancestor"].tolist()
