"""Figures of predictions on held-out rows, one panel a method, on shared axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyro_bnn.diagnostics.calibration import BAND_PROBABILITY, binomial_band
from pyro_bnn.report.held_out import LEVEL, marginals
from pyro_bnn.report.numbers import number, percent
from pyro_bnn.report.theme import (
    Theme,
    canvas,
    colours_of,
    grid_shape,
    hide_unused,
    show_counts,
    wrap_name,
)
from pyro_bnn.report.units import to_numpy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from pyro_bnn.report.compare import Comparison

MAX_INTERVALS = 250  # more overlap to a grey block
MAX_BINS = 20
NUM_GRID = 200


def is_regression(comparison: Comparison) -> bool:
    """Whether the target is a number."""
    return comparison.split.task != "classification"


def has_one_input(comparison: Comparison) -> bool:
    """Whether there is one input, to draw y over x, and one numeric target."""
    x = comparison.split.train.x
    return (
        is_regression(comparison) and x.ndim == 2 and x.shape[1] == len(comparison.units.scale) == 1
    )


def predictions(comparison: Comparison, theme: Theme) -> Figure:
    """Observed values over predicted means with 95 % intervals, one panel a method."""
    names = [place.name for place in comparison.ranking]
    rows, columns = grid_shape(len(names))
    units, split = comparison.units, comparison.split
    observed = units.values(to_numpy(split.test.y).reshape(-1, len(units.scale))).ravel()
    with canvas(
        theme, 3.1 * columns + 0.4, 3.0 * rows + 0.4, rows, columns, sharex=True, sharey=True
    ) as (figure, axes):
        shown = np.unique(
            np.linspace(0, observed.size - 1, min(observed.size, MAX_INTERVALS)).astype(int)
        )
        limits = (observed.min(), observed.max())
        for ax, name in zip(axes, names, strict=False):
            scores = comparison.evaluations[name].held_out
            assert scores.mean is not None
            assert scores.interval is not None
            mean, (low, high) = scores.mean.ravel(), scores.interval.reshape(2, -1)
            limits = (min(limits[0], low[shown].min()), max(limits[1], high[shown].max()))
            outside = (observed < low) | (observed > high)
            colour = colours_of(comparison, theme)[name]
            ax.hlines(observed[shown], low[shown], high[shown], color=colour, alpha=0.3, lw=1.4)
            inside = shown[~outside[shown]]
            missed = shown[outside[shown]]
            ax.plot(mean[inside], observed[inside], "o", ms=3.5, color=colour, mec="none")
            ax.plot(mean[missed], observed[missed], "o", ms=5, mfc=theme.paper, mec=colour, mew=1.4)
            ax.set_title(wrap_name(name), fontweight="bold")
            ax.text(
                0.03, 0.97, f"RMSE {number(scores.rmse)}\n"
                f"{outside.sum()} of {outside.size} outside",
                transform=ax.transAxes, va="top", fontsize=9.5, color=theme.ink,
            )  # fmt: skip
        for ax in axes[: len(names)]:
            ax.plot(limits, limits, color=theme.muted, lw=1, ls=(0, (4, 3)), zorder=0)
        hide_unused(axes, len(names), columns)
        figure.supxlabel(
            f"predicted {units.name}: mean and {percent(LEVEL, 0)} interval", fontsize=11
        )
        figure.supylabel(f"observed {units.name}", fontsize=11)
    return figure


def describe_predictions(comparison: Comparison) -> str:
    """Words for `predictions`."""
    parts = [
        f"{place.name}: RMSE {number(comparison.evaluations[place.name].held_out.rmse)}"
        for place in comparison.ranking
    ]
    return (
        "Held-out rows: the observed value over the predictive mean, with the central 95 % "
        "interval as a line; open circles lie outside their interval, the dashed line is equality. "
        f"{'; '.join(parts)} (units of {comparison.units.name})."
    )


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
            colour = colours_of(comparison, theme)[name]
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
    """Words for `pit_histograms`."""
    parts = []
    for place in comparison.ranking:
        result = comparison.evaluations[place.name].held_out.coverage
        assert result is not None
        parts.append(f"{place.name} {percent(result.observed)}")
    return (
        "Flat within the grey band is calibrated (each bar stays in it with probability "
        f"{percent(BAND_PROBABILITY, 0)}); a hump means intervals too wide, a bowl too narrow, a "
        f"slope a bias. Coverage of the 95 % interval: {'; '.join(parts)}."
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
            colour = colours_of(comparison, theme)[name]
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
    """Words for `reliability`."""
    parts = []
    for place in comparison.ranking:
        scores = comparison.evaluations[place.name].held_out
        parts.append(f"{place.name} {number(scores.ece)} (floor {number(scores.ece_floor)})")
    return (
        "Points on the dashed line are calibrated; below it the method is too confident. Grey bars "
        f"hold a calibrated method with probability {percent(BAND_PROBABILITY, 0)}; larger points "
        f"hold more rows. Expected calibration error: {'; '.join(parts)}."
    )


def band(comparison: Comparison, theme: Theme) -> Figure:
    """Predictive and epistemic band over the one input, one panel a method."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = [place.name for place in comparison.ranking]
    rows, columns = grid_shape(len(names))
    split, units = comparison.split, comparison.units
    x_train, x_test = split.train.x, split.test.x
    low, high = float(x_train.min()), float(x_train.max())
    grid = x_train.new_tensor(
        np.linspace(low - 0.25 * (high - low), high + 0.25 * (high - low), NUM_GRID)
    )[:, None]
    inputs = split.train.inputs
    x_grid, x_seen, x_held = (
        to_numpy(x if inputs is None else inputs.inverse(x)).ravel()
        for x in (grid, x_train, x_test)
    )
    seen, held = (
        units.values(to_numpy(y).reshape(-1, 1)).ravel() for y in (split.train.y, split.test.y)
    )
    tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
    with canvas(
        theme, 3.3 * columns + 0.4, 2.8 * rows + 0.5, rows, columns, sharex=True, sharey=True
    ) as (figure, axes):
        for ax, name in zip(axes, names, strict=False):
            entry = comparison.evaluations[name]
            draws = len(entry.held_out.function_draws)
            prediction = entry.posterior.predict(grid, num_samples=draws, seed=comparison.seed)
            y = units.values(to_numpy(prediction.draws).reshape(-1, NUM_GRID, 1))[..., 0]
            f = marginals(to_numpy(prediction.function_draws), split.task, 1)
            f = units.values(f)[..., 0]
            colour = colours_of(comparison, theme)[name]
            y_edges = smooth_edges(np.quantile(y, tails, axis=0))
            ax.fill_between(x_grid, *y_edges, color=colour, alpha=0.18, lw=0)
            if not entry.held_out.is_point:
                f_edges = np.quantile(f, tails, axis=0)
                ax.fill_between(x_grid, *f_edges, color=colour, alpha=0.4, lw=0)
            ax.plot(x_grid, f.mean(0), color=colour, lw=2)
            ax.plot(x_seen, seen, "o", ms=2.5, color=theme.muted, mec="none")
            ax.plot(x_held, held, "o", ms=4, mfc="none", mec=theme.ink, mew=0.9)
            ax.set_title(wrap_name(name), fontweight="bold")
            _limit(ax, y_edges, np.concatenate([seen, held]))
        hide_unused(axes, len(names), columns)
        figure.legend(
            [
                Line2D([], [], color=theme.muted, lw=2),
                Patch(color=theme.muted, alpha=0.6, lw=0),
                Patch(color=theme.muted, alpha=0.25, lw=0),
                Line2D([], [], ls="", marker="o", ms=3, color=theme.muted),
                Line2D([], [], ls="", marker="o", ms=5, mfc="none", mec=theme.ink),
            ],
            ["mean of f", "95 % of f", "95 % of y", "training rows", "held-out rows"],
            loc="outside upper left",
            ncols=5,
            fontsize=9.5,
        )
        names_of_x = split.train.input_names
        figure.supxlabel(names_of_x[0] if names_of_x else "x", fontsize=11)
        figure.supylabel(units.name, fontsize=11)
    return figure


def describe_band(comparison: Comparison) -> str:
    """Words for `band`."""
    return (
        "Mean of the function (line), its central 95 % band (dark: what the posterior does not "
        "know) and that of new observations (light: noise added), with training rows (dots) and "
        f"held-out rows (circles): {', '.join(place.name for place in comparison.ranking)}."
    )


def smooth_edges(edges: np.ndarray, width: int = 9) -> np.ndarray:
    """Moving average along a grid ``[2, G]`` of an interval's ends: draws of y leave them ragged.

    Example:
        >>> smooth_edges(np.ones((2, 30)))[0, :2]
        array([1., 1.])
    """
    padded = np.pad(edges, ((0, 0), (width // 2, width // 2)), mode="reflect", reflect_type="odd")
    return np.stack([np.convolve(edge, np.ones(width) / width, mode="valid") for edge in padded])


def _limit(ax: Axes, interval: np.ndarray, y: np.ndarray) -> None:
    """Keeps the data in view where the bands run off beyond them."""
    low, high = min(y.min(), interval[0].min()), max(y.max(), interval[1].max())
    room = 0.75 * (y.max() - y.min())
    ax.set_ylim(max(low, y.min() - room), min(high, y.max() + room))
