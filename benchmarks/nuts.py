"""Effective samples a second of NUTS, a fresh process each time: compiling and warm-up included.

Two moons, 2-20-20-1, 501 weights; the smallest bulk ESS of the logit over 50 points, divided by the
wall time from imported libraries to draws in memory, by this package, NumPyro and Pyro in turn.
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

from benchmarks import _moons, _plots, _settings, _tables
from benchmarks._peers import installed
from benchmarks._sampling import Options
from benchmarks._settings import Settings
from pyro_bnn.diagnostics.convergence import function_convergence

WAYS = ((64, 100), (256, 60), (512, 60))  # ours: chains, and the warm-up of each
DRAWS = 200
MANY_DRAWS = 2_000
MANY_DRAWS_CHAINS = 64  # more chains make that run longer, and hardly more efficient
PEER_WARMUP = 200
FINALISTS = 2  # of a library's ways, which run with filled caches and with many draws
ROUNDS = 1

Row = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A sampler of ``benchmarks._sampling`` with its options.

    Attributes:
        contender: For the tables.
        library: Its name there.
        options: Chains, warm-up and draws.
        package: Package that has to be installed, or None.
    """

    contender: str
    library: str
    options: Options
    package: str | None = None


def ours(settings: Settings) -> list[Entry]:
    """This package with several numbers of chains, as NumPyro has."""
    ways = ((4, 8),) if settings.quick else WAYS
    options = [replace(common(settings), chains=c, warmup=w) for c, w in ways]
    return [Entry(f"pyro_bnn, {o.chains} chains", "pyro_bnn", o) for o in options]


def common(settings: Settings) -> Options:
    """Options of a peer, but for its chains."""
    if settings.quick:
        return Options(chains=1, warmup=10, draws=10, depth=3)
    return Options(chains=1, warmup=PEER_WARMUP, draws=DRAWS)


def peers(settings: Settings) -> list[Entry]:
    """Every way of NumPyro, and Pyro, at their defaults."""
    options = common(settings)
    ways = [("parallel", 2), ("parallel", 16), ("parallel", 64), ("parallel", 256)]
    ways += [("sequential", 4), ("vectorized", 4), ("vectorized", 16)]
    entries = [
        Entry(
            f"NumPyro, {chains} {method} chains",
            "numpyro",
            replace(options, chains=chains, method=method),
            package="numpyro",
        )
        for method, chains in (ways[:1] if settings.quick else ways)
    ]
    entries.append(Entry("Pyro, 1 chain", "pyro", options))
    return [entry for entry in entries if entry.package is None or installed(entry.package)]


def sampled(entry: Entry, threads: int, seed: int, cache: Path) -> Row:
    """One run in a process of its own, with the compile caches in a folder."""
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
        convergence = function_convergence(np.load(out))
    found = json.loads(done.stdout.splitlines()[-1])
    if "capture" in found["phases"] and options.chains > 4:
        raise RuntimeError(f"{' '.join(command)} was not compiled:\n{done.stderr}")
    return {
        "import_seconds": found.pop("imported") - started,
        "process_seconds": process_seconds,
        **found,
        "ess": convergence.smallest_ess,
        "ess_per_second": convergence.smallest_ess / found["seconds"],
        "rhat": convergence.worst_rhat,
    }


def caches(folder: Path) -> dict[str, str]:
    """Environment that puts the compile caches of torch and of JAX, whole, into a folder."""
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),  # JAX keeps none unless told to
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


class Turns:
    """All entries in turn, round by round, with a cache a round and an entry.

    Args:
        settings: Rounds and threads.
        folder: Folder of the caches.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.settings, self.folder = settings, folder

    def rows(self, entries: Sequence[Entry], *, filled: bool = False) -> list[Row]:
        """Medians over the rounds, a row an entry.

        Args:
            entries: Who runs.
            filled: Whether they find the caches of their last call, or empty ones.
        """
        every: list[list[Row]] = [[] for _ in entries]
        state = "filled" if filled else "empty"
        for turn in range(self.settings.rounds):
            for entry, found in zip(entries, every, strict=True):
                cache = self.folder / _name(f"{entry.contender}, {entry.options}, {turn}")
                if not filled and cache.exists():
                    raise ValueError(f"{entry.contender} has filled its cache before")
                found.append(sampled(entry, self.settings.threads, turn, cache))
                print(f"  {entry.contender}, {state} cache: {found[-1]}", flush=True)
        return [
            row_of(entry, "" if entry.library == "pyro" else state, found)  # Pyro compiles nothing
            for entry, found in zip(entries, every, strict=True)
        ]


def _name(text: str) -> str:
    """A folder's name: compilers are called through a shell, which spaces and brackets confuse."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


def row_of(entry: Entry, cache: str, rounds: Sequence[Row]) -> Row:
    """Medians of the figures of one entry."""
    options = entry.options
    phases = {
        name: statistics.median(found["phases"][name] for found in rounds)
        for name in rounds[0]["phases"]
    }
    figures = {
        key: None if value is None else statistics.median(found[key] for found in rounds)
        for key, value in rounds[0].items()
        if key != "phases"
    }
    return {
        "contender": entry.contender,
        "library": entry.library,
        "cache": cache,
        "chains": options.chains,
        "warmup": options.warmup,
        "draws": options.draws,
        **figures,
        "phases": phases,
    }


def ranked(rows: Sequence[Row]) -> list[int]:
    """Places of the rows, those with R-hat of at most 1.05 before others, most ESS/s first."""
    return sorted(
        range(len(rows)),
        key=lambda n: (not rows[n]["rhat"] <= _plots.MAX_RHAT, -rows[n]["ess_per_second"]),
    )


def best(rows: Sequence[Row], library: str) -> Row | None:
    """The row of a library that is ranked first."""
    own = [row for row in rows if row["library"] == library]
    return own[ranked(own)[0]] if own else None


def finalists(entries: Sequence[Entry], rows: Sequence[Row]) -> list[Entry]:
    """The best entries by their rows, one of each contender: with the warm-up that serves it."""
    chosen: dict[str, Entry] = {}
    for place in ranked(rows):
        chosen.setdefault(entries[place].contender, entries[place])
    return list(chosen.values())[:FINALISTS]


def measure(settings: Settings) -> tuple[list[Row], list[Row]]:
    """Rows of all entries, and the ratios of this package's ESS/s to those of its peers."""
    mine, others = ours(settings), peers(settings)
    numpyro = [entry for entry in others if entry.library == "numpyro"]
    with tempfile.TemporaryDirectory() as folder:
        turns = Turns(settings, Path(folder))
        cold = turns.rows([*mine, *others])
        own, found = cold[: len(mine)], cold[len(mine) : len(mine) + len(numpyro)]
        if numpyro:
            # so that it is not NumPyro's longer warm-up that makes the difference
            warmup = mine[ranked(own)[0]].options.warmup
            short = [
                replace(entry, options=replace(entry.options, warmup=warmup))
                for entry in finalists(numpyro, found)
                if entry.options.warmup != warmup
            ]
            numpyro += short
            rows = turns.rows(short)
            cold += rows
            found += rows
        cached = turns.rows([*finalists(mine, own), *finalists(numpyro, found)], filled=True)
        many = 20 if settings.quick else MANY_DRAWS
        last = [*finalists(*few_chains(mine, own)), *finalists(*few_chains(numpyro, found))]
        long = turns.rows(
            [replace(entry, options=replace(entry.options, draws=many)) for entry in last]
        )
    ratios = [
        *ratio("cold", cold, "numpyro"),
        *ratio("cached", cached, "numpyro"),
        *ratio("long", long, "numpyro"),
        *ratio("pyro", cold, "pyro"),
    ]
    return [*cold, *cached, *long], ratios


def few_chains(
    entries: Sequence[Entry], rows: Sequence[Row]
) -> tuple[tuple[Entry, ...], tuple[Row, ...]]:
    """Entries of at most ``MANY_DRAWS_CHAINS`` chains, and their rows; all where there are none."""
    pairs = list(zip(entries, rows, strict=True))
    few = [pair for pair in pairs if pair[0].options.chains <= MANY_DRAWS_CHAINS] or pairs
    return tuple(entry for entry, _ in few), tuple(row for _, row in few)


def ratio(case: str, rows: Sequence[Row], library: str) -> list[Row]:
    """This package's ESS/s over that of a library's best row; nothing where it did not run."""
    mine, theirs = best(rows, "pyro_bnn"), best(rows, library)
    if mine is None or theirs is None:
        return []
    return [
        {
            "case": case,
            "own": mine["contender"],
            "peer": theirs["contender"],
            "warmup": theirs["warmup"],
            "draws": theirs["draws"],
            "ratio": mine["ess_per_second"] / theirs["ess_per_second"],
            "rhat": [mine["rhat"], theirs["rhat"]],
        }
    ]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``nuts.json`` and ``nuts.png``."""
    settings = _settings.parse("nuts", __doc__, argv, rounds=ROUNDS)
    rows, ratios = measure(settings)
    found = _settings.result(
        "nuts", settings, rows, net=_moons.NET, points=len(_moons.points()), ratios=ratios
    )
    print(_tables.nuts(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _plots.nuts(found, settings.out / "nuts.png")
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
