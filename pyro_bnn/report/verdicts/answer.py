"""The answer: which posterior to use, why, what it costs, and what would change that.

The answer adds no judgement. The verdicts decide whether a method is used, and for what
(`VerdictRule.against`); the ranking decides which methods are behind in score; all other numbers
come from the table.
"""

from __future__ import annotations

import math

from pyro_bnn.report.verdicts.advice import listed
from pyro_bnn.report.verdicts.doubts import what_it_costs, what_would_change, why_the_tie
from pyro_bnn.report.verdicts.merits import Merits
from pyro_bnn.report.verdicts.not_to_use import (
    judged_methods,
    not_for_uncertainty,
    refit_first,
    still_open,
)
from pyro_bnn.report.verdicts.statement import AGAIN, AGREES, DIFFERS, NOT, UNJUDGED, USE, Answer
from pyro_bnn.report.verdicts.to_use import cheaper, predict, use
from pyro_bnn.report.verdicts.verdict import CAVEAT, PREDICTIONS


def answer(merits: Merits) -> Answer:
    """The answer of a comparison.

    Args:
        merits: Its numbers and verdicts.
    """
    status = {name: status_of(merits, name) for name in merits.entries}
    statements = (
        *(say(merits) for say in (use, predict, cheaper)),
        *judged_methods(merits, status),
        *(say(merits) for say in (not_for_uncertainty, refit_first, still_open)),
        *(say(merits) for say in (why_the_tie, what_it_costs, what_would_change)),
    )
    return Answer(
        headline(merits),
        tuple(statement for statement in statements if statement is not None),
        status,
    )


def status_of(merits: Merits, name: str) -> str:
    """How far a method can be used."""
    if merits.used is not None and merits.used.name == name:
        return USE
    if not merits.is_fit(name):
        return AGAIN
    if merits.bars_uncertainty(name):
        return NOT
    if merits.unjudged(name):
        return UNJUDGED
    return DIFFERS if merits.rules_against(name, CAVEAT) else AGREES


def headline(merits: Merits) -> str:
    """Which method to trust, and whether the scores distinguish the methods."""
    used, judge = merits.used, merits.judge
    if used is None:
        first = "Trust none of these fits yet."
    elif judge is None and merits.is_exact(used.name):
        first = f"Trust {used.name} for the posterior of its model."
    elif judge is None:
        first = f"No posterior is confirmed here; {used.name} is the best supported."
    elif merits.places[judge.name].is_behind:
        first = f"Trust {judge.name} for the posterior of its model; another predicts better."
    elif wrong := merits.faults(judge.name, PREDICTIONS):
        first = f"Trust {judge.name} for the posterior of its model; but {listed(wrong)}."
    else:
        first = f"Trust {judge.name} here."
    behind = sum(place.is_behind for place in merits.ranking)
    count, rows = len(merits.ranking), merits.num_rows
    if count == 1:
        return first
    if not behind:
        what, advice = "This row" if rows == 1 else f"These {rows:,} rows", ""
        if any(math.isnan(place.draws_error) for place in merits.ranking):
            what, advice = "So few draws", "; raise num_samples"
        return f"{first} {what} cannot rank the {count} methods by score{advice}."
    if behind == count - 1:
        return (
            f"{first} {merits.ranking[0].name} has the best held-out score, the others are behind."
        )
    return f"{first} By held-out score {behind} of {count} methods are behind, the others are tied."
