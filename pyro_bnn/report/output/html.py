"""The report as one self-contained HTML page: verdicts, tables, figures, how to get it again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pyro_bnn.plotting.theme import DARK, LIGHT
from pyro_bnn.report.output.page import Cell, Picture, Row, Table, render_page
from pyro_bnn.report.plots.figures import PLOTS, Figures
from pyro_bnn.report.tables.table import sections
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
    table, tables = comparison.table, []
    records = table.to_dict("records")
    for title, columns in sections(comparison.units, comparison.split.task).items():
        shown = [column for column in columns if not table[list(column.keys)].isna().all(axis=None)]
        if not shown:
            continue
        rows = [
            Row(
                str(name),
                [Cell(column.cell(record), float(record[column.keys[0]])) for column in shown],
                [
                    *(["reference"] if name == comparison.reference else []),
                    *(["one draw"] if record["draws"] == 1 else []),
                ],
            )
            for name, record in zip(table.index, records, strict=True)
        ]
        tables.append(Table(title, shown, rows, ordered_by="log score"))
    for title, columns, scores in target_sections(comparison):
        lines = [
            Row(str(name), [Cell(c.cell(record), float(record[c.keys[0]])) for c in columns])
            for name, record in zip(scores.index, scores.to_dict("records"), strict=True)
        ]
        tables.append(Table(title, columns, lines))
    return tables


def _notes(comparison: Evaluations) -> list[tuple[str, str]]:
    notes = [(str(name), text) for name, text in comparison.table["notes"].items() if text]
    if comparison.split.note:
        notes.append((comparison.split.name, comparison.split.note))
    return notes


def _pictures(comparison: Evaluations) -> list[Picture]:
    light, dark = Figures(comparison, LIGHT), Figures(comparison, DARK)
    return [
        Picture.of(
            name,
            PLOTS[name].title,
            light.alternative(name),
            light.describe(name),
            light[name],
            dark[name],
        )
        for name in light
    ]


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
