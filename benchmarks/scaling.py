"""How time grows: a step with parameters, rows and width, a prediction with draws; large tables.

A curve is fitted by t = a n^b over its largest sizes; b and its standard error stand beside the
count of operations for n to infinity, which they need not reach: a small step is bound by the
number of operations, not by their size, and large ones by memory. Of tables of 10^3 to 10^7 rows
each stage of a report is run once at its defaults, in a process of its own.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import pyro
import torch
from pyro.infer import autoguide

import pyro_bnn as bnn
from benchmarks import _plots, _settings, _tables, large_table
from benchmarks._contenders import Compile, deterministic, mlp, ours, started, stock_pyro
from benchmarks._networks import PyroMLP
from benchmarks._problem import Contender, Problem
from benchmarks._settings import Settings
from benchmarks._timing import Call, fit_exponent, seconds_of, spreads

BATCH = 128
RANK = 10
ROUNDS = 15
FITTED = 4  # of the largest sizes
WIDTHS = (16, 32, 64, 128, 256, 512, 1024, 2048)
FULL_WIDTHS = (8, 16, 32, 48, 64, 96)  # 96: 10,657 weights, a factor of 10^8 numbers
SHORT = 0.02  # seconds of a block
ENOUGH = 4.0  # seconds of all rounds at one size, if three rounds do not take longer
QUICK_WIDTHS = (2, 4, 8)
TABLE_ROWS = tuple(10**k for k in range(3, 8))
MEAN_FIELD = "pyro_bnn, AutoNormal"
FACTORISE = "Cholesky of a P x P covariance, alone"


class Curve(NamedTuple):
    """What is measured over which sizes.

    Attributes:
        over: What grows.
        contender: Who.
        counted: Exponent of the operations for large sizes, as text.
        sizes: Sizes, ascending.
        make: The timed call, and how many steps it makes, from a size.
    """

    over: str
    contender: str
    counted: str
    sizes: tuple[int, ...]
    make: Callable[[int], Call]


def square(width: int, batch: int = BATCH) -> Problem:
    """Two hidden layers of one width n: n^2 + 13 n + 1 weights."""
    return Problem(10, (width, width), batch)


def of_weights(number: int) -> Problem:
    """The net of two equal hidden layers whose number of weights is nearest."""
    width = round((42.25 + number - 1) ** 0.5 - 6.5)
    return square(max(width, 1))


def curves(settings: Settings) -> Iterator[Curve]:
    """Every curve; in quick mode three small sizes each, not compiled."""
    quick = settings.quick
    compiled: Compile = False if quick else "auto"  # with one line of warning where it cannot be

    def step(contender: Callable[[Problem], Contender], problem: Callable[[int], Problem]) -> Any:
        return lambda size: functools.partial(contender(problem(size)).advance, 1)

    def mine(guide: Any) -> Callable[[Problem], Contender]:
        return lambda problem: ours(problem, started(guide), "", compile=compiled)

    def pyro_step(problem: Problem) -> Contender:
        return stock_pyro(problem, autoguide.AutoNormal, "")

    sides: Mapping[str, Callable[[Problem], Contender]] = {
        MEAN_FIELD: mine(bnn.guides.AutoNormal),
        "Pyro, AutoNormal": pyro_step,
        "deterministic, eager, fused Adam": deterministic,
    }
    weights = powers(2, 4 if quick else 7)
    for name, side in sides.items():
        yield Curve("parameters", name, "1", weights, step(side, of_weights))
    rows = powers(2, 4 if quick else 6)
    for name, side in sides.items():
        yield Curve("rows", name, "1", rows, step(side, lambda n: Problem(10, (50,), n, n)))
    yield from prediction_curves(powers(0, 2 if quick else 4))
    for name, guide, counted, sizes in families():
        chosen = QUICK_WIDTHS if quick else sizes
        yield Curve("width", name, counted, chosen, step(mine(guide), square))
    full = QUICK_WIDTHS if quick else FULL_WIDTHS
    yield Curve("width", FACTORISE, "6", full, lambda n: cholesky(square(n).num_weights))


def families() -> Iterator[tuple[str, Any, str, tuple[int, ...]]]:
    """Guides with the growth of a step in the width n, whose layers have n^2 weights."""
    guides = bnn.guides
    low_rank = functools.partial(guides.AutoLowRankMultivariateNormal, rank=RANK)
    yield MEAN_FIELD, guides.AutoNormal, "2", WIDTHS
    yield f"pyro_bnn, low rank {RANK}", low_rank, "2", WIDTHS[:-1]
    yield "pyro_bnn, matrix normal", guides.AutoMatrixNormal, "3", WIDTHS[:-1]
    yield "pyro_bnn, full covariance", guides.AutoMultivariateNormal, "4", FULL_WIDTHS


def prediction_curves(draws: tuple[int, ...]) -> Iterator[Curve]:
    """Predictions at 1,000 rows with more and more draws."""
    problem = Problem(10, (50,), 1_000, 1_000)
    x, y = problem.data()
    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=100, compile=False)
    posterior = engine.run(mlp(problem), (x, y), progress=False)
    plain = PyroMLP(problem)

    def sequential(number: int) -> Call:
        predictive = pyro.infer.Predictive(plain, posterior_samples=posterior.sample(number))
        return lambda: predictive(x)["y"].mean(0)

    def batched(number: int) -> Call:
        return lambda: posterior.predict(x, number).mean

    yield Curve("draws", "pyro_bnn, posterior.predict", "1", draws, batched)
    yield Curve("draws", "Pyro, Predictive, sequential", "1", draws, sequential)


def cholesky(order: int) -> Call:
    """One factorisation of a covariance matrix, P^3/3 multiplications."""
    matrix = torch.eye(order) + 0.5 / order
    return lambda: torch.linalg.cholesky(matrix)


def powers(first: int, last: int) -> tuple[int, ...]:
    """Powers of ten."""
    return tuple(10**k for k in range(first, last + 1))


def measure(found: Iterable[Curve], settings: Settings) -> list[dict[str, Any]]:
    """A row a curve. At one size all curves over the same thing take turns."""
    kept = list(found)
    seconds: dict[tuple[str, str], dict[int, float]] = {(c.over, c.contender): {} for c in kept}
    for over in dict.fromkeys(c.over for c in kept):
        group = [c for c in kept if c.over == over]
        for size in sorted({n for c in group for n in c.sizes}):
            calls = {c.contender: c.make(size) for c in group if size in c.sizes}
            for name, time in timed(calls, settings).items():
                seconds[over, name][size] = time
            shown = {name: f"{seconds[over, name][size] * 1e3:.3f} ms" for name in calls}
            print(f"  {over} {size:,}: {shown}", flush=True)
    return [row(c, seconds[c.over, c.contender]) for c in kept]


def timed(calls: Mapping[str, Call], settings: Settings) -> dict[str, float]:
    """Median seconds of each call: more of them in a block, and more rounds, where it is short."""
    for call in calls.values():
        call()
    pilots = {name: seconds_of(call) for name, call in calls.items()}
    blocks = {name: max(1, min(20, int(SHORT / t))) for name, t in pilots.items()}
    round_time = sum(pilots[name] * number for name, number in blocks.items())
    rounds = min(settings.rounds, max(3, int(ENOUGH / round_time)))
    repeated = {name: functools.partial(repeat, calls[name], blocks[name]) for name in calls}
    found = spreads(repeated, rounds=rounds, warmup=0)  # all have been called twice
    return {name: t.median / blocks[name] for name, t in found.items()}


def repeat(call: Call, times: int) -> None:
    """Call some times."""
    for _ in range(times):
        call()


def row(curve: Curve, seconds: Mapping[int, float]) -> dict[str, Any]:
    """Sizes, seconds and the exponent fitted over the largest of them."""
    fitted = curve.sizes[-FITTED:]
    slope = fit_exponent(fitted, [seconds[n] for n in fitted])
    return {
        "over": curve.over,
        "contender": curve.contender,
        "sizes": list(curve.sizes),
        "seconds": [seconds[n] for n in curve.sizes],
        "fitted": list(fitted),
        "exponent": slope.exponent,
        "standard_error": slope.standard_error,
        "counted": curve.counted,
    }


def tables(sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Seconds and peak memory of each stage at each number of rows; Parquet is read beside."""
    for num_rows in sizes:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "table.csv")
            large_table.write(path, num_rows)
            command = [sys.executable, "-m", "benchmarks.large_table", "--stages", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            csv_bytes = path.stat().st_size
            path.unlink()
            parquet = path.with_suffix(".parquet")
            large_table.write(parquet, num_rows)
            times = []
            for _ in range(2):  # the first one imports
                start = perf_counter()
                bnn.data.load(str(parquet), target=large_table.TARGET)
                times.append(perf_counter() - start)
            row = {"contender": "pyro_bnn", "rows": num_rows, "bytes": csv_bytes}
            row |= {"stages": found, "parquet": times[-1]}
            print(f"  {row}", flush=True)
            yield row


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``scaling.json`` and a picture for each thing that grows."""
    parts = ("curves", "tables")
    settings = _settings.parse("scaling", __doc__, argv, rounds=ROUNDS, parts=parts)
    found: dict[str, Any] = {}
    if "tables" in settings.parts:
        sizes = (100,) if settings.quick else TABLE_ROWS
        found = _settings.result("scaling-tables", settings, list(tables(sizes)))
        print(_tables.scaling_tables(found))
        if settings.out is not None:
            _settings.write(found, settings.out)
            _tables.update(settings.out)
    if "curves" not in settings.parts:
        return found
    found = _settings.result("scaling", settings, measure(curves(settings), settings))
    print(_tables.scaling(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        for over in _plots.SCALING:
            _plots.scaling(found, over, settings.out / f"scaling-{over}.png")
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
