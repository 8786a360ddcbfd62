"""SLANG against NumPy, and where it stands still."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import SLANG
from tests.collection import rest_in_soak
from tests.infer.natural.hand import (
    BETA,
    COMMON,
    DAMPING,
    DATA,
    FIRST,
    LOC,
    NOISE,
    ORACLE,
    PRECISION,
    SCALE,
    START,
    STEPS,
    WEIGHTS,
    A,
    Array,
    B,
    N,
    State,
    advance,
    by_hand,
    linear,
    make_run,
)
from tests.oracle import design

EXACT = linear().exact_posterior(DATA)


@pytest.mark.parametrize("rank", [2, 4])
@pytest.mark.parametrize("expectation", ["mean", "sample"])
@WEIGHTS
def test_slang(rank: int, expectation: Any, weights: tuple[float, float]) -> None:
    """The whole precision; draws by its inverse, with each column of U of the sign of the run's."""
    factor, temperature = weights
    w = factor / temperature

    def draw(state: State, noise: Array) -> Array:
        if expectation == "mean":
            return state["mean"][None]
        U, d = state["factor"], state["diagonal"]
        deviations = noise[:, :4] * np.sqrt(d) + noise[:, 4:] @ U.T  # of covariance U U^T + d
        return state["mean"] + np.linalg.solve(U @ U.T + np.diag(d), deviations.T).T

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        rate, decay = B * t**-0.55, t**-0.55
        flat = g.reshape(-1, 4)
        U = state["factor"]
        whole = (1 - rate) * U @ U.T + rate * w * N * flat.T @ flat / len(flat)
        values, vectors = np.linalg.eigh(whole)
        U = vectors[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0))
        diagonal = (1 - rate) * state["diagonal"] + rate * PRECISION
        diagonal = diagonal + np.diag(whole - U @ U.T)
        velocity = BETA * state["velocity"] + (1 - BETA) * g.mean((0, 1))
        gradient = w * N * velocity / (1 - BETA**t) + PRECISION * (state["mean"] - LOC)
        precision = U @ U.T + np.diag(diagonal)
        damped = precision + w * N * DAMPING * np.eye(4)
        mean = state["mean"] - A * decay * np.linalg.solve(damped, gradient)
        return {"mean": mean, "diagonal": diagonal, "factor": U, "velocity": velocity}

    engine = SLANG(
        rank=rank,
        momentum=BETA,
        damping=DAMPING,
        init_scale=SCALE,
        expectation=expectation,
        data_factor=factor,
        temperature=temperature,
        **{**COMMON, "schedule": "power", "num_particles": 1 if expectation == "mean" else 3},
    )
    start = {
        "mean": START,
        "diagonal": FIRST,
        "factor": np.zeros((4, rank)),
        "velocity": np.zeros(4),
    }
    run: Any = make_run(engine, linear(), DATA, torch.from_numpy(START))
    for expected in by_hand(engine, start, draw, update, num_steps=STEPS, noise_dim=4 + rank):
        advance(run, 1)
        found = run.q.factor @ run.q.factor.mT + run.q.diagonal.diag()
        wanted = expected["factor"] @ expected["factor"].T + np.diag(expected["diagonal"])
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(run.mean.numpy(), expected["mean"], rtol=1e-9)
        expected["factor"] *= np.sign((expected["factor"] * run.factor.numpy()).sum(0))


@pytest.mark.parametrize("antithetic", [False, True])
def test_slang_at_draws_keeps_the_diagonal_of_the_whole_average(antithetic: bool) -> None:
    """diag(U'U'^T) + d' = (1 - b)(diag(U U^T) + d) + b (diag(G G^T) + delta)."""
    engine = SLANG(rank=2, antithetic=antithetic, **{**COMMON, "num_particles": 4})
    run: Any = make_run(engine, linear(), DATA, torch.from_numpy(START))
    for _ in range(4):
        before = run.factor.square().sum(1) + run.diagonal
        seen: list[Any] = []
        update = run.update
        run.update = lambda terms, seen=seen, update=update: (seen.append(terms), update(terms))
        advance(run, 1)
        run.update = update
        target = seen[0].curvature.square().sum(0) + run.prior.precision
        after = run.factor.square().sum(1) + run.diagonal
        assert_close(after, (1 - B) * before + B * target, rtol=1e-10, atol=1e-10)
        assert run.factor.shape == (4, 2)


def empirical_fisher(weight: float, mean: Tensor) -> Tensor:
    """Products of the gradients of rows at a mean, of a likelihood that counts so often."""
    a = design(ORACLE.x)
    gradients = -a * (ORACLE.y - a @ mean).unsqueeze(-1) / NOISE**2
    return weight * gradients.T @ gradients


def tempered_mean(weight: float) -> Tensor:
    """The mode, of a likelihood that counts so often."""
    a, delta = design(ORACLE.x), torch.from_numpy(PRECISION)
    curvature = weight * a.T @ a / NOISE**2 + delta.diag()
    target = weight * a.T @ ORACLE.y / NOISE**2 + delta * torch.from_numpy(LOC)
    mode: Tensor = torch.linalg.solve(curvature, target)
    return mode


RATES = ((0.3, 0.3), (0.3, 0.1), (0.1, 0.7))
PLAIN, COLD = (1.0, 1.0), (3.0, 0.5)


@pytest.mark.parametrize(
    ("weights", "rank", "rates"),
    rest_in_soak(
        [(weights, rank, rates) for weights in (PLAIN, COLD) for rank in (2, 4) for rates in RATES],
        [(PLAIN, 4, RATES[1]), (COLD, 2, RATES[0]), (COLD, 4, RATES[2]), (PLAIN, 2, RATES[2])],
    ),
    ids=str,
)
def test_where_it_stands_still(
    weights: tuple[float, float], rank: int, rates: tuple[float, float]
) -> None:
    """The mode, the R largest of the rows' products and the diagonal of the rest, at any rates."""
    weight = weights[0] / weights[1]
    mode = tempered_mean(weight)
    if weight == 1:
        assert_close(mode, EXACT.mean)
    engine = SLANG(
        num_steps=600,
        learning_rate=rates[0],
        precision_learning_rate=rates[1],
        schedule="constant",
        expectation="mean",
        rank=rank,
        data_factor=weights[0],
        temperature=weights[1],
    )
    run: Any = make_run(engine, linear(), DATA, torch.from_numpy(START))
    advance(run, 600)
    assert_close(run.mean, mode, rtol=1e-6, atol=1e-6)
    whole = empirical_fisher(weight, mode)
    values, vectors = torch.linalg.eigh(whole)
    kept = (vectors[:, -rank:] * values[-rank:]) @ vectors[:, -rank:].T
    rest = torch.from_numpy(PRECISION) + (whole - kept).diagonal()
    assert_close(run.q.factor @ run.q.factor.T, kept, rtol=1e-6, atol=1e-6)
    assert_close(run.q.diagonal, rest, rtol=1e-6, atol=1e-6)


def test_a_direction_gives_way_to_a_larger_one() -> None:
    """Of rank 1 and held at the second largest, of which b times the largest is less.

    A tilt towards the largest grows by (1 - b) / (1 - b lambda_1 / lambda_2) > 1 a step.
    """
    whole = empirical_fisher(1.0, EXACT.mean)
    values, vectors = torch.linalg.eigh(whole)
    rate = 0.9 * float(values[-2] / values[-1])
    growth = (1 - rate) / (1 - 0.9)
    assert growth > 1
    engine = SLANG(
        num_steps=400,
        precision_learning_rate=rate,
        schedule="constant",
        expectation="mean",
        rank=1,
    )
    run: Any = make_run(engine, linear(), DATA, EXACT.mean)
    tilt = 1e-6
    run.factor = (values[-2].sqrt() * (vectors[:, -2] + tilt * vectors[:, -1])).unsqueeze(-1)
    run.q = run.precision()
    for _ in range(4):
        advance(run, 1)
        tilt *= growth
        found = (run.factor[:, 0] @ vectors[:, -1]) / (run.factor[:, 0] @ vectors[:, -2])
        assert float(found) == pytest.approx(tilt, rel=1e-3)
    advance(run, 396)
    largest = values[-1] * torch.outer(vectors[:, -1], vectors[:, -1])
    assert_close(run.factor @ run.factor.T, largest, rtol=1e-6, atol=1e-6)
