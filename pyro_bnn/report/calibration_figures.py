"""Figures of calibration on held-out rows, one panel a method: PIT histograms, reliability."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyro_bnn.diagnostics.calibration import BAND_PROBABILITY, binomial_band
from pyro_bnn.report.captions import coverages, span
from pyro_bnn.report.numbers import number, percent
from pyro_bnn.report.theme import (
    Theme,
    canvas,
    grid_shape,
    hide_unused,
    show_counts,
    styles_of,
    wrap_name,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyro_bnn.report.compare import Comparison

MAX_BINS = 20


def pit_histograms(comparison: Comparison, theme: Theme) -> Figure:
    """PIT histograms with the binomial band of a calibrated method, one panel a method."""
    from matplotlib.ticker import MaxNLocator

    names = [place.name for place in comparison.ranking]
    rows, columns = grid_shape(len(names))
    with canvas(
        theme, 3.1 * columns + 0.4, 2.3 * rows + 0.5, rows, columns, sharex=True, sharey=True
    ) as (figure, axes):
        for ax, name in zip(axes, names, strict=False):
            scores = comparison.evaluations[name].held_out
            assert scores.pit is not None
            num_bins = int(np.clip(scores.pit.size // 8, 4, MAX_BINS))
            counts, edges = np.histogram(scores.pit, num_bins, (0, 1))
            low, high = binomial_band(scores.pit.size, 1 / num_bins)
            colour = styles_of(comparison, theme)[name].colour
            show_counts(ax, counts, edges, (low, high), colour, theme)
            ax.set_title(wrap_name(name), fontweight="bold")
            ax.set_xlim(0, 1)
            ax.set_xticks([0, 0.5, 1], ["0", "½", "1"])
            ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        hide_unused(axes, len(names), columns)
        figure.supxlabel("PIT: share of predictive draws below the observation", fontsize=11)
        figure.supylabel("held-out rows", fontsize=11)
    return figure


def describe_pit(comparison: Comparison) -> str:
    """How to read `pit_histograms`."""
    return (
        "Flat within the grey band is calibrated (each bar stays in it with probability "
        f"{percent(BAND_PROBABILITY, 0)}); a hump means intervals too wide, a bowl too narrow, a "
        f"slope a bias. Coverage of the 95 % interval: {coverages(comparison)}."
    )


def pit_in_words(comparison: Comparison) -> str:
    """What `pit_histograms` shows."""
    return (
        f"PIT histograms of {len(comparison.split.test):,} held-out rows, a panel a method: 95 % "
        f"intervals cover {coverages(comparison)} of the observations."
    )


def reliability(comparison: Comparison, theme: Theme) -> Figure:
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
            low_y = min(low_y, float(curve.low[some].min()), float(curve.accuracy[some].min()))
            ax.vlines(
                curve.confidence[some], curve.low[some], curve.high[some], color=theme.band, lw=9
            )
            ax.plot([0, 1], [0, 1], color=theme.muted, lw=1, ls=(0, (4, 3)))
            size = 12 + 170 * curve.count[some] / curve.count.sum()
            ax.scatter(curve.confidence[some], curve.accuracy[some], s=size, color=colour, zorder=3)
            ax.set_title(wrap_name(name), fontweight="bold")
            ax.text(
                0.97, 0.04, f"ECE {number(scores.ece)}\nif calibrated {number(scores.ece_floor)}",
                transform=ax.transAxes, ha="right", fontsize=9.5, color=theme.ink,
            )  # fmt: skip
        for ax in axes[: len(names)]:
            ax.set_xlim(low_x - 0.04, 1.04)
            ax.set_ylim(low_y - 0.04, 1.04)
        hide_unused(axes, len(names), columns)
        figure.supxlabel("confidence: predicted probability of the likeliest class", fontsize=11)
        figure.supylabel("accuracy on held-out rows", fontsize=11)
    return figure


def describe_reliability(comparison: Comparison) -> str:
    """How to read `reliability`."""
    return (
        "Points on the dashed line are calibrated; below it the method is too confident. Grey bars "
        f"hold a calibrated method with probability {percent(BAND_PROBABILITY, 0)}; larger points "
        f"hold more of the {len(comparison.split.test):,} held-out rows."
    )


def reliability_in_words(comparison: Comparison) -> str:
    """What `reliability` shows."""
    errors = {entry.name: entry.held_out.ece for entry in comparison.ranked}
    floors = {entry.name: entry.held_out.ece_floor for entry in comparison.ranked}
    return (
        "Reliability diagrams of accuracy over confidence, a panel a method: expected calibration "
        f"error {span(errors)}; calibrated methods would have {span(floors)}."
    )
