"""Figures of predictions on held-out rows, one panel a method, on shared axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyro_bnn.plotting.numbers import number, percent
from pyro_bnn.plotting.theme import INK, MUTED, PAPER, add_legend
from pyro_bnn.report.evaluation.held_out import LEVEL
from pyro_bnn.report.evaluation.units import to_numpy
from pyro_bnn.report.plots.panels import DrawnFigure, coverages, panels, span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pyro_bnn.report.comparison import Evaluations

MAX_INTERVALS = 250  # more overlap to a grey block
NUM_GRID = 200


def is_regression(comparison: Evaluations) -> bool:
    """Whether the target is a number."""
    return comparison.split.task != "classification"


def has_one_input(comparison: Evaluations) -> bool:
    """Whether there is one input, to draw y over x, one numeric target, and all posteriors.

    Saved evaluations have predictions at held-out rows, and the figure needs a grid.
    """
    x, units = comparison.split.train.x, comparison.split.train.target
    if units is None:  # of counts: f is the log of their rate, not where they lie
        return False
    if not comparison.posteriors:
        return False
    return (
        is_regression(comparison) and x.ndim == 2 and x.shape[1] == len(comparison.units.scale) == 1
    )


def predictions(comparison: Evaluations) -> DrawnFigure:
    """Observed values over predicted means with 95 % intervals, one panel a method."""
    units, split = comparison.units, comparison.rows
    observed = units.values(to_numpy(split.test.y).reshape(-1, len(units.scale))).ravel()
    with panels(comparison, 3.0) as (figure, found):
        shown = np.unique(
            np.linspace(0, observed.size - 1, min(observed.size, MAX_INTERVALS)).astype(int)
        )
        limits = (observed.min(), observed.max())
        for ax, entry, colour in found:
            scores = entry.held_out
            assert scores.mean is not None
            assert scores.interval is not None
            mean, (low, high) = scores.mean.ravel(), scores.interval.reshape(2, -1)
            limits = (min(limits[0], low[shown].min()), max(limits[1], high[shown].max()))
            outside = (observed < low) | (observed > high)
            ax.hlines(observed[shown], low[shown], high[shown], color=colour, alpha=0.3, lw=1.4)
            inside = shown[~outside[shown]]
            missed = shown[outside[shown]]
            ax.plot(mean[inside], observed[inside], "o", ms=3.5, color=colour, mec="none")
            ax.plot(mean[missed], observed[missed], "o", ms=5, mfc=PAPER, mec=colour, mew=1.4)
            ax.text(
                0.03, 0.97, f"RMSE {number(scores.rmse)}\n"
                f"{outside.sum()} of {outside.size} outside",
                transform=ax.transAxes, va="top", fontsize=9.5, color=INK,
            )  # fmt: skip
        for ax, _, _ in found:
            ax.plot(limits, limits, color=MUTED, lw=1, ls=(0, (4, 3)), zorder=0)
        figure.supxlabel(f"predicted {units.name}: mean and {percent(LEVEL, 0)} interval")
        figure.supylabel(f"observed {units.name}")
    has_means = all(entry.held_out.has_mean for entry in comparison.ranked)
    centre = "mean" if has_means else "mean (median where the tails have no mean)"
    errors = {entry.name: entry.held_out.rmse for entry in comparison.ranked}
    return DrawnFigure(
        figure,
        f"Held-out rows: the observed value over the predictive {centre}, with the central 95 % "
        "interval as a line; open circles lie outside their interval, the dashed line is equality.",
        f"Scatter plots of observed over predicted {units.name} at {len(split.test):,} held-out "
        f"rows, a panel a method: RMSE {span(errors)}; 95 % intervals cover "
        f"{coverages(comparison)}.",
    )


def band(comparison: Evaluations) -> DrawnFigure:
    """Predictive and epistemic band over the one input, one panel a method."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    split, units = comparison.rows, comparison.units
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
    with panels(comparison, 2.8, width=3.3, room=0.5) as (figure, found):
        for ax, entry, colour in found:
            draws, posterior = len(entry.held_out.function_draws), comparison.posteriors[entry.name]
            prediction = posterior.predict(grid, num_samples=draws, seed=comparison.seed)
            y = units.values(to_numpy(prediction.draws).reshape(-1, NUM_GRID, 1))[..., 0]
            f = units.values(to_numpy(prediction.function_draws)[..., :1])[..., 0]
            y_edges = smooth_edges(np.quantile(y, tails, axis=0))
            ax.fill_between(x_grid, *y_edges, color=colour, alpha=0.18, lw=0)
            if not entry.held_out.is_point:
                f_edges = np.quantile(f, tails, axis=0)
                ax.fill_between(x_grid, *f_edges, color=colour, alpha=0.4, lw=0)
            ax.plot(x_grid, np.median(f, axis=0), color=colour, lw=2)
            ax.plot(x_seen, seen, "o", ms=2.5, color=MUTED, mec="none")
            ax.plot(x_held, held, "o", ms=4, mfc="none", mec=INK, mew=0.9)
            _limit(ax, y_edges, np.concatenate([seen, held]))
        marks = {
            "median of f": Line2D([], [], color=MUTED, lw=2),
            "95 % of f": Patch(color=MUTED, alpha=0.6, lw=0),
            "95 % of y": Patch(color=MUTED, alpha=0.25, lw=0),
            "training rows": Line2D([], [], ls="", marker="o", ms=3, color=MUTED),
            "held-out rows": Line2D([], [], ls="", marker="o", ms=5, mfc="none", mec=INK),
        }
        add_legend(figure, marks)
        names_of_x = split.train.input_names
        figure.supxlabel(names_of_x[0] if names_of_x else "x")
        figure.supylabel(units.name)
    return DrawnFigure(
        figure,
        "Median of the function (line), its central 95 % band (dark: what the posterior does not "
        f"know) and that of new observations of {units.name} (light: noise added), with training "
        "rows (dots) and held-out rows (circles).",
        f"Predictive bands of {units.name} over the one input, a panel a method: 95 % intervals "
        f"cover {coverages(comparison)} of {len(split.test):,} held-out rows.",
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
