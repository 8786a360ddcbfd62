"""What the figures of a comparison share: a figure with its words, a panel a method, styles."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

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
from pyro_bnn.report.verdicts.answer import AGAIN, AGREES, DIFFERS, NOT, UNJUDGED, USE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pyro_bnn.report.evaluation.comparison import Evaluations
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


class Drawn(NamedTuple):
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
    return styles(list(comparison.posteriors), comparison.reference)


def status_of(comparison: Evaluations) -> dict[str, Style]:
    """The style of every method by its status in the answer."""
    return {name: STATUS[status] for name, status in comparison.answer.status.items()}


@contextmanager
def panels(
    comparison: Evaluations, height: float, *, width: float = 3.1, room: float = 0.4
) -> Iterator[tuple[Figure, list[Panel]]]:
    """A figure with a panel a method on shared axes, the best first.

    Args:
        comparison: The comparison.
        height: Of a panel, in inches.
        width: Of a panel.
        room: For titles above or below all panels.
    """
    entries, own = comparison.ranked, styles_of(comparison)
    rows, columns = grid_shape(len(entries))
    size = width * columns + 0.4, height * rows + room
    with canvas(*size, rows, columns, sharex=True, sharey=True) as (figure, axes):
        yield (
            figure,
            [
                Panel(ax, entry, own[entry.name].colour)
                for ax, entry in zip(axes, entries, strict=False)
            ],
        )
        for ax, entry in zip(axes, entries, strict=False):
            ax.set_title(wrap_name(entry.name), fontweight="bold")
        hide_unused(axes, len(entries), columns)
