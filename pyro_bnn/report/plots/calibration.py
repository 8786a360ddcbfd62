"""Figures of calibration on held-out rows: PIT, reliability, what rejecting rows buys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyro_bnn.diagnostics.bands import BAND_PROBABILITY
from pyro_bnn.diagnostics.rejection import RejectionCurve, class_uncertainty, rejection_curve
from pyro_bnn.plotting.numbers import number, percent
from pyro_bnn.plotting.theme import BAD, BAND, INK, MUTED, Dashes, add_legend
from pyro_bnn.report.evaluation.held_out import HeldOut, class_blocks
from pyro_bnn.report.evaluation.units import to_numpy
from pyro_bnn.report.plots.panels import DrawnFigure, coverages, panels, span

if TYPE_CHECKING:
    from pyro_bnn.report.comparison import Evaluations

REJECTED_BY: dict[str, Dashes] = {"entropy": "-", "mutual information": (0, (4, 2))}


def pit_differences(comparison: Evaluations) -> DrawnFigure:
    """Distribution function of PIT values less the uniform one, with its band, a panel a method."""
    away = {}
    with panels(comparison, 2.3, room=0.5) as (figure, found):
        for ax, entry, colour in found:
            ecdf, bars = entry.held_out.pit_difference, entry.held_out.pit_histogram
            assert ecdf is not None
            assert bars is not None
            place = [0, *ecdf.at, 1]
            ax.fill_between(place, [0, *ecdf.low, 0], [0, *ecdf.high, 0], color=BAND, lw=0)
            for low, high, out in zip(bars.edges[:-1], bars.edges[1:], bars.outside, strict=True):
                if out:
                    ax.axvspan(low, high, color=BAD, alpha=0.15, lw=0)
            ax.axhline(0, color=MUTED, lw=1, ls=(0, (4, 3)))
            ax.plot(place, [0, *ecdf.difference, 0], color=colour, lw=2)
            ax.set_xlim(0, 1)
            ax.set_xticks([0, 0.5, 1], ["0", "½", "1"])
            away[entry.name] = float(np.abs(ecdf.difference).max())
        figure.supxlabel("PIT: share of predictive draws below the observation")
        figure.supylabel("share of held-out rows below,\nless the uniform share")
    return DrawnFigure(
        figure,
        "A line within the grey band is not told from a calibrated one: of data sets drawn from "
        "the method's own posterior, all rows from one draw of its function, "
        f"{percent(BAND_PROBABILITY, 0)} stay in it throughout. It is wider the more the rows "
        "share. Above and then below zero means intervals too narrow, below and then above too "
        "wide, on one side throughout a bias. Shaded are bins of PIT values with more or fewer "
        "rows than such data sets have, which a verdict names. Coverage of the 95 % interval: "
        f"{coverages(comparison)}.",
        "Distribution function of the PIT values of "
        f"{len(comparison.rows.test):,} held-out rows less that of the uniform distribution, a "
        f"panel a method: its largest distance from zero is {span(away)}; 95 % intervals cover "
        f"{coverages(comparison)} of the observations.",
    )


def reliability(comparison: Evaluations) -> DrawnFigure:
    """Accuracy over confidence with the band of a calibrated method, one panel a method."""
    with panels(comparison, 3.0) as (figure, found):
        low_x, low_y = 1.0, 1.0
        for ax, entry, colour in found:
            curve = entry.held_out.reliability
            assert curve is not None
            some = curve.count > 0
            low_x = min(low_x, float(curve.confidence[some].min()))
            lowest = np.fmin(curve.low[some], curve.accuracy[some])  # NaN where there is no band
            low_y = min(low_y, float(lowest.min()))
            ax.vlines(curve.confidence[some], curve.low[some], curve.high[some], color=BAND, lw=9)
            ax.plot([0, 1], [0, 1], color=MUTED, lw=1, ls=(0, (4, 3)))
            size = 12 + 170 * curve.count[some] / curve.count.sum()
            ax.scatter(curve.confidence[some], curve.accuracy[some], s=size, color=colour, zorder=3)
            for bin_ in np.flatnonzero(some):
                ax.annotate(
                    f"{curve.count[bin_]:,}", (curve.confidence[bin_], curve.accuracy[bin_]),
                    xytext=(-7, 4), textcoords="offset points", ha="right", fontsize=8, color=MUTED,
                )  # fmt: skip
            ax.text(
                0.97, 0.04, f"ECE {number(entry.held_out.ece)}\n{_if_calibrated(entry.held_out)}",
                transform=ax.transAxes, ha="right", fontsize=9.5, color=INK,
            )  # fmt: skip
        for ax, _, _ in found:
            ax.set_xlim(low_x - 0.04, 1.04)
            ax.set_ylim(low_y - 0.04, 1.04)
        figure.supxlabel("confidence: predicted probability of the likeliest class")
        figure.supylabel("accuracy on held-out rows")
    errors = {entry.name: entry.held_out.ece for entry in comparison.ranked}
    floors = {entry.name: entry.held_out.ece_floor for entry in comparison.ranked}
    return DrawnFigure(
        figure,
        "Points, one for each of 15 bins of confidence of equal width that has rows, are "
        "calibrated on the dashed line; below it the method is too confident. Each grey bar holds "
        f"{percent(BAND_PROBABILITY, 0)} of the accuracies that classes drawn from the method's "
        "own posterior have, all rows from one draw of its function, and so does the ECE 'if "
        f"calibrated'; larger points hold more of the {len(comparison.rows.test):,} held-out "
        "rows, whose numbers stand beside them.",
        "Reliability diagrams of accuracy over confidence, a panel a method: expected calibration "
        f"error {span(errors)}; calibrated methods would have {span(floors)}.",
    )


def _if_calibrated(scores: HeldOut) -> str:
    limit = f"up to {number(scores.ece_high)}" if scores.ece_high == scores.ece_high else "no band"
    return f"if calibrated {number(scores.ece_floor)}, {limit}"


def rejections(scores: HeldOut, y: np.ndarray) -> dict[str, RejectionCurve]:
    """Accuracy-rejection curves of one method by what rows are rejected by.

    Args:
        scores: Of a classification.
        y: Classes ``[N]`` of the held-out rows.

    Returns:
        The curves by ``"entropy"`` and ``"mutual information"``; a point estimate has no mutual
        information, and the first alone.
    """
    assert scores.probs is not None
    correct = np.asarray(scores.probs.argmax(1) == y)
    total = class_uncertainty(scores.probs[None]).entropy
    curves = {"entropy": rejection_curve(total, correct)}
    if not scores.is_point:
        curves["mutual information"] = rejection_curve(_mutual_information(scores), correct)
    return curves


def _mutual_information(scores: HeldOut) -> np.ndarray:
    """Mutual information ``[N]``, a few rows at a time: probabilities of all draws are large."""
    blocks = class_blocks(scores.function_draws)
    return np.concatenate([class_uncertainty(p).mutual_information for p in blocks])


def rejection(comparison: Evaluations) -> DrawnFigure:
    """Accuracy of the kept rows over the share that is rejected, one panel a method."""
    from matplotlib.lines import Line2D

    y = to_numpy(comparison.rows.test.y)
    areas = {}
    lowest = 1.0
    with panels(comparison, 2.6, room=0.9) as (figure, found):
        for ax, entry, colour in found:
            curves = rejections(entry.held_out, y)
            for by, curve in curves.items():
                rejected = 1 - curve.retained
                ax.plot(rejected, curve.accuracy, color=colour, lw=2, ls=REJECTED_BY[by])
                lowest = min(lowest, float(curve.accuracy.min()))
            ax.axhline(curves["entropy"].random, color=MUTED, lw=1, ls=(0, (1, 2)))
            lines = [f"{number(curve.area)} by {by}" for by, curve in curves.items()]
            ax.text(
                0.97, 0.03, "\n".join(["area", *lines]), transform=ax.transAxes, ha="right",
                fontsize=9.5, color=INK,
            )  # fmt: skip
            areas[entry.name] = curves["entropy"].area
        room = max(1 - lowest, 0.02)
        found[0].ax.set_ylim(lowest - 0.55 * room, 1 + 0.08 * room)  # the areas stand below
        found[0].ax.set_xlim(0, 1)
        marks = {
            f"by {by}": Line2D([], [], color=MUTED, lw=2, ls=ls) for by, ls in REJECTED_BY.items()
        }
        at_random = Line2D([], [], color=MUTED, lw=1, ls=(0, (1, 2)))
        add_legend(figure, marks | {"at random": at_random})
        figure.supxlabel("share of held-out rows rejected, the most uncertain first")
        figure.supylabel("accuracy on the rest")
    return DrawnFigure(
        figure,
        "Accuracy on the rows that are kept when the most uncertain of "
        f"{len(comparison.rows.test):,} are rejected, by entropy (total uncertainty) or by mutual "
        "information (what the draws disagree about): a curve that rises fast knows where it errs. "
        "The area is its mean; rejecting at random has the dotted line. At the far right few rows "
        "are left.",
        "Accuracy-rejection curves, a panel a method: area when the rows of largest entropy go "
        f"first {span(areas)}; accuracy on all rows "
        f"{span({e.name: e.held_out.accuracy for e in comparison.ranked})}.",
    )
