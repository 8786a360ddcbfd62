"""Engines of a conjugate model: what they reach is known, and how they get there."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import CAVI, SVI, Exact, guides, likelihoods, models, priors
from pyro_bnn.errors import ModelError, OptionError
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.conjugate.cavi import _Sweeps
from pyro_bnn.posterior import GuidePosterior, Posterior
from tests.guides.exact import assert_stationary, moments
from tests.oracle import LinearGaussian, linear_gaussian

ENGINES = pytest.mark.parametrize("engine", [CAVI(), Exact()], ids=["CAVI", "Exact"])


@pytest.fixture(scope="module")
def oracle() -> LinearGaussian:
    return linear_gaussian(prior_scale=1.25, correlation=0.9)


def linear(oracle: LinearGaussian) -> models.LinearRegression:
    """The oracle's model, as one of this package, in float64."""
    return models.LinearRegression(
        oracle.x.shape[1],
        prior=priors.Normal(scale=oracle.prior_scale),
        likelihood=likelihoods.Normal(scale=oracle.noise),
    ).double()


def fit(engine: Any, oracle: LinearGaussian, **options: Any) -> GuidePosterior:
    model = options.pop("model", None) or linear(oracle)
    posterior = engine.run(model, (oracle.x, oracle.y), progress=False, **options)
    assert isinstance(posterior, GuidePosterior)
    return posterior


def test_cavi_reaches_the_best_product_of_gaussians(oracle: LinearGaussian) -> None:
    posterior = fit(CAVI(tolerance=1e-13), oracle)
    mean, covariance = (value.detach() for value in moments(posterior.guide))
    assert_close(mean, oracle.mean, rtol=1e-10, atol=1e-10)
    assert_close(covariance, oracle.mean_field_variance.diag(), rtol=1e-10, atol=1e-10)
    gap = 0.5 * (oracle.precision.diagonal().log().sum() - oracle.precision.logdet())
    assert oracle.log_evidence + posterior.losses[-1] == pytest.approx(float(gap), rel=1e-9)
    assert posterior.options["log_evidence"] == pytest.approx(oracle.log_evidence, rel=1e-12)
    elbo, error = posterior.elbo((oracle.x, oracle.y), 2_000)
    assert abs(elbo + posterior.losses[-1]) < 4 * error


@pytest.mark.slow("about a second")
def test_it_is_the_optimum_of_svi(oracle: LinearGaussian) -> None:
    """The exact gradient of SVI's objective is zero there, and SVI started there stays."""
    found = fit(CAVI(tolerance=1e-13), oracle)
    assert_stationary(found.guide, oracle)
    options: dict[str, Any] = {"learning_rate": 0.02, "schedule": "cosine"}
    svi = SVI(guides.AutoNormal, num_steps=2_000, num_particles=16, **options)
    reached = fit(svi, oracle)
    sd = found.guide.scale.detach()
    assert_close(
        (reached.guide.loc - found.guide.loc) / sd, torch.zeros_like(sd), rtol=0, atol=0.05
    )
    assert_close(reached.guide.scale / sd, torch.ones_like(sd), rtol=0, atol=0.03)


def sweeps_by_hand(oracle: LinearGaussian, mean: Tensor, num_sweeps: int) -> list[Tensor]:
    """Means after each sweep, one entry after the other."""
    shift = oracle.precision @ oracle.mean
    swept = []
    for _ in range(num_sweeps):
        mean = mean.clone()
        for j in range(len(mean)):
            others = oracle.precision[j] @ mean - oracle.precision[j, j] * mean[j]
            mean[j] = (shift[j] - others) / oracle.precision[j, j]
        swept.append(mean)
    return swept


def test_every_sweep_is_that_of_the_textbook_and_the_elbo_never_falls(
    oracle: LinearGaussian,
) -> None:
    start = {"weight": torch.tensor([[3.0, -4.0, 5.0]]), "bias": torch.tensor([-6.0])}
    posterior = fit(CAVI(), oracle, init=start)
    means = sweeps_by_hand(oracle, torch.tensor([3.0, -4.0, 5.0, -6.0]).double(), 5)
    elbos = [oracle.elbo(mean, oracle.mean_field_variance.diag()) for mean in means]
    np.testing.assert_allclose(-posterior.losses[:5], elbos, rtol=1e-10)
    assert (np.diff(posterior.losses) <= 1e-13 * abs(posterior.losses[-1])).all()
    assert len(posterior.losses) == posterior.options["sweeps"] > 20
    assert posterior.losses[0] - posterior.losses[-1] > 1


def test_the_tolerance_is_in_standard_deviations(oracle: LinearGaussian) -> None:
    sd = oracle.mean_field_variance.sqrt()
    start = torch.tensor([3.0, -4.0, 5.0, -6.0]).double()
    means = torch.stack([start, *sweeps_by_hand(oracle, start, 100)])
    moves = (means.diff(dim=0) / sd).abs().amax(1)
    init = {"weight": start[None, :3], "bias": start[3:]}
    for tolerance in (1.0, 1e-3):
        posterior = fit(CAVI(tolerance=tolerance), oracle, init=init)
        assert len(posterior.losses) == int((moves > tolerance).sum()) + 1


def test_the_start_does_not_matter(oracle: LinearGaussian) -> None:
    first, second = fit(CAVI(), oracle, seed=1), fit(CAVI(), oracle, seed=2)
    assert first.losses[0] != second.losses[0]
    continued = fit(CAVI(), oracle, init=first, model=first.model)
    assert len(continued.losses) < len(first.losses)
    sd = oracle.mean_field_variance.sqrt()
    for other in (second, continued):
        distance = (other.guide.centre() - first.guide.centre()) / sd
        assert float(distance.abs().max()) < 1e-5


def test_too_few_sweeps_are_told(oracle: LinearGaussian, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "pyro_bnn"):
        posterior = fit(CAVI(max_sweeps=3), oracle)
    assert len(posterior.losses) == 3
    (line,) = caplog.messages
    assert line.startswith("CAVI stopped after 3 sweeps, the last of which moved a mean by ")
    assert line.endswith("of its standard deviations: raise max_sweeps")


def test_exact_is_the_posterior_and_its_elbo_the_evidence(oracle: LinearGaussian) -> None:
    posterior = fit(Exact(), oracle)
    mean, covariance = (value.detach() for value in moments(posterior.guide))
    assert_close(mean, oracle.mean, rtol=1e-10, atol=1e-10)
    assert_close(covariance, oracle.covariance, rtol=1e-10, atol=1e-10)
    elbo, error = posterior.elbo((oracle.x, oracle.y))
    assert elbo == pytest.approx(oracle.log_evidence, rel=1e-10)
    assert error < 1e-10
    assert len(posterior.losses) == 0
    prediction = posterior.predict(oracle.x, 4_000)
    expected, sd = oracle.predictive(oracle.x)
    z = (prediction.function_draws[..., 0] - expected).mean(0) / (sd**2 - oracle.noise**2).sqrt()
    assert float(z.abs().max()) < 4 / 4_000**0.5


@ENGINES
def test_a_run_leaves_random_state_and_model_and_goes_through_a_file(
    engine: Any, oracle: LinearGaussian, tmp_path: Path
) -> None:
    model, state = linear(oracle), torch.get_rng_state()
    posterior = fit(engine, oracle, model=model)
    assert torch.equal(torch.get_rng_state(), state)
    posterior.save(tmp_path / "fit.pt")
    again = Posterior.load(tmp_path / "fit.pt", linear(oracle))
    assert torch.equal(again.unconstrained(5), posterior.unconstrained(5))
    assert (again.engine, again.options) == (type(engine).__name__, posterior.options)


@ENGINES
def test_float32_models_are_solved_in_float64(engine: Any, oracle: LinearGaussian) -> None:
    model = linear(oracle).float()
    rows = (oracle.x.float(), oracle.y.float())
    posterior = engine.run(model, rows, progress=False)
    assert posterior.guide.loc.dtype == torch.float32
    exact = model.exact_posterior(rows)
    assert_close(posterior.guide.loc.detach().double(), exact.mean, rtol=1e-6, atol=1e-6)


@ENGINES
def test_a_finished_run_is_read_from_its_checkpoint(
    engine: Any, oracle: LinearGaussian, tmp_path: Path
) -> None:
    whole = fit(engine, oracle, checkpoint=tmp_path)
    with pytest.raises(OptionError, match="holds a checkpoint already"):
        fit(engine, oracle, checkpoint=tmp_path)
    again = fit(engine, oracle, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(again.losses, whole.losses)
    assert torch.equal(again.unconstrained(5), whole.unconstrained(5))
    with pytest.raises(OptionError, match="of a run with seed=0 where this run has 1"):
        fit(engine, oracle, checkpoint=tmp_path, resume=True, seed=1)


def test_a_run_does_not_go_on_with_another_tolerance(
    oracle: LinearGaussian, tmp_path: Path
) -> None:
    fit(CAVI(tolerance=0.1), oracle, checkpoint=tmp_path)
    with pytest.raises(OptionError, match=r"tolerance=0\.1 where this run has 1e-08: run it with"):
        fit(CAVI(), oracle, checkpoint=tmp_path, resume=True)


def test_an_interrupted_run_goes_on_bit_for_bit(
    oracle: LinearGaussian, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        whole, go = fit(CAVI(), oracle), _Sweeps.go

        def stopped(self: _Sweeps) -> None:
            go(self)
            if len(self.losses) == 7:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(_Sweeps, "go", stopped)
        with pytest.raises(Interrupted, match="stopped at sweep 7") as caught:
            fit(CAVI(), oracle, checkpoint=tmp_path)
        partial = caught.value.posterior
        assert isinstance(partial, GuidePosterior)
        np.testing.assert_array_equal(partial.losses, whole.losses[:7])
        again = fit(CAVI(), oracle, checkpoint=tmp_path, resume=True)
    finally:
        signal.signal(signal.SIGINT, before)
    np.testing.assert_array_equal(again.losses, whole.losses)
    assert torch.equal(again.unconstrained(5), whole.unconstrained(5))


@ENGINES
def test_other_models_are_refused(engine: Any, oracle: LinearGaussian) -> None:
    name = type(engine).__name__
    for model in (models.MLP(3), oracle.model, nn.Linear(3, 1)):
        with pytest.raises(OptionError, match=f"{name} is for models.LinearRegression, whose post"):
            fit(engine, oracle, model=model)
    learned = models.LinearRegression(3, likelihood=likelihoods.Normal())
    with pytest.raises(ModelError, match="no closed form with the Normal likelihood, of learned"):
        fit(engine, oracle, model=learned)
    with pytest.raises(OptionError, match="seed is an integer of at least 0, not -1"):
        fit(engine, oracle, seed=-1)


def test_options_out_of_range_are_refused(oracle: LinearGaussian) -> None:
    with pytest.raises(OptionError, match="max_sweeps is an integer of at least 1, not 0"):
        CAVI(max_sweeps=0)
    with pytest.raises(OptionError, match=r"tolerance is a positive number, not 0\.0"):
        CAVI(tolerance=0.0)
    with pytest.raises(OptionError, match="init would have no effect on Exact"):
        fit(Exact(), oracle, init={"bias": torch.zeros(1)})
