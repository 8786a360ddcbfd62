"""What a user gets by default: time of a fit, time to a converged ELBO, no slow phase.

``fits``: 10,000 steps of ``SVI(AutoNormal)``, everything included, beside as many eager
deterministic ones. ``elbo``: time to within a nat of the final ELBO, beside Pyro's. ``phases``: a
step early and late in a fit. ``steps``: a step of a wide network beside what it consists of.
Fits run in processes of their own, from empty compile caches and from filled ones.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pyro_bnn as bnn
from benchmarks import _settings, _tables
from benchmarks._contenders import deterministic, ours, started
from benchmarks._default_elbo import ELBO, end, reached, time_at
from benchmarks._default_fit import PROBLEMS, STEPS, Options, our_model
from benchmarks._networks import sequential
from benchmarks._problem import Contender, Problem
from benchmarks._settings import Settings
from benchmarks._timing import spreads
from benchmarks.nuts import CACHES, caches

ROUNDS = {"fits": 3, "wide": 1, "elbo": 1, "phases": 1, "steps": 15}
FITS = ("diabetes", "batches")  # and "wide", a part of its own, as it takes minutes
CONVERGED = ("AutoDelta", "AutoNormal", "AutoLowRankMultivariateNormal")
PHASES = ("AutoDelta", "AutoNormal", "AutoRank1Mixture", "AutoNormal under HalfCauchyScale")
NUM_DRAWS = 1_000  # of an ELBO
QUICK_STEPS = 500
RANK = 10
MEAN_FIELD, LOW_RANK = "AutoNormal", f"low rank {RANK}"
BLOCK = 5  # steps that are timed together
ROWS = 1_024  # of a tall matrix in one product, which is faster than all of them

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """What a process tells of its fit.

    Attributes:
        seconds: Of all of it.
        marks: Seconds after every hundredth step.
        shapes: What describes q there, each with a first dimension of marks.
    """

    seconds: float
    marks: Sequence[float]
    shapes: Mapping[str, Any]

    def q(self, mark: int) -> dict[str, Any]:
        """What describes q at a mark."""
        return {name: values[mark] for name, values in self.shapes.items()}


def fitted(options: Options, cache: Path) -> Run:
    """One fit in a process of its own, with the compile caches in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "q.npz")
        command = [sys.executable, "-m", "benchmarks._default_fit"]
        command += [json.dumps(asdict(options)), str(out)]
        done = subprocess.run(
            command,
            env={**os.environ, **caches(cache)},
            cwd=Path(__file__).parent.parent,
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        shapes = dict(np.load(out)) if out.exists() else {}
    found = json.loads(done.stdout.splitlines()[-1])
    names = (options.library, options.problem, options.method)
    print(f"  {', '.join(names)}: {found['seconds']:.2f} s", flush=True)
    return Run(found["seconds"], found["marks"], shapes)


def rounds_of(
    entries: Mapping[str, Options], settings: Settings, folder: Path
) -> dict[str, list[Run]]:
    """Runs by name, a list over the rounds: in each all entries take turns.

    Args:
        entries: What to run; this package twice, from empty and from filled caches.
        settings: Rounds and threads.
        folder: Of the caches, which start empty in every round.
    """
    found: dict[str, list[Run]] = {}
    for turn in range(settings.rounds):
        for name, options in entries.items():
            own = replace(options, threads=settings.threads, seed=turn)
            cache = folder / f"{len(list(folder.iterdir()))}"
            cache.mkdir()
            states = CACHES if options.library == "pyro_bnn" else ("",)
            for state in states:
                found.setdefault(f"{name}, {state}" if state else name, []).append(
                    fitted(own, cache)
                )
    return found


def fits(settings: Settings, folder: Path, problems: Sequence[str] = FITS) -> Iterator[Row]:
    """A row a problem and state of the caches: the default fit over the deterministic steps."""
    for name in ("quick",) if settings.quick else problems:
        options = Options(
            library="pyro_bnn", problem=name, steps=QUICK_STEPS if settings.quick else STEPS
        )
        entries = {"ours": options, "base": replace(options, library="deterministic")}
        found = rounds_of(entries, settings, folder)
        base = [run.seconds for run in found["base"]]
        problem = PROBLEMS[name]
        for state in CACHES:
            seconds = [run.seconds for run in found[f"ours, {state}"]]
            ratios = [a / b for a, b in zip(seconds, base, strict=True)]
            yield {
                "contender": "pyro_bnn",
                "net": problem.net,
                "batch": problem.batch,
                "num_data": problem.num_data,
                "steps": options.steps,
                "cache": state,
                **over_rounds("seconds", seconds),
                **over_rounds("base", base),
                "ratio": statistics.median(seconds) / statistics.median(base),
                "ratio_range": [min(ratios), max(ratios)],
            }


def over_rounds(name: str, values: Sequence[float | None]) -> Row:
    """The median, None where more than half are None, and all values."""
    known = sorted(np.inf if value is None else value for value in values)
    median = statistics.median(known)
    return {name: None if np.isinf(median) else median, f"all_{name}": list(values)}


def elbo(settings: Settings, folder: Path) -> Iterator[Row]:
    """A row a guide and library: time to within a nat of its own final ELBO, and of Pyro's."""
    for method in CONVERGED[1:2] if settings.quick else CONVERGED:
        options = Options(
            library="pyro_bnn",
            problem="diabetes",
            method=method,
            steps=QUICK_STEPS if settings.quick else STEPS,
            marks=True,
        )
        entries = {"pyro_bnn": options, "Pyro": replace(options, library="pyro")}
        found = rounds_of(entries, settings, folder)
        x, y = PROBLEMS[options.problem].data()
        value = ELBO(our_model(options), x, y, 20 if settings.quick else NUM_DRAWS)
        # from filled caches the steps are those from empty ones, bit for bit
        courses = {
            library: [
                np.stack([value(run.q(mark)) for mark in range(len(run.marks))]) for run in runs
            ]
            for library, runs in found.items()
            if not library.endswith(CACHES[1])
        }
        theirs = [end(course).elbo for course in courses["Pyro"]]
        for name, runs in found.items():
            library, _, state = name.partition(", ")
            own = courses[f"{library}, {CACHES[0]}" if state else library]
            ends = [end(course) for course in own]
            marks = [reached(c, e.elbo) for c, e in zip(own, ends, strict=True)]
            to_pyro = [reached(c, target) for c, target in zip(own, theirs, strict=True)]
            yield {
                "contender": library,
                "method": method,
                "cache": state,
                "steps": options.steps,
                "elbo": statistics.median(e.elbo for e in ends),
                "elbo_error": statistics.median(e.error for e in ends),
                "mark": marks[0],
                **over_rounds("seconds", _times(marks, runs)),
                **over_rounds("to_pyro", _times(to_pyro, runs)),
                **over_rounds("whole", [run.seconds for run in runs]),
            }


def _times(marks: Sequence[int | None], runs: Sequence[Run]) -> list[float | None]:
    return [time_at(mark, run.marks) for mark, run in zip(marks, runs, strict=True)]


def phases(settings: Settings, folder: Path) -> Iterator[Row]:
    """A row a method, compiled and not: a step in the first, second and last tenth of the fit.

    Ratios are of each fit; the median over fits. The speed of a machine changes from fit to fit.
    """
    for method in PHASES[:1] if settings.quick else PHASES:
        for compiled in (False,) if settings.quick else (False, True):
            options = Options(
                library="pyro_bnn",
                problem="diabetes",
                method=method,
                steps=QUICK_STEPS if settings.quick else STEPS,
                compile=compiled,
                marks=True,
                threads=settings.threads,
            )
            found = [
                tenths(fitted(replace(options, seed=turn), folder).marks, options.steps)
                for turn in range(settings.rounds)
            ]
            first, second, last = (statistics.median(t) for t in zip(*found, strict=True))
            yield {
                "contender": method,
                "compiled": compiled,
                "steps": options.steps,
                "first": first,
                "second": second,
                "seconds": last,
                "ratio": statistics.median(last / first for first, _, last in found),
                "ratio_past_setup": statistics.median(last / second for _, second, last in found),
            }


def tenths(marks: Sequence[float], steps: int) -> tuple[float, float, float]:
    """Seconds a step in the first, second and last tenth: medians over blocks of steps.

    The first block, in which a fit is set up and compiled, is one of ten.
    """
    blocks = np.diff([0.0, *marks]) * len(marks) / steps
    width = max(1, len(blocks) // 10)
    first, second, last = (
        float(np.median(part))
        for part in (blocks[:width], blocks[width : 2 * width], blocks[-width:])
    )
    return first, second, last


def steps(settings: Settings, _folder: Path) -> Iterator[Row]:
    """A row a contender: a step, and what it consists of, over the deterministic one."""
    problem = PROBLEMS["quick" if settings.quick else "wide"]
    option: Any = "auto" if settings.quick else True
    guides = {
        MEAN_FIELD: started(bnn.guides.AutoNormal),
        LOW_RANK: started(bnn.guides.AutoLowRankMultivariateNormal, rank=RANK),
    }
    parts = list(bare_parts(problem))
    contenders = [
        deterministic(problem),
        *(ours(problem, guide, f"pyro_bnn, {n}", compile=option) for n, guide in guides.items()),
        *(part for part, _ in parts),
    ]
    blocks = {c.name: functools.partial(c.advance, BLOCK) for c in contenders}
    found = spreads(blocks, rounds=settings.rounds)
    part_of = {part.name: of for part, of in parts}
    for c in contenders:
        low, median, high = sorted(found[c.name])
        yield {
            "contender": c.name,
            "part_of": part_of.get(c.name, []),
            "net": problem.net,
            "batch": problem.batch,
            "seconds": median / BLOCK,
            "low": low / BLOCK,
            "high": high / BLOCK,
            "ratio": median / found[contenders[0].name].median,
        }


def bare_parts(problem: Problem) -> Iterator[tuple[Contender, list[str]]]:
    """What steps consist of, each alone, by torch's own kernels, and whose step it is part of."""
    x, y = problem.batch_of()
    net, target = sequential(problem), y.unsqueeze(-1)
    num_weights = problem.num_weights
    untransformed, total = torch.randn(num_weights), torch.zeros(())
    C = torch.randn(RANK, num_weights)  # along the weights, which is the fastest
    rest = num_weights % min(ROWS, num_weights)
    blocks = C[:, rest:].unflatten(1, (-1, min(ROWS, num_weights))).transpose(0, 1)
    S, out = torch.randn(RANK, RANK), torch.empty(RANK, num_weights)

    def differentiate() -> None:
        torch.nn.functional.mse_loss(net(x), target).backward()

    def draw() -> None:
        torch.randn(num_weights)

    def scale() -> None:
        total.add_(torch.nn.functional.softplus(untransformed).log_().sum())

    def multiply() -> None:
        torch.bmm(blocks, blocks.mT).sum(0)  # I + C^T C of the log determinant
        torch.mm(S, C, out=out)  # and its gradient

    both = [MEAN_FIELD, LOW_RANK]
    yield _repeated("the network's value and gradient, alone", differentiate), both
    yield _repeated("a normal number a weight, alone", draw), both
    yield _repeated("softplus a weight, and its log summed, alone", scale), both
    for numbers, of in (2, MEAN_FIELD), (RANK + 2, LOW_RANK):
        values = torch.zeros(numbers * num_weights, requires_grad=True)
        values.grad = torch.ones_like(values)
        adam = torch.optim.Adam([values], fused=True)
        yield _repeated(f"fused Adam over {numbers} numbers a weight, alone", adam.step), [of]
    yield _repeated("the two products of the log determinant, alone", multiply), [LOW_RANK]


def _repeated(name: str, step: Callable[[], object]) -> Contender:
    def advance(steps: int) -> None:
        for _ in range(steps):
            step()

    return Contender(name, advance, 0.0)


PARTS: Mapping[str, Callable[[Settings, Path], Iterator[Row]]] = {
    "fits": fits,
    "wide": functools.partial(fits, problems=("wide",)),
    "elbo": elbo,
    "phases": phases,
    "steps": steps,
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``default-<part>.json``; the results by the parts' names."""
    settings = _settings.parse("default", __doc__, argv, rounds=0, parts=tuple(PARTS))
    results = {}
    for part in settings.parts:
        own = replace(
            settings,
            rounds=settings.rounds or ROUNDS[part],
            command=f"{settings.command.partition(' --part ')[0]} --part {part}",
        )
        print(part, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            rows = list(PARTS[part](own, Path(folder)))
        results[part] = _settings.result(f"default-{part}", own, rows)
        print(_tables.TABLES[f"default-{part}"](results[part]))
        if own.out is not None:
            _settings.write(results[part], own.out)
    if settings.out is not None:
        _tables.update(settings.out)
    return results


if __name__ == "__main__":
    main()
