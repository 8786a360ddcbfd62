"""A posterior that others may be measured against: engines in turn, until one passes the checks."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from pyro_bnn.checks import check_positive, plain
from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.labels import Task
from pyro_bnn.data.split import Split
from pyro_bnn.diagnostics.agreement import between_share, pooled_score
from pyro_bnn.diagnostics.convergence import MIN_ESS
from pyro_bnn.errors import (
    CaptureError,
    DataError,
    DivergenceError,
    ModelError,
    SiteError,
)
from pyro_bnn.infer.checkpoints.interrupts import Interrupted
from pyro_bnn.infer.inputs import FitData, as_dataset
from pyro_bnn.infer.run import Reached
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.program.handlers import Model
from pyro_bnn.report.evaluation.account import Account, Agreement, Tried, with_account
from pyro_bnn.report.evaluation.fit_checks import FUNCTION, FitChecks, run_checks
from pyro_bnn.report.evaluation.units import to_numpy
from pyro_bnn.report.ladder.rungs import BEFORE, PRIOR, RUNGS, Rung, climb
from pyro_bnn.report.verdicts.chain_verdicts import defects

logger = logging.getLogger("pyro_bnn")

WORTH = 0.5  # of what a rung is expected to take must be left, or it is not begun
OF_A_RUNG = (CaptureError, DataError, DivergenceError, ModelError, SiteError)
"""Errors by which an engine does not serve a problem, and another one may."""
MOST_LONGER = 4  # times as many draws are one rung; chains that lack more do not mix
SPARE = 1.5  # times the effective draws that are needed are aimed at
LEAST = 100  # draws of a chain of the first rung, whatever the bound


class _OutOfTime(Interrupted):
    """The bound of time ends a run, whose draws so far are kept."""


@dataclass(frozen=True)
class _Climbed:
    """A rung that has draws."""

    number: int
    rung: Rung
    posterior: DrawsPosterior
    checks: FitChecks
    failed: tuple[str, ...]
    seconds: float

    @property
    def order(self) -> tuple[bool, float, float]:
        """Sorts rungs, the best first: those that pass, then by R-hat, then by ESS."""
        sampling = self.checks.sampling
        rhat = math.nan if sampling is None else sampling.worst_rhat
        ess = math.nan if sampling is None else sampling.smallest_ess
        return (
            bool(self.failed),
            math.inf if math.isnan(rhat) else rhat,
            math.inf if math.isnan(ess) else -ess,
        )


def reference(
    model: Model,
    data: Split | FitData,
    *,
    seconds: float = 600.0,
    seed: int = 0,
    progress: bool = True,
    say: Callable[[str], object] | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
) -> DrawsPosterior:
    """Draws of the exact posterior that pass the report's checks, or the best there are in time.

    Engines are tried in turn: ``MAMS`` by default; ``MAMS`` from the members of an ensemble, with a
    longer warm-up and a low-rank mass matrix; ``NUTS`` from where these chains ended; then ever
    longer chains. Chains that lack nothing but draws get them before another engine is tried. The
    first whose chains pass the checks by which a report takes a reference
    (``diagnostics.ChainChecks.can_judge``) is returned. Where none does, it is the one with the
    smallest R-hat, and its account says what its chains agree on all the same.

    A rung is begun where half the time that it is likely to take is left, and ended where the bound
    is reached: its draws until then are kept and checked. The first rung is always begun, and goes
    on until its chains have about a hundred draws each. A seed gives the same draws on one machine,
    but for a rung that the bound cut short, which the account names, and for how many rungs there
    was time for.

    Args:
        model: Pyro model ``model(x, y=None)``.
        data: A ``Split``, whose training rows are fitted and at whose test rows the function is
            checked; or rows as an engine takes them, at which it is checked.
        seconds: Wall time that it may take, > 0.
        seed: Seed of every run.
        progress: Whether to show a bar for each run.
        say: Gets a line for each rung, what it was and what failed; by default they are logged.
        checkpoint: Folder in which each rung is saved, in a folder of its own.
        resume: Whether to go on from there: rungs that were done are not run again, and the one
            that was stopped goes on. The bound of time begins anew.

    Returns:
        The posterior; ``report.account(posterior)`` says how it was come by.

    Raises:
        DivergenceError: If no rung has draws.
        ModelError, ShapeError, SiteError: If no engine serves the model.
        Interrupted: If Ctrl-C came; holds the best posterior so far, where there is one.
        OptionError: If ``seconds`` is not positive, or the seed negative.

    References:
        Vehtari et al., "Rank-Normalization, Folding, and Localization", Bayesian Analysis 2021,
        arXiv:1903.08008, for the checks.

    Example:
        >>> import torch
        >>> from pyro_bnn import models, report
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> model = models.LinearRegression(1)
        >>> posterior = reference(model, (x, 2 * x[:, 0]), seconds=60, progress=False)
        >>> report.account(posterior).passed
        True
    """
    seconds = plain(seconds)
    check_positive("seconds", seconds)
    split = data if isinstance(data, Split) else _whole(as_dataset(data))
    ladder = _Ladder(
        model,
        split,
        float(seconds),
        plain(seed),
        progress=progress,
        say=say or logger.info,
        folder=None if checkpoint is None else Path(checkpoint),
        resume=resume,
    )
    return ladder.climb(climb())


def _whole(data: Dataset) -> Split:
    """All rows as those of the fit and of the checks."""
    task: Task = "regression" if data.num_classes is None else "classification"
    return Split(train=data, test=data, task=task, name="data")


class _Ladder:
    """The climb: what was tried, what is left of the time, the best posterior so far."""

    def __init__(
        self,
        model: Model,
        split: Split,
        bound: float,
        seed: int,
        *,
        progress: bool,
        say: Callable[[str], object],
        folder: Path | None,
        resume: bool,
    ) -> None:
        self._model, self._split, self._bound, self._seed = model, split, bound, seed
        self._progress, self._say = progress, say
        self._folder, self._resume = folder, resume
        self._began = time.perf_counter()
        self._tried: list[Tried] = []
        self._found: list[_Climbed] = []
        self._errors: list[Exception] = []

    @property
    def _spent(self) -> float:
        return time.perf_counter() - self._began

    def climb(self, rungs: Iterable[Rung]) -> DrawsPosterior:
        """Try rungs until one passes or time is up; the best of them."""
        ended = "the ladder has no further rung"
        following = iter(rungs)
        while (rung := self._nearly() or next(following, None)) is not None:
            if len(self._tried) >= len(RUNGS) and not self._last_has_draws:
                ended = "the last one has no draws"
                break  # longer chains of what does not run
            if self._tried and (why := self._not_worth(rung)):
                ended = why
                break
            try:
                self._try(rung)
            except KeyboardInterrupt as error:
                if isinstance(error, Interrupted) and self._found:
                    error.posterior = self._best.posterior
                raise
            if self._found and not self._best.failed:
                ended = "it passed"
                break
        if not self._found:
            self._refuse()
        best = self._best
        found = Account(
            bound=self._bound,
            seconds=self._spent,
            tried=tuple(self._tried),
            reached=best.number,
            ended=ended,
            agreement=agreement(best.posterior, self._split, best.checks) if best.failed else None,
        )
        return with_account(best.posterior, found)

    def _refuse(self) -> NoReturn:
        """Raise what kept all rungs from having draws: that of the model, where it is alike."""
        if not any(isinstance(error, DivergenceError) for error in self._errors):
            raise self._errors[0]
        raise DivergenceError(
            "no rung of the ladder has draws: "
            + "; ".join(f"{one.name}: {', '.join(one.failed)}" for one in self._tried)
        )

    @property
    def _best(self) -> _Climbed:
        return min(self._found, key=lambda one: one.order)

    @property
    def _last_has_draws(self) -> bool:
        return bool(self._found) and self._found[-1].number == len(self._tried) - 1

    def _nearly(self) -> Rung | None:
        """More draws of the rung that was tried last, where these are all that it lacks."""
        if not self._last_has_draws:
            return None
        last = self._found[-1]
        times = times_as_long(last.checks)
        return last.rung.longer(times) if times > 1 and last.rung.num_draws else None

    def _not_worth(self, rung: Rung) -> str:
        """Why a rung is not begun; empty where it is."""
        left = self._bound - self._spent
        expected = self._expected(rung)
        if left > 0 and left >= WORTH * expected:
            return ""
        about = f" would take about {expected:,.0f} s, and" if expected else " had no time:"
        return f"the next, {rung.name},{about} {max(left, 0):,.0f} s were left"

    def _expected(self, rung: Rung) -> float:
        """Seconds of a rung, by those of the last run of its engine, or else of any."""
        alike = [f for f in self._found if type(f.rung.engine) is type(rung.engine)]
        known = alike or self._found
        if not known or not known[-1].rung.num_draws:
            return 0.0
        return known[-1].seconds * rung.num_draws / known[-1].rung.num_draws

    def _try(self, rung: Rung) -> None:
        """One rung: its start, its run, its checks; one that fails without draws is noted."""
        began, is_first = time.perf_counter(), not self._tried
        posterior, checks, cut, start = None, None, False, rung.start
        try:
            init, where = self._start(rung)
            posterior = self._run(rung, init, is_first=is_first)
            cut = bool(posterior.options.get("interrupted"))
            checks = run_checks(posterior, self._split, self._seed)
            failed = failures(checks)
        except Exception as error:
            if not (self._found or isinstance(error, OF_A_RUNG)):
                raise  # draws that there are already are worth more than the error
            self._errors.append(error)
            where = start if isinstance(start, str) else type(start).__name__
            failed = (f"{type(error).__name__}: {error}",)
        seconds = time.perf_counter() - began
        tried = Tried(name=rung.name, start=where, seconds=seconds, failed=failed, was_cut=cut)
        number = len(self._tried)
        self._tried.append(tried)
        if posterior is not None and checks is not None:
            self._found.append(_Climbed(number, rung, posterior, checks, failed, seconds))
        self._say(f"Reference, rung {number + 1}: {tried.words}")

    def _start(self, rung: Rung) -> tuple[Posterior | None, str]:
        """Where the chains of a rung start, and that in words."""
        if rung.start == BEFORE and self._found:
            last = self._found[-1]
            return last.posterior, f"the draws of rung {last.number + 1}"
        if isinstance(rung.start, str):
            return None, PRIOR
        posterior = rung.start.run(
            self._model, self._split.train, seed=self._seed, progress=self._progress
        )
        return posterior, f"members of {type(rung.start).__name__}"

    def _run(self, rung: Rung, init: Posterior | None, *, is_first: bool) -> DrawsPosterior:
        """A run of an engine until its end or that of the time, with the draws it has by then."""
        least = rung.warmup + LEAST if is_first else 0
        number = len(self._tried) + 1

        def look(at: Reached) -> None:
            if self._spent > self._bound and at.step >= least:
                raise _OutOfTime("the bound of time is reached")

        try:
            drawn: DrawsPosterior = rung.engine.run(
                self._model,
                self._split.train,
                init=init,
                seed=self._seed,
                progress=self._progress,
                on_step=look,
                checkpoint=None if self._folder is None else self._folder / f"rung-{number}",
                resume=self._resume,
            )
        except _OutOfTime as error:
            if isinstance(error.posterior, DrawsPosterior):
                return error.posterior
            raise DivergenceError("the bound of time came before the first draw") from error
        return drawn


def failures(checks: FitChecks) -> tuple[str, ...]:
    """What keeps chains from being a reference, by the checks of the report; none if they may."""
    if checks.sampling is None:
        return ("no chains to check",)
    return tuple(defects(checks.sampling))


def times_as_long(checks: FitChecks) -> int:
    """How many times the draws of chains would do that lack nothing else; 1 where that is no cure.

    Chains with a fourth of the effective draws that are needed mix: R-hat is then as large as it is
    by chance, and falls with more of them.

    Args:
        checks: Of the chains.
    """
    sampling = checks.sampling
    if sampling is None or not sampling.quantities or not sampling.moves:
        return 1
    least = min(sampling.smallest_ess, sampling.smallest_ess_tail)
    if not least >= MIN_ESS / MOST_LONGER:
        return 1
    return max(2, math.ceil(SPARE * MIN_ESS / least))


def agreement(posterior: DrawsPosterior, split: Split, checks: FitChecks) -> Agreement | None:
    """What chains agree on that failed the checks; None where there are too few draws to say.

    Args:
        posterior: Their draws.
        split: The data; f is looked at where ``checks`` did.
        checks: What failed.
    """
    sampling, chains = checks.sampling, checks.chains
    if sampling is None or chains is None or not sampling.quantities:
        return None
    every, seed = posterior.num_stored_draws, posterior.seed
    density = posterior.log_likelihood(split.test, every, seed, group_by_chain=True)
    score = pooled_score(to_numpy(density))
    learned = posterior.hyperparameters(every, seed, group_by_chain=True)
    means = {k: to_numpy(v).reshape(*v.shape[:2], -1).mean((1, 2)) for k, v in learned.items()}
    return Agreement(
        rhat={
            name: found.median_rhat if name == FUNCTION else found.worst_rhat
            for name, found in sampling.quantities.items()
        },
        between=float(np.nanmedian(between_share(chains))),
        scales={name: (float(each.min()), float(each.max())) for name, each in means.items()},
        log_score=score.pooled,
        gain=score.gain,
        has_test_rows=split.test is not split.train,
    )
