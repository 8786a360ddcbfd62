"""Where VON stands still, and how it gets there."""

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

from pyro_bnn import VON
from pyro_bnn.program import Program
from tests.collection import rest_in_soak
from tests.guides.exact import moments
from tests.infer.natural.hand import DATA, LOC, ORACLE, PRECISION, advance, linear, make_run
from tests.oracle import design, linear_gaussian

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


@pytest.mark.slow("whole fits")
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


@pytest.mark.slow("whole fits")
def test_diagonal_von_below_the_rate_of_divergence_converges_as_it_should() -> None:
    """Below 2 / (1 + radius), the inverse of half the largest eigenvalue: the recursion by hand."""
    oracle = linear_gaussian(40, 5, correlation=0.95)
    precision = oracle.precision
    wanted = precision.diagonal()
    radius = float(torch.linalg.eigvals(precision / wanted.unsqueeze(-1)).abs().max()) - 1
    rate, num_steps = 1.5 / (1 + radius), 400
    slow = VON(num_steps=num_steps, learning_rate=rate, precision_learning_rate=rate, **CONSTANT)
    run: Any = make_run(slow, oracle.model, (oracle.x, oracle.y), oracle.mean + 1)
    error = torch.ones(6, dtype=torch.float64)
    values = torch.full_like(error, 0.01**-2)  # of the first sd
    for _ in range(num_steps):
        values = (1 - rate) * values + rate * wanted
        error = error - rate * (precision @ error) / values
    advance(run, num_steps)
    assert_close(run.mean - oracle.mean, error, rtol=1e-6, atol=1e-9)
    assert_close(run.q.values, wanted, rtol=1e-6, atol=0)
    assert float(error.abs().max()) < 0.05


RATES = {(0.3, 0.3): 150, (0.3, 0.05): 320, (0.1, 0.7): 420}  # and the steps that they take
PAIRS: dict[str, Any] = {"num_particles": 2, "antithetic": True, "schedule": "constant"}


@pytest.mark.slow("whole fits")
@pytest.mark.parametrize(
    ("covariance", "rates"),
    rest_in_soak(
        [(covariance, rates) for covariance in ("diagonal", "full") for rates in RATES],
        [("diagonal", (0.3, 0.3)), ("full", (0.3, 0.05)), ("diagonal", (0.1, 0.7))],
    ),
    ids=str,
)
def test_rates_do_not_move_the_fixed_point_of_von(
    covariance: Any, rates: tuple[float, float]
) -> None:
    """The optimum over Gaussians, or over products of them: exact means, precisions diag(P)."""
    num_steps = RATES[rates]
    von = VON(
        num_steps=num_steps,
        learning_rate=rates[0],
        precision_learning_rate=rates[1],
        covariance=covariance,
        init_scale=0.3,
        **PAIRS,
    )
    run: Any = advance(make_run(von, linear(), DATA, FAR), num_steps)
    assert_close(run.mean, EXACT.mean, rtol=1e-6, atol=1e-6)
    is_full = covariance == "full"
    found = run.q.matrix if is_full else run.q.values
    wanted = EXACT.precision if is_full else EXACT.precision.diagonal()
    assert_close(found, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "weights", [(2.0, 1.0), (1.0, 0.25), (3.0, 4.0)], ids=["twice", "cold", "thrice and warm"]
)
def test_von_is_exact_of_a_likelihood_that_counts_more_often(
    weights: tuple[float, float],
) -> None:
    """Its noise sd is sqrt(T / factor) times as large: the posterior of that model in one step."""
    factor, temperature = weights
    von = VON(
        num_steps=1,
        learning_rate=1.0,
        precision_learning_rate=1.0,
        covariance="full",
        data_factor=factor,
        temperature=temperature,
        **CONSTANT,
    )
    run: Any = advance(make_run(von, linear(), DATA, FAR), 1)
    noise = 0.5 * (temperature / factor) ** 0.5
    a, delta = design(ORACLE.x), torch.from_numpy(PRECISION)
    precision = a.T @ a / noise**2 + delta.diag()
    target = a.T @ ORACLE.y / noise**2 + delta * torch.from_numpy(LOC)
    assert_close(run.q.matrix, precision, rtol=1e-9, atol=1e-9)
    assert_close(run.mean, torch.linalg.solve(precision, target), rtol=1e-9, atol=1e-9)


class Logistic(PyroModule):
    """One weight without a bias, y ~ Bernoulli(logit = x w)."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(one(0.0), one(2.0)).expand([1, 1]).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Bernoulli(logits=f).to_event(1), obs=y)
        return sampled


@pytest.mark.slow("whole fits")
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
    von = VON(
        num_steps=600,
        learning_rate=0.1,
        precision_learning_rate=0.1,
        num_particles=128,
        antithetic=True,
        curvature="hessian",
        init_scale=precision**-0.5,
        schedule="constant",
    )
    run: Any = make_run(von, Logistic(), (x, y), one(mean).reshape(1))
    found, start = [], run._snapshot()
    for _ in range(6):  # from there: a run that stands still elsewhere leaves it by 1 - 0.9^n
        run._go_to(start)
        advance(run, 40)
        seen = []
        for _ in range(60):
            advance(run, 1)
            seen.append([float(run.mean), float(run.q.values)])
        found.append(np.mean(seen, 0))
    errors = np.std(found, 0, ddof=1) / np.sqrt(len(found))
    assert (errors < 0.01 * np.abs([mean, precision])).all()
    assert (np.abs((np.mean(found, 0) - [mean, precision]) / errors) < 5).all()
