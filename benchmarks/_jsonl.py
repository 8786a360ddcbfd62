"""Fits of a benchmark as lines of JSON: one is written when a fit is done, and not fitted again.

A line stands for one fit and says which in its first keys; a run that was stopped goes on with
those that have no line.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks import _settings

Row: TypeAlias = dict[str, Any]
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def read(path: Path) -> list[Row]:
    """Lines of a file, none where it does not exist; a last one that was cut short is left out."""
    if not path.exists():
        return []
    text = path.read_text()
    whole, newline, _ = text.rpartition("\n")
    return [json.loads(line) for line in whole.splitlines() if line] if newline else []


def mend(path: Path) -> None:
    """Drop a last line that was cut short, so that the next one begins at the start of a line."""
    if path.exists():
        text = path.read_text()
        path.write_text(text[: text.rfind("\n") + 1])


def processors(rows: Sequence[Row]) -> str:
    """The processors of fits in words, those of the most fits first."""
    counted: Counter[str] = Counter(row["cpu"] for row in rows)
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{count:,} on {cpu}" for cpu, count in counted.most_common())


def append(path: Path, row: Mapping[str, Any]) -> None:
    """Write one line at the end of a file, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(dict(row)) + "\n")


def fits(
    tasks: Iterable[Row],
    fit: Callable[[Row], Row],
    path: Path,
    *,
    keys: Sequence[str],
    jobs: int,
    minutes: float,
    seconds: Callable[[Row, Sequence[Row]], float | None],
    longest: float,
) -> Iterator[str]:
    """Do the tasks that have no line yet, one after another or side by side.

    A task begins only if it is expected to end before the time is up, and within ``longest``. One
    that raises gets a line with the error, so that it is told and not tried again.

    Args:
        tasks: In the order of their beginnings; each is what ``fit`` gets.
        fit: At the top of a module, so that a process finds it; gives the numbers of a line.
        path: The file.
        keys: What names a task.
        jobs: Processes, of one thread each.
        minutes: How long the whole may take.
        seconds: How long a task is expected to take, given the lines so far; None if unknown.
        longest: Seconds beyond which no task begins.

    Yields:
        A line to print for each task: what it took, or why it was left out.
    """
    mend(path)
    rows = read(path)
    known = {tuple(row[key] for key in keys) for row in rows}
    end = time.monotonic() + 60 * minutes
    left = [task for task in tasks if tuple(task[key] for key in keys) not in known]
    os.environ.update(dict.fromkeys(POOLS, "1"))
    running: dict[Future[Row], Row] = {}
    cpu = _settings.machine()["cpu"]
    with ProcessPoolExecutor(jobs, mp.get_context("spawn")) as pool:
        while left or running:
            while left and len(running) < jobs:
                task = left.pop(0)
                expected = seconds(task, rows)
                room = min(longest, end - time.monotonic())
                if room <= 0 or (expected is not None and expected > room):
                    known_as = " ".join(str(task[key]) for key in keys)
                    yield f"{known_as}: left out, {expected or 0:.0f} s expected"
                    continue
                running[pool.submit(fit, task)] = task
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                task = running.pop(future)
                error = future.exception()
                found = {"error": str(error)} if error is not None else future.result()
                row = {**{key: task[key] for key in keys}, **found, "cpu": cpu}
                append(path, row)
                rows.append(row)
                yield json.dumps(row)
