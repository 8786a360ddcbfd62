"""What ``pyro-bnn compare`` runs: one comparison, or one for every split and seed."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
import typer

from pyro_bnn.arviz_io import save_netcdf
from pyro_bnn.cli import fits, networks, side_by_side
from pyro_bnn.cli import saves as resuming
from pyro_bnn.cli.evaluated import evaluate_now
from pyro_bnn.cli.fits import why_lost
from pyro_bnn.cli.kept import EndedFits, write_or_rescue
from pyro_bnn.cli.methods import Auto, Method, comma_parts
from pyro_bnn.cli.options import FitOptions, NetworkOptions
from pyro_bnn.cli.saves import OtherRunError, Saves
from pyro_bnn.cli.side_by_side import Say
from pyro_bnn.cli.terminal import given, plain_notes
from pyro_bnn.data import Split
from pyro_bnn.errors import DataError, DivergenceError, OptionError, SiteError
from pyro_bnn.files.atomic import made_folder, written
from pyro_bnn.infer.engine import Engine
from pyro_bnn.infer.mcmc.nuts import NUTS
from pyro_bnn.infer.parallel.tasks import in_order
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.program.handlers import Model
from pyro_bnn.report import (
    Comparison,
    RepeatedComparison,
    Run,
    compare_runs,
    reference,
)
from pyro_bnn.report.compare import Alone, compare_all
from pyro_bnn.report.evaluation.saved import SavedEvaluation, tree_of
from pyro_bnn.report.output.names import file_names

T = TypeVar("T")
MAX_NUMBERS = 1_000  # runs of one command: more is a typing error
UNKEPT = "its fit ended, but no folder could be written to for it; a note says why"
LOOKED_FOR = "reference"  # what a reference is called before its engine is known
STARTING = 5.0  # s that processes take to begin, with all that is on its way to the first fit


class Fitted(NamedTuple):
    """What a process made of one method.

    Attributes:
        file: That of the fit, or what it holds.
        alone: What the fit came to by itself.
    """

    file: Path | bytes
    alone: Alone


class Reported(NamedTuple):
    """What one run of a plan came to.

    Attributes:
        comparison: The methods that have a row.
        lost: Why the others have none, by name.
        folder: Where the report is; None if it could be written nowhere.
        why: Why it is not where it should be; empty if it is.
    """

    comparison: Comparison
    lost: dict[str, str]
    folder: Path | None
    why: str


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What all runs of one command have in common.

    Attributes:
        methods: Guides and samplers by the name of a report.
        engines: The engine of each.
        choice: What the command says of the networks.
        progress: Whether to show progress bars.
        say: Gets lines on what is being done.
        command: What to run to get the reports again.
        reference: Name of the method that others are measured against, how one is looked for, or
            None.
        device: Where the networks are.
        saves: Where the methods of a run are saved, each in a folder of its own.
        backend: Makes the backend of joblib that does the fits; None for processes here.
    """

    methods: Mapping[str, Method]
    engines: Mapping[str, Engine[Any]]
    choice: NetworkOptions
    progress: bool
    say: Callable[[str], object]
    command: str
    reference: str | Auto | None = None
    device: str = "cpu"
    saves: Saves = dataclasses.field(default_factory=Saves)
    backend: Callable[[], AbstractContextManager[object]] | None = None

    @classmethod
    def of(
        cls,
        context: typer.Context,
        methods: Mapping[str, Method],
        choice: NetworkOptions,
        how: FitOptions,
    ) -> Plan:
        """The plan of a command with these options.

        Raises:
            OptionError: If an option does not suit any method.
        """
        return cls(
            methods=methods,
            engines=how.engines(context, methods),
            choice=choice,
            progress=how.progress,
            say=how.say,
            command=context.obj,
            device=how.device,
        )

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
        own = networks.make_networks(self.methods, rows, self.choice, seed)
        if isinstance(self.reference, Auto):
            own |= networks.make_networks({LOOKED_FOR: Method(NUTS)}, rows, self.choice, seed)
        made: dict[str, Any] = networks.build_models(own, self.device)
        fits.check_starts(self.engines, made, rows.train)
        if LOOKED_FOR in made and fits.holds_fixed(NUTS(), made[LOOKED_FOR]):
            raise OptionError(
                f"--reference auto draws all weights, and {type(made[LOOKED_FOR]).__name__} has "
                "some that a fit trains: name nuts after a guide of that network, and --reference "
                "nuts"
            )
        return made

    def run(
        self,
        models: Mapping[str, Model],
        rows: Split,
        seed: int,
        out: Path,
        *,
        num_processes: int = 1,
    ) -> Reported:
        """Fits all methods, compares them and writes the report.

        A fit is on disk as soon as it has ended, and is evaluated then. A method that fails, in its
        fit or in what is made of it, is one less.

        Args:
            models: The network of each method.
            rows: Training and held-out rows.
            seed: Seed of all fits and draws.
            out: Folder of the report.
            num_processes: Fits at a time, each in a process of its own with as many threads as
                torch has here; one runs in this process.

        Raises:
            BNNError: If the only method failed.
            DivergenceError: If all of several did.
            OtherRunError: If a checkpoint is of another run.
        """
        ended = EndedFits(out, self.methods)
        done, alone = None, dict[str, Alone]()
        if num_processes > 1 or self.backend is not None:
            done = self.fit_side_by_side(models, rows, seed, ended, num_processes, alone)

        def evaluate(name: str, posterior: Posterior) -> None:
            if name not in alone:
                alone[name] = evaluate_now(self.engines, name, posterior, rows, seed, self.say)

        posteriors, lost = self.fit(
            models, rows, seed, say=self.say, done=done, ended=ended, then=evaluate
        )
        judge = self.reference if self.reference in posteriors else None
        if isinstance(self.reference, Auto):
            judge = self.look(self.reference, models, rows, seed, posteriors, lost, ended)
        self.say("Comparing ...")
        comparison = compare_all(
            posteriors, rows, lost, reference=judge, seed=seed, reason_of=why_lost, alone=alone
        )

        def save(folder: Path) -> None:
            if done is None or self.backend is not None:
                comparison.save(folder, command=self.command)
            else:
                self.save_beside(comparison, ended, num_processes, folder)

        folder, why = write_or_rescue(out, save)
        if not why:
            ended.forget(comparison.posteriors)
        return Reported(comparison, lost, folder, why)

    def fit(
        self, models: Mapping[str, Model], rows: Split, seed: int, **how: Any
    ) -> tuple[dict[str, Posterior], dict[str, str]]:
        """What :func:`fits.fit_all` does with engines and saves of the plan."""
        saves, progress = self.saves_of_each(), self.progress
        return fits.fit_all(
            self.engines, models, rows, seed=seed, progress=progress, saves=saves, **how
        )

    def look(
        self,
        how: Auto,
        models: Mapping[str, Model],
        rows: Split,
        seed: int,
        posteriors: dict[str, Posterior],
        lost: dict[str, str],
        ended: EndedFits,
    ) -> str | None:
        """Look for a reference on the network of the command, and add it to the posteriors.

        Args:
            how: How long that may take.
            models: The network of each method, and that of the reference.
            rows: Training and held-out rows.
            seed: Seed of all runs.
            posteriors: Those of the methods; gets that of the reference, by the name of its engine.
            lost: Gets the reason where there is none.
            ended: Keeps it.

        Returns:
            Its name, or None where no engine has draws.
        """
        saves = self.saves.within(LOOKED_FOR)
        try:
            found = reference(
                models[LOOKED_FOR],
                rows,
                seconds=how.seconds,
                seed=seed,
                progress=self.progress,
                say=self.say,
                checkpoint=saves.checkpoint,
                resume=saves.resume,
            )
        except Exception as error:
            if saves.resume and isinstance(error, (DataError, OptionError, SiteError)):
                raise  # its checkpoint is of another run
            lost[LOOKED_FOR] = why_lost(error)
            self.say(f"No reference: {lost[LOOKED_FOR]}")
            return None
        name = found.method if found.method not in posteriors else f"{found.method} ({LOOKED_FOR})"
        posteriors[name] = found
        ended.keep(name, found.save)
        return name

    def fit_side_by_side(
        self,
        models: Mapping[str, Model],
        rows: Split,
        seed: int,
        ended: EndedFits,
        num_processes: int,
        alone: dict[str, Alone],
    ) -> dict[str, Callable[[], Posterior]]:
        """Run engines in processes, the longest first, but for those that wait for another fit.

        Args:
            models: The network of each method.
            rows: Training and held-out rows.
            seed: Seed of all fits and draws.
            ended: Keeps each fit as it ends.
            num_processes: Fits at a time.
            alone: Gets what each fit comes to by itself: its process evaluates it.

        Returns:
            For :func:`fits.fit_all`, what loads each posterior, or raises why there is none.
        """
        seconds = {
            name: fits.expected_seconds(
                engine, fits.count_numbers(engine, models[name], rows.train)
            )
            for name, engine in self.engines.items()
            if not fits.holds_fixed(engine, models[name])
        }
        names = sorted(seconds, key=lambda name: -seconds[name])
        fit = _fit_one if self.backend is None else _fit_one_elsewhere
        tasks: dict[str, Callable[[Say], str | Fitted]] = {
            name: partial(fit, self, rows, seed, name, ended) for name in names
        }
        reasons: dict[str, str] = {}
        for name, found in self.do(tasks, num_processes, _killed).items():
            if isinstance(found, str):
                reasons[name] = found
                continue
            alone[name] = found.alone
            if isinstance(found.file, bytes):
                ended.keep(name, partial(_write, found.file))
            else:
                ended.paths[name] = found.file
        return {name: partial(_outcome, ended, name, models[name], reasons) for name in names}

    def save_beside(
        self, comparison: Comparison, ended: EndedFits, num_processes: int, out: Path
    ) -> None:
        """Save a comparison; processes write the draws of fits that are on disk meanwhile."""
        files = comparison.draws_files(made_folder(out))
        beside = [name for name in files if name in ended.paths and name in self.engines]
        with side_by_side.processes(num_processes, torch.get_num_threads()) as pool:
            begun = {
                name: pool.submit(
                    partial(_write_draws, self, comparison.saved(name), comparison.split),
                    ended.paths[name],
                    files[name],
                )
                for name in beside
            }

            def write(name: str, path: Path) -> None:
                try:
                    begun.pop(name).result()
                except (KeyError, BrokenProcessPool):  # no process has it, or the one was killed
                    comparison.write_draws(name, path)

            comparison.save_with(out, self.command, write)

    def do(
        self,
        tasks: Mapping[str, Callable[[Say], T]],
        num_processes: int,
        if_killed: Callable[[str], T],
    ) -> dict[str, T]:
        """What tasks return, side by side here, or done by the backend.

        Args:
            tasks: By name.
            num_processes: How many at a time.
            if_killed: What stands for a task whose process here was killed.
        """
        if self.backend is None:
            threads = torch.get_num_threads()
            return side_by_side.run(
                tasks,
                num_processes,
                threads,
                self.say,
                progress=self.progress,
                if_killed=if_killed,
            )
        found: dict[str, T] = {}
        with self.backend():
            told = in_order(partial(_told, task) for task in tasks.values())
            for name, (lines, value) in zip(tasks, told, strict=True):
                found[name] = value
                for line in lines:
                    self.say(line)
        return found

    def again(self) -> Plan:
        """The plan of a task that another machine does, and does again where a worker is lost."""
        own = dataclasses.replace(self, backend=None, progress=False)
        return dataclasses.replace(own, saves=self.saves.again())


def _told(task: Callable[[Say], T]) -> tuple[list[str], T]:
    lines: list[str] = []
    value = task(lines.append)
    return lines, value


def _killed(name: str) -> str:  # noqa: ARG001 (as of a run)
    return side_by_side.ENDED


def _outcome(ended: EndedFits, name: str, model: Model, reasons: Mapping[str, str]) -> Posterior:
    if name in reasons:
        raise DivergenceError(reasons[name])
    return Posterior.load(ended.paths[name], model)


def _write(contents: bytes, path: Path) -> None:
    with written(path) as partial:
        partial.write_bytes(contents)


def _write_draws(plan: Plan, saved: SavedEvaluation, split: Split, fit: Path, path: Path) -> None:
    posterior = Posterior.load(fit, plan.models(split, saved.seed)[saved.entry.name])
    save_netcdf(tree_of(saved, posterior, split), path, follow=False)


def _fit_one(
    plan: Plan, rows: Split, seed: int, name: str, ended: EndedFits, say: Say
) -> str | Fitted:
    """One fit of a plan: its file and what it came to, or the reason why there is no file."""
    with plain_notes():
        try:
            posteriors, _ = plan.fit(
                plan.models(rows, seed), rows, seed, say=say, only=name, ended=ended
            )
        except DivergenceError as error:
            return str(error).removeprefix(f"{name}: ")
        except OtherRunError:
            raise
        except Exception as error:
            return why_lost(error)
        if name not in ended.paths:
            return UNKEPT
        alone = evaluate_now(plan.engines, name, posteriors[name], rows, seed, say)
    return Fitted(ended.paths[name], alone)


def _fit_one_elsewhere(
    plan: Plan, rows: Split, seed: int, name: str, ended: EndedFits, say: Say
) -> str | Fitted:
    """As :func:`_fit_one`, but what it saves is returned: there may be no disk of both."""
    del ended
    with tempfile.TemporaryDirectory(prefix="pyro-bnn-") as folder:
        own = EndedFits(Path(folder), plan.methods)
        found = _fit_one(plan.again(), rows, seed, name, own, say)
        if isinstance(found, str) or isinstance(found.file, bytes):
            return found
        return found._replace(file=found.file.read_bytes())


def run_all(
    plan: Plan,
    splits: Mapping[int, Split],
    seeds: Sequence[int],
    out: Path,
    *,
    num_processes: int = 1,
) -> tuple[RepeatedComparison, Path | None, list[str]]:
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

    Returns:
        All runs together, the folder where this was written, and what could not be written to
        ``out``.

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
        own = plan if plan.backend is None else plan.again()
        tasks = {
            title: partial(_run_beside, own, title, *run, out.resolve())
            for title, run in titled.items()
        }

        def killed(title: str) -> tuple[Run, str]:
            return _lost(plan, *titled[title], side_by_side.ENDED)

        done = list(plan.do(tasks, num_processes, killed).values())
    runs = [run for run, _ in done]
    if not any(run.methods for run in runs):
        raise DivergenceError("; ".join(lost_lines(runs)))
    repeated = compare_runs(runs)
    folder, why = write_or_rescue(out, partial(repeated.save, command=plan.command))
    return repeated, folder, [reason for reason in (*(own for _, own in done), why) if reason]


def check_saves(plan: Plan, splits: Mapping[int, Split], seeds: Sequence[int]) -> None:
    """Refuse checkpoints that the runs, one or all of :func:`run_all`, would not go on from.

    Raises:
        FileFormatError: If a checkpoint is damaged, foreign or newer.
        OptionError: If there is one and the runs are not to go on.
    """
    runs = [plan.within(Run.without_posteriors(r, s, {})) for r in splits.values() for s in seeds]
    plans = runs if len(runs) > 1 else [plan]
    resuming.check(plan.saves, [save for one in plans for save in one.saves_of_each().values()])


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
        asked: What the command says; None for as many as there are cores for, where they save
            more time than they take to begin.
        engines: By name of the method.
        num_runs: Runs over splits and seeds.
        threads: CPU threads of each process.
        is_here: Whether they are processes of this machine, and no other backend's.
        device: Where the networks are: a GPU is one for all, so that nothing is chosen there.

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


def _run_beside(
    plan: Plan, title: str, rows: Split, seed: int, out: Path, say: Say
) -> tuple[Run, str]:
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


def _run(plan: Plan, rows: Split, seed: int, out: Path) -> tuple[Run, str]:
    """A run, and why its report is not in its folder; empty if it is there."""
    folder = out / Run.without_posteriors(rows, seed, {}).folder
    try:
        own = plan.within(Run.without_posteriors(rows, seed, {}))
        done = own.run(plan.models(rows, seed), rows, seed, folder)
    except OtherRunError:
        raise
    except Exception as error:
        why = why_lost(error)
        plan.say(f"No comparison: {why}")
        return _lost(plan, rows, seed, why)
    return Run.of(done.comparison, done.lost), done.why


def _lost(plan: Plan, rows: Split, seed: int, why: str) -> tuple[Run, str]:
    return Run.without_posteriors(rows, seed, dict.fromkeys(plan.engines, why)), ""


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
    for part in comma_parts(text, expected):
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


def one_or_several(context: typer.Context, name: str, several: str) -> list[int]:
    """Values of a pair of options such as ``--split 3``, an older spelling, and ``--splits 0-4``.

    Args:
        context: The command's.
        name: Of the option for one, such as ``"split"``.
        several: Value of the option for several.

    Raises:
        OptionError: If both are given, or the numbers cannot be read.
    """
    if not given(context, name):
        return numbers(several, f"--{name}s")
    if given(context, f"{name}s"):
        raise OptionError(f"--{name} and --{name}s are both given: leave one of them out")
    return [context.params[name]]
