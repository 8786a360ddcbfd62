"""Each update against one written from its equations in NumPy; that of SLANG is in `test_slang`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch

from pyro_bnn import IVON, VOGN, VON, Vadam
from tests.infer.natural.hand import (
    BETA,
    COMMON,
    DAMPING,
    DATA,
    FIRST,
    LOC,
    NOISE,
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

pytestmark = pytest.mark.usefixtures("nothing_captured")


def diagonal_draw(state: State, noise: Array) -> Array:
    return state["mean"] + noise / np.sqrt(state["precision"])


def compare(engine: Any, states: Iterable[State], **names: str) -> None:
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
@WEIGHTS
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
@WEIGHTS
def test_von_with_a_full_covariance(curvature: Any, weights: tuple[float, float]) -> None:
    factor, temperature = weights
    w = factor / temperature

    def draw(state: State, noise: Array) -> Array:
        inverse_root = np.linalg.inv(np.linalg.cholesky(state["precision"]))
        return state["mean"] + noise @ inverse_root

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        target = w * N * a.T @ a / len(a) / NOISE**2 + np.diag(PRECISION)
        precision = (1 - B) * state["precision"] + B * target
        gradient = w * N * g.mean((0, 1)) + PRECISION * (state["mean"] - LOC)
        mean = state["mean"] - A * np.linalg.solve(precision, gradient)
        return {"mean": mean, "precision": precision}

    engine = VON(
        curvature=curvature,
        covariance="full",
        init_scale=SCALE,
        data_factor=factor,
        temperature=temperature,
        **COMMON,
    )
    start = {"mean": START, "precision": np.diag(FIRST)}
    states = by_hand(engine, start, draw, update, num_steps=STEPS)
    run = make_run(engine, linear(), DATA, torch.from_numpy(START))
    for expected in states:
        advance(run, 1)
        q: Any = run.q
        np.testing.assert_allclose(run.mean.numpy(), expected["mean"], rtol=1e-10)
        np.testing.assert_allclose(q.matrix.numpy(), expected["precision"], rtol=1e-10, atol=1e-12)


@WEIGHTS
@pytest.mark.parametrize("schedule", ["constant", "cosine", "power"])
@pytest.mark.parametrize("rates", [(A, B), (0.5, None), (0.1, 0.9)], ids=["a < b", "a = b", "fast"])
def test_vogn(weights: tuple[float, float], schedule: Any, rates: tuple[float, Any]) -> None:
    """The rate of the precision, a number of its own or the means', falls by powers alone."""
    factor, temperature = weights
    effective = N * factor / temperature
    a_first, b_first = rates[0], rates[0] if rates[1] is None else rates[1]

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        decay = {
            "constant": 1.0,
            "cosine": 0.5 * (1 + math.cos(math.pi * (t - 1) / STEPS)),
            "power": t**-0.55,
        }[schedule]
        b = b_first * (decay if schedule == "power" else 1)
        s = (state["precision"] - PRECISION) / effective
        s = (1 - b) * s + b * (g**2).mean((0, 1))
        velocity = BETA * state["velocity"] + (1 - BETA) * N * g.mean((0, 1))
        d = PRECISION / effective
        step = velocity / (1 - BETA**t) / N + d * (state["mean"] - LOC)
        return {
            "mean": state["mean"] - a_first * decay * step / (s + d + DAMPING),
            "precision": effective * s + PRECISION,
            "velocity": velocity,
        }

    own = {"learning_rate": rates[0], "precision_learning_rate": rates[1], "schedule": schedule}
    engine = VOGN(
        momentum=BETA,
        damping=DAMPING,
        init_scale=SCALE,
        data_factor=factor,
        temperature=temperature,
        **{**COMMON, **own},
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
    states = list(by_hand(engine, start, draw, update, num_steps=STEPS))
    run = make_run(engine, linear(), DATA, torch.from_numpy(START))
    for expected in states:
        advance(run, 1)
        np.testing.assert_allclose(run.mean.numpy(), expected["mean"], rtol=1e-10)
    q: Any = run.q
    np.testing.assert_allclose(q.values.numpy(), N * states[-1]["s"] + PRECISION, rtol=1e-10)


@pytest.mark.parametrize("init_scale", [None, SCALE], ids=["at the prior", "narrow"])
@WEIGHTS
def test_vadam(init_scale: float | None, weights: tuple[float, float]) -> None:
    """A first precision above the prior's is forgotten at the rate b, and moves no mean itself."""
    factor, temperature = weights
    effective = N * factor / temperature
    first = PRECISION if init_scale is None else FIRST

    def precision(state: State) -> Array:
        left = state["left"] * (first - PRECISION)
        return np.asarray(effective * state["square"] + left + PRECISION)

    def draw(state: State, noise: Array) -> Array:
        return state["mean"] + noise / np.sqrt(precision(state))

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        of_draws, d = g.mean(1), PRECISION / effective  # [S, P]
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

    engine = Vadam(
        momentum=BETA,
        init_scale=init_scale,
        data_factor=factor,
        temperature=temperature,
        **COMMON,
    )
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


@pytest.mark.parametrize("clip_radius", [None, 0.05], ids=["free", "clipped"])
@WEIGHTS
def test_ivon(clip_radius: float | None, weights: tuple[float, float]) -> None:
    factor, temperature = weights
    effective = N * factor / temperature
    h0, d = 0.7, PRECISION / effective

    def draw(state: State, noise: Array) -> Array:
        return state["mean"] + noise / np.sqrt(effective * (state["curvature"] + d))

    def update(state: State, g: Array, a: Array, z: Array, t: int) -> State:
        h, of_draws = state["curvature"], g.mean(1)  # [P], [S, P]
        seen = (of_draws * (z - state["mean"])).mean(0) * effective * (h + d)
        h = (1 - B) * h + B * seen + 0.5 * B**2 * (h - seen) ** 2 / (h + d)
        velocity = BETA * state["velocity"] + (1 - BETA) * of_draws.mean(0)
        step = (velocity / (1 - BETA**t) + d * (state["mean"] - LOC)) / (h + d)
        if clip_radius is not None:
            step = np.clip(step, -clip_radius, clip_radius)
        mean = state["mean"] - A * (h0 + d) * step
        return {"mean": mean, "velocity": velocity, "curvature": h}

    engine = IVON(
        momentum=BETA,
        init_curvature=h0,
        clip_radius=clip_radius,
        data_factor=factor,
        temperature=temperature,
        **COMMON,
    )
    start = {"mean": START, "velocity": np.zeros(4), "curvature": np.full(4, h0)}
    states = by_hand(engine, start, draw, update, num_steps=STEPS)
    compare(engine, states)
