"""What ``pyro-bnn compare`` runs: one comparison, or one for every split and seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyro_bnn import jobs, networks
from pyro_bnn.data import Split
from pyro_bnn.effects import Model
from pyro_bnn.errors import DataError, DivergenceError, OptionError
from pyro_bnn.report import Comparison, RepeatedComparison, Run, compare, compare_runs

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
    """

    methods: Mapping[str, jobs.Method]
    engines: Mapping[str, jobs.Engine]
    choice: networks.NetworkOptions
    reference: str | None
    progress: bool
    say: Callable[[str], object]
    command: str

    def models(self, rows: Split, seed: int) -> dict[str, Model]:
        """The network of each method for one run.

        Raises:
            OptionError: If the options do not fit each other or the data.
        """
        made: dict[str, Any] = networks.build_models(
            networks.make_networks(self.methods, rows, self.choice, seed)
        )
        jobs.check_starts(self.engines, made)
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
        """
        posteriors, diverged = jobs.fit_all(
            self.engines, models, rows, seed=seed, progress=self.progress, say=self.say
        )
        self.say("Comparing ...")
        judge = self.reference if self.reference in posteriors else None
        comparison = compare(posteriors, rows, reference=judge, seed=seed)
        comparison.save(out, command=self.command)
        parts = (line.partition(": ") for line in diverged)
        return comparison, {name: reason for name, _, reason in parts}


def run_all(
    plan: Plan, splits: Mapping[int, Split], seeds: Sequence[int], out: Path
) -> RepeatedComparison:
    """Runs every split with every seed, and puts the comparisons together.

    A run that fails, because all methods diverged or a score is undefined, is counted as lost and
    does not stop the others.

    Args:
        plan: What the runs have in common.
        splits: The data by number of the split.
        seeds: Seeds of each split.
        out: Gets the summary, and a folder ``split-K-seed-S`` for each run.

    Raises:
        DivergenceError: If no run has a posterior.
    """
    runs: list[Run] = []
    total = len(splits) * len(seeds)
    for number, rows in splits.items():
        for seed in seeds:
            run = Run.without_posteriors(rows, seed, {})
            plan.say(
                f"Run {len(runs) + 1} of {total}: split {number}, seed {seed}, "
                f"{len(rows.train):,} training and {len(rows.test):,} held-out rows"
            )
            try:
                done = plan.run(plan.models(rows, seed), rows, seed, out / run.folder)
                run = Run.of(*done)
            except (DivergenceError, DataError) as error:
                plan.say(f"No comparison: {error}")
                run = Run.without_posteriors(rows, seed, dict.fromkeys(plan.engines, str(error)))
            runs.append(run)
    if not any(run.methods for run in runs):
        raise DivergenceError("; ".join(lost_lines(runs)))
    repeated = compare_runs(runs)
    repeated.save(out, command=plan.command)
    return repeated


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
