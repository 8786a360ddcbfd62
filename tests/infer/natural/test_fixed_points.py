"""Where VON and VOGN stand still, biases included, and how they get there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import VOGN, VON, likelihoods, models, priors
from pyro_bnn.infer.natural.rows import RowTermsOf
from pyro_bnn.program import Program
from tests.guides.exact import moments
from tests.infer.natural.hand import ORACLE, advance, linear, make_run
from tests.oracle import LinearGaussian, design, linear_gaussian

DATA = (ORACLE.x, ORACLE.y)
FAR = torch.tensor([30.0, -40.0, 50.0, -60.0], dtype=torch.float64)
EXACT = linear().exact_posterior(DATA)
CONSTANT: dict[str, Any] = {"schedule": "constant", "expectation": "mean"}


def one(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
@pytest.mark.parametrize(
    "options",
    [{"expectation": "mean"}, {"antithetic": True, "num_particles": 2}],
    ids=["mean", "pairs"],
)
def test_von_is_exact_after_one_step(curvature: Any, options: dict[str, Any]) -> None:
    von = VON(
        num_steps=1,
        learning_rate=1.0,
        precision_learning_rate=1.0,
        covariance="full",
        curvature=curvature,
        init_scale=0.01,
        **options,
    )
    start = {"weight": FAR[:3].reshape(1, 3), "bias": FAR[3:]}
    posterior: Any = von.run(linear(), DATA, init=start, progress=False)
    mean, covariance = (value.detach() for value in moments(posterior.guide))
    assert_close(mean, EXACT.mean, rtol=1e-9, atol=1e-9)
    assert_close(covariance, EXACT.covariance, rtol=1e-9, atol=1e-12)
    elbo, error = posterior.elbo(DATA)
    assert elbo == pytest.approx(EXACT.log_evidence, rel=1e-9)
    assert error < 1e-8


def test_von_with_one_draw_is_off_by_what_the_draw_is_from_the_mean() -> None:
    """By Sigma N H (mu - theta), which falls with the number of draws as 1 / S in square."""
    hessian = EXACT.precision - linear_prior().diag()
    for num_particles in (1, 3):
        von = VON(
            num_steps=1,
            learning_rate=1.0,
            precision_learning_rate=1.0,
            covariance="full",
            num_particles=num_particles,
        )
        run = make_run(von, linear(), DATA, FAR)
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn(num_particles, 4, generator=generator, dtype=torch.float64)
        theta = run.draws(noise).mean(0)
        advance(run, 1)
        expected = EXACT.covariance @ hessian @ (FAR - theta)
        assert_close(run.mean - EXACT.mean, expected, rtol=1e-7, atol=1e-9)


def linear_prior() -> Tensor:
    """Precisions of the linear model's prior."""
    program = Program(linear(), *DATA)
    (block, _), *others = program.latents.closed_forms().expected
    assert not others
    return block.scale.square().reciprocal()


def test_the_error_falls_with_the_number_of_draws() -> None:
    """Squared errors of the mean after one step: a ratio of independent chi-squares, 1 / S each."""
    num_rounds, sizes, squares = 100, (1, 16), []
    for num_particles in sizes:
        von = VON(
            num_steps=num_rounds,
            learning_rate=1.0,
            precision_learning_rate=1.0,
            covariance="full",
            num_particles=num_particles,
            schedule="constant",
        )
        run = make_run(von, linear(), DATA, EXACT.mean)
        advance(run, 1)  # at b = 1 q has the exact covariance from here on
        whiten, errors = torch.linalg.cholesky(EXACT.precision), []
        for _ in range(num_rounds - 1):
            run.mean = EXACT.mean.clone()
            advance(run, 1)
            errors.append(((run.mean - EXACT.mean) @ whiten).square().sum())
        squares.append(torch.stack(errors))
    ratio = squares[0].mean() / squares[1].mean() / (sizes[1] / sizes[0])
    spread = sum((s.std() / s.mean()) ** 2 / len(s) for s in squares) ** 0.5
    assert abs(float((ratio.log()) / spread)) < 4


def test_diagonal_von_at_full_rate_is_a_jacobi_iteration_which_may_diverge() -> None:
    oracle = linear_gaussian(40, 5, correlation=0.95)
    precision = oracle.precision
    jacobi = torch.eye(6, dtype=torch.float64) - precision / precision.diagonal().unsqueeze(-1)
    radius = float(torch.linalg.eigvals(jacobi).abs().max())
    assert radius > 2
    run = make_run(
        VON(num_steps=20, learning_rate=1.0, precision_learning_rate=1.0, **CONSTANT),
        oracle.model,
        (oracle.x, oracle.y),
        oracle.mean + 1e-3,
    )
    error = torch.full((6,), 1e-3, dtype=torch.float64)
    for _ in range(20):
        advance(run, 1)
        error = jacobi @ error
        assert_close(run.mean - oracle.mean, error, rtol=1e-6, atol=1e-9)
    assert float(error.norm()) > 1e3 * 1e-3
    # below 2 / (1 + radius), the inverse of half the largest eigenvalue, it converges
    slow = VON(num_steps=400, learning_rate=1.5 / (1 + radius), **CONSTANT)
    run = make_run(slow, oracle.model, (oracle.x, oracle.y), oracle.mean + 1)
    assert float((advance(run, 400).mean - oracle.mean).abs().max()) < 1


@pytest.mark.parametrize("rates", [(0.3, 0.3), (0.3, 0.05), (0.1, 0.7)])
def test_rates_do_not_move_the_fixed_point_of_von(rates: tuple[float, float]) -> None:
    """The optimum over products of Gaussians: exact means, precisions diag(P)."""
    von = VON(
        num_steps=600,
        learning_rate=rates[0],
        precision_learning_rate=rates[1],
        num_particles=2,
        antithetic=True,
        schedule="constant",
    )
    run: Any = advance(make_run(von, linear(), DATA, FAR), 600)
    assert_close(run.mean, EXACT.mean, rtol=1e-6, atol=1e-6)
    assert_close(run.q.values, EXACT.precision.diagonal(), rtol=1e-6, atol=1e-6)


class Logistic(PyroModule):
    """One weight without a bias, y ~ Bernoulli(logit = x w)."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(one(0.0), one(2.0)).expand([1, 1]).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Bernoulli(logits=f).to_event(1), obs=y)
        return sampled


def test_von_stands_still_where_gaussian_vi_is_stationary() -> None:
    """1/v = delta + N E_q[H] and N E_q[g] + delta m = 0, solved by quadrature, for one weight."""
    x = torch.linspace(-2, 3, 12, dtype=torch.float64).unsqueeze(-1)
    y = (torch.arange(12) % 3 != 1).double()
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    weights = weights / weights.sum()
    mean, precision, rows = 0.0, 1.0, x.numpy()[:, 0]
    for _ in range(500):
        p = 1 / (1 + np.exp(-np.outer(mean + nodes / np.sqrt(precision), rows)))
        hessian = weights @ (p * (1 - p) * rows**2).sum(1)
        gradient = weights @ ((p - y.numpy()) * rows).sum(1)
        precision = 0.5 * precision + 0.5 * (0.25 + hessian)
        mean = mean - 0.5 * (gradient + 0.25 * mean) / precision
    found = []
    for seed in range(6):  # from there: a run that stands still elsewhere leaves it by 1 - 0.9^n
        von = VON(
            num_steps=100,
            learning_rate=0.1,
            precision_learning_rate=0.1,
            num_particles=128,
            antithetic=True,
            curvature="hessian",
            init_scale=precision**-0.5,
            schedule="constant",
        )
        run: Any = make_run(von, Logistic(), (x, y), one(mean).reshape(1), seed)
        advance(run, 40)
        seen = []
        for _ in range(60):
            advance(run, 1)
            seen.append([float(run.mean), float(run.q.values)])
        found.append(np.mean(seen, 0))
    errors = np.std(found, 0, ddof=1) / np.sqrt(len(found))
    assert (errors < 0.01 * np.abs([mean, precision])).all()
    assert (np.abs((np.mean(found, 0) - [mean, precision]) / errors) < 5).all()


def toy() -> tuple[LinearGaussian, Tensor]:
    """Sixty rows of three inputs and a bias, and the design matrix."""
    oracle = linear_gaussian(60, 3, noise=0.5, correlation=0.3, seed=3)
    return oracle, design(oracle.x)


@pytest.mark.parametrize("noise_of_fit", [0.5, 0.75])
@pytest.mark.parametrize(
    "options", [{}, {"momentum": 0.5, "damping": 0.3}, {"learning_rate": 0.25}]
)
def test_the_fixed_point_of_vogn_has_its_bias(noise_of_fit: float, options: dict[str, Any]) -> None:
    """P_j = delta + sum x_ij^2 r_i^2 / sigma^4 at the mean, whatever rates, momentum, damping.

    With the right noise the ratio to diag(P) differs from 1 by chance alone; with a wrong one the
    precision follows the residuals instead.
    """
    oracle, a = toy()
    model = models.LinearRegression(
        3, prior=priors.Normal(oracle.prior_scale), likelihood=likelihoods.Normal(noise_of_fit)
    ).double()
    exact = model.exact_posterior((oracle.x, oracle.y))
    given = {"learning_rate": 0.1, "momentum": 0.0, **options}
    vogn = VOGN(num_steps=600, precision_learning_rate=0.2, **given, **CONSTANT)
    start = torch.zeros(4, dtype=torch.float64)
    run: Any = advance(make_run(vogn, model, (oracle.x, oracle.y), start), 600)
    assert_close(run.mean, exact.mean, rtol=1e-6, atol=1e-6)  # the mean has none
    squared = (oracle.y - a @ exact.mean).square().unsqueeze(-1)
    noise, delta = float(np.float32(noise_of_fit)), float(np.float32(oracle.prior_scale)) ** -2
    expected = delta + (a.square() * squared).sum(0) / noise**4
    assert_close(run.q.values, expected, rtol=1e-6, atol=1e-6)
    ratio = (run.q.values - delta) / (exact.precision.diagonal() - delta)
    by_residuals = (0.5 / noise_of_fit) ** 2  # what the ratio is in expectation
    assert ((ratio / by_residuals - 1).abs() < 0.6).all()
    assert ((ratio - 1).abs() > 0.02).any()


def test_vogn_at_draws_counts_their_spread_in_the_residuals() -> None:
    """P_j = delta + sum_i x_ij^2 (r_i^2 + sum_k x_ik^2 / P_k) / sigma^4."""
    oracle, a = toy()
    squared = (oracle.y - a @ oracle.mean).square()
    delta, precision = oracle.prior_scale**-2, oracle.precision.diagonal()
    for _ in range(500):
        spread = squared + a.square() @ (1 / precision)
        precision = delta + (a.square() * spread.unsqueeze(-1)).sum(0) / oracle.noise**4
    found = []
    for seed in range(6):
        vogn = VOGN(
            num_steps=100,
            learning_rate=0.01,
            precision_learning_rate=0.1,
            num_particles=64,
            antithetic=True,
            momentum=0.0,
            schedule="constant",
        )
        run: Any = make_run(vogn, oracle.model, (oracle.x, oracle.y), oracle.mean, seed)
        run.average = precision - delta  # a run that stands still elsewhere leaves it soon
        run.q = run.precision()
        advance(run, 40)
        seen = [advance(run, 1).q.values.clone() for _ in range(60)]  # type: ignore[attr-defined]
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
