"""Figures of classifiers, each with its caption and its words for readers who cannot see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pyro_bnn.diagnostics.trust.selective import selective_risk
from pyro_bnn.plotting.numbers import number
from pyro_bnn.plotting.theme import (
    MUTED,
    canvas,
    grid_shape,
    hide_unused,
    name_rows,
    rows_height,
    styles,
    wrap_name,
)
from pyro_bnn.report.beyond.numbers import TEST
from pyro_bnn.report.beyond.scored import ENTROPY
from pyro_bnn.report.plots.figures import Plot
from pyro_bnn.report.plots.panels import DrawnFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pyro_bnn.plotting.theme import Style
    from pyro_bnn.report.beyond.numbers import TrustNumbers
    from pyro_bnn.report.tables.metric import Record

MOST_POINTS = 400  # of a curve


def _rejection(results: TrustNumbers) -> DrawnFigure:
    """Accuracy of the rows kept, of the first fit of each method."""
    own = styles(results.names)
    with canvas(6.2, 4.2) as (figure, (ax,)):
        for name, fits in results.fits.items():
            scored = fits[0][TEST]
            curve = selective_risk(
                scored.novelty[ENTROPY], scored.probs.argmax(1) == results.labels
            )
            shown = np.unique(np.linspace(0, len(curve.kept) - 1, MOST_POINTS).astype(int))
            style = own[name]
            ax.plot(
                curve.kept[shown], 1 - curve.risk[shown], color=style.colour, ls=style.dashes,
                label=wrap_name(name, 30),
            )  # fmt: skip
        ax.set_xlabel("share of rows kept, the most certain ones by entropy")
        ax.set_ylabel("accuracy of the rows kept")
        ax.legend()
    first = results.names[0]
    return DrawnFigure(
        figure,
        "Rows are kept in the order of the entropy of the mean probabilities; at the right all of "
        "them. Of the first fit of each method; the table of rejection has the errors of the area "
        "under such a curve, and of differences.",
        f"Accuracy of the rows kept against their share. The joint risk (AUGRC) of {first} is "
        f"{number(results.table.loc[first, 'augrc'])}.",
    )


def _calibration(results: TrustNumbers) -> DrawnFigure:
    """The calibration error beside what a calibrated method has."""
    tables = {f"test {results.noun}": results.table}
    if results.conditions:
        tables["corrupted, mean"] = results.shifted.loc[list(results.names)]
    own = styles(results.names)
    size = 3.6 * len(tables) + 1.2, rows_height(results.names) + 1.0
    with canvas(*size, 1, len(tables), sharey=True) as (figure, axes):
        for ax, (title, table) in zip(axes, tables.items(), strict=True):
            for row, (name, numbers) in enumerate(table.iterrows()):
                _show_bar(ax, numbers, "ece", row, own[str(name)])
                ax.plot(numbers["floor"], row, marker="|", ms=16, mew=2, color=MUTED)
            ax.set_title(title)
            ax.set_xlabel("calibration error, equal-mass bins")
            ax.set_xlim(left=0)
            ax.locator_params(axis="x", nbins=5)
            name_rows(ax, list(results.names))
    first = results.table.iloc[0]
    return DrawnFigure(
        figure,
        "Bars are two standard errors; the grey line is the floor, about the mean of the error "
        "where the probabilities are right: of methods whose probabilities are right about half "
        "lie right of it. No ranking.",
        f"{results.names[0]} has an error of {number(first['ece'])}, its floor is "
        f"{number(first['floor'])}.",
    )


def _shift(results: TrustNumbers) -> DrawnFigure:
    """Log score of each corruption against its severity."""
    table, own = results.by_condition.sort_values("severity", kind="stable"), styles(results.names)
    kinds = list(dict.fromkeys(results.by_condition["kind"]))
    rows, columns = grid_shape(len(kinds), 4)
    with canvas(2.5 * columns + 0.6, 2.1 * rows + 1.0, rows, columns, sharex=True) as (
        figure,
        axes,
    ):
        for ax, kind in zip(axes, kinds, strict=False):
            for name in results.names:
                style = own[name]
                part = table[(table["kind"] == kind) & (table["method"] == name)]
                clean = results.table.loc[name]
                ax.errorbar(
                    [0, *part["severity"]],
                    [clean["log_score"], *part["log_score"]],
                    yerr=2 * np.array([clean["log_score_se"], *part["log_score_se"]]),
                    color=style.colour, ls=style.dashes, elinewidth=0.8, marker=style.mark, ms=4,
                    label=name,
                )  # fmt: skip
            ax.set_title(kind.replace("-", " "))
            ax.set_xticks([0, *sorted(set(table["severity"]))])
        hide_unused(axes, len(kinds), columns)
        figure.supxlabel("severity; 0 are all test images as they are")
        figure.supylabel("log score, nats a row")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(
            handles, [wrap_name(label, 30) for label in labels], loc="outside upper center", ncols=3
        )
    best = results.shifted_ranking[0]
    return DrawnFigure(
        figure,
        "The same noise for every method. Bars are two standard errors. Differences of methods "
        "have smaller ones, as the images are the same: see the table of each corruption.",
        f"Log score of each corruption against its severity. Over all of them {best.name} has the "
        f"highest, {number(best.score)} nats a row.",
    )


def _unknown(results: TrustNumbers) -> DrawnFigure:
    """AUROC of each score and method."""
    table, own = results.unknown, styles(results.names)
    scores = list(dict.fromkeys(table["score"]))
    rows, columns = grid_shape(len(scores), 2)
    size = 3.6 * columns + 1.2, (rows_height(results.names) + 0.9) * rows
    with canvas(*size, rows, columns, sharex=True, sharey=True) as (figure, axes):
        for ax, score in zip(axes, scores, strict=False):
            part = table[table["score"] == score].set_index("method")
            for row, name in enumerate(results.names):
                if name in part.index:  # a score of features is not of every method
                    _show_bar(ax, part.loc[name], "auroc", row, own[name])
            ax.axvline(0.5, color=MUTED, lw=1, ls=(0, (4, 3)))
            ax.set_title(score)
            ax.set_xlabel("AUROC")
            name_rows(ax, list(results.names))
        hide_unused(axes, len(scores), columns)
    of = table[table["score"] == ENTROPY].set_index("method")["auroc"]
    return DrawnFigure(
        figure,
        f"How well each score tells {results.ood_name} from the test images: 1 is perfect, 0.5 "
        "(the line) knows nothing. Bars are two standard errors over images of both data sets.",
        f"By entropy the highest AUROC is {number(of.max())} ({of.idxmax()}), the lowest "
        f"{number(of.min())} ({of.idxmin()}).",
    )


def _show_bar(ax: Axes, numbers: Record, key: str, row: int, style: Style) -> None:
    """A number in its row, with two standard errors."""
    error = 2 * numbers[f"{key}_se"]
    ax.errorbar(numbers[key], row, xerr=error, fmt=style.mark, color=style.colour)


PLOTS = {
    "rejection": Plot("Rejection", lambda _: True, _rejection),
    "calibration": Plot("Calibration beside its floor", lambda _: True, _calibration),
    "shift": Plot("Corruption", lambda results: results.conditions, _shift),
    "unknown": Plot("Unknown inputs", lambda results: results.ood_name, _unknown),
}
