"""NUTS by this package, NumPyro and Pyro, to as many draws: compiling and warm-up included.

Two networks, and on each as many chains, warm-up steps and draws for every library, each run in a
fresh process. The smallest bulk ESS of the network's output over some points, divided by the wall
time from imported libraries to draws in memory; several rounds, and their range. Posteriors that
are no part keep the rows that they have.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _plots, _settings, _tables
from benchmarks._peers import installed
from benchmarks._posteriors import DIABETES, MOONS, TARGETS, Array
from benchmarks._sampling import Options
from benchmarks._settings import Settings
from pyro_bnn.diagnostics.convergence import function_convergence

CASES = (
    Options(target=DIABETES.name, chains=4, warmup=300, draws=300),
    Options(target=MOONS.name, chains=1, warmup=200, draws=200),
    Options(target=MOONS.name, chains=4, warmup=200, draws=200),
    Options(target=MOONS.name, chains=64, warmup=100, draws=200),
)
QUICK = (Options(target=MOONS.name, chains=1, warmup=10, draws=10, depth=3),)
ROUNDS = 3
CACHES = ("empty", "filled")

Row = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A sampler of ``benchmarks._sampling`` with its options.

    Attributes:
        contender: For the tables.
        library: Its name there.
        options: Posterior, chains, warm-up and draws.
    """

    contender: str
    library: str
    options: Options

    @property
    def compiles(self) -> bool:
        """Whether it keeps what it compiled, so that a second process is quicker."""
        return self.library != "pyro"


def entries(case: Options) -> list[Entry]:
    """Everyone who runs one case: Pyro where it is one chain, NumPyro with a device a chain."""
    found = [Entry("pyro_bnn", "pyro_bnn", case)]
    if installed("numpyro"):
        found.append(Entry("NumPyro", "numpyro", replace(case, method="parallel")))
    if case.chains == 1:
        found.append(Entry("Pyro", "pyro", case))
    return found


def sampled(entry: Entry, threads: int, seed: int, cache: Path) -> Row:
    """One run in a process of its own, with the compile caches in a folder."""
    return run(entry, threads, seed, cache)[0]


def run(entry: Entry, threads: int, seed: int, cache: Path) -> tuple[Row, Array]:
    """The same, with the function's draws ``[C, S, M, 1]``."""
    options = replace(entry.options, threads=threads, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "f.npy")
        command = [sys.executable, "-m", "benchmarks._sampling", entry.library]
        command += [json.dumps(asdict(options)), str(out)]
        started, start = time.time(), time.perf_counter()
        done = subprocess.run(
            command,
            env={**os.environ, **caches(cache)},
            cwd=Path(__file__).parent.parent,
            check=False,
            capture_output=True,
            text=True,
        )
        process_seconds = time.perf_counter() - start
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
        f = np.load(out)
    convergence = function_convergence(f)
    found = json.loads(done.stdout.splitlines()[-1])
    row = {
        "import_seconds": found.pop("imported") - started,
        "process_seconds": process_seconds,
        **found,
        "ess": convergence.smallest_ess,
        "ess_tail": convergence.smallest_ess_tail,
        "ess_per_second": convergence.smallest_ess / found["seconds"],
        "rhat": convergence.worst_rhat,
    }
    return row, f


def caches(folder: Path) -> dict[str, str]:
    """Environment that puts the compile caches of torch and of JAX, whole, into a folder."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),  # JAX keeps none unless told to
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def rows_of(case: Options, settings: Settings, folder: Path) -> list[Row]:
    """A row an entry and state of its caches: all entries in turn, round by round.

    Args:
        case: What all sample.
        settings: Rounds and threads.
        folder: Folder of the caches, each of which starts empty and is filled by the first run.
    """
    found: dict[tuple[Entry, str], list[Row]] = {}
    for turn in range(settings.rounds):
        for entry in entries(case):
            cache = folder / _name(f"{entry.contender}, {entry.options}, {turn}")
            for state in CACHES if entry.compiles else CACHES[:1]:
                row = sampled(entry, settings.threads, turn, cache)
                print(f"  {entry.contender}, {case.target}, {state} caches: {row}", flush=True)
                found.setdefault((entry, state), []).append(row)
    return [
        row_of(entry, state if entry.compiles else "", rounds)
        for (entry, state), rounds in found.items()
    ]


def _name(text: str) -> str:
    """A folder's name: compilers are called through a shell, which spaces and brackets confuse."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


def row_of(entry: Entry, cache: str, rounds: Sequence[Row]) -> Row:
    """Medians of the figures of one entry, the range of its speed and time, its worst R-hat."""
    options = entry.options
    figures = {
        key: None if value is None else statistics.median(found[key] for found in rounds)
        for key, value in rounds[0].items()
        if key != "phases"
    }
    return {
        "contender": entry.contender,
        "library": entry.library,
        "target": options.target,
        "cache": cache,
        "chains": options.chains,
        "warmup": options.warmup,
        "draws": options.draws,
        **figures,
        "rhat": max(found["rhat"] for found in rounds),
        "all_seconds": [found["seconds"] for found in rounds],
        "all_ess_per_second": [found["ess_per_second"] for found in rounds],
        "phases": {
            name: statistics.median(found["phases"][name] for found in rounds)
            for name in rounds[0]["phases"]
        },
    }


def ratios_of(rows: Sequence[Row]) -> list[Row]:
    """This package over each peer, by time and by ESS/s, case by case, from caches of one state.

    A ratio is of medians; its range is that of the ratios of single rounds.
    """
    found = []
    for mine in (row for row in rows if row["library"] == "pyro_bnn"):
        for library in ("numpyro", "pyro"):
            found += [
                ratio(mine, row)
                for row in rows
                if row["library"] == library
                and all(row[key] == mine[key] for key in ("target", "chains"))
                and row["cache"] in (mine["cache"], "")
            ]
    return found


def ratio(mine: Row, theirs: Row) -> Row:
    """Time and ESS/s of one row over those of another."""
    times = [a / b for a, b in zip(mine["all_seconds"], theirs["all_seconds"], strict=True)]
    speeds = [
        a / b for a, b in zip(mine["all_ess_per_second"], theirs["all_ess_per_second"], strict=True)
    ]
    return {
        **{key: mine[key] for key in ("target", "chains", "warmup", "draws", "cache")},
        "library": theirs["library"],
        "peer": theirs["contender"],
        "time": mine["seconds"] / theirs["seconds"],
        "time_range": [min(times), max(times)],
        "speed": mine["ess_per_second"] / theirs["ess_per_second"],
        "speed_range": [min(speeds), max(speeds)],
        "rhat": [mine["rhat"], theirs["rhat"]],
    }


def measure(settings: Settings, kept: Sequence[Row] = ()) -> tuple[list[Row], list[Row]]:
    """Rows of all entries of all cases, and this package's ratios to its peers.

    Cases of posteriors that are not among the parts keep the rows that they have.
    """
    rows: list[Row] = []
    parts = settings.parts or tuple(TARGETS)
    with tempfile.TemporaryDirectory() as folder:
        for case in QUICK if settings.quick else CASES:
            if case.target in parts:
                rows += rows_of(case, settings, Path(folder))
            else:
                key = case.target, case.chains
                rows += [row for row in kept if (row["target"], row["chains"]) == key]
    return rows, ratios_of(rows)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``nuts.json`` and ``nuts.png``."""
    settings = _settings.parse("nuts", __doc__, argv, rounds=ROUNDS, parts=tuple(TARGETS))
    path = None if settings.out is None else settings.out / "nuts.json"
    kept = [] if path is None or not path.exists() else json.loads(path.read_text())["rows"]
    rows, ratios = measure(settings, kept)
    nets = {name: target.net for name, target in TARGETS.items()}
    found = _settings.result("nuts", settings, rows, nets=nets, ratios=ratios)
    print(_tables.nuts(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _plots.nuts(found, settings.out / "nuts.png")
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
