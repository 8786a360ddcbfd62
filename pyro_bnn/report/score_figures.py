"""Figures that compare methods: differences of the log score, distances to the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyro_bnn.diagnostics.ranking import TIED_STANDARD_ERRORS
from pyro_bnn.report.captions import span
from pyro_bnn.report.numbers import number, with_error
from pyro_bnn.report.theme import Theme, canvas, hide_left, name_rows, rows_height, styles_of
from pyro_bnn.report.verdicts import (
    SD_RATIO_STANDARD_ERRORS,
    SD_RATIO_THRESHOLD,
    SD_RATIO_UPPER,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyro_bnn.report.compare import Comparison


def has_distances(comparison: Comparison) -> bool:
    """Whether any method was measured against a reference."""
    return any(entry.distance is not None for entry in comparison.evaluations.values())


def scores(comparison: Comparison, theme: Theme) -> Figure:
    """Paired differences of the log score to the best, with 2 standard errors."""
    ranking = comparison.ranking
    styles = styles_of(comparison, theme)
    height = rows_height([row.name for row in ranking]) + 1.2
    with canvas(theme, 6.6, height) as (figure, (ax,)):
        ax.axvline(0, color=theme.muted, lw=1, ls=(0, (4, 3)))
        for place, row in enumerate(ranking):
            style, difference = styles[row.name], row.difference
            if np.isfinite(difference.mean):
                error = TIED_STANDARD_ERRORS * np.nan_to_num(difference.standard_error)
                ax.errorbar(
                    difference.mean, place, xerr=error, fmt=style.mark, ms=7, lw=2.2,
                    color=style.colour,
                )  # fmt: skip
            verdict = "best" if place == 0 else "tied" if difference.tied else ""
            gap = with_error(difference.mean, difference.standard_error) if place else ""
            text = f"{gap}  {verdict}".strip()
            ax.annotate(
                text, (1.02, place), xycoords=("axes fraction", "data"), va="center",
                color=theme.ink, annotation_clip=False,
            )  # fmt: skip
        ax.annotate(
            "difference ± se", (1.02, -0.75), xycoords=("axes fraction", "data"), va="center",
            color=theme.muted, annotation_clip=False, fontsize=9.5,
        )  # fmt: skip
        ax.locator_params(axis="x", nbins=4)
        name_rows(ax, [row.name for row in ranking])
        ax.set_xlabel(
            f"difference to the best ± {TIED_STANDARD_ERRORS:g} se, nats per held-out row "
            "(better to the right)"
        )
    return figure


def describe_scores(comparison: Comparison) -> str:
    """How to read `scores`."""
    return (
        f"Difference to {comparison.ranking[0].name}, paired over held-out rows, with "
        f"{TIED_STANDARD_ERRORS:g} standard errors over rows and draws. A bar that reaches the "
        "dashed line is a tie."
    )


def scores_in_words(comparison: Comparison) -> str:
    """What `scores` shows."""
    best, *others = comparison.ranking
    tied = [row.name for row in others if row.difference.tied]
    last = others[-1]
    return (
        f"Dot plot of the held-out log score, a row a method: {best.name} is best with "
        f"{with_error(best.score, best.standard_error)} nats per row; tied with it: "
        f"{', '.join(tied) or 'none'}; last is {last.name}, "
        f"{with_error(last.difference.mean, last.difference.standard_error)} to the best."
    )


def against_reference(comparison: Comparison, theme: Theme) -> Figure:
    """Distance to the reference beside its floor, and the ratio of epistemic sds.

    Markers are open where the reference answers under another model or holds other point estimates.
    """
    elsewhere = not_judged(comparison)
    entries = [e for e in comparison.ranked if e.distance is not None]
    styles = styles_of(comparison, theme)
    height = rows_height([entry.name for entry in entries]) + 1.5
    unit = "probability" if comparison.split.task == "classification" else "sds of y"
    with canvas(theme, 6.6, height, 1, 2, sharey=True) as (figure, axes):
        left, right = axes
        for place, entry in enumerate(entries):
            assert entry.distance is not None
            assert entry.sd_ratio is not None
            colour, mark = styles[entry.name].colour, styles[entry.name].mark
            left.plot([0, entry.distance.value], [place, place], color=colour, lw=2.2)
            inside = theme.paper if entry.name in elsewhere else colour
            left.plot(entry.distance.value, place, mark, ms=7, color=colour, mfc=inside)
            error = SD_RATIO_STANDARD_ERRORS * np.nan_to_num(entry.sd_ratio.standard_error)
            right.errorbar(
                entry.sd_ratio.value, place, xerr=error, fmt=mark, ms=7, lw=2.2, color=colour,
                mfc=inside,
            )  # fmt: skip
        floor = float(np.mean([e.distance.floor for e in entries if e.distance is not None]))
        left.axvspan(0, floor, color=theme.band, lw=0, zorder=0)
        left.set_xlim(left=0)
        left.set_title(f"grey: up to {number(floor, 2)}, alike", fontsize=10)
        left.set_xlabel(f"distance, {unit}")
        right.axvline(1, color=theme.muted, lw=1, ls=(0, (4, 3)))
        right.axvspan(SD_RATIO_THRESHOLD, SD_RATIO_UPPER, color=theme.band, lw=0, zorder=0)
        right.set_xlim(left=-0.02)
        right.set_title(f"grey: {SD_RATIO_THRESHOLD} to {SD_RATIO_UPPER}, alike", fontsize=10)
        right.set_xlabel(f"epistemic sd ratio ± {SD_RATIO_STANDARD_ERRORS:g} se")
        name_rows(left, [entry.name for entry in entries])
        hide_left(right)
    return figure


def not_judged(comparison: Comparison) -> list[str]:
    """Methods held against a reference of another model or other point estimates, best first."""
    table = comparison.table
    return [str(name) for name in table.index[table["reference_model"] == "other"]]


def describe_reference(comparison: Comparison) -> str:
    """How to read `against_reference`."""
    elsewhere = not_judged(comparison)
    is_one = len(elsewhere) == 1
    other = (
        f" The open mark{' is' if is_one else 's are'} of {', '.join(elsewhere)}, which "
        f"answer{'s' if is_one else ''} under another model than {comparison.reference} or "
        f"hold{'s' if is_one else ''} other point estimates: the difference may be the model's, "
        "and the grey does not judge it."
        if elsewhere
        else ""
    )
    return (
        f"Left: how far marginal draws of the function are from those of {comparison.reference}, "
        "mean over held-out rows; the grey reaches to the distance between its own halves, and "
        "inside it a method cannot be told from it. Right: spread "
        f"of the function over that of {comparison.reference}; left of the grey is too sure."
        f"{other}"
    )


def reference_in_words(comparison: Comparison) -> str:
    """What `against_reference` shows."""
    entries = [entry for entry in comparison.ranked if entry.distance is not None]
    distances = {e.name: e.distance.value for e in entries if e.distance is not None}
    floors = {e.name: e.distance.floor for e in entries if e.distance is not None}
    names = ", ".join(not_judged(comparison))
    ratios = {e.name: e.sd_ratio.value for e in entries if e.sd_ratio is not None}
    return (
        f"Dot plots against {comparison.reference}, a row a method: distance {span(distances)}, "
        f"between its halves {number(float(np.mean(list(floors.values()))))}; ratio of epistemic "
        f"sds {span(ratios)}."
        f"{f' Of another model, not judged: {names}.' if names else ''}"
    )
