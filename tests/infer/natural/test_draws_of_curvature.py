"""Where Vadam and IVON stand still on quadratics, whose curvature they see through draws alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.nn import PyroModule
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import IVON, Vadam
from pyro_bnn.infer.curvature.rows import RowTerms
from tests.infer.natural.hand import DATA, START, advance, linear, make_run

FAR = torch.tensor([30.0, -40.0, 50.0, -60.0], dtype=torch.float64)
EXACT = linear().exact_posterior(DATA)


def one(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


class Columns(PyroModule):
    """Independent targets y_j ~ N(w_j, 1), each with a weight of its own: H = 1 for each."""

    def __init__(self, size: int, prior_scale: float) -> None:
        super().__init__()
        self.size, self.prior_scale = size, prior_scale

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        prior = dist.Normal(one(0.0), one(self.prior_scale)).expand([self.size]).to_event(1)
        w = pyro.sample("w", prior)
        f = pyro.deterministic("f", w.expand(len(x), -1))
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, one(1.0)).to_event(1), obs=y)
        return sampled


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize(
    ("rates", "weights"),
    [((1e-6, 0.01), (1.0, 1.0)), ((1e-4, 0.02), (1.0, 1.0)), ((1e-6, 0.01), (3.0, 0.5))],
    ids=["slow", "faster", "thrice and cold"],
)
def test_the_fixed_point_of_vadam_underestimates_the_curvature(
    rates: tuple[float, float], weights: tuple[float, float]
) -> None:
    """P = delta + w N H^2 / P with all rows of a quadratic, not delta + w N H, at any rates.

    The draws are of variance 1 / P and a row's gradient H z, so that s = H^2 / P.
    """
    weight = weights[0] / weights[1]
    num_rows, size = 50, 400
    y = torch.ones(num_rows, size, dtype=torch.float64)
    y[::2] = -1  # the mean of every column is 0, where the means stay
    delta = 4.0
    expected = 0.5 * (delta + (delta**2 + 4 * weight * num_rows) ** 0.5)
    vadam = Vadam(
        num_steps=400,
        learning_rate=rates[0],
        precision_learning_rate=rates[1],
        num_particles=16,
        schedule="constant",
        momentum=0.0,
        data_factor=weights[0],
        temperature=weights[1],
    )
    start = torch.zeros(size, dtype=torch.float64)
    data = (torch.zeros(num_rows, 1, dtype=torch.float64), y)
    run: Any = make_run(vadam, Columns(size, delta**-0.5), data, start)
    run.square += (expected - delta) / (
        weight * num_rows
    )  # a run that stands still elsewhere leaves it
    run.q = run.precision()
    advance(run, 400)
    values = run.q.values
    error = float(values.std()) / size**0.5
    assert error < 0.002 * expected
    assert abs(float(values.mean()) - expected) < 5 * error
    assert expected < 0.25 * (delta + weight * num_rows)


@pytest.mark.parametrize(
    ("rate", "weights"),
    [(0.1, (1.0, 1.0)), (0.02, (1.0, 1.0)), (0.1, (3.0, 0.5))],
    ids=["fast", "slow", "thrice and cold"],
)
def test_ivon_ends_above_the_hessian_by_a_share_of_its_rate(
    rate: float, weights: tuple[float, float]
) -> None:
    """1.104 at b = 0.1 for H = 1 and one draw, against the recursion of h simulated by itself.

    How often rows count changes the draws and not the curvature of a row.
    """
    size, num_rows, num_steps = 4_000, 10, round(15 / rate)
    ivon = IVON(
        num_steps=num_steps,
        learning_rate=1e-9,
        precision_learning_rate=rate,
        schedule="constant",
        data_factor=weights[0],
        temperature=weights[1],
    )
    x, y = torch.zeros(num_rows, 1).double(), torch.zeros(num_rows, size).double()
    start = torch.zeros(size, dtype=torch.float64)
    run: Any = advance(make_run(ivon, Columns(size, 1e4), (x, y), start), num_steps)
    rng, h = np.random.default_rng(0), np.ones(20_000)
    for _ in range(2 * num_steps):
        seen = rng.standard_normal(20_000) ** 2  # g = H d and d = eps / sqrt(w N h)
        h = (1 - rate) * h + rate * seen + 0.5 * rate**2 * (h - seen) ** 2 / h
    error = np.hypot(float(run.curvature.std()) / size**0.5, h.std() / 20_000**0.5)
    assert abs(float(run.curvature.mean()) - h.mean()) < 4 * error
    if rate == 0.1:
        assert abs(h.mean() - 1.104) < 0.01
    assert 0 < h.mean() - 1 < 1.5 * rate  # of order b, so that it goes away with the rate
    assert float(run.q.values.mean()) == pytest.approx(
        weights[0] / weights[1] * num_rows * float(run.curvature.mean()), rel=1e-6
    )


def test_ivon_stays_positive_whatever_it_sees() -> None:
    """h + d after a step is at least half of that before, and ((1 + (1 + u)^2) / 2) of it."""
    ivon = IVON(num_steps=10, precision_learning_rate=0.4, schedule="constant")
    run: Any = make_run(ivon, linear(), DATA, torch.from_numpy(START))
    d = run.prior.precision / run.num_data
    generator = torch.Generator().manual_seed(0)
    for size in (1.0, 1e2, 1e4):
        for _ in range(3):
            before = run.curvature + d
            seen = size * torch.randn(4, generator=generator, dtype=torch.float64)
            z = run.mean[None] + 0.1
            gradient = seen * 10 / before  # so that the Hessian seen is this one
            run.update(RowTerms(z, torch.zeros(1).double(), gradient[None], None))
            u = 0.4 * (seen - before + d) / before
            after = run.curvature + d
            assert_close(after, before / 2 * (1 + (1 + u) ** 2), rtol=1e-9, atol=0)
            assert bool((after >= before / 2).all())
            run.mean = torch.from_numpy(START)


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("rates", [(0.1, 0.01), (0.3, 0.005)], ids=str)
def test_ivon_reaches_the_mode_of_a_quadratic_at_any_rates(rates: tuple[float, float]) -> None:
    ivon = IVON(
        num_steps=1_500, learning_rate=rates[0], precision_learning_rate=rates[1], num_particles=8
    )
    run: Any = make_run(dataclasses.replace(ivon, antithetic=True), linear(), DATA, FAR / 30)
    advance(run, 1_500)
    assert_close(run.mean, EXACT.mean, rtol=0, atol=1e-3)
    ratio = run.q.values / EXACT.precision.diagonal()
    assert bool(((ratio - 1).abs() < 0.15).all())  # noise of the average over b^-1 S draws
