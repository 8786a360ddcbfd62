"""Colours and canvas of the figures: safe for colour-blind readers, on white and on black."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Dashes = str | tuple[float, tuple[float, ...]]
MARKS = ("s", "^", "D", "v", "P", "X", "<", ">")
DASHES: tuple[Dashes, ...] = ((0, (5, 1.5)), "-", (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))


@dataclass(frozen=True)
class Style:
    """How a method is drawn; never told apart by colour alone."""

    colour: str
    mark: str
    dashes: Dashes


PAPER = "#ffffff"
INK = "#1a1a1a"
"""Text, and the first method."""
MUTED = "#6b6b6b"
"""Axes, grid labels, thresholds."""
BAND = "#d9dde1"
"""What chance allows."""
GOOD, BAD = "#00664a", "#a33f00"
"""What may be used, and what is kept from something: 7:1 and 6:1 on white."""
METHODS = ("#0072b2", "#d55e00", "#009e73", "#c46a9c", "#882255", "#7a5c00")
"""Colours of methods after the first, each at least 3:1 on white: of Okabe & Ito ("Color Universal
Design", 2008) those that are, their purple a little darker, and a wine and a brown in place of the
light ones; black gives way to ink."""
ON_BLACK = {
    PAPER: "#16181c",
    INK: "#ececec",
    MUTED: "#a0a5ad",
    BAND: "#3a4048",
    GOOD: "#2bc79a",
    BAD: "#f2a65a",
} | dict(
    zip(METHODS, ("#56b4e9", "#e69f00", "#2bc79a", "#cc79a7", "#b79ce8", "#c9b458"), strict=True)
)
"""What each colour is where the surroundings are dark."""


def styles(names: Sequence[str], reference: str | None = None) -> dict[str, Style]:
    """A style for every method: ink, dots and full lines for the reference, then the others.

    Colours come again after six methods, but not with the same mark and dashes.

    Example:
        >>> styles(["mean-field", "NUTS"], "NUTS")["NUTS"].colour
        '#1a1a1a'
    """
    others = [name for name in names if name != reference]
    colours = {
        name: Style(METHODS[i % len(METHODS)], MARKS[i % len(MARKS)], DASHES[i % len(DASHES)])
        for i, name in enumerate(others)
    }
    return {name: colours.get(name, Style(INK, "o", "-")) for name in names}


@contextmanager
def canvas(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure with a grid of axes in these colours; matplotlib's settings are restored.

    Args:
        width: In inches.
        height: In inches.
        rows: Rows of axes.
        columns: Columns of axes.
        **options: For ``Figure.subplots``.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    settings: dict[str, object] = {
        "font.size": 11,
        "axes.titlesize": 11,
        "axes.titlelocation": "left",
        "axes.labelsize": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.labelsize": 11,
        "legend.frameon": False,
        "axes.unicode_minus": True,
    }
    coloured = {
        PAPER: ("axes.facecolor", "figure.facecolor", "savefig.facecolor"),
        MUTED: ("axes.edgecolor", "xtick.color", "ytick.color"),
        INK: ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor",
              "ytick.labelcolor"),
    }  # fmt: skip
    settings |= {name: colour for colour, names in coloured.items() for name in names}
    with mpl.rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False, **options)
        yield figure, list(axes.ravel())


def svg(figure: Figure, name: str) -> str:
    """A figure as an SVG element, in dark colours where its surroundings are dark.

    Args:
        figure: The figure.
        name: What all ids in it begin with, so that several figures share a page.
    """
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            buffer, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type"))
        )
    text = buffer.getvalue()
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text[text.index("<svg") :])
    return re.sub(
        "#[0-9a-f]{6}",
        lambda match: f"light-dark({match[0]}, {ON_BLACK.get(match[0], match[0])})",
        text,
    )


def add_legend(figure: Figure, marks: Mapping[str, Artist]) -> None:
    """A legend in one line above all axes."""
    figure.legend(
        list(marks.values()), list(marks), loc="outside upper left", ncols=len(marks), fontsize=9.5
    )


def grid_shape(num_panels: int, most: int = 3) -> tuple[int, int]:
    """Rows and columns of a grid for some panels, with as few empty places as can be.

    Example:
        >>> grid_shape(2), grid_shape(4), grid_shape(5)
        ((1, 2), (2, 2), (2, 3))
    """
    columns = 2 if num_panels == 4 else min(num_panels, most)
    return -(-num_panels // columns), columns


def hide_unused(axes: Sequence[Axes], num_used: int, num_columns: int) -> None:
    """Hides the axes of a grid that no panel uses; those above them get their own tick labels."""
    for place in range(num_used, len(axes)):
        axes[place].set_visible(False)
        if place >= num_columns:
            axes[place - num_columns].tick_params(labelbottom=True)


def name_words(name: str) -> list[str]:
    """Where a name is broken first: at its spaces, but not behind an @.

    Example:
        >>> name_words("AutoNormal @ HalfCauchyScale")
        ['AutoNormal', '@ HalfCauchyScale']
    """
    return re.split(r"(?<!@)\s+", name.strip())


def name_parts(word: str) -> list[str]:
    """Where a word is broken if it must: after hyphens, between the words of a class name.

    Example:
        >>> name_parts("AutoLowRank-5")
        ['Auto', 'Low', 'Rank-', '5']
    """
    return re.split(r"(?<=[_-])(?=\S)|(?<=[a-z0-9])(?=[A-Z])", word)


def wrap_name(name: str, width: int = 20) -> str:
    """Breaks a long name into lines where it may be broken.

    Example:
        >>> wrap_name("AutoLowRankMultivariateNormal").splitlines()
        ['AutoLowRank', 'MultivariateNormal']
        >>> wrap_name("AutoNormal @ HalfCauchyScale").splitlines()
        ['AutoNormal', '@ HalfCauchyScale']
    """
    lines = [""]
    for word in name_words(name):
        if lines[-1] and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
            continue
        lines.append("")
        for part in name_parts(word):
            if lines[-1] and len(lines[-1]) + len(part) > width:
                lines.append("")
            lines[-1] += part
    return "\n".join(line for line in lines if line)


def show_counts(
    ax: Axes,
    counts: np.ndarray,
    edges: np.ndarray,
    limits: tuple[float | np.ndarray, float | np.ndarray],
    colour: str,
) -> None:
    """A histogram in front of the band that chance allows; the band's edges stay in view.

    Limits are one for all bars or one a bar; NaN shows none.
    """
    low, high = (np.broadcast_to(limit, counts.shape).astype(float) for limit in limits)
    ax.stairs(high, edges, baseline=low, fill=True, color=BAND, lw=0, zorder=0)
    ax.stairs(counts, edges, fill=True, color=PAPER, zorder=1)
    ax.stairs(counts, edges, fill=True, color=colour, alpha=0.7, zorder=1)
    for heights in (low, high):
        steps = np.repeat(edges, 2)[1:-1], np.repeat(heights, 2)
        ax.plot(*steps, color=MUTED, lw=1, ls=(0, (4, 3)), zorder=2)


def name_rows(ax: Axes, names: list[str]) -> None:
    """Names the rows of a dot plot, first row on top."""
    ax.set_yticks(range(len(names)), [wrap_name(name) for name in names])
    hide_left(ax)
    ax.set_ylim(len(names) - 0.4, -0.6)


def rows_height(names: Sequence[str]) -> float:
    """Height in inches of the rows of a dot plot, so that no name touches the next."""
    return len(names) * max(0.5, 0.2 * max(wrap_name(name).count("\n") + 1 for name in names))


def hide_left(ax: Axes) -> None:
    """Takes away ticks and line of the axis on the left, where rows are named."""
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
