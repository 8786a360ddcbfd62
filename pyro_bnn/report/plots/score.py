"""Figures that compare methods: differences of the log score, distances to the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.plotting.theme import (
    BAND,
    INK,
    MUTED,
    PAPER,
    canvas,
    hide_left,
    name_rows,
    rows_height,
)
from pyro_bnn.report.evaluation.held_out import marginals
from pyro_bnn.report.evaluation.units import SDS
from pyro_bnn.report.plots.panels import DrawnFigure, panels, span, status_of
from pyro_bnn.report.tables.metrics import HIGH, LOW
from pyro_bnn.report.verdicts.spread_verdicts import SD_RATIO_THRESHOLD, SD_RATIO_UPPER

BAR_STANDARD_ERRORS = 2.0  # of one pair alone

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pyro_bnn.diagnostics.ranking import Ranked
    from pyro_bnn.report.comparison import Evaluations
    from pyro_bnn.report.evaluation.evaluate import Evaluation

FAR = 12.0  # times the reach of the nearer half of the methods: beyond it one is off the axis
BELOW = 0.28  # of a row, that the mark of the probes stands lower


def has_distances(comparison: Evaluations) -> bool:
    """Whether any method was measured against a reference."""
    return any(entry.at_rows is not None for entry in comparison.evaluations.values())


def scores(comparison: Evaluations) -> DrawnFigure:
    """Paired differences of the log score to the best, with 2 standard errors, beside the cost."""
    ranking = comparison.ranking
    times = {e.name: float(e.fit.wall_time) for e in comparison.ranked}
    known = {name: time for name, time in times.items() if time > 0}
    height = rows_height([row.name for row in ranking]) + 1.2
    widths = (3, 2) if known else (1,)
    with canvas(
        7.4 if known else 6.6, height, 1, len(widths), sharey=True, width_ratios=widths
    ) as (figure, axes):  # fmt: skip
        _draw_differences(axes[0], comparison)
        if known:
            _draw_times(axes[1], comparison, known)
    best, *others = ranking
    left = _left_end(ranking)
    off = [row.name for row in ranking if _reach(row) < left]
    tied = [row.name for row in others if not row.is_behind]
    last = others[-1]
    cost = (
        " Right: wall time of the fit, on a scale of powers of ten; fits that ran beside others "
        "took longer for it."
    )
    return DrawnFigure(
        figure,
        f"Left: difference to {best.name}, paired over held-out rows, with "
        f"{BAR_STANDARD_ERRORS:g} standard errors over rows and draws, of this pair alone. Behind "
        "or tied is what the test over all pairs at once says: of many bars one misses the dashed "
        f"line by chance more often.{_off_axis(off)}{cost if known else ''}",
        f"Dot plot of the held-out log score, a row a method: {best.name} is best with "
        f"{with_error(best.score, best.standard_error)} nats per row; tied with it: "
        f"{', '.join(tied) or 'none'}; last is {last.name}, "
        f"{with_error(last.difference.mean, last.difference.standard_error)} to the best."
        f"{f' Seconds of the fits: {span(known)}.' if known else ''}",
    )


def _error_of(row: Ranked) -> float:
    return BAR_STANDARD_ERRORS * float(np.nan_to_num(row.difference.standard_error))


def _reach(row: Ranked) -> float:
    """The left end of its bar; NaN of an impossible row, which has none."""
    mean = row.difference.mean
    return mean - _error_of(row) if np.isfinite(mean) else np.nan


def _left_end(ranking: Sequence[Ranked]) -> float:
    """Where the axis ends: beyond every bar, but for a few that would leave the others unread."""
    reaches = np.array([_reach(row) for row in ranking[1:]])
    reaches = np.sort(reaches[reaches < 0])[::-1]  # nearest first; none of the impossible
    if not len(reaches):
        return -np.inf
    typical = reaches[(len(reaches) - 1) // 2]
    return float(reaches[reaches >= FAR * typical].min())


def _off_axis(names: Sequence[str]) -> str:
    """What the arrows are of."""
    if not names:
        return ""
    return f" An arrow at the edge: {', '.join(names)} reach{'es' * (len(names) == 1)} beyond it."


def _draw_differences(ax: Axes, comparison: Evaluations) -> None:
    styles, decimals = status_of(comparison), comparison.decimals("difference")
    left = _left_end(comparison.ranking)
    shown = [row for row in comparison.ranking if _reach(row) >= left]
    right = max([0.0, *(row.difference.mean + _error_of(row) for row in shown)])
    ax.axvline(0, color=MUTED, lw=1, ls=(0, (4, 3)))
    for place, row in enumerate(comparison.ranking):
        style, difference = styles[row.name], row.difference
        if np.isfinite(difference.mean):
            ax.errorbar(
                difference.mean, place, xerr=_error_of(row), fmt=style.mark, ms=7, lw=2.2,
                color=style.colour,
            )  # fmt: skip
        if _reach(row) < left:
            ax.plot(
                0, place, "<", ms=7, color=style.colour, transform=ax.get_yaxis_transform(),
                clip_on=False,
            )  # fmt: skip
        verdict = "best" if place == 0 else "behind" if row.is_behind else "tied"
        gap = ""
        if place:
            gap = with_error(difference.mean, difference.standard_error, decimals=decimals)
        ax.annotate(
            f"{gap}  {verdict}".strip(), (1.02, place), xycoords=("axes fraction", "data"),
            va="center", color=INK, annotation_clip=False, fontsize=10,
        )  # fmt: skip
    ax.annotate(
        "difference ± se", (1.02, -0.75), xycoords=("axes fraction", "data"), va="center",
        color=MUTED, annotation_clip=False, fontsize=9.5,
    )  # fmt: skip
    if len(shown) < len(comparison.ranking) and -np.inf < left < right:
        margin = 0.06 * (right - left)
        ax.set_xlim(left - margin, right + margin)
    ax.locator_params(axis="x", nbins=4)
    name_rows(ax, [row.name for row in comparison.ranking])
    ax.set_xlabel(f"to the best ± {BAR_STANDARD_ERRORS:g} se, nats a row\n(better to the right)")


def _draw_times(ax: Axes, comparison: Evaluations, times: Mapping[str, float]) -> None:
    styles, low = status_of(comparison), min(times.values()) / 2
    for place, row in enumerate(comparison.ranking):
        if row.name not in times:
            continue
        time, style = times[row.name], styles[row.name]
        ax.plot([low, time], [place, place], color=style.colour, lw=2.2)
        ax.plot(time, place, style.mark, ms=7, color=style.colour)
        ax.annotate(
            f"{number(time, 2)} s", (time, place), xytext=(8, 0), textcoords="offset points",
            va="center", color=INK, fontsize=10,
        )  # fmt: skip
    ax.set_xscale("log")
    ax.set_xlim(low, 3 * max(times.values()))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.xaxis.set_minor_formatter("")
    ax.set_xlabel("seconds of the fit\n(better to the left)")
    hide_left(ax)


def against_reference(comparison: Evaluations) -> DrawnFigure:
    """Distance to the reference beside its floor, and the ratio of epistemic sds over the rows.

    A second, fainter bar below is of the probes off the data. Markers are open where the reference
    answers under another model or holds other point estimates.
    """
    elsewhere = not_judged(comparison)
    entries = [(e, e.at_rows) for e in comparison.ranked if e.at_rows is not None]
    styles = status_of(comparison)
    height = rows_height([entry.name for entry, _ in entries]) + 1.5
    with canvas(6.6, height, 1, 2, sharey=True) as (figure, axes):
        left, right = axes
        for place, (entry, at_rows) in enumerate(entries):
            colour, mark = styles[entry.name].colour, styles[entry.name].mark
            left.plot([0, at_rows.distance.value], [place, place], color=colour, lw=2.2)
            inside = PAPER if entry.name in elsewhere else colour
            left.plot(at_rows.distance.value, place, mark, ms=7, color=colour, mfc=inside)
            for at, lower, alpha in ((at_rows, 0.0, 1.0), (entry.off_data, BELOW, 0.55)):
                if at is None or not at.sd_ratio.values.size:
                    continue
                low, middle, high = (at.sd_ratio.quantile(q)[0] for q in (LOW, 0.5, HIGH))
                right.errorbar(
                    middle, place + lower, xerr=[[middle - low], [high - middle]], fmt=mark,
                    ms=7 if at is at_rows else 4, lw=2.2, color=colour, mfc=inside, alpha=alpha,
                )  # fmt: skip
        floor = float(np.mean([at_rows.distance.floor for _, at_rows in entries]))
        left.axvspan(0, floor, color=BAND, lw=0, zorder=0)
        left.set_xlim(left=0)
        left.set_title(f"grey: up to {number(floor, 2)}, alike", fontsize=10)
        left.set_xlabel(f"distance, {comparison.units.of_function}")
        right.axvline(1, color=MUTED, lw=1, ls=(0, (4, 3)))
        right.axvspan(SD_RATIO_THRESHOLD, SD_RATIO_UPPER, color=BAND, lw=0, zorder=0)
        right.set_xlim(left=-0.08 * right.get_xlim()[1])
        right.set_title(f"grey: {SD_RATIO_THRESHOLD} to {SD_RATIO_UPPER}, alike", fontsize=10)
        right.set_xlabel("epistemic sd ratio")
        name_rows(left, [entry.name for entry, _ in entries])
        hide_left(right)
    distances = {entry.name: at.distance.value for entry, at in entries}
    off_data = {e.name: e.off_data for e in comparison.ranked if e.off_data is not None}
    ratios = span({entry.name: at.sd_ratio.value for entry, at in entries})
    off = span({name: at.sd_ratio.value for name, at in off_data.items()})
    names = ", ".join(elsewhere)
    return DrawnFigure(
        figure,
        f"Left: how far marginal draws of the function are from those of {comparison.reference}, "
        "mean over held-out rows; the grey reaches to the distance between its own halves, and "
        "inside it a method cannot be told from it. Right: spread of the function over that of "
        f"{comparison.reference}, median and 5 to 95 % of held-out rows; left of the grey is too "
        f"sure, right of it not sure enough.{_off_data(comparison)}"
        f"{_open_marks(comparison, elsewhere)}",
        f"Dot plots against {comparison.reference}, a row a method: distance {span(distances)}, "
        f"between its halves {number(floor)}; median ratio of epistemic sds "
        f"{ratios}{f'; off the data {off}' if off else ''}."
        f"{f' Of another model, not judged: {names}.' if names else ''}",
    )


def spread_by_row(comparison: Evaluations) -> DrawnFigure:
    """Epistemic sd of every held-out row against that of the reference, one panel a method."""
    styles, elsewhere = status_of(comparison), not_judged(comparison)
    across = _sds(comparison, comparison.evaluations[str(comparison.reference)])
    shares = {}
    with panels(comparison, 2.7, entries=with_spread(comparison)) as (figure, found):
        for ax, entry, _ in found:
            style, sds = styles[entry.name], _sds(comparison, entry)
            inside = PAPER if entry.name in elsewhere else style.colour
            ax.axline((across.mean(), across.mean()), slope=1, color=MUTED, lw=1, ls=(0, (4, 3)))
            ax.plot(across, sds, style.mark, ms=4, color=style.colour, mfc=inside, alpha=0.8)
            shares[entry.name] = float((sds > across).mean())
        found[0].ax.set_xlim(left=0)
        found[0].ax.set_ylim(bottom=0)
        of_function = comparison.units.of_function
        unit = "standardised" if of_function == SDS else of_function
        figure.supxlabel(f"epistemic sd of {comparison.reference}, {unit}")
        figure.supylabel("epistemic sd of the method")
    return DrawnFigure(
        figure,
        "Each mark is a held-out row (and an output or class, where there are several). On the "
        f"dashed line a method is as sure of the function as {comparison.reference}, above it less "
        f"sure.{' Open marks are of another model.' if elsewhere else ''}",
        f"Scatter plots of epistemic sds at {len(comparison.rows.test):,} held-out rows over "
        f"those of {comparison.reference}, a panel a method: share of rows where the method's is "
        f"larger {span(shares, percent)}.",
    )


def with_spread(comparison: Evaluations) -> list[Evaluation]:
    """Methods with a spread that was held against a reference, best first."""
    return [
        entry
        for entry in comparison.ranked
        if entry.at_rows is not None and not entry.held_out.is_point
    ]


def _sds(comparison: Evaluations, entry: Evaluation) -> np.ndarray:
    """Epistemic sds of what distances are measured on, at all rows and outputs."""
    f, num_targets = entry.held_out.function_draws, len(comparison.units.scale)
    own = marginals(f, comparison.split.task, num_targets)
    return np.asarray(own.std(0, dtype=float).ravel())


def not_judged(comparison: Evaluations) -> list[str]:
    """Methods held against a reference of another model or other point estimates, best first."""
    table = comparison.table
    return [str(name) for name in table.index[table["reference_model"] == "other"]]


def _open_marks(comparison: Evaluations, elsewhere: Sequence[str]) -> str:
    """What open marks are of."""
    if not elsewhere:
        return ""
    is_one = len(elsewhere) == 1
    return (
        f" The open mark{' is' if is_one else 's are'} of {', '.join(elsewhere)}, which "
        f"answer{'s' if is_one else ''} under another model than {comparison.reference} or "
        f"hold{'s' if is_one else ''} other point estimates: the difference may be the model's, "
        "and the grey does not judge it."
    )


def _off_data(comparison: Evaluations) -> str:
    """What the second bar is of."""
    if comparison.probes is None:
        return " Off the data nothing was compared (see the notes)."
    return f" The small mark below is the same at {comparison.probes.description}."
