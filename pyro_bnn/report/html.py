"""The report as one self-contained HTML page: verdicts, tables, figures, how to get it again."""

from __future__ import annotations

import base64
import io
import json
import platform
import re
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

from pyro_bnn.report.figures import PLOTS, Figures
from pyro_bnn.report.table import sections
from pyro_bnn.report.text import headline
from pyro_bnn.report.theme import DARK, LIGHT, name_parts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from pyro_bnn.report.compare import Comparison

PACKAGES = ("pyro-bnn", "torch", "pyro-ppl", "numpy", "arviz", "matplotlib")
DPI = 144


def render(comparison: Comparison, command: str = "") -> str:
    """Renders a comparison as HTML with nothing to load from elsewhere.

    Args:
        comparison: The comparison.
        command: What to run to get the report again; not shown if empty.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(_resource("report.html"))
    return template.render(
        headline=headline(comparison),
        split=comparison.split,
        units=comparison.units,
        style=_resource("report.css"),
        results=[finding.text for finding in comparison.findings if not finding.is_warning],
        warnings=[finding.text for finding in comparison.findings if finding.is_warning],
        sections=_tables(comparison),
        notes=_notes(comparison),
        figures=_figures(comparison),
        fits=_fits(comparison),
        versions=_versions(),
        comparison=comparison,
        command=command,
        slug=_slug,
        name_parts=name_parts,
    )


def png(figure: Figure) -> str:
    """A figure as a data address of a PNG picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _tables(comparison: Comparison) -> list[dict[str, Any]]:
    table, tables = comparison.table, []
    rows = table.to_dict("records")
    for title, columns in sections(comparison.units, comparison.split.task).items():
        shown = [column for column in columns if not table[list(column.keys)].isna().all(axis=None)]
        if not shown:
            continue
        body = [
            {
                "name": name,
                "rank": row["rank"],
                "is_reference": name == comparison.reference,
                "is_point": row["draws"] == 1,
                "cells": [column.cell(row) for column in shown],
            }
            for name, row in zip(table.index, rows, strict=True)
        ]
        tables.append({"title": title, "columns": shown, "rows": body})
    return tables


def _notes(comparison: Comparison) -> list[tuple[str, str]]:
    notes = [(str(name), text) for name, text in comparison.table["notes"].items() if text]
    if not comparison.shares_model:
        notes.append(("ELBO", "the methods do not share one model, so their ELBOs bound different "
                      "evidences: do not compare them"))  # fmt: skip
    if comparison.split.note:
        notes.append((comparison.split.name, comparison.split.note))
    return notes


def _figures(comparison: Comparison) -> list[dict[str, str]]:
    light, dark = comparison.figures, Figures(comparison, DARK)
    assert light.theme is LIGHT
    return [
        {
            "name": name,
            "title": PLOTS[name].title,
            "text": light.describe(name),
            "light": png(light[name]),
            "dark": png(dark[name]),
            "width": f"{light[name].get_figwidth():.2f}",
        }
        for name in light
    ]


def _fits(comparison: Comparison) -> list[dict[str, Any]]:
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


def _versions() -> list[tuple[str, str]]:
    found = [("Python", platform.python_version())]
    for package in PACKAGES:
        try:
            found.append((package, metadata.version(package)))
        except metadata.PackageNotFoundError:
            found.append((package, "not installed"))
    return found


def _slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _resource(name: str) -> str:
    return resources.files("pyro_bnn.report").joinpath(name).read_text(encoding="utf-8")
