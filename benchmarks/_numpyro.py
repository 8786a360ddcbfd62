"""NumPyro on the same problem; it imports neither torch nor Pyro."""

from __future__ import annotations

import importlib
import itertools
import time
from typing import Any

from benchmarks._problem import LEARNING_RATE, NOISE_SD, PRIOR_SD, Contender, Problem


def make_svi(problem: Problem) -> tuple[Any, Any, Any]:
    """NumPyro's SVI object with x and y as its arrays."""
    jnp, numpyro = (importlib.import_module(name) for name in ("jax.numpy", "numpyro"))
    dist = importlib.import_module("numpyro.distributions")
    x, y = (jnp.asarray(values[: problem.batch]) for values in problem.arrays())

    def model(x: Any, y: Any = None) -> None:
        h = x
        for index, (i, o) in enumerate(itertools.pairwise(problem.sizes)):
            if index:
                h = jnp.maximum(h, 0)
            prior = dist.Normal(0.0, PRIOR_SD)
            weight = numpyro.sample(f"weight{index}", prior.expand([o, i]).to_event(2))
            bias = numpyro.sample(f"bias{index}", prior.expand([o]).to_event(1))
            h = h @ weight.T + bias
        with numpyro.handlers.scale(scale=problem.num_data / problem.batch):
            numpyro.sample("y", dist.Normal(h[:, 0], NOISE_SD).to_event(1), obs=y)

    autoguide = importlib.import_module("numpyro.infer.autoguide")
    svi = numpyro.infer.SVI(
        model,
        autoguide.AutoNormal(model, init_loc_fn=numpyro.infer.init_to_feasible),
        numpyro.optim.Adam(LEARNING_RATE),
        numpyro.infer.Trace_ELBO(),
    )
    return svi, x, y


def update(problem: Problem) -> Contender:
    """One jitted call of ``svi.update`` a step."""
    jax, _ = (importlib.import_module(name) for name in ("jax", "numpyro"))
    start = time.perf_counter()
    svi, x, y = make_svi(problem)
    state, one = svi.init(jax.random.PRNGKey(0), x, y), jax.jit(svi.update)

    def advance(steps: int) -> None:
        nonlocal state
        for _ in range(steps):
            state, loss = one(state, x, y)
        loss.block_until_ready()

    advance(1)
    return Contender("NumPyro, AutoNormal, jit of svi.update", advance, time.perf_counter() - start)


def scan(problem: Problem, steps: int) -> Contender:
    """A block of steps in one compiled loop, as ``svi.run`` without a progress bar has it."""
    jax, _ = (importlib.import_module(name) for name in ("jax", "numpyro"))
    start = time.perf_counter()
    svi, x, y = make_svi(problem)
    state = svi.init(jax.random.PRNGKey(0), x, y)
    loop = jax.jit(
        lambda state: jax.lax.scan(lambda s, _: svi.update(s, x, y), state, None, length=steps)
    )

    def advance(number: int) -> None:
        nonlocal state
        if number != steps:
            raise ValueError(f"the loop was compiled for {steps} steps, not {number}")
        state, losses = loop(state)
        losses.block_until_ready()

    advance(steps)
    return Contender("NumPyro, AutoNormal, lax.scan", advance, time.perf_counter() - start)
