"""Statements on why scores tie, what the answer costs, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from pyro_bnn.diagnostics.scores import cost_of_wrong_spread
from pyro_bnn.plotting.numbers import counted, number, percent
from pyro_bnn.report.verdicts.advice import listed
from pyro_bnn.report.verdicts.merits import Merits
from pyro_bnn.report.verdicts.statement import CHANGE, COST, TIE, Statement, ends, in_seconds

GAP = 0.01  # nats a row, whose rows are counted
FOUND = 4.0  # standard errors of a difference that the ranking of a few methods mostly finds
WRONG = 2.0  # times or part of the epistemic sd, whose cost in score is told


def why_the_tie(merits: Merits) -> Statement | None:
    """Why scores do not tell methods apart: what a wrong spread costs beside the error."""
    tied = [place for place in merits.ranking if not place.is_behind]
    others = [place for place in tied if place is not merits.ranking[0]]
    errors = [place.difference.standard_error for place in others]
    if not others or not all(map(math.isfinite, errors)):
        return None
    shares = {
        place.name: own
        for place in tied
        if (own := merits.entries[place.name].held_out.epistemic_share).size
        and not merits.is_point(place.name)
    }
    error = float(np.median(errors))
    text = (
        f"With {merits.num_rows:,} rows the standard error of a difference is "
        f"{number(error, 2)} nats a row (median)."
    )
    if not shares:
        return Statement(TIE, text)
    basis = merits.used.name if merits.used and merits.used.name in shares else next(iter(shares))
    parts = {name: float(share.mean()) for name, share in shares.items()}
    return Statement(
        TIE,
        f"Uncertainty of the function is {ends(parts, lambda part: percent(part, 0))} of the "
        f"predictive variance, the rest is noise. {_wrong_spread(merits, basis, error)}{text}",
    )


def _wrong_spread(merits: Merits, basis: str, error: float) -> str:
    """What half or twice the epistemic sd would cost in score, of Gaussian predictives."""
    scores = merits.entries[basis].held_out
    if scores.probs is not None:
        return ""
    half, twice = (
        cost_of_wrong_spread(scores.epistemic_share, ratio) for ratio in (1 / WRONG, WRONG)
    )
    start = "The score hardly sees that uncertainty: halving" if twice < error else "Halving"
    return (
        f"{start} the epistemic sd of {basis} would cost {number(half, 2)} nats a row, doubling it "
        f"{number(twice, 2)} (if {basis} is right and its predictions are Gaussian). "
    )


def what_it_costs(merits: Merits) -> Statement | None:
    """Wall times of the fits."""
    used = merits.used
    times = {name: merits.seconds(name) for name in merits.entries if merits.seconds(name) > 0}
    if used is None and times:
        spent = [f"{in_seconds(seconds)} ({name})" for name, seconds in times.items()]
        return Statement(COST, f"So far {listed(spent)}.")
    if used is None or used.name not in times:
        return None
    fit, where = used.fit, ""
    at_once = f", {fit.processes} fits at a time" if fit.processes > 1 else ""
    if fit.gpu is not None:
        where = f" on {fit.gpu}"
    elif fit.threads is not None:
        where = f" on {counted(fit.threads, 'thread')}"
    text = f"{in_seconds(times.pop(used.name))} for {used.name}{where}{at_once}"
    if times:
        text += f"; the others {ends(times, in_seconds)}"
    return Statement(COST, f"{text}.", (used.name,))


def what_would_change(merits: Merits) -> Statement | None:
    """What the answer hangs on."""
    text = " ".join(_changes(merits))
    return Statement(CHANGE, text) if text else None


def _changes(merits: Merits) -> Iterator[str]:
    if merits.judge is None:
        found = next((f.text for f in merits.findings if f.kind == "reference"), "")
        if found or not all(map(merits.is_exact, merits.entries)):
            yield found or "A reference: long NUTS chains would judge the spreads."
    if any(not merits.is_fit(name) for name in merits.places):
        yield "The fits to be run again: once finished they may rank differently."
    if merits.judge is not None:
        elsewhere = [name for name in merits.entries if not merits.is_of_the_judge(name)]
        if elsewhere:
            yield (
                f"A reference for {listed(elsewhere)}, of another model than {merits.judge.name}: "
                "here only their scores compare."
            )
    if len(merits.ranking) > 1:
        yield from _more_rows(merits)
        yield "Other splits and seeds (--splits, --seeds): scores here speak for this split alone."


def _more_rows(merits: Merits) -> Iterator[str]:
    """How many rows would show a small difference, by the error that these rows leave."""
    tied = [place for place in merits.ranking[1:] if not place.is_behind]
    for place in tied[:1]:
        rows = len(merits.entries[place.name].held_out.log_score)
        gap, own = place.difference, f"{merits.ranking[0].name} and {place.name}"
        if math.isnan(gap.draws_error):
            yield (
                "More draws (num_samples): these are too few to tell the error of a difference "
                f"between {own}."
            )
        if not FOUND * gap.standard_error > GAP:
            continue
        room = (GAP / FOUND) ** 2 - gap.draws_error**2  # which more rows leave as it is
        if room <= 0:
            yield (
                f"More draws (num_samples): these are too few to reveal a difference of {GAP} nats "
                f"a row between {own}."
            )
        elif math.isfinite(gap.points_error):
            needed = number(float(f"{rows * gap.points_error**2 / room:.1e}"), 2)
            yield (
                f"More test rows: about {needed}, in place of {rows:,}, would reveal a difference "
                f"of {GAP} nats a row between {own}."
            )
