"""Rules on islands of particles, those of ``SMC``: do they agree, and did enough survive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.verdicts.verdict import REFIT, VerdictRule

MAX_EVIDENCE_ERROR = 0.5  # nats
MIN_ANCESTORS = 50  # over all islands: a mode's weight is then known to a seventh of itself
MAX_SLOW = 0.1  # of the temperatures
FORGOTTEN = 0.2  # correlation of log likelihoods after the moves with those before


def _told(entry: Evaluation) -> Mapping[str, Any]:
    """What a run of islands tells of itself; nothing of any other method."""
    return entry.fit.options if entry.fit.nature.has_islands else {}


@VerdictRule("evidence spread",
             f"Islands of particles whose log evidence has an error above "
             f"{MAX_EVIDENCE_ERROR:g} nats",
             "raise num_particles, or ess_share", short="islands disagree on the evidence",
             against=REFIT).of_each  # fmt: skip
def evidence_spread(entry: Evaluation) -> str:
    """Islands whose log evidences are too far apart for draws of each to count alike."""
    told = _told(entry)
    error = told.get("log_evidence_error", 0.0)
    if not error > MAX_EVIDENCE_ERROR:
        return ""
    found = ", ".join(number(value, 4) for value in told["log_evidences"])
    return (
        f"log evidence {with_error(told['log_evidence'], error)} nats, its error above "
        f"{MAX_EVIDENCE_ERROR:g}: the islands disagree ({found}), so that draws of some of them "
        "count too much"
    )


@VerdictRule("ancestors", f"Draws that descend from fewer than {MIN_ANCESTORS} draws of the prior",
             "raise num_particles or num_islands", short="few ancestors").of_each  # fmt: skip
def ancestors(entry: Evaluation) -> str:
    """Particles that descend from few draws of the prior."""
    left = _told(entry).get("ancestors", ())
    if not left or sum(left) >= MIN_ANCESTORS:
        return ""
    return (
        f"its draws descend from {sum(left)} draws of the prior ({min(left)} in the worst island), "
        f"threshold {MIN_ANCESTORS}: modes far apart may have wrong weights or be missed; copies "
        "by swaps of units do not matter"
    )


@VerdictRule("slow moves",
             "Particles that stay near to where they were at more than a tenth of the temperatures",
             "raise max_moves", short="particles moved little").of_each  # fmt: skip
def slow_moves(entry: Evaluation) -> str:
    """Temperatures at which particles stayed near to where they were resampled."""
    told = _told(entry)
    slow, total = told.get("slow_temperatures", 0), sum(told.get("num_temperatures", ()))
    if not slow > MAX_SLOW * total:
        return ""
    return (
        f"max_moves ended the moves too early at {slow} of {total} temperatures, threshold "
        f"{percent(MAX_SLOW, 0)}: there the log likelihoods of particles still had a correlation "
        f"above {FORGOTTEN:g} (up to {number(told['largest_correlation'], 2)}) with those before "
        "the moves, so that copies of a particle stay alike"
    )
