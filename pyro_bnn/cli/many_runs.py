"""A comparison for every split and seed of a command, one after another or side by side."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from pyro_bnn.cli import saves as resuming
from pyro_bnn.cli import side_by_side
from pyro_bnn.cli.fits import why_lost
from pyro_bnn.cli.jobs import require_cores
from pyro_bnn.cli.kept import write_or_rescue
from pyro_bnn.cli.runs import PAGE_FILES, RunPlan
from pyro_bnn.cli.saves import OtherRunError
from pyro_bnn.cli.side_by_side import Say
from pyro_bnn.cli.terminal import plain_notes
from pyro_bnn.data import Split
from pyro_bnn.errors import DivergenceError
from pyro_bnn.report import RepeatedComparison, SplitRun, compare_runs


class RunsOutcome(NamedTuple):
    """What the runs of a command came to.

    Attributes:
        comparison: All runs together.
        folder: Where this was written; None if it could be written nowhere.
        unwritten: What could not be written where it should be, of each run and of all.
    """

    comparison: RepeatedComparison
    folder: Path | None
    unwritten: list[str]

    @property
    def failures(self) -> list[str]:
        """What fails the command: reports that are elsewhere, and methods without a row."""
        return [*self.unwritten, *_lost_lines(self.comparison.runs)]

    @property
    def files(self) -> list[str]:
        """Names of the files in the folder."""
        pages = [f"{run.folder}/index.html" for run in self.comparison.runs if run.methods]
        return [*PAGE_FILES, "runs.csv", *pages]


def run_all(
    plan: RunPlan,
    splits: Mapping[int, Split],
    seeds: Sequence[int],
    out: Path,
    *,
    num_processes: int = 1,
) -> RunsOutcome:
    """Runs every split with every seed, and puts the comparisons together.

    A run that fails, because all methods failed or its process was killed, is counted as lost and
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
    if plan.backend is None:
        require_cores(num_processes, torch.get_num_threads())
    every = list(itertools.product(splits.values(), seeds))
    titled = {f"Run {i} of {len(every)}": run for i, run in enumerate(every, start=1)}
    if num_processes == 1 and plan.backend is None:
        done = []
        for title, (rows, seed) in titled.items():
            plan.say(f"{title}: {_description(rows, seed)}")
            done.append(_run(plan, rows, seed, out))
    else:
        sent = plan if plan.backend is None else plan.again()
        tasks = {
            title: partial(_run_beside, sent, title, *run, out.resolve())
            for title, run in titled.items()
        }

        def killed(title: str) -> tuple[SplitRun, str]:
            return _lost(plan, *titled[title], side_by_side.ENDED)

        done = list(plan.do(tasks, num_processes, killed).values())
    runs = [run for run, _ in done]
    if not any(run.methods for run in runs):
        raise DivergenceError("; ".join(_lost_lines(runs)))
    repeated = compare_runs(runs)
    folder, why = write_or_rescue(out, partial(repeated.save, command=plan.command))
    unwritten = [reason for reason in (*(each for _, each in done), why) if reason]
    return RunsOutcome(repeated, folder, unwritten)


def check_saves(plan: RunPlan, splits: Mapping[int, Split], seeds: Sequence[int]) -> None:
    """Refuse checkpoints that the runs, one or all of :func:`run_all`, would not go on from.

    Raises:
        FileFormatError: If a checkpoint is damaged, foreign or newer.
        OptionError: If there is one and the runs are not to go on.
    """
    runs = [
        plan.within(SplitRun.without_posteriors(r, s, {})) for r in splits.values() for s in seeds
    ]
    plans = runs if len(runs) > 1 else [plan]
    resuming.check(plan.saves, [save for one in plans for save in one.saves_of_each().values()])


def _run_beside(
    plan: RunPlan, title: str, rows: Split, seed: int, out: Path, say: Say
) -> tuple[SplitRun, str]:
    """A run whose every line says which it is, as those of the others come between them."""
    plan = dataclasses.replace(plan, say=lambda line: say(f"{title}: {line}"))
    with plain_notes():
        plan.say(_description(rows, seed))
        return _run(plan, rows, seed, out)


def _description(rows: Split, seed: int) -> str:
    return (
        f"split {rows.index}, seed {seed}, {len(rows.train):,} training and {len(rows.test):,} "
        "held-out rows"
    )


def _run(plan: RunPlan, rows: Split, seed: int, out: Path) -> tuple[SplitRun, str]:
    """A run, and why its report is not in its folder; empty if it is there."""
    folder = out / SplitRun.without_posteriors(rows, seed, {}).folder
    try:
        plan_of_run = plan.within(SplitRun.without_posteriors(rows, seed, {}))
        done = plan_of_run.run(plan.models(rows, seed), rows, seed, folder)
    except OtherRunError:
        raise
    except Exception as error:
        why = why_lost(error)
        plan.say(f"No comparison: {why}")
        return _lost(plan, rows, seed, why)
    return SplitRun.of(done.comparison, done.lost), done.why


def _lost(plan: RunPlan, rows: Split, seed: int, why: str) -> tuple[SplitRun, str]:
    return SplitRun.without_posteriors(rows, seed, dict.fromkeys(plan.engines, why)), ""


def _lost_lines(runs: Sequence[SplitRun]) -> list[str]:
    """A line for every method that has no posterior in a run."""
    return [f"{run.name}: {name}: {why}" for run in runs for name, why in run.lost.items()]
