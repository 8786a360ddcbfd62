"""Plain Pyro models on the samplers: twelve posteriors of posteriordb beside their references.

Each library has the same density in 64 bits, and as many chains, warm-up steps and draws, each run
in a fresh process: how means and sds agree with the reference draws, R-hat, the smallest bulk ESS,
and the seconds from the process's start to the draws in memory, imports and compiling included,
with empty compile caches and with filled ones. Stock Pyro runs one shorter chain, which is scaled.
Posteriors and contenders that are not run keep the rows that they have.

The data are read from ``$PYRO_BNN_DATA/posteriordb``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import _settings, _tables
from benchmarks._peers import installed
from benchmarks._posteriordb import NAMES, agreement, parameters
from benchmarks._posteriordb_sampling import Options
from benchmarks._settings import Settings
from benchmarks.nuts import CACHES, caches

ROUNDS = 3
PARTS = ("ours", "numpyro", "nutpie", "pyro")
SLOW = {  # where a run takes minutes, and parallel chains are quicker everywhere
    "diamonds-diamonds": ("NumPyro, vectorized", "nutpie on JAX"),
    "hudson_lynx_hare-lotka_volterra": ("NumPyro, vectorized", "nutpie on JAX"),
}
PYRO_DRAWS = {  # kept, after as many of warm-up; 300 elsewhere
    "diamonds-diamonds": 100,
    "garch-garch11": 100,
    "hmm_example-hmm_example": 100,
    "hudson_lynx_hare-lotka_volterra": 30,
}
PROCESSES = 2  # in which Pyro's four chains would run side by side, one on a core

Row = dict[str, Any]


class Entry(NamedTuple):
    """A sampler of ``benchmarks._posteriordb_sampling``.

    Attributes:
        contender: For the tables.
        library: Its name there.
        part: What ``--part`` calls it.
        method: How NumPyro runs its chains.
    """

    contender: str
    library: str
    part: str
    method: str = ""

    @property
    def compiles(self) -> bool:
        """Whether it keeps what it compiled, so that a second process is quicker."""
        return self.library != "pyro"


ENTRIES = (
    Entry("pyro_bnn", "pyro_bnn", "ours"),
    Entry("NumPyro, parallel", "numpyro", "numpyro", "parallel"),
    Entry("NumPyro, vectorized", "numpyro", "numpyro", "vectorized"),
    Entry("nutpie on JAX", "nutpie", "nutpie"),
    Entry("Pyro", "pyro", "pyro"),
)


def options_of(entry: Entry, name: str, settings: Settings) -> Options:
    """What an entry samples of a posterior."""
    options = Options(name=name, method=entry.method, threads=settings.threads)
    if entry.library == "pyro":
        draws = PYRO_DRAWS.get(name, 300)
        options = replace(options, chains=1, warmup=draws, draws=draws)
    return replace(options, warmup=10, draws=10) if settings.quick else options


def sampled(entry: Entry, options: Options, cache: Path) -> Row:
    """One run in a process of its own, with the compile caches in a folder."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "draws.npz")
        command = [sys.executable, "-m", "benchmarks._posteriordb_sampling", entry.library]
        command += [json.dumps(asdict(options)), str(out)]
        started = time.time()
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
        with np.load(out) as draws:
            x = parameters(dict(draws), options.name)  # [C, S, K]
    if x.shape[:2] != (options.chains, options.draws):
        raise RuntimeError(f"{entry.contender} gave draws {x.shape} of {options}")
    found = json.loads(done.stdout.splitlines()[-1])
    imported, ended = found.pop("imported"), found.pop("done")
    return {
        "import_seconds": imported - started,
        "seconds": ended - started,
        **found,
        "parameters": x.shape[-1],
        **agreement(x, options.name),
    }


def scaled(row: Row, options: Options) -> Row:
    """Pyro's one chain as four of 1,000 warm-up steps and 1,000 draws in two processes.

    Seconds of a warm-up step and of a draw are those of the short chain, and effective samples
    grow with the draws.
    """
    whole = Options(name=options.name)
    phases = row["phases"]
    chain = whole.warmup * phases["warm-up"] / options.warmup
    chain += whole.draws * phases["sampling"] / options.draws
    seconds = row["import_seconds"] + chain * whole.chains / PROCESSES
    more = whole.chains * whole.draws / (options.chains * options.draws)
    return {
        **row,
        "own_seconds": row["seconds"],
        "own_ess": row["ess"],
        "seconds": seconds,
        "ess": row["ess"] * more,
        "ess_tail": row["ess_tail"] * more,
    }


def rows_of(name: str, settings: Settings, folder: Path) -> list[Row]:
    """A row an entry and state of its caches, round by round: every entry in turn."""
    found: dict[tuple[Entry, str], list[Row]] = {}
    entries = [
        entry
        for entry in ENTRIES
        if entry.part in settings.parts and entry.contender not in SLOW.get(name, ())
    ]
    for turn in range(settings.rounds):
        for place, entry in enumerate(entries):
            if entry.library in ("numpyro", "nutpie") and not installed(entry.library):
                continue
            if entry.library == "pyro" and turn:
                continue  # once: it takes minutes
            options = replace(options_of(entry, name, settings), seed=turn)
            cache = folder / f"{NAMES.index(name)}-{place}-{turn}"
            for state in CACHES if entry.compiles else ("",):
                row = sampled(entry, options, cache)
                if entry.library == "pyro":
                    row = scaled(row, options)
                print(f"  {name}, {entry.contender}, {state or 'no'} caches: {row}", flush=True)
                found.setdefault((entry, state), []).append(row)
    return [
        {
            "name": name,
            "contender": entry.contender,
            "part": entry.part,
            "cache": state,
            "threads": settings.threads,
            **{
                key: getattr(options_of(entry, name, settings), key)
                for key in ("chains", "warmup", "draws")
            },
            **summary(rounds),
        }
        for (entry, state), rounds in found.items()
    ]


def summary(rounds: Sequence[Row]) -> Row:
    """Medians of the rounds, the ranges of time and speed, and the worst z and R-hat."""
    first = rounds[0]
    worst = {key: max(row[key] for row in rounds) for key in ("z_mean", "z_sd", "rhat")}
    speeds = [row["ess"] / row["seconds"] for row in rounds]
    kept = {"phases", "worst", "steps", *worst}
    return {
        **{key: statistics.median(row[key] for row in rounds) for key in first if key not in kept},
        "steps": first["steps"] and statistics.median(row["steps"] for row in rounds),
        **worst,
        "worst": [
            next(row["worst"][place] for row in rounds if row[key] == worst[key])
            for place, key in enumerate(("z_mean", "z_sd"))
        ],
        "phases": {
            phase: statistics.median(row["phases"][phase] for row in rounds)
            for phase in first["phases"]
        },
        "ess_per_second": statistics.median(speeds),
        "all_seconds": [row["seconds"] for row in rounds],
        "all_ess_per_second": speeds,
    }


def measure(settings: Settings, kept: Sequence[Row] = ()) -> Iterator[list[Row]]:
    """Rows of all posteriors, in their order, each time that one more has been run.

    What is not run keeps the rows that it has.
    """
    order = [entry.contender for entry in ENTRIES]
    rows = list(kept)
    with tempfile.TemporaryDirectory() as folder:
        for name in settings.only or NAMES:
            others = [r for r in rows if r["name"] != name or r["part"] not in settings.parts]
            rows = sorted(
                others + rows_of(name, settings, Path(folder)),
                key=lambda row: (NAMES.index(row["name"]), order.index(row["contender"])),
            )
            yield rows


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``posteriordb.json``."""
    settings = _settings.parse("posteriordb", __doc__, argv, rounds=ROUNDS, parts=PARTS, only=NAMES)
    path = None if settings.out is None else settings.out / "posteriordb.json"
    kept = [] if path is None or not path.exists() else json.loads(path.read_text())["rows"]
    found: dict[str, Any] = {}
    for rows in measure(settings, kept):
        found = _settings.result("posteriordb", settings, rows, processes=PROCESSES)
        if settings.out is not None:
            _settings.write(found, settings.out)  # a long run that is stopped has done something
    print(_tables.posteriordb(found))
    if settings.out is not None:
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
