"""Stochastic-gradient MCMC: what a step costs, and how far its draws are from those of NUTS.

``step``: a step of each method beside a deterministic step, eager torch and fused Adam, on as many
rows; medians of interleaved blocks. ``diabetes``: all rows, everything at its default. ``protein``:
BAOAB of batches of 128 of 41,157 rows with control variates, for a fifth of NUTS' time. Distances
are the report's, of f at held-out rows, beside that between two halves of the NUTS chains.

NUTS on protein takes hours: it is stopped after ``$PYRO_BNN_NUTS_SECONDS`` (3600), and goes on from
the checkpoint in ``$PYRO_BNN_NUTS_CHECKPOINT`` where that is set. Parts that are not run keep the
rows that they have.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

import pyro_bnn as bnn
from benchmarks import _settings, _tables
from benchmarks._contenders import deterministic, mlp
from benchmarks._problem import Contender, Problem
from benchmarks._settings import Settings
from benchmarks._timing import spreads
from pyro_bnn.diagnostics import function_convergence, reference_distance
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.problem import Problem as Run
from pyro_bnn.infer.sgmcmc.engine import SGMCMC

ROUNDS, BLOCK = 15, 50
HIDDEN = (50,)
NETWORKS = (Problem(10, HIDDEN, 128), Problem(10, HIDDEN, 1_000))
METHODS = (bnn.BAOAB, bnn.SGLD, bnn.SGHMC, bnn.SGNHT, bnn.PSGLD)
NUTS_SECONDS = 3_600
SHARE = 0.2  # of NUTS' time
CHAINS = 4
QUICK: dict[str, Any] = {"warmup_steps": 20, "num_samples": 20, "thin": 5, "compile": False}
QUICK_NUTS: dict[str, Any] = {
    "warmup_steps": 4,
    "num_samples": 8,
    "max_tree_depth": 3,
    "compile": False,
}
Row = dict[str, Any]


# A step


def stepping(problem: Problem, engine: SGMCMC, name: str) -> Contender:
    """Steps of a method on batches of its own, each with its rows, noise, checks and statistics."""
    start = time.perf_counter()
    x, y = problem.data()
    rows = bnn.Dataset(x, y)
    begun = engine.start(Run(mlp(problem), rows, rows, None, 0, type(engine).__name__))
    saves = Checkpoint(device=x.device, start=start)
    run = begun.make(saves)
    run.begin()

    def advance(steps: int) -> None:
        for _ in range(steps):
            run.go()

    advance(1)
    return Contender(name, advance, time.perf_counter() - start)


def step_rows(settings: Settings) -> Iterator[Row]:
    """A row a network and contender; the deterministic step is what others are divided by."""
    networks = (Problem(3, (4,), 16, num_data=32),) if settings.quick else NETWORKS
    for problem in networks:
        options: dict[str, Any] = {
            "warmup_steps": 0,
            "num_samples": 1,
            "thin": 10**6,
            "step_size": 1e-9,  # stable at random weights; the cost is that of any
            "batch_size": problem.batch,
            "compile": not settings.quick,
        }
        entered = [deterministic(problem)]
        for cls in METHODS[:1] if settings.quick else METHODS:
            name = f"{cls.__name__}, one chain"
            entered.append(stepping(problem, cls(num_chains=1, **options), name))
        baoab = functools.partial(bnn.BAOAB, **options)
        entered.append(stepping(problem, baoab(num_chains=CHAINS), f"BAOAB, {CHAINS} chains"))
        controlled = baoab(num_chains=CHAINS, control="mode")
        entered.append(stepping(problem, controlled, f"BAOAB, {CHAINS} chains, control variates"))
        steps = 2 if settings.quick else BLOCK
        blocks = {c.name: functools.partial(c.advance, steps) for c in entered}
        found = spreads(blocks, rounds=settings.rounds)
        base = found[entered[0].name].median
        for contender in entered:
            seconds = found[contender.name]
            yield {
                "part": "step",
                "case": f"{problem.net}, {problem.batch:,} of {problem.num_data:,} rows",
                "contender": contender.name,
                "seconds": seconds.median / steps,
                "low": seconds.low / steps,
                "high": seconds.high / steps,
                "ratio": seconds.median / base,
            }


# Distances


class Reference(NamedTuple):
    """NUTS.

    Attributes:
        f: Draws of f ``[C, S, N, F]`` at held-out rows.
        seconds: Processor time of its run, which other work on the machine does not lengthen.
        draws: How many a chain kept, in words.
    """

    f: Any
    seconds: float
    draws: str


def function_chains(posterior: Any, split: Any) -> Any:
    """All stored draws of f at the test rows, up to 200 of them, ``[C, S, N, F]``."""
    rows = np.unique(np.linspace(0, len(split.test.x) - 1, min(len(split.test.x), 200)).round())
    x = split.test.x[torch.from_numpy(rows.astype(int))]
    count = posterior.num_stored_draws
    return posterior.function_draws(x, count, seed=0, group_by_chain=True).double().numpy()


def network(split: Any) -> Any:
    """The network of a data set, everything at its default."""
    return bnn.models.MLP(split.train.x.shape[1], hidden=HIDDEN)


def limited(engine: Any, split: Any, seconds: float, **where: Any) -> Any:
    """A run that is stopped after so many seconds, Ctrl-C and all, or ends before."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1.0))
    try:
        return engine.run(network(split), split.train, progress=False, **where)
    except bnn.Interrupted as stopped:
        return stopped.posterior
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def nuts(split: Any, options: dict[str, Any], seconds: float, **where: Any) -> Reference:
    """The reference, and how many draws it has."""
    engine = bnn.NUTS(num_chains=CHAINS, **options)
    start = time.process_time()
    posterior = limited(engine, split, seconds, **where)
    spent = time.process_time() - start
    kept = posterior.num_stored_draws // CHAINS
    draws = f"{engine.warmup_steps} warm-up draws, {kept} kept of {engine.num_samples}"
    return Reference(function_chains(posterior, split), spent, draws)


def distance_row(part: str, case: str, engine: Any, split: Any, reference: Reference) -> Row:
    """A run of an engine beside the reference."""
    start = time.process_time()
    posterior = engine.run(network(split), split.train, seed=1, progress=False)
    spent = time.process_time() - start
    f = function_chains(posterior, split)
    distance = reference_distance(f.reshape(-1, *f.shape[2:]), reference.f)
    own, theirs = function_convergence(f), function_convergence(reference.f)
    stats = posterior.sample_stats
    return {
        "part": part,
        "case": case,
        "contender": f"{posterior.method}, {words(posterior.options)}",
        "reference": f"NUTS, {reference.draws}",
        "seconds": spent,
        "reference_seconds": reference.seconds,
        "distance": distance.value,
        "floor": distance.floor,
        "ratio": distance.value / distance.floor,
        "rhat": own.worst_rhat,
        "ess": own.smallest_ess,
        "reference_rhat": theirs.worst_rhat,
        "reference_ess": theirs.smallest_ess,
        "temperature": float(stats["configurational_temperature"].mean()),
    }


def words(options: Any) -> str:
    """What is told of the options."""
    rows = "all rows" if options["batch_size"] is None else f"batches of {options['batch_size']}"
    control = f", control {options['control']}" if options["control"] else ""
    steps = options["warmup_steps"] + options["thin"] * options["num_samples"]
    return f"{rows}{control}, {steps:,} steps"


def diabetes_rows(settings: Settings) -> Iterator[Row]:
    """Methods of all rows, nothing set."""
    split = bnn.data.load("diabetes")
    quick = settings.quick
    whole = {"warmup_steps": 300, "num_samples": 1_000}
    reference = nuts(split, QUICK_NUTS if quick else whole, seconds=1e6)
    for cls in METHODS[:1] if quick else METHODS:
        engine = cls(num_chains=CHAINS, **(QUICK if quick else {}))
        yield distance_row("diabetes", "diabetes, all of 398 rows", engine, split, reference)


def protein_rows(settings: Settings) -> Iterator[Row]:
    """BAOAB with control variates, for at most a fifth of NUTS' time."""
    split = bnn.data.load("diabetes" if settings.quick else "uci/protein")
    folder = os.environ.get("PYRO_BNN_NUTS_CHECKPOINT")
    where = {"checkpoint": folder, "resume": True} if folder else {}
    if settings.quick:
        reference = nuts(split, QUICK_NUTS, 1e6)
        engine: Any = bnn.BAOAB(batch_size=64, control="mode", **QUICK)
    else:
        budget = float(os.environ.get("PYRO_BNN_NUTS_SECONDS", NUTS_SECONDS))
        reference = nuts(split, {"warmup_steps": 60, "num_samples": 200}, budget, **where)
        engine = bnn.BAOAB(**PROTEIN)
    yield distance_row("protein", "uci/protein, 41,157 rows", engine, split, reference)


PROTEIN: dict[str, Any] = {
    "warmup_steps": 60_000,
    "num_samples": 500,
    "thin": 400,
    "batch_size": 128,
    "control": "svrg",  # the posterior reaches far beyond where anchors at a mode help
}
PARTS = {"step": step_rows, "diabetes": diabetes_rows, "protein": protein_rows}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``sgmcmc.json``."""
    settings = _settings.parse("sgmcmc", __doc__, argv, rounds=ROUNDS, parts=tuple(PARTS))
    path = None if settings.out is None else settings.out / "sgmcmc.json"
    kept = [] if path is None or not path.exists() else json.loads(path.read_text())["rows"]
    rows = []
    for part, make in PARTS.items():
        if part not in settings.parts:
            rows += [row for row in kept if row["part"] == part]
            continue
        for row in make(settings):
            print(row, flush=True)
            rows.append(row)
    found = _settings.result("sgmcmc", settings, rows)
    print(_tables.sgmcmc(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
