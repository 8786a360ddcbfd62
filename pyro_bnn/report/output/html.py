"""The report as one self-contained HTML page: verdicts, tables, figures, how to get it again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyro_bnn.plotting.theme import svg
from pyro_bnn.report.output.page import Picture, Table, render_page
from pyro_bnn.report.plots.figures import PLOTS, Figures
from pyro_bnn.report.tables.table import sections, shown
from pyro_bnn.report.tables.target_tables import target_sections
from pyro_bnn.report.tables.text import headline

if TYPE_CHECKING:
    from pyro_bnn.report.evaluation.comparison import Evaluations


def render(comparison: Evaluations, command: str = "") -> str:
    """Renders a comparison as HTML with nothing to load from elsewhere.

    Args:
        comparison: The comparison.
        command: What to run to get the report again; not shown if empty.
    """
    return render_page(
        "report.html",
        headline=headline(comparison),
        split=comparison.split,
        results=[finding.text for finding in comparison.findings if not finding.is_warning],
        warnings=[finding.text for finding in comparison.findings if finding.is_warning],
        tables=_tables(comparison),
        notes=_notes(comparison),
        pictures=_pictures(comparison),
        fits=_fits(comparison),
        comparison=comparison,
        command=command,
    )


def _tables(comparison: Evaluations) -> list[Table]:
    table = comparison.table
    tags = {
        str(name): ["reference"] * (name == comparison.reference) + ["one draw"] * (draws == 1)
        for name, draws in table["draws"].items()
    }
    groups = sections(comparison.units, comparison.split.task)
    return [
        *(Table(title, columns, table, tags=tags) for title, columns in shown(table, groups)),
        *(Table(*found, ordered_by="") for found in target_sections(comparison)),
    ]


def _notes(comparison: Evaluations) -> list[tuple[str, str]]:
    notes = [(str(name), text) for name, text in comparison.table["notes"].items() if text]
    if comparison.split.note:
        notes.append((comparison.split.name, comparison.split.note))
    return notes


def _pictures(comparison: Evaluations) -> list[Picture]:
    figures = Figures(comparison)
    found = []
    for name in figures:
        figure, caption, words = figures.drawn(name)
        width = figure.get_figwidth()
        found.append(Picture(name, PLOTS[name].title, words, caption, svg(figure, name), width))
    return found


def _fits(comparison: Evaluations) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "method": posterior.method,
            "engine": posterior.engine,
            "seed": posterior.seed,
            "options": json.dumps(dict(posterior.options), sort_keys=True, default=str),
        }
        for name, posterior in comparison.posteriors.items()
    ]
