"""Verdicts over several runs: the ranking over splits, lost runs, how often each check spoke."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyro_bnn.plotting.numbers import counted, number, with_error
from pyro_bnn.report.splits.statistics import MIN_SPLITS
from pyro_bnn.report.splits.table import Standing, common_runs, correction, count_splits
from pyro_bnn.report.verdicts.advice import sentence, together
from pyro_bnn.report.verdicts.verdict import Verdict, VerdictRule
from pyro_bnn.report.verdicts.verdicts import RULES, ranking_verdicts

if TYPE_CHECKING:
    from pyro_bnn.report.splits.run import SplitRun

MAX_REASONS = 3


def run_verdicts(runs: Sequence[SplitRun], places: Sequence[Standing]) -> list[Verdict]:
    """All verdicts: ranking, what its errors mean, lost runs, then the checks of the fits.

    Args:
        runs: All runs.
        places: The standings of the methods.
    """
    common = common_runs(runs)
    return [
        *_scores(common, places),
        *_errors(common),
        *_wins(common, places),
        *_lost(runs, len(common), places),
        *_models(runs),
        *_checks(runs),
    ]


def _scores(common: Sequence[SplitRun], places: Sequence[Standing]) -> Iterator[Verdict]:
    if not common:
        yield Verdict(
            "No run has all methods, so there is nothing to average: see the reports of the single "
            "runs, or leave a method out.",
            "scores",
        )
        return
    num_splits = count_splits(common)
    places = [place for place in places if place.num_runs]
    best, *others = places
    if num_splits < MIN_SPLITS:
        means = ", ".join(
            f"{p.name} {with_error(p.log_score.mean, p.log_score.sd_over_seeds)}" for p in places
        )
        yield Verdict(
            f"No ranking: {counted(num_splits, 'split')} {'gives' if num_splits == 1 else 'give'} "
            f"no standard error over splits, {MIN_SPLITS} do. Mean held-out log scores in nats per "
            f"test row: {means}.",
            "scores",
            is_warning=False,
        )
        return
    score = with_error(best.log_score.mean, best.log_score.standard_error)
    yield from ranking_verdicts(
        best.name,
        f"the highest mean held-out log score over {num_splits} splits, {score}",
        [place for place in others if place.rank == 1],
        [place for place in others if place.rank != 1],
        "These splits do not separate them.",
        f", with corrected standard errors and {num_splits - 1} degrees of freedom",
    )


def _errors(common: Sequence[SplitRun]) -> Iterator[Verdict]:
    """What the errors are errors of."""
    num_splits = count_splits(common)
    if num_splits == 1 and len(common) > 1:
        yield Verdict(
            f"± is the standard deviation over {len(common)} seeds on the same rows: how much a "
            "fit varies, and no error over data.",
            "splits",
            is_warning=False,
        )
    if num_splits < MIN_SPLITS:
        return
    shared = _share_rows(common)
    what = {
        True: "Test sets of these splits share rows, and so do training sets",
        False: "Training sets of these splits share rows",
        None: "Splits of one data set share rows",
    }[shared]
    factor = 1 / num_splits + correction(common)
    yield Verdict(
        f"± is the standard error over {num_splits} splits, seeds averaged first. {what}, so that "
        "of a mean is too small; that of a difference has the squared factor 1/J + "
        f"n_test/n_train = {number(factor)} in place of 1/J = {number(1 / num_splits)} "
        "(Nadeau & Bengio 2003).",
        "splits",
        is_warning=False,
    )


def _share_rows(runs: Sequence[SplitRun]) -> bool | None:
    """Whether test sets of different splits share rows; None where it is not known."""
    sets = {run.split: run.test_rows for run in runs}
    known = [rows for rows in sets.values() if rows is not None]
    if len(known) < len(sets):
        return None
    return len(frozenset[int]().union(*known)) < sum(map(len, known))


def _wins(common: Sequence[SplitRun], places: Sequence[Standing]) -> Iterator[Verdict]:
    if common and len([place for place in places if place.num_runs]) > 1:
        parts = ", ".join(f"{place.name} in {place.num_best}" for place in places if place.num_best)
        yield Verdict(
            f"Highest held-out log score of a run, of {counted(len(common), 'run')}: {parts}.",
            "wins",
            is_warning=False,
        )


def _lost(
    runs: Sequence[SplitRun], num_common: int, places: Sequence[Standing]
) -> Iterator[Verdict]:
    for place in places:
        lost = [(run, run.lost[place.name]) for run in runs if place.name in run.lost]
        if not lost:
            continue
        reasons = "; ".join(f"{run.name}: {why.rstrip('.')}" for run, why in lost[:MAX_REASONS])
        more = f"; and {len(lost) - MAX_REASONS} more" if len(lost) > MAX_REASONS else ""
        rest = (
            f"Averages are over the {counted(num_common, 'run')} that all methods have"
            if place.num_runs
            else "It is left out of the averages"
        )
        yield Verdict(
            f"{place.name} has {place.num_runs} of {counted(len(runs), 'run')} "
            f"({reasons}{more}). {rest}.",
            "lost",
            methods=(place.name,),
        )


def _models(runs: Sequence[SplitRun]) -> Iterator[Verdict]:
    """What the single runs say of models: once each, as the runs have the same models."""
    seen = set()
    for run in runs:
        for finding in run.findings:
            if finding.kind == "models" and finding.text not in seen:
                seen.add(finding.text)
                yield finding


def _checks(runs: Sequence[SplitRun]) -> Iterator[Verdict]:
    """Every warning of the single runs, with the number of runs it was given in."""
    order = {name: place for place, run in enumerate(runs) for name in run.methods}
    for rule in RULES:
        where: dict[str, list[SplitRun]] = {}
        for run in runs:
            found = [f for f in run.findings if f.kind == rule.kind and f.is_warning]
            for name in dict.fromkeys(name for one in found for name in one.methods):
                where.setdefault(name, []).append(run)
        if not where:
            continue
        parts = []
        for name in sorted(where, key=lambda name: (-len(where[name]), order[name], name)):
            total = sum(name in run.methods for run in runs)
            parts.append(f"{name} in {len(where[name])} of {counted(total, 'run')}")
        first = next(iter(where.values()))[0]
        yield Verdict(
            f"{rule.what}: {', '.join(parts)}. {_step(rule, where)}; numbers "
            f"stand in the single reports, for example of {first.name}.",
            rule.kind,
            methods=tuple(where),
        )


def _step(rule: VerdictRule, where: Mapping[str, Sequence[SplitRun]]) -> str:
    """What the methods are to do next: what their runs say, or the rule in general."""
    steps = {
        name: step
        for name, runs in where.items()
        for run in runs
        for finding in run.findings
        if finding.kind == rule.kind and (step := finding.steps.get(name))
    }
    return sentence(together(steps) if steps else rule.step)
