"""The answer: which posterior to use, why, what it costs, and what would change that.

It says nothing of its own. A method is used, or kept from something, by the verdicts on it
(`Rule.against`); who is behind in score is what the ranking says; the rest is numbers of the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pyro_bnn.diagnostics.scores import cost_of_wrong_spread
from pyro_bnn.plotting.numbers import counted, number, percent, with_error
from pyro_bnn.report.verdicts.chain_verdicts import passed
from pyro_bnn.report.verdicts.facts import POINT, Facts
from pyro_bnn.report.verdicts.fit_verdicts import ended, longer
from pyro_bnn.report.verdicts.spread_verdicts import median_of
from pyro_bnn.report.verdicts.verdict import FUNCTION, PREDICTIONS, REFIT, UNCHECKED

GAP = 0.01  # nats a row, whose rows are counted
FOUND = 4.0  # standard errors of a difference that the ranking of a few methods mostly finds
WRONG = 2.0  # times or part of the epistemic sd, whose cost in score is told
USE, PREDICT, CHEAPER, NOT, AGAIN, OPEN, TIE, COST, CHANGE = (
    "Use", "To predict", "Cheaper", "Not for uncertainty", "Refit first", "Still open",
    "Why the tie", "What it costs", "What would change this",
)  # fmt: skip


WORDS = {
    "Held-out log score": "log of the density that a method gave to a row it had not seen, in nats "
    "(natural logarithm), mean over such rows; higher is better. 0.01 nats are 1 % of density.",
    "Tied, behind": "a method is behind if another is better by a test over all pairs of methods "
    "at once; if some are as good as the best, the chance that any of these is called behind is "
    "near 5 % at most. All others are tied, which does not show that they are equal.",
    "Epistemic sd": "standard deviation of the network's function over draws of the posterior: "
    "what the data leave open. Noise of single observations is not in it.",
    "Reference": "the posterior that the others' functions are held against. It judges only where "
    "it is exact, or its Markov chains pass every check.",
    "NUTS": "Markov chains over all weights, whose draws are those of the exact posterior if the "
    "chains agree. Guides approximate it by a simpler distribution.",
    "R-hat": "spread between Markov chains over that within them; 1 if they agree.",
    "Effective draws": "independent draws that a chain's draws are worth.",
    "ELBO": "what a guide's fit maximises, a lower bound of the log evidence; a fit whose ELBO "
    "still rises is not finished.",
    "Guide": "a family of distributions of the weights, Auto..., in which the nearest to the "
    "posterior is sought. AutoNormal: independent weights. AutoDelta: one point.",
}
"""Meaning of the words that a reader of the answer needs."""
AGREES, DIFFERS, UNJUDGED = "No fault found", "Another function", "Spread not judged"
"""Status of a method that was held against a judge without a fault; with one that does not keep it
from being used, as a spread that is too wide; and of one that was not held against it."""


class Statement(NamedTuple):
    """One line of the answer.

    Attributes:
        label: The question it answers.
        text: The answer, with its numbers.
        methods: Names of the methods it is about.
    """

    label: str
    text: str
    methods: tuple[str, ...] = ()


class Answer(NamedTuple):
    """What a reader is to take from a comparison.

    Attributes:
        headline: In one or two sentences.
        statements: The reasons.
        status: Of every method what decides: ``USE``, ``AGAIN``, ``NOT``, ``AGREES``,
            ``DIFFERS`` or ``UNJUDGED``.
    """

    headline: str
    statements: tuple[Statement, ...]
    status: dict[str, str]


def answer(facts: Facts) -> Answer:
    """The answer of a comparison.

    Args:
        facts: Its numbers and verdicts.
    """
    status = {name: _status(facts, name) for name in facts.entries}
    found = (
        _use(facts), _predict(facts), _cheaper(facts), *_others(facts, status), _not(facts),
        _again(facts), _open(facts), _tie(facts), _cost(facts), _change(facts),
    )  # fmt: skip
    return Answer(_headline(facts), tuple(part for part in found if part is not None), status)


def _status(facts: Facts, name: str) -> str:
    if facts.used is not None and facts.used.name == name:
        return USE
    if not facts.is_fit(name):
        return AGAIN
    if facts.bars_uncertainty(name):
        return NOT
    if facts.unjudged(name):
        return UNJUDGED
    return DIFFERS if facts.against(name, "") else AGREES


def _headline(facts: Facts) -> str:
    used, judge = facts.used, facts.judge
    if used is None:
        first = "Trust none of these fits yet."
    elif judge is None and facts.is_exact(used.name):
        first = f"Trust {used.name} for the posterior of its model."
    elif judge is None:
        first = f"No posterior is confirmed here; {used.name} is the best supported."
    elif facts.places[judge.name].is_behind:
        first = f"Trust {judge.name} for the posterior of its model; another predicts better."
    elif wrong := facts.faults(judge.name, PREDICTIONS):
        first = f"Trust {judge.name} for the posterior of its model; but {listed(wrong)}."
    else:
        first = f"Trust {judge.name} here."
    behind = sum(place.is_behind for place in facts.ranking)
    count, rows = len(facts.ranking), facts.num_rows
    if count == 1:
        return first
    if not behind:
        what, advice = "This row" if rows == 1 else f"These {rows:,} rows", ""
        if any(math.isnan(place.draws_error) for place in facts.ranking):
            what, advice = "So few draws", "; raise num_samples"
        return f"{first} {what} cannot rank the {count} methods by score{advice}."
    if behind == count - 1:
        return (
            f"{first} {facts.ranking[0].name} has the best held-out score, the others are behind."
        )
    return f"{first} By held-out score {behind} of {count} methods are behind, the others are tied."


def _use(facts: Facts) -> Statement:
    used, judge = facts.used, facts.judge
    if used is None:
        return Statement(USE, "None yet: every fit has a verdict against it.")
    score = _score(facts, used.name)
    if judge is not None:
        text = f"{used.name}, the reference. Checks passed: {passed(used)}. {score}"
    elif facts.is_exact(used.name):
        text = f"{used.name}: {passed(used)}. {score}"
    else:
        text = (
            f"{used.name}: {ended(used) if used.checks.sampling is None else passed(used)}. "
            f"{score} No reference could judge it: whether its spread is the posterior's is "
            "not known."
        )
    words = facts.faults(used.name, REFIT, FUNCTION, PREDICTIONS, "")
    return Statement(USE, f"{text}{f' But: {listed(words)}.' if words else ''}", (used.name,))


def _score(facts: Facts, name: str) -> str:
    """Where a method stands in the ranking."""
    place, best = facts.places[name], facts.ranking[0]
    score = with_error(place.score, place.standard_error)
    if len(facts.ranking) == 1:
        return f"Held-out log score {score} nats a row."
    if place is best:
        return f"It has the highest held-out log score, {score} nats a row."
    gap = with_error(place.difference.mean, place.difference.standard_error)
    stands = "behind another method" if place.is_behind else f"tied with {best.name}"
    return f"Its held-out log score is {stands} ({gap} nats a row to {best.name})."


def _predict(facts: Facts) -> Statement | None:
    """Where the judge is behind: its model does not fit, or an approximation predicts better."""
    if facts.judge is None or not facts.places[facts.judge.name].is_behind:
        return None
    best = facts.ranking[0]
    score = with_error(best.score, best.standard_error)
    words = [POINT] * facts.is_point(best.name)
    words += facts.faults(best.name, REFIT, UNCHECKED, FUNCTION, PREDICTIONS, "")
    return Statement(
        PREDICT,
        f"{best.name}, the highest held-out log score, {score} nats a row"
        f"{f' ({listed(words)})' if words else ''}. Where a posterior predicts worse than another "
        "method, look at its model.",
        (best.name,),
    )


def _cheaper(facts: Facts) -> Statement | None:
    """A fit that took less time, ended and is not behind; one that was judged before others."""
    used = facts.used
    if used is None or len(facts.entries) == 1:
        return None
    own = facts.seconds(used.name)
    if math.isnan(own):
        return None
    faster = [name for name in facts.entries if facts.seconds(name) < own]
    if not faster:
        return Statement(CHEAPER, f"None: {used.name} took the least time.", (used.name,))
    able = [
        name
        for name in faster
        if not facts.places[name].is_behind
        and facts.is_fit(name)
        and not facts.against(name, PREDICTIONS)
    ]
    if not able:
        kept = _grouped(CHEAPER, {name: _why_not(facts, name) for name in faster})
        assert kept is not None
        return kept._replace(text=f"None. Faster, but not to be used: {kept.text}")
    name = min(
        able,
        key=lambda name: (
            facts.is_point(name), bool(facts.unjudged(name)), bool(facts.bars_uncertainty(name)),
            facts.seconds(name),
        ),
    )  # fmt: skip
    gap = facts.difference(name, used.name)
    text = (
        f"{name}, {_time(facts.seconds(name))} in place of {_time(own)}. Its score is not shown to "
        f"be worse ({with_error(gap.mean, gap.standard_error)} nats a row to {used.name}). "
    )
    return Statement(CHEAPER, f"{text}{_spread(facts, name)}", (name,))


def _why_not(facts: Facts, name: str) -> list[str]:
    """Why a faster fit is not offered as the cheaper one, in a few words each."""
    reasons = ["behind in score"] * facts.places[name].is_behind
    if not facts.is_fit(name):
        reasons += facts.faults(name, REFIT, UNCHECKED)
    return reasons + facts.faults(name, PREDICTIONS)


def _spread(facts: Facts, name: str) -> str:
    """What is known of the spread of a method against the judge."""
    entry, judge = facts.entries[name], facts.judge
    if facts.is_point(name):
        return "Take its predictions of y only: it is a point estimate."
    if judge is None and facts.is_exact(name):
        return f"Its spread is the posterior's: {passed(entry)}."
    if judge is None:
        return "Its spread was not held against a reference."
    if (why := facts.unjudged(name)) or entry.at_rows is None:
        return f"Its spread was not judged: {why}."
    ratio = f"{median_of(entry.at_rows.sd_ratio)} times that of {judge.name} at the test rows"
    if entry.off_data is not None:
        ratio = f"{ratio}, {median_of(entry.off_data.sd_ratio)} times away from the data"
    words = facts.faults(name, FUNCTION, "")
    verdict = ", ".join(words) or "no difference beyond the thresholds was found"
    use = "Take its predictions of y only: its" if facts.bars_uncertainty(name) else "Its"
    return f"{use} epistemic sd is {ratio}; {verdict}."


def _others(facts: Facts, status: dict[str, str]) -> Iterator[Statement]:
    """Methods that the judge found no fault with, or another function, or cannot judge."""
    if facts.judge is None:
        return
    agrees = (
        f"spread and mean of the function are those of {facts.judge.name} within the thresholds"
    )
    words: dict[str, Callable[[str], list[str]]] = {
        AGREES: lambda _: [agrees],
        DIFFERS: lambda name: facts.faults(name, ""),
        UNJUDGED: lambda name: [facts.unjudged(name)],
    }
    for label, say in words.items():
        found = _grouped(label, {name: say(name) for name, own in status.items() if own == label})
        if found is not None:
            yield found


def _not(facts: Facts) -> Statement | None:
    """Methods whose fits ended and whose uncertainty a verdict speaks against, and points."""
    reasons = {
        name: facts.bars_uncertainty(name)
        for name in facts.places
        if name != (facts.used.name if facts.used else "")
        and (facts.is_fit(name) or facts.is_point(name))
    }
    return _grouped(NOT, {name: words for name, words in reasons.items() if words})


def _again(facts: Facts) -> Statement | None:
    """Fits that did not end, or were not checked, with what to do."""
    names = [name for name in facts.places if not facts.is_fit(name)]
    reasons = {name: facts.faults(name, REFIT, UNCHECKED) for name in names}
    steps = {name: _steps(facts.steps(name, REFIT, UNCHECKED)) for name in names}
    return _grouped(AGAIN, reasons, steps)


def _open(facts: Facts) -> Statement | None:
    """Fits that still gained, though little: how much, and how many steps would gain more."""
    parts: dict[str, str] = {}
    for name, entry in facts.entries.items():
        checks = entry.checks
        if checks.is_nearly_done and checks.doubling is not None and facts.is_fit(name):
            gain = with_error(checks.doubling.gain, checks.doubling.error)
            a_row = number(checks.doubling.gain / checks.num_rows, 2)
            parts[name] = (
                f"{name}: its last doubling of steps gained {gain} nats, {a_row} a row; to see the "
                f"rest {longer(entry)}"
            )
    text = f"{'. '.join(parts.values())}."
    return Statement(OPEN, text, tuple(parts)) if parts else None


def _steps(found: Sequence[str]) -> str:
    """What to do, each step once, and none that is part of another."""
    steps = dict.fromkeys(found)
    needed = [
        step
        for step in steps
        if not any(step.removeprefix("raise ") in other for other in steps if other != step)
    ]
    return "; ".join(needed)


def _grouped(
    label: str, reasons: dict[str, list[str]], steps: Mapping[str, str] | None = None
) -> Statement | None:
    """Methods with the same reasons together, and the same to do about these."""
    together: dict[tuple[str, str], list[str]] = {}
    for name, words in reasons.items():
        step = f": {steps[name]}" if steps else ""
        together.setdefault((listed(words), step), []).append(name)
    parts = [f"{listed(names)} ({words}){step}" for (words, step), names in together.items()]
    text = f"{('. ' if steps else '; ').join(parts)}."
    return Statement(label, text, tuple(reasons)) if parts else None


def _tie(facts: Facts) -> Statement | None:
    """Why scores do not tell methods apart: what a wrong spread costs beside the error."""
    tied = [place for place in facts.ranking if not place.is_behind]
    others = [place for place in tied if place is not facts.ranking[0]]
    errors = [place.difference.standard_error for place in others]
    if not others or not all(map(math.isfinite, errors)):
        return None
    shares = {
        place.name: own
        for place in tied
        if (own := facts.entries[place.name].held_out.epistemic_share).size
        and not facts.is_point(place.name)
    }
    error = float(np.median(errors))
    text = (
        f"With {facts.num_rows:,} rows the standard error of a difference is "
        f"{number(error, 2)} nats a row (median)."
    )
    if not shares:
        return Statement(TIE, text)
    basis = facts.used.name if facts.used and facts.used.name in shares else next(iter(shares))
    parts = {name: float(share.mean()) for name, share in shares.items()}
    return Statement(
        TIE,
        f"Uncertainty of the function is {_ends(parts, lambda part: percent(part, 0))} of the "
        f"predictive variance, the rest is noise. {_wrong_spread(facts, basis, error)}{text}",
    )


def _wrong_spread(facts: Facts, basis: str, error: float) -> str:
    """What half or twice the epistemic sd would cost in score, of Gaussian predictives."""
    scores = facts.entries[basis].held_out
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


def _cost(facts: Facts) -> Statement | None:
    used = facts.used
    times = {name: facts.seconds(name) for name in facts.entries if facts.seconds(name) > 0}
    if used is None and times:
        spent = [f"{_time(seconds)} ({name})" for name, seconds in times.items()]
        return Statement(COST, f"So far {listed(spent)}.")
    if used is None or used.name not in times:
        return None
    fit, where = used.fit, ""
    at_once = f", {fit.processes} fits at a time" if fit.processes > 1 else ""
    if fit.gpu is not None:
        where = f" on {fit.gpu}"
    elif fit.threads is not None:
        where = f" on {counted(fit.threads, 'thread')}"
    text = f"{_time(times.pop(used.name))} for {used.name}{where}{at_once}"
    if times:
        text += f"; the others {_ends(times, _time)}"
    return Statement(COST, f"{text}.", (used.name,))


def _change(facts: Facts) -> Statement | None:
    """What the answer hangs on."""
    text = " ".join(_changes(facts))
    return Statement(CHANGE, text) if text else None


def _changes(facts: Facts) -> Iterator[str]:
    if facts.judge is None:
        found = next((f.text for f in facts.findings if f.kind == "reference"), "")
        if found or not all(map(facts.is_exact, facts.entries)):
            yield found or "A reference: long NUTS chains would judge the spreads."
    if any(not facts.is_fit(name) for name in facts.places):
        yield "The fits to be run again: once finished they may rank differently."
    if facts.judge is not None:
        elsewhere = [name for name in facts.entries if not facts.is_of_the_judge(name)]
        if elsewhere:
            yield (
                f"A reference for {listed(elsewhere)}, of another model than {facts.judge.name}: "
                "here only their scores compare."
            )
    if len(facts.ranking) > 1:
        yield from _more_rows(facts)
        yield "Other splits and seeds (--splits, --seeds): scores here speak for this split alone."


def _more_rows(facts: Facts) -> Iterator[str]:
    """How many rows would show a small difference, by the error that these rows leave."""
    tied = [place for place in facts.ranking[1:] if not place.is_behind]
    for place in tied[:1]:
        rows = len(facts.entries[place.name].held_out.log_score)
        gap, own = place.difference, f"{facts.ranking[0].name} and {place.name}"
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


def _ends(values: Mapping[str, float], text: Callable[[float], str]) -> str:
    """The smallest and the largest value with the names that have them."""
    low, high = (pick(values, key=values.__getitem__) for pick in (min, max))
    ends = [f"{text(values[name])} ({name})" for name in dict.fromkeys((low, high))]
    return " to ".join(ends)


def _time(seconds: float) -> str:
    return f"{number(seconds, 2)} s"


def listed(words: Sequence[str]) -> str:
    """Words with commas and an "and".

    Example:
        >>> listed(["a", "b", "c"]), listed(["a"])
        ('a, b and c', 'a')
    """
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
