"""Wall time of a whole fit from cold: a fresh process each time, with empty compile caches.

2,000 steps of mean-field SVI on 10-50-1 with 1,000 rows, by every library in turn; medians over
rounds. The process's time has the imports in it, the fit's has not.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _plots, _settings, _tables
from benchmarks._fit import PROBLEM
from benchmarks._peers import installed
from benchmarks._settings import Settings

STEPS = 2_000
ROUNDS = 3
BASE = "Pyro, AutoNormal"


class Entry(NamedTuple):
    """A library of ``benchmarks._fit``.

    Attributes:
        contender: For the tables.
        library: Its name there.
        warm: Whether it finds the compile cache that the entry before it filled.
        package: Package that has to be installed, or None.
    """

    contender: str
    library: str
    warm: bool = False
    package: str | None = None


ENTRIES = (
    Entry("pyro_bnn", "pyro_bnn"),
    Entry("pyro_bnn, compile=True", "pyro_bnn-compiled"),
    Entry("pyro_bnn, compile=True, warm cache", "pyro_bnn-compiled", warm=True),
    Entry(BASE, "pyro"),
    Entry("NumPyro, svi.run", "numpyro", package="numpyro"),
    Entry("TyXe, Pyro's AutoNormal", "tyxe", package="tyxe"),
    Entry("deterministic, eager, fused Adam", "deterministic"),
)


def fit(library: str, steps: int, threads: int, cache: Path) -> dict[str, float]:
    """Seconds of one process and of the fit in it, and the mean of the last losses."""
    command = [sys.executable, "-m", "benchmarks._fit", library, str(steps), str(threads)]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)}
    start = time.perf_counter()
    done = subprocess.run(
        command,
        env=environment,
        cwd=Path(__file__).parent.parent,
        check=False,
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return {"process_seconds": seconds, **json.loads(done.stdout.splitlines()[-1])}


def one_round(entries: Sequence[Entry], steps: int, threads: int) -> list[dict[str, float]]:
    """Every entry once, each with a cache of its own that starts empty, except the warm ones."""
    with tempfile.TemporaryDirectory() as folder:
        found = []
        cache = Path(folder)
        for place, entry in enumerate(entries):
            if not entry.warm:
                cache = Path(folder, str(place))
            found.append(fit(entry.library, steps, threads, cache))
            print(f"  {entry.contender:<36} {found[-1]}", flush=True)
    return found


def measure(settings: Settings) -> list[dict[str, Any]]:
    """Medians over the rounds, a row an entry."""
    entries = [e for e in ENTRIES if e.package is None or installed(e.package)]
    steps = 20 if settings.quick else STEPS
    rounds = [one_round(entries, steps, settings.threads) for _ in range(settings.rounds)]
    return [
        {
            "contender": entry.contender,
            **{key: statistics.median(r[place][key] for r in rounds) for key in rounds[0][place]},
        }
        for place, entry in enumerate(entries)
    ]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``cold.json`` and ``cold.png``."""
    settings = _settings.parse("cold", __doc__, argv, rounds=ROUNDS)
    steps = 20 if settings.quick else STEPS
    found = _settings.result(
        "cold", settings, measure(settings), net=PROBLEM.net, steps=steps, base=BASE
    )
    print(_tables.cold(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _plots.cold(found, settings.out / "cold.png")
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
