"""One step of SVI: this package beside a deterministic torch step, stock Pyro and other peers.

Medians of interleaved blocks of steps. Setting up (tracing, capture, compiling) ends before the
blocks begin and is printed on its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyro.infer import autoguide
from pyro.infer.autoguide.initialization import init_to_feasible

import pyro_bnn as bnn
from benchmarks import _plots, _settings, _tables
from benchmarks._contenders import Compile, deterministic, ours, started, stock_pyro
from benchmarks._peers import peers
from benchmarks._problem import NOISE_SD, Contender, Problem
from benchmarks._settings import Settings
from benchmarks._timing import Spread, spreads

RANK = 10
COMPONENTS = 4
ROUNDS = 15


class Case(NamedTuple):
    """A problem and the steps of one timed block."""

    problem: Problem
    steps: int


CASES = (
    Case(Problem(10, (50,), 128), 50),
    Case(Problem(10, (50,), 1_000), 50),
    Case(Problem(10, (50, 50, 50, 50), 128), 40),
    Case(Problem(784, (400, 400), 256), 10),
)
QUICK = (Case(Problem(3, (4,), 16, num_data=32), 2),)


def own(problem: Problem, device: str, *, compiled: bool = True) -> Iterator[Contender]:
    """This package's guides; the mean-field one compiled and not, and with learned noise."""
    guides = bnn.guides
    normal = started(guides.AutoNormal)
    low_rank = started(guides.AutoLowRankMultivariateNormal, rank=RANK)
    mixture = functools.partial(guides.AutoRank1Mixture, num_components=COMPONENTS)
    learned = bnn.models.MLP(problem.num_inputs, hidden=problem.hidden)
    rank1 = bnn.models.Rank1MLP(
        problem.num_inputs,
        hidden=problem.hidden,
        likelihood=bnn.likelihoods.Normal(scale=NOISE_SD),
    )
    compile_option: Compile = "auto" if compiled else False  # a line of warning where it cannot be
    make = functools.partial(ours, problem, device=device, compile=compile_option)
    point = functools.partial(guides.AutoDelta, init_loc_fn=init_to_feasible)
    yield make(point, "pyro_bnn, AutoDelta (MAP)")  # the same path without the posterior
    yield make(normal, "pyro_bnn, AutoNormal")
    yield make(normal, "pyro_bnn, AutoNormal, learned noise", model=learned)
    if compiled:
        yield make(normal, "pyro_bnn, AutoNormal, compile=False", compile=False)
    yield make(low_rank, f"pyro_bnn, low rank {RANK}")
    yield make(mixture, f"pyro_bnn, rank-1 mixture of {COMPONENTS}", model=rank1, copies=COMPONENTS)


def contenders(case: Case, settings: Settings) -> Iterator[Contender]:
    """Everyone on one problem; the first is what the others are divided by."""
    problem, device = case.problem, settings.device
    yield deterministic(problem, device)
    if not settings.quick:
        yield deterministic(problem, device, compiled=True)
    yield from own(problem, device, compiled=not settings.quick)
    yield stock_pyro(problem, autoguide.AutoNormal, "Pyro, AutoNormal", device)
    low_rank = functools.partial(autoguide.AutoLowRankMultivariateNormal, rank=RANK)
    yield stock_pyro(problem, low_rank, f"Pyro, low rank {RANK}", device)
    if device == "cpu" and not settings.quick:
        yield from peers(problem, case.steps)


def measure(case: Case, settings: Settings) -> list[dict[str, Any]]:
    """A row for each contender, with its ratio to the deterministic step of the same run."""
    entered = []
    for contender in contenders(case, settings):
        print(f"  set up in {contender.setup:6.2f} s: {contender.name}", flush=True)
        entered.append(contender)
    blocks = {c.name: functools.partial(c.advance, case.steps) for c in entered}
    return rows(case, entered, spreads(blocks, rounds=settings.rounds))


def rows(
    case: Case, entered: Sequence[Contender], found: Mapping[str, Spread]
) -> list[dict[str, Any]]:
    """Seconds a step with quartiles, and ratios to the first contender."""
    base = found[entered[0].name].median
    return [
        {
            "net": case.problem.net,
            "batch": case.problem.batch,
            "contender": c.name,
            "seconds": found[c.name].median / case.steps,
            "low": found[c.name].low / case.steps,
            "high": found[c.name].high / case.steps,
            "ratio": found[c.name].median / base,
            "copies": c.copies,
            "setup_seconds": c.setup,
        }
        for c in entered
    ]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``svi.json`` and ``svi.png``."""
    settings = _settings.parse("svi", __doc__, argv, rounds=ROUNDS, devices=True)
    measured = []
    for case in QUICK if settings.quick else CASES:
        print(f"{case.problem.net}, batch {case.problem.batch}, N = {case.problem.num_data}")
        measured += measure(case, settings)
    found = _settings.result("svi", settings, measured)
    print(_tables.svi(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _plots.svi(found, settings.out / f"{_settings.stem(found)}.png")
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
