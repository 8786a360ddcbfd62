"""What the figures of a comparison share: figures with their words, a panel a method, styles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pyro_bnn.plotting.numbers import number, percent
from pyro_bnn.plotting.theme import (
    BAD,
    GOOD,
    INK,
    MUTED,
    Style,
    canvas,
    grid_shape,
    hide_unused,
    styles,
    wrap_name,
)
from pyro_bnn.report.verdicts.statement import AGAIN, AGREES, DIFFERS, NOT, UNJUDGED, USE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pyro_bnn.report.comparison import Evaluations
    from pyro_bnn.report.evaluation.evaluate import Evaluation


STATUS = {
    USE: Style(GOOD, "o", "-"),
    AGREES: Style(GOOD, "P", "-"),
    DIFFERS: Style(INK, "v", "-"),
    UNJUDGED: Style(INK, "s", "-"),
    NOT: Style(BAD, "^", "-"),
    AGAIN: Style(MUTED, "D", "-"),
}
"""How methods are drawn where the answer is read from: by what the verdicts say of them."""


class DrawnFigure(NamedTuple):
    """A figure and its words.

    Attributes:
        figure: The figure.
        caption: How to read it.
        words: What it shows with its main numbers, for readers who cannot see it.
    """

    figure: Figure
    caption: str
    words: str


class Panel(NamedTuple):
    """The axes of one method, with its numbers and its colour."""

    ax: Axes
    entry: Evaluation
    colour: str


def styles_of(comparison: Evaluations) -> dict[str, Style]:
    """The style of every method, the same in all figures."""
    return styles(list(comparison.evaluations), comparison.reference)


def status_of(comparison: Evaluations) -> dict[str, Style]:
    """The style of every method by its status in the answer."""
    return {name: STATUS[status] for name, status in comparison.answer.status.items()}


@contextmanager
def panels(
    comparison: Evaluations,
    height: float,
    *,
    width: float = 3.1,
    room: float = 0.4,
    entries: Sequence[Evaluation] = (),
) -> Iterator[tuple[Figure, list[Panel]]]:
    """A figure with a panel a method on shared axes, the best first.

    Args:
        comparison: The comparison.
        height: Of a panel, in inches.
        width: Of a panel.
        room: For titles above or below all panels.
        entries: The methods, if not all.
    """
    entries, own = entries or comparison.ranked, styles_of(comparison)
    rows, columns = grid_shape(len(entries))
    size = width * columns + 0.4, height * rows + room
    with canvas(*size, rows, columns, sharex=True, sharey=True) as (figure, axes):
        found = [
            Panel(ax, entry, own[entry.name].colour)
            for ax, entry in zip(axes, entries, strict=False)
        ]
        for ax, entry, _ in found:
            ax.set_title(wrap_name(entry.name), fontweight="bold")
        yield figure, found
        hide_unused(axes, len(entries), columns)


def span(values: Mapping[str, float], text: Callable[[float], str] = number) -> str:
    r"""The smallest and the largest value with the names that have them; blank if all are NaN.

    Example:
        >>> span({"a": 2.0, "b": float("nan"), "c": 1.0})
        'from 1.00 (c) to 2.00 (a)'
        >>> span({"a": 2.0}), span({"a": 2.0, "b": 2.0})
        ('2.00 (a)', '2.00 (all)')
    """
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    if not known:
        return ""
    low, high = (pick(known, key=known.__getitem__) for pick in (min, max))
    if len(known) == 1:
        return f"{text(known[low])} ({low})"
    if text(known[low]) == text(known[high]):
        return f"{text(known[low])} (all)"
    return f"from {text(known[low])} ({low}) to {text(known[high])} ({high})"


def coverages(comparison: Evaluations) -> str:
    """Range of the coverage of 95 % intervals."""
    shares = {
        entry.name: entry.held_out.coverage.observed
        for entry in comparison.ranked
        if entry.held_out.coverage is not None
    }
    return span(shares, percent)
