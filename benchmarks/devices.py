"""What a GPU gives: the same steps, predictions and chains on one core and on it.

Without ``--device cuda`` there is the column of the core alone. Setting up, compiling included,
ends before the blocks begin; blocks take turns.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from pyro.infer import autoguide

import pyro_bnn as bnn
from benchmarks import _settings, _tables
from benchmarks._contenders import mlp, started, steps_of, stock_pyro
from benchmarks._problem import Problem
from benchmarks._settings import Settings
from benchmarks._timing import spreads

ROUNDS = 3
PYRO = "stock Pyro, AutoNormal"
RANK = 10
COMPONENTS = 4
IMAGE = (3, 32, 32)
CLASSES = 10
UNITS = {"steps": "step", "predictions": "prediction", "chains": "run"}  # by --part

Advance = Callable[[int], object]  # does it so many times


class Case(NamedTuple):
    """One thing to do.

    Attributes:
        title: What it is.
        unit: What is timed, of ``UNITS``.
        make: For a device, what does it.
        times: How often in a block, on the CPU and on the GPU.
        pyros: The problem, where stock Pyro does it too, on the GPU if there is one.
    """

    title: str
    unit: str
    make: Callable[[str], Advance]
    times: tuple[int, int]
    pyros: Problem | None = None


def rows_of_numbers(problem: Problem, guide: Any, device: str) -> Advance:
    """Steps of a multilayer perceptron."""
    data, batch = problem.data(device), problem.batch_of(device)
    return steps_of(mlp(problem), guide, data, batch, device=device)


def images(model: Callable[..., Any], guide: Any, batch: int, width: int, device: str) -> Advance:
    """Steps of a residual network of depth 8 on images of three channels."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(batch, *IMAGE, generator=generator).to(device)
    y = (torch.arange(batch) % CLASSES).to(device)
    net = model(IMAGE, depth=8, width=width, likelihood=bnn.likelihoods.Categorical(CLASSES))
    return steps_of(net, guide, (x, y), (x, y), device=device)


def prediction(problem: Problem, num_draws: int, device: str) -> Advance:
    """The predictive mean at all rows of the data."""
    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=20)
    data = problem.data(device)
    posterior = engine.run(mlp(problem).to(device), data, progress=False)

    def advance(times: int) -> None:
        for _ in range(times):
            posterior.predict(data[0], num_draws).mean.cpu()  # which waits for the device

    return advance


def chains(problem: Problem, num_chains: int, device: str) -> Advance:
    """Whole runs of HMC, whose chains go in step, of 20 draws a chain."""
    engine = bnn.HMC(num_chains=num_chains, warmup_steps=15, num_samples=5)
    model, data = mlp(problem).to(device), problem.data(device)

    def advance(times: int) -> None:
        for _ in range(times):
            engine.run(model, data, progress=False).unconstrained(num_chains).cpu()

    return advance


def cases(*, quick: bool) -> Iterator[Case]:
    """What is timed, small networks first."""
    guides, models = bnn.guides, bnn.models
    normal = started(guides.AutoNormal)
    low_rank = started(guides.AutoLowRankMultivariateNormal, rank=RANK)
    mixture = functools.partial(guides.AutoRank1Mixture, num_components=COMPONENTS)
    part = functools.partial
    small = Problem(10, (50,), 1_000, num_data=1_000)
    if quick:
        tiny = Problem(3, (4,), 16, num_data=16)
        yield Case("3-4-1", "step", part(rows_of_numbers, tiny, normal), (2, 2))
        yield Case("3-4-1", "prediction", part(prediction, tiny, 2), (1, 1))
        yield Case("3-4-1", "run", part(chains, tiny, 2), (1, 1))
        return
    make = part(rows_of_numbers, small, normal)
    yield Case("10-50-1, 1,000 rows, AutoNormal", "step", make, (100, 100), small)
    for rows in (256, 4_096):
        wide = Problem(784, (400, 400), rows)
        make, title = part(rows_of_numbers, wide), f"784-400-400-1, {rows:,} rows"
        times = (5, 100) if rows == 256 else (1, 50)
        yield Case(f"{title}, AutoNormal", "step", part(make, normal), times, wide)
        if rows == 256:
            yield Case(f"{title}, low rank {RANK}", "step", part(make, low_rank), times)
    for width in (16, 64):
        title = f"ResNet of depth 8 and width {width}, 128 images"
        times = (1, 30)
        yield Case(
            f"{title}, AutoNormal", "step", part(images, models.ResNet, normal, 128, width), times
        )
    yield Case(
        f"Rank1ResNet of depth 8 and width 16, 128 images, K = {COMPONENTS}",
        "step",
        part(images, models.Rank1ResNet, mixture, 128, 16),
        (1, 20),
    )
    yield Case(
        "10-50-1, 1,000 draws at 1,000 rows", "prediction", part(prediction, small, 1_000), (1, 10)
    )
    wide = Problem(784, (400, 400), 1_000, num_data=1_000)
    yield Case(
        "784-400-400-1, 100 draws at 1,000 rows", "prediction", part(prediction, wide, 100), (1, 5)
    )
    for num_chains in (4, 128):
        title = f"10-50-1, 1,000 rows, HMC, {num_chains} chains of 20 draws"
        yield Case(title, "run", part(chains, small, num_chains), (1, 1))


def measure(case: Case, settings: Settings) -> list[dict[str, Any]]:
    """A row for each place, with the seconds of one step, prediction or run."""
    every = settings.threads
    places: dict[str, tuple[str, int, Callable[[str], Advance]]] = {
        "one core": ("cpu", 1, case.make)
    }
    if settings.device == "cuda":
        places["GPU"] = ("cuda", every, case.make)
    if case.pyros is not None:
        stock = functools.partial(stock_pyro, case.pyros, autoguide.AutoNormal, PYRO)
        places[PYRO] = (settings.device, every, lambda device: stock(device).advance)
    blocks, setup = {}, {}
    times = {place: case.times[device == "cuda"] for place, (device, *_) in places.items()}
    for place, (device, threads, make) in places.items():
        torch.set_num_threads(threads)
        start = time.perf_counter()
        advance = make(device)
        setup[place] = time.perf_counter() - start
        blocks[place] = functools.partial(_block, advance, times[place], threads)
    found = spreads(blocks, rounds=settings.rounds, warmup=1)
    return [
        {
            "case": case.title,
            "unit": case.unit,
            "contender": place,
            "setup_seconds": setup[place],
            **{
                name: value / times[place]
                for name, value in zip(("seconds", "low", "high"), spread, strict=True)
            },
        }
        for place, spread in found.items()
    ]


def _block(advance: Advance, times: int, threads: int) -> None:
    torch.set_num_threads(threads)
    advance(times)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``devices.json``, with a GPU ``devices-cuda.json``."""
    settings = _settings.parse(
        "devices", __doc__, argv, rounds=ROUNDS, devices=True, parts=tuple(UNITS)
    )
    units = [UNITS[part] for part in settings.parts]
    rows: list[dict[str, Any]] = []
    for case in cases(quick=settings.quick):
        if case.unit not in units:
            continue
        start = time.perf_counter()
        rows += measure(case, settings)
        print(f"  {time.perf_counter() - start:5.1f} s: {case.title}", flush=True)
        found = _settings.result("devices", settings, rows)
        if settings.out is not None:
            _settings.write(found, settings.out)
    print(_tables.devices(found))
    if settings.out is not None:
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
