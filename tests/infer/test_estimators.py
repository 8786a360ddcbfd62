"""SVI with each estimator: one expectation of the gradient, less variance, the same run."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import scipy.stats
import torch
from pyro.infer import autoguide
from torch import Tensor, nn

from pyro_bnn import SVI, Program, guides, likelihoods, models, priors
from pyro_bnn.capture import Captured
from pyro_bnn.errors import OptionError, UnknownNameError
from pyro_bnn.infer.batches import Minibatches
from pyro_bnn.infer.svi import training
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.posterior import GuidePosterior
from pyro_bnn.program import Batch
from tests.oracle import linear_gaussian

NUM_ROWS, BATCH, NUM_DRAWS, NUM_BLOCKS = 40, 16, 2_000, 20
NAMES = ("local_reparameterization", "flipout", "analytic")
DRAWN = ("weight_sampling", "per_example_draws", *NAMES[:2])


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_ROWS, 3, generator=generator, dtype=torch.float64)
    return x, x[:, 0].sin() + 0.3 * x[:, 1]


def mlp(scale: float | None = 0.3, hidden: int = 6) -> models.MLP:
    return models.MLP(3, hidden=(hidden,), likelihood=likelihoods.Normal(scale)).double()


def option(name: str) -> dict[str, Any]:
    return {name: True} if name == "per_example_draws" else {"estimator": name}


def fit(name: str, model: Any = None, **options: Any) -> GuidePosterior:
    engine = SVI(guides.AutoNormal, **option(name), **{"compile": False, **options})
    posterior = engine.run(mlp() if model is None else model, data(), progress=False)
    assert isinstance(posterior, GuidePosterior)
    return posterior


# Gradients


class Gradients(NamedTuple):
    """Draws of minus the ELBO and of its gradient at one place and batch.

    Attributes:
        loss: ``[n]``.
        gradient: By every parameter of the guide, ``[n, G]``.
    """

    loss: Tensor
    gradient: Tensor


def gradients(scale: float | None, names: Sequence[str]) -> dict[str, Gradients]:
    """Of each estimator, at a spread that is wide enough to matter."""
    torch.manual_seed(0)
    model, (x, y) = mlp(scale), data()
    program = Program(model, x, y)
    guide = guides.AutoNormal(model, init_scale=0.2)
    guide.setup(x[:1])
    program.prepare(guide)
    batch = program.batch(x[:BATCH], y[:BATCH])
    found = {}
    for name in (*names, "analytic"):
        svi, batches = (
            SVI(guides.AutoNormal, compile=False, **option(name)),
            Minibatches(batch, None, 0),
        )
        run = Training(svi, program, guide, 0, batches=batches)
        drawn = [run.loss.draw(0, BATCH) for _ in range(2 if name == "analytic" else NUM_DRAWS)]
        noise = [torch.stack(values) for values in zip(*drawn, strict=True)]
        found[name] = Gradients(*torch.func.vmap(functools.partial(gradient, run, batch))(*noise))
    return found


def gradient(run: Training, batch: Batch, *noise: Tensor) -> tuple[Tensor, Tensor]:
    """Minus the ELBO and its gradient at the noise of one step."""

    def loss(parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        value, _ = run.loss(parameters, (*noise, *batch, batch.x.new_ones(())))
        return value, value

    start = [parameter.detach() for parameter in run.parameters]
    parts, value = torch.func.grad(loss, has_aux=True)(start)
    return value, torch.cat([part.flatten() for part in parts])


@pytest.fixture(scope="module")
def fixed() -> Mapping[str, Gradients]:
    return gradients(0.3, DRAWN)


@pytest.fixture(scope="module")
def learned() -> Mapping[str, Gradients]:
    return gradients(None, ["weight_sampling", "local_reparameterization"])


def z_scores(draws: Tensor, expected: Tensor) -> Tensor:
    """Absolute z-scores of means over draws ``[n, ...]``."""
    error: Tensor = draws.std(0) / len(draws) ** 0.5
    return (draws.mean(0) - expected).abs() / error


def assert_expected(found: Gradients, exact: Gradients) -> None:
    """Loss and all entries of the gradient together, at a level of 1 in 10,000."""
    loss, gradient = (
        z_scores(found.loss, exact.loss[0]),
        z_scores(found.gradient, exact.gradient[0]),
    )
    largest = float(torch.cat([loss.reshape(1), gradient]).max())
    assert largest < scipy.stats.norm.isf(0.5e-4 / (1 + len(gradient)))


def log_trace(found: Gradients) -> tuple[float, float]:
    """Log of the summed variance of a gradient and its error, from blocks of draws."""
    blocks = found.gradient.unflatten(0, (NUM_BLOCKS, -1))
    traces = (blocks.var(1).sum(-1)).log()
    return float(traces.mean()), float(traces.std() / NUM_BLOCKS**0.5)


@pytest.mark.parametrize("name", DRAWN)
def test_the_gradient_has_the_expectation_that_is_in_closed_form(
    name: str, fixed: Mapping[str, Gradients]
) -> None:
    assert_expected(fixed[name], fixed["analytic"])


@pytest.mark.parametrize("name", ["weight_sampling", "local_reparameterization"])
def test_so_it_has_with_a_learned_scale_of_the_noise(
    name: str, learned: Mapping[str, Gradients]
) -> None:
    assert_expected(learned[name], learned["analytic"])


@pytest.mark.parametrize(
    ("low", "high"),
    [
        ("local_reparameterization", "per_example_draws"),
        ("per_example_draws", "weight_sampling"),
        ("flipout", "weight_sampling"),
    ],
)
def test_the_variance_of_the_gradient_is_lower(
    low: str, high: str, fixed: Mapping[str, Gradients]
) -> None:
    (less, error), (more, other) = log_trace(fixed[low]), log_trace(fixed[high])
    assert (more - less) / math.hypot(error, other) > 4


def test_the_closed_form_has_no_variance(
    fixed: Mapping[str, Gradients], learned: Mapping[str, Gradients]
) -> None:
    for found in (fixed["analytic"], learned["analytic"]):
        assert torch.equal(found.gradient[0], found.gradient[1])
        assert found.loss[0] == found.loss[1]


def test_without_spread_all_are_the_network_at_its_means() -> None:
    losses = []
    for name in ("weight_sampling", *NAMES):
        torch.manual_seed(0)
        guide = functools.partial(guides.AutoNormal, init_scale=1e-9)
        engine = SVI(guide, num_steps=1, loc_warmup=0, compile=False, **option(name))
        losses.append(float(engine.run(mlp(), data(), progress=False).losses[0]))
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-7)


# Runs


@pytest.mark.parametrize("name", NAMES)
def test_captured_and_uncaptured_runs_agree_step_by_step(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    options: dict[str, Any] = {"num_steps": 12, "batch_size": 12}  # the last batch has 4 rows
    particles = {} if name == "analytic" else {"num_particles": 2}
    fits = []
    for enabled in (True, False):
        torch.manual_seed(0)
        with monkeypatch.context() as patch:
            if not enabled:
                patch.setattr(training, "Captured", functools.partial(Captured, enabled=False))
            fits.append(fit(name, mlp(None), **options, **particles))
    captured, plain = fits
    assert not [record for record in caplog.records if record.name == "pyro_bnn"]
    np.testing.assert_allclose(captured.losses, plain.losses, rtol=1e-10)
    torch.testing.assert_close(
        captured.unconstrained(5), plain.unconstrained(5), rtol=1e-9, atol=1e-9
    )


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("name", ["local_reparameterization", "flipout"])
def test_a_trained_guide_is_the_best_factorised_gaussian(name: Any) -> None:
    oracle = linear_gaussian()
    prior, likelihood = priors.Normal(scale=oracle.prior_scale), likelihoods.Normal(oracle.noise)
    model = models.MLP(3, hidden=(), prior=prior, likelihood=likelihood).double()
    engine = SVI(
        guides.AutoNormal, estimator=name, num_steps=600, learning_rate=0.05, compile=False
    )
    posterior = engine.run(model, (oracle.x, oracle.y), progress=False)
    assert isinstance(posterior, GuidePosterior)
    loc, scale = posterior.guide.loc.detach(), posterior.guide.scale.detach()
    elbo = oracle.elbo(loc, scale.square().diag())
    best = oracle.log_evidence - oracle.mean_field_gap
    assert best - 0.1 < elbo < best + 1e-9


def test_without_noise_every_small_step_goes_down() -> None:
    options = {"optimizer": torch.optim.SGD, "learning_rate": 1e-5, "schedule": "constant"}
    losses = fit("analytic", mlp(None), num_steps=50, loc_warmup=0, **options).losses
    assert (np.diff(losses) < 0).all()


def test_the_estimator_is_among_the_options_of_a_posterior() -> None:
    assert fit("flipout", num_steps=1).options["estimator"] == "flipout"
    assert fit("weight_sampling", num_steps=1).options["estimator"] == "weight_sampling"


def test_a_run_does_not_go_on_with_another_estimator(tmp_path: Path) -> None:
    def engine(name: Any) -> SVI:
        return SVI(guides.AutoNormal, estimator=name, num_steps=2, compile=False)

    engine("flipout").run(mlp(), data(), progress=False, checkpoint=tmp_path)
    other = engine("local_reparameterization")
    with pytest.raises(OptionError, match="estimator"):
        other.run(mlp(), data(), progress=False, checkpoint=tmp_path, resume=True)


@pytest.mark.slow("about a second")
def test_flipout_fits_a_convolutional_network() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 3, 2), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 1)
    )
    model = models.bayesian(net, likelihood=likelihoods.Normal(0.3))
    x = torch.randn(NUM_ROWS, 1, 3, 3)
    engine = SVI(guides.AutoNormal, estimator="flipout", num_steps=300, compile=False)
    posterior = engine.run(model, (x, x[:, 0, 0, 0]), progress=False)
    assert posterior.losses[-50:].mean() < 0.5 * posterior.losses[:50].mean()


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"per_example_draws": True, "estimator": "flipout"},
            "leave one of the two at its default",
        ),
        ({"num_particles": 2, "estimator": "analytic"}, "num_particles=2 would have no effect"),
    ],
)
def test_options_without_effect_beside_an_estimator_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        SVI(guides.AutoNormal, **options)


def test_an_unknown_estimator_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'flipout'"):
        SVI(guides.AutoNormal, estimator="flip-out")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_guides_of_other_families_are_refused(name: Any) -> None:
    for guide in (guides.AutoDelta, guides.AutoMultivariateNormal):
        needed = "independent Gaussian weights, as guides.AutoNormal has them"
        if name != "analytic":
            needed = (
                "weights that are independent Gaussians, given some shared noise, as those of "
                "guides.AutoNormal and AutoLowRankMultivariateNormal are"
            )
        message = f'estimator="{name}" needs {needed}, not {guide.__name__}: take that guide'
        with pytest.raises(OptionError, match=message):
            SVI(guide, estimator=name, num_steps=1).run(mlp(), data(), progress=False)
    with pytest.raises(OptionError, match="is not built for guides of stock Pyro: take"):
        SVI(autoguide.AutoNormal, estimator=name, num_steps=1).run(mlp(), data(), progress=False)
