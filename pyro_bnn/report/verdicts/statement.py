"""What an answer is made of: statements with a label each, and a status for each method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pyro_bnn.plotting.numbers import number
from pyro_bnn.report.verdicts.advice import listed

USE, PREDICT, CHEAPER, NOT, AGAIN, OPEN, TIE, COST, CHANGE = (
    "Use", "To predict", "Cheaper", "Not for uncertainty", "Refit first", "Still open",
    "Why the tie", "What it costs", "What would change this",
)  # fmt: skip
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
    """What a reader is to take from a page.

    Attributes:
        headline: In one or two sentences.
        statements: The reasons.
        status: Of every method of a comparison what decides: ``USE``, ``AGAIN``, ``NOT``,
            ``AGREES``, ``DIFFERS`` or ``UNJUDGED``.
    """

    headline: str
    statements: tuple[Statement, ...]
    status: Mapping[str, str] = MappingProxyType({})


def grouped(
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


def ends(values: Mapping[str, float], text: Callable[[float], str]) -> str:
    """The smallest and the largest value with the names that have them."""
    low, high = (pick(values, key=values.__getitem__) for pick in (min, max))
    ends = [f"{text(values[name])} ({name})" for name in dict.fromkeys((low, high))]
    return " to ".join(ends)


def in_seconds(value: float) -> str:
    """A time with its unit."""
    return f"{number(value, 2)} s"
