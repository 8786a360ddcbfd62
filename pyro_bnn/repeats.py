"""What ``pyro-bnn compare`` runs: one comparison, or one for every split and seed."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pyro_bnn import jobs, networks, resuming
from pyro_bnn.data import Split
from pyro_bnn.effects import Model
from pyro_bnn.errors import DataError, DivergenceError, OptionError
from pyro_bnn.provenance import one_of_processes
from pyro_bnn.report import Comparison, RepeatedComparison, Run, compare, compare_runs
from pyro_bnn.report.files import file_names
from pyro_bnn.resuming import Saves

MAX_NUMBERS = 1_000  # runs of one command: more is a typing error


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all runs of one command have in common.

    Attributes:
        methods: Guides and samplers by the name of a report.
        engines: The engine of each.
        choice: What the command says of the networks.
        reference: Name of the method that others are measured against, or None.
        progress: Whether to show progress bars.
        say: Gets lines on what is being done.
        command: What to run to get the reports again.
        saves: Where the methods of a run are saved, each in a folder of its own.
        notes: Around the runs of another process, which shows there what is logged and warned of.
    """

    methods: Mapping[str, jobs.Method]
    engines: Mapping[str, jobs.Engine]
    choice: networks.NetworkOptions
    reference: str | None
    progress: bool
    say: Callable[[str], object]
    command: str
    saves: Saves = dataclasses.field(default_factory=Saves)
    notes: Callable[[], AbstractContextManager[object]] = nullcontext

    def within(self, run: Run) -> Plan:
        """The plan of one run of several, which is saved in a folder of its own."""
        return dataclasses.replace(self, saves=self.saves.within(run.folder))

    def saves_of_each(self) -> dict[str, Saves]:
        """Where each method is saved."""
        return {name: self.saves.within(stem) for name, stem in file_names(self.methods).items()}

    def models(self, rows: Split, seed: int) -> dict[str, Model]:
        """The network of each method for one run.

        Raises:
            OptionError: If the options do not fit each other or the data.
        """
        made: dict[str, Any] = networks.build_models(
            networks.make_networks(self.methods, rows, self.choice, seed)
        )
        jobs.check_starts(self.engines, made)
        jobs.check_estimators(self.engines, made, rows.train)
        return made

    def run(
        self, models: Mapping[str, Model], rows: Split, seed: int, out: Path
    ) -> tuple[Comparison, dict[str, str]]:
        """Fits all methods, compares them and writes the report.

        Args:
            models: The network of each method.
            rows: Training and held-out rows.
            seed: Seed of all fits and draws.
            out: Folder of the report.

        Returns:
            The comparison, and the methods that have no posterior with the reason.

        Raises:
            DivergenceError: If every method diverged.
            DataError: If a held-out log score is NaN.
            OptionError: If a checkpoint is of another run.
        """
        posteriors, diverged = jobs.fit_all(
            self.engines,
            models,
            rows,
            seed=seed,
            progress=self.progress,
            say=self.say,
            saves=self.saves_of_each(),
        )
        self.say("Comparing ...")
        judge = self.reference if self.reference in posteriors else None
        comparison = compare(posteriors, rows, reference=judge, seed=seed)
        comparison.save(out, command=self.command)
        parts = (line.partition(": ") for line in diverged)
        return comparison, {name: reason for name, _, reason in parts}


def run_all(
    plan: Plan,
    splits: Mapping[int, Split],
    seeds: Sequence[int],
    out: Path,
    *,
    num_processes: int = 1,
) -> RepeatedComparison:
    """Runs every split with every seed, and puts the comparisons together.

    A run that fails, because all methods diverged or a score is undefined, is counted as lost and
    does not stop the others.

    Args:
        plan: What the runs have in common.
        splits: The data by number of the split.
        seeds: Seeds of each split.
        out: Gets the summary, and a folder ``split-K-seed-S`` for each run.
        num_processes: Runs at a time, each in a process of its own with as many threads as torch
            has here.

    Raises:
        DivergenceError: If no run has a posterior.
        OptionError: If a checkpoint is of another run, or the processes have more threads together
            than there are cores.
    """
    from joblib import Parallel, delayed, parallel_config

    threads = require_cores(num_processes, torch.get_num_threads())
    total = len(splits) * len(seeds)
    numbered = [
        (f"Run {i} of {total}", rows, seed)
        for i, (rows, seed) in enumerate(itertools.product(splits.values(), seeds), start=1)
    ]
    if num_processes == 1:
        runs = [_run_alone(plan, *run, out) for run in numbered]
    else:
        quiet = dataclasses.replace(plan, progress=False)
        with parallel_config("loky", inner_max_num_threads=threads):
            runs = Parallel(n_jobs=num_processes)(
                delayed(_run_beside_others)(num_processes, threads, quiet, *run, out)
                for run in numbered
            )
    if not any(run.methods for run in runs):
        raise DivergenceError("; ".join(lost_lines(runs)))
    repeated = compare_runs(runs)
    repeated.save(out, command=plan.command)
    return repeated


def check_saves(plan: Plan, splits: Mapping[int, Split], seeds: Sequence[int]) -> None:
    """Refuse checkpoints that the runs, one or all of :func:`run_all`, would not go on from.

    Raises:
        FileFormatError: If a checkpoint is damaged, foreign or newer.
        OptionError: If there is one and the runs are not to go on.
    """
    runs = [plan.within(Run.without_posteriors(r, s, {})) for r in splits.values() for s in seeds]
    plans = runs if len(runs) > 1 else [plan]
    resuming.check(plan.saves, [save for one in plans for save in one.saves_of_each().values()])


def require_jobs(num_jobs: int, num_runs: int, threads: int) -> None:
    """Refuse a number of jobs that the runs do not use, or the machine has no cores for.

    Raises:
        OptionError: If there are more jobs than runs, or than cores for the threads of each.
    """
    if num_jobs > num_runs:
        raise OptionError(
            f"--jobs {num_jobs} does nothing beyond one for each run, and there "
            f"{'is' if num_runs == 1 else 'are'} {num_runs}: leave it out, or name more --splits "
            "or --seeds"
        )
    require_cores(num_jobs, threads)


def require_cores(num_processes: int, threads: int) -> int:
    """The threads of each process, if all of them have a core of their own.

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
    return threads


def _run_alone(plan: Plan, title: str, rows: Split, seed: int, out: Path) -> Run:
    plan.say(f"{title}: {_description(rows, seed)}")
    return _run(plan, rows, seed, out)


def _run_beside_others(
    num_processes: int, threads: int, plan: Plan, title: str, rows: Split, seed: int, out: Path
) -> Run:
    """A run whose every line says which it is, as those of the others come between them."""

    def say(line: str) -> None:
        plan.say(f"{title}: {line}")

    with one_of_processes(num_processes, threads), plan.notes():
        say(_description(rows, seed))
        return _run(dataclasses.replace(plan, say=say), rows, seed, out)


def _description(rows: Split, seed: int) -> str:
    return (
        f"split {rows.index}, seed {seed}, {len(rows.train):,} training and {len(rows.test):,} "
        "held-out rows"
    )


def _run(plan: Plan, rows: Split, seed: int, out: Path) -> Run:
    run = Run.without_posteriors(rows, seed, {})
    try:
        done = plan.within(run).run(plan.models(rows, seed), rows, seed, out / run.folder)
        return Run.of(*done)
    except (DivergenceError, DataError) as error:
        plan.say(f"No comparison: {error}")
        return Run.without_posteriors(rows, seed, dict.fromkeys(plan.engines, str(error)))


def lost_lines(runs: Sequence[Run]) -> list[str]:
    """A line for every method that has no posterior in a run."""
    return [f"{run.name}: {name}: {why}" for run in runs for name, why in run.lost.items()]


def numbers(text: str, option: str, largest: int = 2**32 - 1) -> list[int]:
    """Whole numbers from 0, each once: ``0-4``, ``0,3,7`` or both.

    Args:
        text: Numbers and ranges, both ends included, separated by commas.
        option: Flag that an error names.
        largest: Largest number that is allowed; that of a seed where nothing is said.

    Raises:
        OptionError: If it is anything else, a number is too large or there twice, or there are too
            many.

    Example:
        >>> numbers("0-2,7", "--splits")
        [0, 1, 2, 7]
    """
    expected = f"{option} takes whole numbers from 0 such as 0-4 or 0,3,7"
    found: list[int] = []
    for part in jobs.comma_parts(text, expected):
        low, dash, high = (end.strip() for end in part.partition("-"))
        ends = (low, high) if dash else (low, low)
        if not all(end.isascii() and end.isdigit() for end in ends):
            raise OptionError(f"{expected}, not {text!r}")
        first, last = map(int, ends)
        if last < first:
            raise OptionError(f"{expected}; {part.strip()!r} runs backwards")
        if last > largest:
            raise OptionError(f"{expected}, at most {largest}; {part.strip()!r} is above")
        if last - first + len(found) >= MAX_NUMBERS:
            raise OptionError(f"{expected}; {text!r} holds more than {MAX_NUMBERS:,}")
        found.extend(range(first, last + 1))
    if len(set(found)) < len(found):
        raise OptionError(f"{expected}, each once; {text!r} names one twice")
    return found


def one_or_several(single: int, several: str | None, name: str, *, given: bool) -> list[int]:
    """Values of a pair of options such as ``--split 3`` and ``--splits 0-4``.

    Args:
        single: Value of the option for one.
        several: Value of the option for several, or None.
        name: Of the option for one, such as ``"split"``.
        given: Whether the option for one stood on the command line.

    Raises:
        OptionError: If both are given, or the numbers cannot be read.
    """
    if several is None:
        return [single]
    if given:
        raise OptionError(f"--{name} and --{name}s are both given: leave one of them out")
    return numbers(several, f"--{name}s")
