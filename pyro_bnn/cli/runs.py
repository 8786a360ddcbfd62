"""One comparison of a command: its methods are fitted, evaluated, compared and reported."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
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
from pyro_bnn.cli.evaluated import evaluate_now
from pyro_bnn.cli.fits import why_lost
from pyro_bnn.cli.kept import EndedFits, write_or_rescue
from pyro_bnn.cli.methods import Auto, NamedMethod
from pyro_bnn.cli.options import FitOptions, NetworkOptions
from pyro_bnn.cli.saves import OtherRunError, Saves
from pyro_bnn.cli.side_by_side import Say
from pyro_bnn.cli.terminal import plain_notes
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
    SplitRun,
    reference,
)
from pyro_bnn.report.compare import Alone, compare_all
from pyro_bnn.report.evaluation.saved import SavedEvaluation, tree_of
from pyro_bnn.report.output.names import file_names

T = TypeVar("T")
UNKEPT = "its fit ended, but no folder could be written to for it; a note says why"
PAGE_FILES = ("index.html", "table.csv")  # of every report
LOOKED_FOR = "reference"  # what a reference is called before its engine is known


class EndedFit(NamedTuple):
    """What a process made of one method.

    Attributes:
        file: That of the fit, or what it holds.
        alone: What the fit came to by itself.
    """

    file: Path | bytes
    alone: Alone


class RunOutcome(NamedTuple):
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

    @property
    def failures(self) -> list[str]:
        """What fails the command: a report that is elsewhere, and methods without a row."""
        lines = [f"{name}: {reason}" for name, reason in self.lost.items()]
        return [self.why, *lines] if self.why else lines

    @property
    def files(self) -> list[str]:
        """Names of the files in the folder."""
        draws = file_names(self.comparison.posteriors).values()
        return [*PAGE_FILES, "verdicts.json", *(f"{name}.nc" for name in draws)]


@dataclass(frozen=True, kw_only=True)
class RunPlan:
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

    methods: Mapping[str, NamedMethod]
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
        methods: Mapping[str, NamedMethod],
        choice: NetworkOptions,
        how: FitOptions,
    ) -> RunPlan:
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

    def within(self, run: SplitRun) -> RunPlan:
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
        specs = networks.make_networks(self.methods, rows, self.choice, seed)
        if isinstance(self.reference, Auto):
            specs |= networks.make_networks(
                {LOOKED_FOR: NamedMethod(NUTS)}, rows, self.choice, seed
            )
        made: dict[str, Any] = networks.build_models(specs, self.device)
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
    ) -> RunOutcome:
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
        return OneRun(self, models, rows, seed, out, num_processes).outcome()

    def fit(
        self, models: Mapping[str, Model], rows: Split, seed: int, **how: Any
    ) -> tuple[dict[str, Posterior], dict[str, str]]:
        """Call :func:`fits.fit_all` with the engines and checkpoints of the plan."""
        saves, progress = self.saves_of_each(), self.progress
        return fits.fit_all(
            self.engines, models, rows, seed=seed, progress=progress, saves=saves, **how
        )

    def do(
        self,
        tasks: Mapping[str, Callable[[Say], T]],
        num_processes: int,
        if_killed: Callable[[str], T],
    ) -> dict[str, T]:
        """Do tasks side by side in processes here, or by the backend; return their values.

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
        values: dict[str, T] = {}
        with self.backend():
            answers = in_order(partial(_told, task) for task in tasks.values())
            for name, (lines, value) in zip(tasks, answers, strict=True):
                values[name] = value
                for line in lines:
                    self.say(line)
        return values

    def again(self) -> RunPlan:
        """The plan for another machine, which may begin a task again after a worker was lost."""
        plan = dataclasses.replace(self, backend=None, progress=False)
        return dataclasses.replace(plan, saves=self.saves.again())


class OneRun:
    """One comparison of a plan; its arguments are those of `RunPlan.run`.

    Attributes:
        ended: The fits that are on disk.
        alone: What each fit came to by itself.
    """

    def __init__(
        self,
        plan: RunPlan,
        models: Mapping[str, Model],
        rows: Split,
        seed: int,
        out: Path,
        num_processes: int,
    ) -> None:
        self.plan, self.models, self.rows, self.seed = plan, models, rows, seed
        self.out, self.num_processes = out, num_processes
        self.ended = EndedFits(out, plan.methods)
        self.alone: dict[str, Alone] = {}

    def outcome(self) -> RunOutcome:
        """Fit, evaluate, compare, write."""
        plan = self.plan
        is_beside = self.num_processes > 1 or plan.backend is not None
        posteriors, lost = plan.fit(
            self.models,
            self.rows,
            self.seed,
            say=plan.say,
            done=self.fit_side_by_side() if is_beside else None,
            ended=self.ended,
            then=self.evaluate,
        )
        judge = plan.reference if plan.reference in posteriors else None
        if isinstance(plan.reference, Auto):
            judge = self.look(plan.reference.seconds, posteriors, lost)
        plan.say("Comparing ...")
        comparison = compare_all(
            posteriors,
            self.rows,
            lost,
            reference=judge,
            seed=self.seed,
            reason_of=why_lost,
            alone=self.alone,
        )
        write: Callable[[Path], object] = partial(comparison.save, command=plan.command)
        if is_beside and plan.backend is None:
            write = partial(self.save_beside, comparison)
        folder, why = write_or_rescue(self.out, write)
        if not why:
            self.ended.forget(comparison.posteriors)
        return RunOutcome(comparison, lost, folder, why)

    def evaluate(self, name: str, posterior: Posterior) -> None:
        """Evaluate a fit, unless its process has done so."""
        if name not in self.alone:
            self.alone[name] = evaluate_now(
                self.plan.engines, name, posterior, self.rows, self.seed, self.plan.say
            )

    def look(
        self, seconds: float, posteriors: dict[str, Posterior], lost: dict[str, str]
    ) -> str | None:
        """Look for a reference on the network of the command, and add it to the posteriors.

        Args:
            seconds: How long that may take.
            posteriors: Those of the methods; gets that of the reference, by the name of its engine.
            lost: Gets the reason where there is none.

        Returns:
            Its name, or None where no engine has draws.
        """
        plan, saves = self.plan, self.plan.saves.within(LOOKED_FOR)
        try:
            posterior = reference(
                self.models[LOOKED_FOR],
                self.rows,
                seconds=seconds,
                seed=self.seed,
                progress=plan.progress,
                say=plan.say,
                checkpoint=saves.checkpoint,
                resume=saves.resume,
            )
        except Exception as error:
            if saves.resume and isinstance(error, (DataError, OptionError, SiteError)):
                raise  # its checkpoint is of another run
            lost[LOOKED_FOR] = why_lost(error)
            plan.say(f"No reference: {lost[LOOKED_FOR]}")
            return None
        name = (
            posterior.method
            if posterior.method not in posteriors
            else f"{posterior.method} ({LOOKED_FOR})"
        )
        posteriors[name] = posterior
        self.ended.keep(name, posterior.save)
        return name

    def fit_side_by_side(self) -> dict[str, Callable[[], Posterior]]:
        """Run engines in processes, the longest first, but for those that wait for another fit.

        Returns:
            For :func:`fits.fit_all`, what loads each posterior, or raises why there is none.
        """
        plan, models = self.plan, self.models
        seconds = {
            name: fits.expected_seconds(
                engine, fits.count_numbers(engine, models[name], self.rows.train)
            )
            for name, engine in plan.engines.items()
            if not fits.holds_fixed(engine, models[name])
        }
        names = sorted(seconds, key=lambda name: -seconds[name])
        fit = _fit_one if plan.backend is None else _fit_one_elsewhere
        tasks: dict[str, Callable[[Say], str | EndedFit]] = {
            name: partial(fit, plan, self.rows, self.seed, name, self.ended) for name in names
        }
        reasons: dict[str, str] = {}
        for name, fitted in plan.do(tasks, self.num_processes, _killed).items():
            if isinstance(fitted, str):
                reasons[name] = fitted
                continue
            self.alone[name] = fitted.alone
            if isinstance(fitted.file, bytes):
                self.ended.keep(name, partial(_write, fitted.file))
            else:
                self.ended.paths[name] = fitted.file
        return {name: partial(_outcome, self.ended, name, models[name], reasons) for name in names}

    def save_beside(self, comparison: Comparison, out: Path) -> None:
        """Save a comparison; processes write the draws of fits that are on disk meanwhile."""
        plan, paths = self.plan, self.ended.paths
        files = comparison.draws_files(made_folder(out))
        beside = [name for name in files if name in paths and name in plan.engines]
        with side_by_side.processes(self.num_processes, torch.get_num_threads()) as pool:
            begun = {
                name: pool.submit(
                    partial(_write_draws, plan, comparison.saved(name), comparison.split),
                    paths[name],
                    files[name],
                )
                for name in beside
            }

            def write(name: str, path: Path) -> None:
                try:
                    begun.pop(name).result()
                except (KeyError, BrokenProcessPool):  # no process has it, or the one was killed
                    comparison.write_draws(name, path)

            comparison.save_with(out, plan.command, write)


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


def _write_draws(
    plan: RunPlan, saved: SavedEvaluation, split: Split, fit: Path, path: Path
) -> None:
    posterior = Posterior.load(fit, plan.models(split, saved.seed)[saved.entry.name])
    save_netcdf(tree_of(saved, posterior, split), path, follow=False)


def _fit_one(
    plan: RunPlan, rows: Split, seed: int, name: str, ended: EndedFits, say: Say
) -> str | EndedFit:
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
    return EndedFit(ended.paths[name], alone)


def _fit_one_elsewhere(
    plan: RunPlan, rows: Split, seed: int, name: str, ended: EndedFits, say: Say
) -> str | EndedFit:
    """As :func:`_fit_one`, but what it saves is returned: there may be no disk of both."""
    del ended
    with tempfile.TemporaryDirectory(prefix="pyro-bnn-") as folder:
        kept = EndedFits(Path(folder), plan.methods)
        fitted = _fit_one(plan.again(), rows, seed, name, kept, say)
        if isinstance(fitted, str) or isinstance(fitted.file, bytes):
            return fitted
        return fitted._replace(file=fitted.file.read_bytes())
