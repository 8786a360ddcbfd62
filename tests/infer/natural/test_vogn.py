"""Where VOGN stands still, its bias included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import VOGN, likelihoods, models, priors
from pyro_bnn.infer.curvature.rows import RowTermsOf
from pyro_bnn.program import Program
from tests.collection import rest_in_soak
from tests.infer.natural.hand import advance, make_run
from tests.oracle import LinearGaussian, design, linear_gaussian

CONSTANT: dict[str, Any] = {"schedule": "constant", "expectation": "mean"}


def toy() -> tuple[LinearGaussian, Tensor]:
    """Sixty rows of three inputs and a bias, and the design matrix."""
    oracle = linear_gaussian(60, 3, noise=0.5, correlation=0.3, seed=3)
    return oracle, design(oracle.x)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"num_steps": 600},
    "damped": {"momentum": 0.5, "damping": 0.3, "num_steps": 600},
    "fast means": {"learning_rate": 0.25},
    "fast precision": {"precision_learning_rate": 0.6},
    "one rate": {"learning_rate": 0.2, "precision_learning_rate": None},
    "slow precision": {"precision_learning_rate": 0.03, "num_steps": 1_200},
}
NOISES = (0.5, 0.75)


@pytest.mark.parametrize(
    ("noise_of_fit", "name"),
    rest_in_soak(
        [(noise, name) for name in OPTIONS for noise in NOISES],
        [(NOISES[i % 2], name) for i, name in enumerate(OPTIONS)],
    ),
)
def test_the_fixed_point_of_vogn_has_its_bias(noise_of_fit: float, name: str) -> None:
    """P_j = delta + sum x_ij^2 r_i^2 / sigma^4 at the mean, whatever rates, momentum, damping.

    With the right noise the ratio to diag(P) differs from 1 by chance alone; with a wrong one the
    precision follows the residuals instead.
    """
    oracle, a = toy()
    model = models.LinearRegression(
        3, prior=priors.Normal(oracle.prior_scale), likelihood=likelihoods.Normal(noise_of_fit)
    ).double()
    exact = model.exact_posterior((oracle.x, oracle.y))
    given = {"learning_rate": 0.1, "precision_learning_rate": 0.2, "momentum": 0.0}
    vogn = VOGN(**{"num_steps": 300, **given, **CONSTANT, **OPTIONS[name]})
    start = torch.zeros(4, dtype=torch.float64)
    run: Any = make_run(vogn, model, (oracle.x, oracle.y), start)
    advance(run, vogn.planned_steps)
    assert_close(run.mean, exact.mean, rtol=1e-6, atol=1e-6)  # the mean has none
    squared = (oracle.y - a @ exact.mean).square().unsqueeze(-1)
    noise, delta = float(np.float32(noise_of_fit)), float(np.float32(oracle.prior_scale)) ** -2
    expected = delta + (a.square() * squared).sum(0) / noise**4
    assert_close(run.q.values, expected, rtol=1e-6, atol=1e-6)
    ratio = (run.q.values - delta) / (exact.precision.diagonal() - delta)
    by_residuals = (0.5 / noise_of_fit) ** 2  # what the ratio is in expectation
    assert ((ratio / by_residuals - 1).abs() < 0.6).all()
    assert ((ratio - 1).abs() > 0.02).any()


@pytest.mark.slow("about a second")
def test_vogn_at_draws_counts_their_spread_in_the_residuals() -> None:
    """P_j = delta + sum_i x_ij^2 (r_i^2 + sum_k x_ik^2 / P_k) / sigma^4."""
    oracle, a = toy()
    squared = (oracle.y - a @ oracle.mean).square()
    delta, precision = oracle.prior_scale**-2, oracle.precision.diagonal()
    for _ in range(500):
        spread = squared + a.square() @ (1 / precision)
        precision = delta + (a.square() * spread.unsqueeze(-1)).sum(0) / oracle.noise**4
    vogn = VOGN(
        num_steps=600,
        learning_rate=0.01,
        precision_learning_rate=0.1,
        num_particles=64,
        antithetic=True,
        momentum=0.0,
        schedule="constant",
    )
    run: Any = make_run(vogn, oracle.model, (oracle.x, oracle.y), oracle.mean)
    run.average = precision - delta  # a run that stands still elsewhere leaves it soon
    found, start = [], run._snapshot()
    for _ in range(6):
        run._go_to(start)
        advance(run, 40)
        seen = [advance(run, 1).q.values.clone() for _ in range(60)]  # type: ignore[union-attr]
        found.append(torch.stack(seen).mean(0))
    values = torch.stack(found)
    error = values.std(0) / len(values) ** 0.5
    assert float((error / precision).max()) < 0.01
    assert float(((values.mean(0) - precision) / error).abs().max()) < 5


def test_vogn_of_classes_is_close_to_the_curvature() -> None:
    """Where classes are as the model says, the mean of g^2 and of H differ by chance alone."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4_000, 3, generator=generator, dtype=torch.float64)
    w = torch.tensor([1.0, -0.5, 0.3, 0.2], dtype=torch.float64)
    p = torch.sigmoid(design(x) @ w)
    y = (torch.rand(4_000, generator=generator, dtype=torch.float64) < p).double()
    model = models.LinearRegression(3, likelihood=likelihoods.Bernoulli()).double()
    program = Program(model, x, y)
    batch = program.batch(x, y)
    found = {
        name: RowTermsOf(program, name, batch, 1)(w.unsqueeze(0), batch).curvature
        for name in ("squared_gradients", "hessian")
    }
    difference = found["squared_gradients"] - found["hessian"]  # type: ignore[operator]
    of_rows = design(x).square() * ((p - y).square() - p * (1 - p)).unsqueeze(-1)
    assert_close(difference, of_rows.sum(0), rtol=1e-8, atol=1e-8)
    assert float((difference / (of_rows.std(0) * 4_000**0.5)).abs().max()) < 4
