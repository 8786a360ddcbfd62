"""Each update against one written from its equations in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pyro_bnn import IVON, SLANG, VOGN, VON, Vadam
from tests.infer.natural.hand import (
    LOC,
    NOISE,
    ORACLE,
    PRECISION,
    SCALE,
    START,
    Array,
    State,
    advance,
    by_hand,
    linear,
    make_run,
)

DATA = (ORACLE.x, ORACLE.y)  # 20 rows, in batches of 8, 8 and 4
N, STEPS = 20, 5
A, B, BETA, DAMPING = 0.2, 0.3, 0.8, 0.15
COMMON: dict[str, Any] = {
    "num_steps": STEPS,
    "learning_rate": A,
    "precision_learning_rate": B,
    "schedule": "constant",
    "batch_size": 8,
    "num_particles": 3,
}
FIRST = np.maximum(PRECISION, SCALE**-2.0)


def diagonal_draw(state: State, noise: Array) -> Array:
    return state["mean"] + noise / np.sqrt(state["precision"])


def compare(engine: Any, states: list[State], **names: str) -> None:
    """Every tensor of the state, or of q, after every step."""
    run = make_run(engine, linear(), DATA, torch.from_numpy(START))
    for expected in states:
        advance(run, 1)
        for name, value in expected.items():
            q: Any = run.q
            found = (
                q.values if name == "precision" and value.ndim == 1 else getattr(run, name, None)
            )
            if found is None:
                found = getattr(q, names.get(name, "matrix"))
            np.testing.assert_allclose(found.numpy(), value, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 0.5)])
def test_von_with_a_diagonal(curvature: Any, weights: tuple[float, float]) -> None:
    factor, temperature = weights
    w = factor / temperature

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        hessian = N * (a**2).mean(0) / NOISE**2
        precision = (1 - B) * state["precision"] + B * (w * hessian + PRECISION)
        gradient = w * N * g.mean((0, 1)) + PRECISION * (state["mean"] - LOC)
        return {"mean": state["mean"] - A * gradient / precision, "precision": precision}

    engine = VON(
        curvature=curvature,
        init_scale=SCALE,
        data_factor=factor,
        temperature=temperature,
        **COMMON,
    )
    start = {"mean": START, "precision": FIRST}
    compare(engine, by_hand(engine, start, diagonal_draw, update, num_steps=STEPS))


@pytest.mark.parametrize("curvature", ["ggn", "hessian"])
def test_von_with_a_full_covariance(curvature: Any) -> None:
    def draw(state: State, noise: Array) -> Array:
        inverse_root = np.linalg.inv(np.linalg.cholesky(state["precision"]))
        return state["mean"] + noise @ inverse_root

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        target = N * a.T @ a / len(a) / NOISE**2 + np.diag(PRECISION)
        precision = (1 - B) * state["precision"] + B * target
        gradient = N * g.mean((0, 1)) + PRECISION * (state["mean"] - LOC)
        mean = state["mean"] - A * np.linalg.solve(precision, gradient)
        return {"mean": mean, "precision": precision}

    engine = VON(curvature=curvature, covariance="full", init_scale=SCALE, **COMMON)
    start = {"mean": START, "precision": np.diag(FIRST)}
    states = by_hand(engine, start, draw, update, num_steps=STEPS)
    run = make_run(engine, linear(), DATA, torch.from_numpy(START))
    for expected in states:
        advance(run, 1)
        q: Any = run.q
        np.testing.assert_allclose(run.mean.numpy(), expected["mean"], rtol=1e-10)
        np.testing.assert_allclose(q.matrix.numpy(), expected["precision"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 0.5)])
def test_vogn(weights: tuple[float, float]) -> None:
    factor, temperature = weights
    effective = N * factor / temperature

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        s = (state["precision"] - PRECISION) / effective
        s = (1 - B) * s + B * (g**2).mean((0, 1))
        velocity = BETA * state["velocity"] + (1 - BETA) * N * g.mean((0, 1))
        d = PRECISION / effective
        step = velocity / (1 - BETA**t) / N + d * (state["mean"] - LOC)
        return {
            "mean": state["mean"] - A * step / (s + d + DAMPING),
            "precision": effective * s + PRECISION,
            "velocity": velocity,
        }

    engine = VOGN(
        momentum=BETA,
        damping=DAMPING,
        init_scale=SCALE,
        data_factor=factor,
        temperature=temperature,
        **COMMON,
    )
    start = {"mean": START, "precision": FIRST, "velocity": np.zeros(4)}
    compare(engine, by_hand(engine, start, diagonal_draw, update, num_steps=STEPS))


def test_vogn_while_the_kl_grows() -> None:
    """The precision of q is that of the weight of the step that draws from it."""
    warmup = 4

    def weight(t: int) -> float:
        return 1 / min(1.0, t / warmup)

    def draw(state: State, noise: Array) -> Array:
        precision = N * weight(int(state["t"]) + 1) * state["s"] + PRECISION
        return state["mean"] + noise / np.sqrt(precision)

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        s = (1 - B) * state["s"] + B * (g**2).mean((0, 1))
        d = PRECISION / (N * weight(t))
        step = g.mean((0, 1)) + d * (state["mean"] - LOC)
        return {"mean": state["mean"] - A * step / (s + d), "s": s, "t": np.array(float(t))}

    engine = VOGN(momentum=0.0, init_scale=SCALE, kl_warmup=warmup, **COMMON)
    start = {
        "mean": START,
        "s": (FIRST - PRECISION) / (N * weight(1)),
        "t": np.array(0.0),
    }
    states = by_hand(engine, start, draw, update, num_steps=STEPS)
    run = make_run(engine, linear(), DATA, torch.from_numpy(START))
    for expected in states:
        advance(run, 1)
        np.testing.assert_allclose(run.mean.numpy(), expected["mean"], rtol=1e-10)
    q: Any = run.q
    np.testing.assert_allclose(q.values.numpy(), N * states[-1]["s"] + PRECISION, rtol=1e-10)


@pytest.mark.parametrize("init_scale", [None, SCALE])
def test_vadam(init_scale: float | None) -> None:
    """A first precision above the prior's is forgotten at the rate b, and moves no mean itself."""
    first = PRECISION if init_scale is None else FIRST

    def precision(state: State) -> Array:
        left = state["left"] * (first - PRECISION)
        return np.asarray(N * state["square"] + left + PRECISION)

    def draw(state: State, noise: Array) -> Array:
        return state["mean"] + noise / np.sqrt(precision(state))

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        of_draws, d = g.mean(1), PRECISION / N  # [S, P]
        gradient = of_draws.mean(0) + d * (state["mean"] - LOC)
        velocity = BETA * state["velocity"] + (1 - BETA) * gradient
        square = (1 - B) * state["square"] + B * (of_draws**2).mean(0)
        root = np.sqrt(square / (1 - (1 - B) ** t))
        mean = state["mean"] - A * velocity / (1 - BETA**t) / (root + d)
        return {
            "mean": mean,
            "velocity": velocity,
            "square": square,
            "left": np.array((1 - B) ** t),
        }

    engine = Vadam(momentum=BETA, init_scale=init_scale, **COMMON)
    start = {
        "mean": START,
        "velocity": np.zeros(4),
        "square": np.zeros(4),
        "left": np.array(1.0),
    }
    states = by_hand(engine, start, draw, update, num_steps=STEPS)
    run: Any = make_run(engine, linear(), DATA, torch.from_numpy(START))
    for t, expected in enumerate([start, *states]):
        advance(run, t - run.step)
        for name in ("mean", "velocity", "square"):
            np.testing.assert_allclose(getattr(run, name).numpy(), expected[name], rtol=1e-10)
        np.testing.assert_allclose(run.q.values.numpy(), precision(expected), rtol=1e-10)


@pytest.mark.parametrize("clip_radius", [None, 0.05])
def test_ivon(clip_radius: float | None) -> None:
    h0, d = 0.7, PRECISION / N

    def draw(state: State, noise: Array) -> Array:
        return state["mean"] + noise / np.sqrt(N * (state["curvature"] + d))

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        h, of_draws = state["curvature"], g.mean(1)  # [P], [S, P]
        seen = (of_draws * (z - state["mean"])).mean(0) * N * (h + d)
        h = (1 - B) * h + B * seen + 0.5 * B**2 * (h - seen) ** 2 / (h + d)
        velocity = BETA * state["velocity"] + (1 - BETA) * of_draws.mean(0)
        step = (velocity / (1 - BETA**t) + d * (state["mean"] - LOC)) / (h + d)
        if clip_radius is not None:
            step = np.clip(step, -clip_radius, clip_radius)
        mean = state["mean"] - A * (h0 + d) * step
        return {"mean": mean, "velocity": velocity, "curvature": h}

    engine = IVON(momentum=BETA, init_curvature=h0, clip_radius=clip_radius, **COMMON)
    start = {"mean": START, "velocity": np.zeros(4), "curvature": np.full(4, h0)}
    states = by_hand(engine, start, draw, update, num_steps=STEPS)
    compare(engine, states)


@pytest.mark.parametrize("rank", [2, 4])
def test_slang(rank: int) -> None:
    """The whole precision; at the mean, as the sign of a column of U would turn the noise."""

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        rate, decay = B * t**-0.55, t**-0.55
        flat = g.reshape(-1, 4)
        U = state["factor"]
        whole = (1 - rate) * U @ U.T + rate * N * flat.T @ flat / len(flat)
        values, vectors = np.linalg.eigh(whole)
        U = vectors[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0))
        diagonal = (1 - rate) * state["diagonal"] + rate * PRECISION
        diagonal = diagonal + np.diag(whole - U @ U.T)
        velocity = BETA * state["velocity"] + (1 - BETA) * g.mean((0, 1))
        gradient = N * velocity / (1 - BETA**t) + PRECISION * (state["mean"] - LOC)
        precision = U @ U.T + np.diag(diagonal)
        damped = precision + N * DAMPING * np.eye(4)
        mean = state["mean"] - A * decay * np.linalg.solve(damped, gradient)
        return {"mean": mean, "diagonal": diagonal, "factor": U, "velocity": velocity}

    engine = SLANG(
        rank=rank,
        momentum=BETA,
        damping=DAMPING,
        init_scale=SCALE,
        expectation="mean",
        **{**COMMON, "schedule": "power", "num_particles": 1},
    )
    start = {
        "mean": START,
        "diagonal": FIRST,
        "factor": np.zeros((4, rank)),
        "velocity": np.zeros(4),
    }

    def at_mean(state: State, noise: Array) -> Array:
        return state["mean"][None]

    states = by_hand(engine, start, at_mean, update, num_steps=STEPS, noise_dim=4 + rank)
    run = make_run(engine, linear(), DATA, torch.from_numpy(START))
    for expected in states:
        advance(run, 1)
        q: Any = run.q
        found = q.factor @ q.factor.mT + q.diagonal.diag()
        wanted = expected["factor"] @ expected["factor"].T + np.diag(expected["diagonal"])
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(run.mean.numpy(), expected["mean"], rtol=1e-9)


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
        torch.testing.assert_close(after, (1 - B) * before + B * target, rtol=1e-10, atol=1e-10)
        assert run.factor.shape == (4, 2)
