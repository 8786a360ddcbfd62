"""What every likelihood has: one density by plain Pyro, uncaptured and captured; uncertainty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import likelihoods, models, registry
from pyro_bnn.capture import Captured, value_and_grad
from pyro_bnn.likelihoods import Likelihood
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Batch, Program
from tests.plain_pyro import conditioned, default_dtype, log_joint

NUM_ROWS = 12
REALS = torch.linspace(-2.0, 3.0, 2 * NUM_ROWS).reshape(2, NUM_ROWS).T.contiguous()
COUNTS = (torch.arange(2 * NUM_ROWS) % 7).reshape(NUM_ROWS, 2)


def learned_student_t() -> likelihoods.StudentT:
    return likelihoods.StudentT(df=dist.Gamma(2.0, 0.1))


CASES: dict[str, tuple[Callable[[], Likelihood], Tensor]] = {
    "bernoulli": (likelihoods.Bernoulli, COUNTS[:, 0] % 2),
    "bernoulli, two targets": (likelihoods.Bernoulli, COUNTS % 2),
    "categorical": (lambda: likelihoods.Categorical(3), COUNTS[:, 0] % 3),
    "heteroscedastic-normal": (likelihoods.HeteroscedasticNormal, REALS),
    "normal": (likelihoods.Normal, REALS[:, 0]),
    "normal, two scales": (lambda: likelihoods.Normal([0.5, 2.0]), REALS),
    "normal, two learned scales": (likelihoods.Normal, REALS),
    "poisson": (likelihoods.Poisson, COUNTS[:, 0]),
    "poisson, two targets": (likelihoods.Poisson, COUNTS),
    "student-t": (lambda: likelihoods.StudentT(df=3.0, scale=0.5), REALS[:, 0]),
    "student-t, all learned": (learned_student_t, REALS[:, 0]),
    "student-t, two of each": (learned_student_t, REALS),
}
CLASSES = ("bernoulli", "categorical")


def made(name: str) -> tuple[models.MLP, Program, Tensor, Tensor]:
    """A network of a likelihood in the default dtype, and rows."""
    build, y = CASES[name]
    x = torch.arange(3.0 * NUM_ROWS).sin().reshape(NUM_ROWS, 3)
    y = y.to(x) if y.is_floating_point() else y
    num_outputs = 1 if y.ndim == 1 else y.shape[1]
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = models.MLP(3, num_outputs, hidden=(4,), activation="tanh", likelihood=build())
        return model, Program(model, x, y), x, y


def test_no_likelihood_escapes_the_laws() -> None:
    assert {name.partition(",")[0] for name in CASES} == set(registry.entries("likelihood"))


@pytest.mark.parametrize("name", CASES)
def test_density_and_gradient_are_those_of_plain_pyro_captured_or_not(name: str) -> None:
    with default_dtype(torch.float64):
        model, program, x, y = made(name)
        batch = program.batch(x, y)

        def fn(v: Any, rest: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
            return program.log_joint(v[0], Batch(*rest)), ()

        direct = value_and_grad(fn, 1)
        captured = Captured(direct, name)
        z = program.initial.clone().requires_grad_()
        expected = log_joint(model, z, x, batch.y)
        (gradient,) = torch.autograd.grad(expected, [z])
        for outputs in (direct(z, *batch), captured(z, *batch)):
            for actual, wanted in zip(outputs, (expected, gradient), strict=False):
                assert_close(actual.detach(), wanted.detach(), rtol=1e-10, atol=1e-10)
        assert captured.is_captured


@pytest.mark.parametrize("name", CASES)
def test_predictions_are_mixtures_of_what_plain_pyro_gives_each_draw(name: str) -> None:
    with default_dtype(torch.float64):
        model, program, x, y = made(name)
        z = program.prior_draws(5, x[:1], seed=2)
        prediction = DrawsPosterior(program, z[None], Provenance("prior", "none")).predict(x)
        nodes = [conditioned(model, row, x, program.batch(x, y).y)[0].nodes["y"] for row in z]
    num_targets = 1 if y.ndim == 1 else y.shape[1]
    assert prediction.draws.shape == (5, NUM_ROWS, num_targets)
    log_density = torch.stack([node["log_prob"] for node in nodes])  # [S, N]
    assert_close(prediction.log_prob(y), log_density.exp().mean(0).log())
    if name in CLASSES:
        return
    means = torch.stack([node["fn"].mean for node in nodes])  # [S, N, O]
    variance = torch.stack([node["fn"].variance for node in nodes]).mean(0)
    assert_close(prediction.mean, means.mean(0))
    assert_close(prediction.sd, (variance + means.var(0, correction=0)).sqrt())


@pytest.mark.parametrize("name", CLASSES)
def test_entropy_is_expected_entropy_plus_mutual_information(name: str) -> None:
    _, program, x, _ = made(name)  # float32, as users have it
    z = program.prior_draws(50, x[:1], seed=2)
    prediction = DrawsPosterior(program, z[None], Provenance("prior", "none")).predict(x)
    assert prediction.class_probs is not None
    p = prediction.class_probs.double()  # [S, N, C]
    aleatoric = -(p * p.log()).sum(-1).mean(0)
    epistemic = (p * (p.log() - p.mean(0).log())).sum(-1).mean(0)  # mean KL to the mixture
    assert float(epistemic.min()) > 1e-4
    assert_close(prediction.mutual_information.double(), epistemic, rtol=0, atol=1e-6)
    assert_close(prediction.entropy.double(), aleatoric + epistemic, rtol=0, atol=1e-6)
