"""Who solves the problem: a deterministic torch network, this package, stock Pyro."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal

import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide.initialization import init_to_feasible
from pyro.optim import Adam  # type: ignore[attr-defined]  # made at import time
from torch import nn

import pyro_bnn as bnn
from benchmarks._networks import PyroMLP, sequential
from benchmarks._problem import INIT_SCALE, LEARNING_RATE, NOISE_SD, PRIOR_SD, Contender, Problem
from pyro_bnn.infer.batches import Minibatches
from pyro_bnn.infer.svi.training import Training

Compile = Literal["auto"] | bool


def deterministic(problem: Problem, device: str = "cpu", *, compiled: bool = False) -> Contender:
    """The same network without a posterior: mean squared error, fused Adam."""
    start = time.perf_counter()
    x, y = problem.batch_of(device)
    net = sequential(problem).to(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)
    network: Any = torch.compile(net) if compiled else net
    target = y.unsqueeze(-1)

    def advance(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(x), target).backward()
            optimizer.step()
        _synchronise(device)

    advance(1)
    kind = "torch.compile" if compiled else "eager"
    return Contender(f"deterministic, {kind}, fused Adam", advance, time.perf_counter() - start)


def ours(
    problem: Problem,
    guide: Callable[..., Any],
    name: str,
    device: str = "cpu",
    *,
    compile: Compile = "auto",  # noqa: A002  # the name of the engine's option
    model: Any = None,
    copies: int = 1,
) -> Contender:
    """Steps of this package's SVI, each with its noise, loss, gradient, checks and Adam."""
    start = time.perf_counter()
    model = mlp(problem) if model is None else model
    of = (problem.data(device), problem.batch_of(device))
    advance = steps_of(model, guide, *of, device=device, compile=compile)
    return Contender(name, advance, time.perf_counter() - start, copies)


def steps_of(
    model: Any,
    guide: Callable[..., Any],
    data: tuple[Any, Any],
    rows: tuple[Any, Any],
    *,
    device: str,
    compile: Compile = "auto",  # noqa: A002
) -> Callable[[int], None]:
    """What makes so many steps of SVI with the same rows of the data, and waits for the device."""
    model = model.to(device)
    program = bnn.Program(model, *data)
    torch.manual_seed(0)
    made = guide(model)
    made.setup(data[0][:1])
    made.to(device=program.device, dtype=program.dtype)
    program.prepare(made)
    svi = bnn.SVI(
        guide,
        num_steps=10**9,
        learning_rate=LEARNING_RATE,
        estimator="weight_sampling",  # as the others do
        compile=compile,
    )
    batch = program.batch(*rows)
    run = Training(svi, program, made, 0, batches=Minibatches(batch, None, 0))

    def advance(steps: int) -> None:
        for _ in range(steps):
            run.go()
        _synchronise(device)

    advance(1)
    return advance


def stock_pyro(
    problem: Problem, guide: Callable[..., Any], name: str, device: str = "cpu"
) -> Contender:
    """Steps of ``pyro.infer.SVI`` with one of Pyro's guides, everything at its default."""
    start = time.perf_counter()
    x, y = problem.batch_of(device)
    with own_store() as scope:
        model = PyroMLP(problem, device)
        svi = pyro.infer.SVI(model, guide(model), Adam({"lr": LEARNING_RATE}), Trace_ELBO())

    def advance(steps: int) -> None:
        with scope():
            for _ in range(steps):
                svi.step(x, y)
        _synchronise(device)

    advance(1)
    return Contender(name, advance, time.perf_counter() - start)


@contextmanager
def own_store() -> Iterator[Callable[[], AbstractContextManager[object]]]:
    """A parameter store of one's own, and how to enter it again.

    Two guides of one class would otherwise train the same parameters of the global store.
    """
    store = pyro.get_param_store()
    with store.scope() as state:
        yield functools.partial(store.scope, state)


def started(guide: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """A guide of this package that starts where Pyro's do; far off, losses overflow digits."""
    return functools.partial(guide, init_loc_fn=init_to_feasible, init_scale=INIT_SCALE, **options)


def mlp(problem: Problem) -> bnn.models.MLP:
    """The network as a model of this package."""
    return bnn.models.MLP(
        problem.num_inputs,
        hidden=problem.hidden,
        prior=bnn.priors.Normal(scale=PRIOR_SD),
        likelihood=bnn.likelihoods.Normal(scale=NOISE_SD),
    )


def _synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
