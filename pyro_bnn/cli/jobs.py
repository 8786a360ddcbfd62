"""How many fits or runs of a command go side by side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyro_bnn.cli import fits
from pyro_bnn.errors import OptionError

STARTING = 5.0  # s that processes take to begin, with all that is on its way to the first fit


def number_of_jobs(
    asked: int | None,
    engines: Mapping[str, Any],
    num_runs: int,
    threads: int,
    *,
    is_here: bool = True,
    device: str = "cpu",
) -> int:
    """How many processes fit side by side: runs where there are several, else methods.

    Args:
        asked: Number that the command names; None for one a core, if that saves more time than
            processes take to begin.
        engines: By name of the method.
        num_runs: Runs over splits and seeds.
        threads: CPU threads of each process.
        is_here: Whether they are processes of this machine, and no other backend's.
        device: Where the networks are. All processes share a GPU: there it is 1 by default.

    Raises:
        OptionError: If there are more jobs than fits, or than cores for the threads of each.
    """
    from joblib import cpu_count

    num_tasks = num_runs if num_runs > 1 else len(engines)
    if asked is None and not (is_here and device == "cpu"):
        return 1
    if asked is None:
        seconds = [fits.expected_seconds(engine) for engine in engines.values()]
        if num_runs > 1:
            seconds = [sum(seconds)] * num_runs
        most = max(1, min(num_tasks, cpu_count() // threads))
        saved = sum(seconds) - max(sum(seconds) / most, *seconds)
        return most if saved > STARTING else 1
    if asked > num_tasks:
        what, are = ("run", "runs") if num_runs > 1 else ("method", "methods")
        raise OptionError(
            f"--jobs {asked} does nothing beyond one for each {what}, and there "
            f"{f'is 1 {what}' if num_tasks == 1 else f'are {num_tasks} {are}'}: leave it out, or "
            f"name more {'--splits or --seeds' if num_runs > 1 else '--methods'}"
        )
    if is_here:
        require_cores(asked, threads)
    return asked


def require_cores(num_processes: int, threads: int) -> None:
    """Check that the threads of all processes have a core of their own.

    Raises:
        OptionError: If they have not.
    """
    from joblib import cpu_count

    cores = cpu_count()
    if num_processes > 1 and num_processes * threads > cores:
        raise OptionError(
            f"{num_processes} processes of {threads} threads need {num_processes * threads} cores, "
            f"and there are {cores}: have fewer processes, or threads"
        )
