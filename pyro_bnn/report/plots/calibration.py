"""Figures of calibration on held-out rows: PIT, reliability, what rejecting rows buys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyro_bnn.diagnostics.bands import BAND_PROBABILITY
from pyro_bnn.diagnostics.rejection import RejectionCurve, class_uncertainty, rejection_curve
from pyro_bnn.plotting.numbers import number, percent
from pyro_bnn.plotting.theme import (
    Dashes,
    Theme,
    canvas,
    grid_shape,
    hide_unused,
    show_counts,
    wrap_name,
)
from pyro_bnn.report.evaluation.held_out import HeldOut, marginals
from pyro_bnn.report.evaluation.units import to_numpy
from pyro_bnn.report.plots.captions import coverages, span
from pyro_bnn.report.plots.styles import styles_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyro_bnn.report.evaluation.comparison import Evaluations

NUMBERS_AT_ONCE = 1 << 22
REJECTED_BY: dict[str, Dashes] = {"entropy": "-", "mutual information": (0, (4, 2))}


def pit_histograms(comparison: Evaluations, theme: Theme) -> Figure:
    """PIT histograms with the band of data drawn from the posterior, one panel a method."""
    from matplotlib.ticker import MaxNLocator

    names = [place.name for place in comparison.ranking]
    rows, columns = grid_shape(len(names))
    with canvas(
        theme, 3.1 * columns + 0.4, 2.3 * rows + 0.5, rows, columns, sharex=True, sharey=True
    ) as (figure, axes):
        for ax, name in zip(axes, names, strict=False):
            scores = comparison.evaluations[name].held_out
            found = scores.pit_histogram
            assert found is not None
            colour = styles_of(comparison, theme)[name].colour
            limits = (found.low.clip(min=0), found.high)
            show_counts(ax, found.counts, found.edges, limits, colour, theme)
            ax.set_title(wrap_name(name), fontweight="bold")
            ax.set_xlim(0, 1)
            ax.set_xticks([0, 0.5, 1], ["0", "½", "1"])
            ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        hide_unused(axes, len(names), columns)
        figure.supxlabel("PIT: share of predictive draws below the observation", fontsize=11)
        figure.supylabel("held-out rows", fontsize=11)
    return figure


def describe_pit(comparison: Evaluations) -> str:
    """How to read `pit_histograms`."""
    return (
        "Bars within the grey band are calibrated: of data sets drawn from the method's own "
        "posterior, all rows from one draw of its function, "
        f"{percent(BAND_PROBABILITY, 0)} have all bars in it. It is wider the more the rows share; "
        "a hump means intervals too wide, a bowl too narrow, a slope a bias. Coverage of the 95 % "
        f"interval: {coverages(comparison)}."
    )


def pit_in_words(comparison: Evaluations) -> str:
    """What `pit_histograms` shows."""
    return (
        f"PIT histograms of {len(comparison.split.test):,} held-out rows, a panel a method: 95 % "
        f"intervals cover {coverages(comparison)} of the observations."
    )


def reliability(comparison: Evaluations, theme: Theme) -> Figure:
    """Accuracy over confidence with the band of a calibrated method, one panel a method."""
    names = [place.name for place in comparison.ranking]
    rows, columns = grid_shape(len(names))
    with canvas(
        theme, 3.1 * columns + 0.4, 3.0 * rows + 0.4, rows, columns, sharex=True, sharey=True
    ) as (figure, axes):
        low_x, low_y = 1.0, 1.0
        for ax, name in zip(axes, names, strict=False):
            scores = comparison.evaluations[name].held_out
            curve = scores.reliability
            assert curve is not None
            colour = styles_of(comparison, theme)[name].colour
            some = curve.count > 0
            low_x = min(low_x, float(curve.confidence[some].min()))
            lowest = np.fmin(curve.low[some], curve.accuracy[some])  # NaN where there is no band
            low_y = min(low_y, float(lowest.min()))
            ax.vlines(
                curve.confidence[some], curve.low[some], curve.high[some], color=theme.band, lw=9
            )
            ax.plot([0, 1], [0, 1], color=theme.muted, lw=1, ls=(0, (4, 3)))
            size = 12 + 170 * curve.count[some] / curve.count.sum()
            ax.scatter(curve.confidence[some], curve.accuracy[some], s=size, color=colour, zorder=3)
            for bin_ in np.flatnonzero(some):
                ax.annotate(
                    f"{curve.count[bin_]:,}", (curve.confidence[bin_], curve.accuracy[bin_]),
                    xytext=(-7, 4), textcoords="offset points", ha="right", fontsize=8,
                    color=theme.muted,
                )  # fmt: skip
            ax.set_title(wrap_name(name), fontweight="bold")
            ax.text(
                0.97, 0.04, f"ECE {number(scores.ece)}\n{_if_calibrated(scores)}",
                transform=ax.transAxes, ha="right", fontsize=9.5, color=theme.ink,
            )  # fmt: skip
        for ax in axes[: len(names)]:
            ax.set_xlim(low_x - 0.04, 1.04)
            ax.set_ylim(low_y - 0.04, 1.04)
        hide_unused(axes, len(names), columns)
        figure.supxlabel("confidence: predicted probability of the likeliest class", fontsize=11)
        figure.supylabel("accuracy on held-out rows", fontsize=11)
    return figure


def _if_calibrated(scores: HeldOut) -> str:
    limit = f"up to {number(scores.ece_high)}" if scores.ece_high == scores.ece_high else "no band"
    return f"if calibrated {number(scores.ece_floor)}, {limit}"


def describe_reliability(comparison: Evaluations) -> str:
    """How to read `reliability`."""
    return (
        "Points, one for each of 15 bins of confidence of equal width that has rows, are "
        "calibrated on the dashed line; below it the method is too confident. Each grey bar holds "
        f"{percent(BAND_PROBABILITY, 0)} of the accuracies that classes drawn from the method's "
        "own posterior have, all rows from one draw of its function, and so does the ECE 'if "
        f"calibrated'; larger points hold more of the {len(comparison.split.test):,} held-out "
        "rows, whose numbers stand beside them."
    )


def reliability_in_words(comparison: Evaluations) -> str:
    """What `reliability` shows."""
    errors = {entry.name: entry.held_out.ece for entry in comparison.ranked}
    floors = {entry.name: entry.held_out.ece_floor for entry in comparison.ranked}
    return (
        "Reliability diagrams of accuracy over confidence, a panel a method: expected calibration "
        f"error {span(errors)}; calibrated methods would have {span(floors)}."
    )


def rejections(scores: HeldOut, y: np.ndarray) -> dict[str, RejectionCurve]:
    """Accuracy-rejection curves of one method by what rows are rejected by.

    Args:
        scores: Of a classification.
        y: Classes ``[N]`` of the held-out rows.

    Returns:
        The curves by ``"entropy"`` and ``"mutual information"``; a point estimate has no mutual
        information, and the first alone.
    """
    curves = {"entropy": rejection_by_entropy(scores, y)}
    if not scores.is_point:
        information = _mutual_information(scores)
        curves["mutual information"] = rejection_curve(information, _correct(scores, y))
    return curves


def rejection_by_entropy(scores: HeldOut, y: np.ndarray) -> RejectionCurve:
    """The accuracy-rejection curve of one method by the entropy of its class probabilities."""
    assert scores.probs is not None
    total = class_uncertainty(scores.probs[None]).entropy
    return rejection_curve(total, _correct(scores, y))


def _correct(scores: HeldOut, y: np.ndarray) -> np.ndarray:
    assert scores.probs is not None
    return np.asarray(scores.probs.argmax(1) == y)


def _mutual_information(scores: HeldOut) -> np.ndarray:
    """Mutual information ``[N]``, a few rows at a time: probabilities of all draws are large."""
    f, found = scores.function_draws, []
    at_once = max(1, NUMBERS_AT_ONCE // f[:, 0].size)
    for start in range(0, f.shape[1], at_once):
        rows = f[:, start : start + at_once].astype(float)
        p = marginals(rows, "classification", 1)  # [S, n, C], or [S, n, 1] of two classes
        p = np.concatenate([1 - p, p], -1) if p.shape[-1] == 1 else p
        found.append(class_uncertainty(p).mutual_information)
    return np.concatenate(found)


def rejection(comparison: Evaluations, theme: Theme) -> Figure:
    """Accuracy of the kept rows over the share that is rejected, one panel a method."""
    from matplotlib.lines import Line2D

    names = [place.name for place in comparison.ranking]
    rows, columns = grid_shape(len(names))
    y = to_numpy(comparison.split.test.y)
    lowest = 1.0
    with canvas(
        theme, 3.1 * columns + 0.4, 2.6 * rows + 0.9, rows, columns, sharex=True, sharey=True
    ) as (figure, axes):
        for ax, name in zip(axes, names, strict=False):
            curves = rejections(comparison.evaluations[name].held_out, y)
            colour = styles_of(comparison, theme)[name].colour
            for by, curve in curves.items():
                rejected = 1 - curve.retained
                ax.plot(rejected, curve.accuracy, color=colour, lw=2, ls=REJECTED_BY[by])
                lowest = min(lowest, float(curve.accuracy.min()))
            ax.axhline(curve.random, color=theme.muted, lw=1, ls=(0, (1, 2)))
            areas = [f"{number(curve.area)} by {by}" for by, curve in curves.items()]
            ax.text(
                0.97, 0.03, "\n".join(["area", *areas]), transform=ax.transAxes, ha="right",
                fontsize=9.5, color=theme.ink,
            )  # fmt: skip
            ax.set_title(wrap_name(name), fontweight="bold")
        room = max(1 - lowest, 0.02)
        axes[0].set_ylim(lowest - 0.55 * room, 1 + 0.08 * room)  # the areas stand below
        axes[0].set_xlim(0, 1)
        hide_unused(axes, len(names), columns)
        lines = [Line2D([], [], color=theme.muted, lw=2, ls=ls) for ls in REJECTED_BY.values()]
        lines.append(Line2D([], [], color=theme.muted, lw=1, ls=(0, (1, 2))))
        words = [*(f"by {by}" for by in REJECTED_BY), "at random"]
        figure.legend(lines, words, loc="outside upper left", ncols=3, fontsize=9.5)
        figure.supxlabel("share of held-out rows rejected, the most uncertain first", fontsize=11)
        figure.supylabel("accuracy on the rest", fontsize=11)
    return figure


def describe_rejection(comparison: Evaluations) -> str:
    """How to read `rejection`."""
    return (
        "Accuracy on the rows that are kept when the most uncertain of "
        f"{len(comparison.split.test):,} are rejected, by entropy (total uncertainty) or by mutual "
        "information (what the draws disagree about): a curve that rises fast knows where it errs. "
        "The area is its mean; rejecting at random has the dotted line. At the far right few rows "
        "are left."
    )


def rejection_in_words(comparison: Evaluations) -> str:
    """What `rejection` shows."""
    y = to_numpy(comparison.split.test.y)
    areas = {e.name: rejection_by_entropy(e.held_out, y).area for e in comparison.ranked}
    return (
        "Accuracy-rejection curves, a panel a method: area when the rows of largest entropy go "
        f"first {span(areas)}; accuracy on all rows "
        f"{span({e.name: e.held_out.accuracy for e in comparison.ranked})}."
    )
