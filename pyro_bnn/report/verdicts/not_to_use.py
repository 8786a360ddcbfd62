"""Statements on the other methods: judged, not for uncertainty, to be run again, still open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from pyro_bnn.plotting.numbers import number, with_error
from pyro_bnn.report.verdicts.fit_verdicts import longer
from pyro_bnn.report.verdicts.merits import Merits
from pyro_bnn.report.verdicts.statement import (
    AGAIN,
    AGREES,
    DIFFERS,
    NOT,
    OPEN,
    UNJUDGED,
    Statement,
    grouped,
)
from pyro_bnn.report.verdicts.verdict import CAVEAT, REFIT, UNCHECKED


def judged_methods(merits: Merits, status: dict[str, str]) -> Iterator[Statement]:
    """Methods that the judge found no fault with, or another function, or cannot judge."""
    if merits.judge is None:
        return
    agrees = (
        f"spread and mean of the function are those of {merits.judge.name} within the thresholds"
    )
    words: dict[str, Callable[[str], list[str]]] = {
        AGREES: lambda _: [agrees],
        DIFFERS: lambda name: merits.faults(name, CAVEAT),
        UNJUDGED: lambda name: [merits.unjudged(name)],
    }
    for label, say in words.items():
        found = grouped(label, {name: say(name) for name, own in status.items() if own == label})
        if found is not None:
            yield found


def not_for_uncertainty(merits: Merits) -> Statement | None:
    """Methods whose fits ended and whose uncertainty a verdict speaks against, and points."""
    reasons = {
        name: merits.bars_uncertainty(name)
        for name in merits.places
        if name != (merits.used.name if merits.used else "")
        and (merits.is_fit(name) or merits.is_point(name))
    }
    return grouped(NOT, {name: words for name, words in reasons.items() if words})


def refit_first(merits: Merits) -> Statement | None:
    """Fits that did not end, or were not checked, with what to do."""
    names = [name for name in merits.places if not merits.is_fit(name)]
    reasons = {name: merits.faults(name, REFIT, UNCHECKED) for name in names}
    steps = {name: _steps(merits.steps(name, REFIT, UNCHECKED)) for name in names}
    return grouped(AGAIN, reasons, steps)


def still_open(merits: Merits) -> Statement | None:
    """Fits that still gained, though little: how much, and how many steps would gain more."""
    parts: dict[str, str] = {}
    for name, entry in merits.entries.items():
        checks = entry.checks
        if checks.is_nearly_done and checks.doubling is not None and merits.is_fit(name):
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
