"""Statements on what to use: the posterior to trust, the one that predicts best, a cheaper one."""

from __future__ import annotations

import math

from pyro_bnn.plotting.numbers import with_error
from pyro_bnn.report.verdicts.advice import listed
from pyro_bnn.report.verdicts.chain_verdicts import passed
from pyro_bnn.report.verdicts.fit_verdicts import ended
from pyro_bnn.report.verdicts.merits import POINT, Merits
from pyro_bnn.report.verdicts.spread_verdicts import median_of
from pyro_bnn.report.verdicts.statement import CHEAPER, PREDICT, USE, Statement, grouped, in_seconds
from pyro_bnn.report.verdicts.verdict import CAVEAT, FUNCTION, PREDICTIONS, REFIT, UNCHECKED


def use(merits: Merits) -> Statement:
    """The posterior to trust, and what it has passed."""
    used, judge = merits.used, merits.judge
    if used is None:
        return Statement(USE, "None yet: every fit has a verdict against it.")
    score = _score(merits, used.name)
    if judge is not None:
        text = f"{used.name}, the reference. Checks passed: {passed(used)}. {score}"
    elif merits.is_exact(used.name):
        text = f"{used.name}: {passed(used)}. {score}"
    else:
        text = (
            f"{used.name}: {ended(used) if used.checks.sampling is None else passed(used)}. "
            f"{score} No reference could judge it: whether its spread is the posterior's is "
            "not known."
        )
    words = merits.faults(used.name, REFIT, FUNCTION, PREDICTIONS, CAVEAT)
    return Statement(USE, f"{text}{f' But: {listed(words)}.' if words else ''}", (used.name,))


def _score(merits: Merits, name: str) -> str:
    """Where a method stands in the ranking."""
    place, best = merits.places[name], merits.ranking[0]
    score = with_error(place.score, place.standard_error)
    if len(merits.ranking) == 1:
        return f"Held-out log score {score} nats a row."
    if place is best:
        return f"It has the highest held-out log score, {score} nats a row."
    gap = with_error(place.difference.mean, place.difference.standard_error)
    stands = "behind another method" if place.is_behind else f"tied with {best.name}"
    return f"Its held-out log score is {stands} ({gap} nats a row to {best.name})."


def predict(merits: Merits) -> Statement | None:
    """Where the judge is behind: its model does not fit, or an approximation predicts better."""
    if merits.judge is None or not merits.places[merits.judge.name].is_behind:
        return None
    best = merits.ranking[0]
    score = with_error(best.score, best.standard_error)
    words = [POINT] * merits.is_point(best.name)
    words += merits.faults(best.name, REFIT, UNCHECKED, FUNCTION, PREDICTIONS, CAVEAT)
    return Statement(
        PREDICT,
        f"{best.name}, the highest held-out log score, {score} nats a row"
        f"{f' ({listed(words)})' if words else ''}. Where a posterior predicts worse than another "
        "method, look at its model.",
        (best.name,),
    )


def cheaper(merits: Merits) -> Statement | None:
    """A fit that took less time, ended and is not behind; one that was judged before others."""
    used = merits.used
    if used is None or len(merits.entries) == 1:
        return None
    own = merits.seconds(used.name)
    if math.isnan(own):
        return None
    faster = [name for name in merits.entries if merits.seconds(name) < own]
    if not faster:
        return Statement(CHEAPER, f"None: {used.name} took the least time.", (used.name,))
    able = [
        name
        for name in faster
        if not merits.places[name].is_behind
        and merits.is_fit(name)
        and not merits.rules_against(name, PREDICTIONS)
    ]
    if not able:
        kept = grouped(CHEAPER, {name: _why_not(merits, name) for name in faster})
        assert kept is not None
        return kept._replace(text=f"None. Faster, but not to be used: {kept.text}")
    name = min(
        able,
        key=lambda name: (
            merits.is_point(name), bool(merits.unjudged(name)), bool(merits.bars_uncertainty(name)),
            merits.seconds(name),
        ),
    )  # fmt: skip
    gap = merits.difference(name, used.name)
    times = f"{in_seconds(merits.seconds(name))} in place of {in_seconds(own)}"
    text = (
        f"{name}, {times}. Its score is not shown to be worse "
        f"({with_error(gap.mean, gap.standard_error)} nats a row to {used.name}). "
    )
    return Statement(CHEAPER, f"{text}{_spread(merits, name)}", (name,))


def _why_not(merits: Merits, name: str) -> list[str]:
    """Why a faster fit is not offered as the cheaper one, in a few words each."""
    reasons = ["behind in score"] * merits.places[name].is_behind
    if not merits.is_fit(name):
        reasons += merits.faults(name, REFIT, UNCHECKED)
    return reasons + merits.faults(name, PREDICTIONS)


def _spread(merits: Merits, name: str) -> str:
    """What is known of the spread of a method against the judge."""
    entry, judge = merits.entries[name], merits.judge
    if merits.is_point(name):
        return "Take its predictions of y only: it is a point estimate."
    if judge is None and merits.is_exact(name):
        return f"Its spread is the posterior's: {passed(entry)}."
    if judge is None:
        return "Its spread was not held against a reference."
    if (why := merits.unjudged(name)) or entry.at_rows is None:
        return f"Its spread was not judged: {why}."
    ratio = f"{median_of(entry.at_rows.sd_ratio)} times that of {judge.name} at the test rows"
    if entry.off_data is not None:
        ratio = f"{ratio}, {median_of(entry.off_data.sd_ratio)} times away from the data"
    words = merits.faults(name, FUNCTION, CAVEAT)
    verdict = ", ".join(words) or "no difference beyond the thresholds was found"
    use = "Take its predictions of y only: its" if merits.bars_uncertainty(name) else "Its"
    return f"{use} epistemic sd is {ratio}; {verdict}."
