"""The report as one self-contained HTML page: the answer, its evidence, the rest folded."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyro_bnn.report.output.glossary import WORDS
from pyro_bnn.report.output.page import KINDS, PageTable, render_page, slug
from pyro_bnn.report.output.target_tables import target_sections
from pyro_bnn.report.output.text import headline
from pyro_bnn.report.plots.figures import FIRST, Figures
from pyro_bnn.report.tables.table import own_rows, sections, settings, shown, summary_columns

if TYPE_CHECKING:
    from pyro_bnn.report.comparison import Evaluations

SUMMARY = "Side by side"
CONTENTS = {
    "Figures": "evidence", "Table": slug(SUMMARY), "Verdicts": "verdicts",
    "All numbers": "numbers", "More figures": "figures", "Models": "models",
    "Files and command": "again",
}  # fmt: skip


def render(
    comparison: Evaluations,
    command: str = "",
    files: Sequence[tuple[str, str]] = (),
    tutorial: str = "",
) -> str:
    """Renders a comparison as HTML with nothing to load from elsewhere.

    Args:
        comparison: The comparison.
        command: What to run to get the report again; not shown if empty.
        files: Title and address of what stands beside the page.
        tutorial: Address of the notebook that explains the verdicts; named only if empty.
    """
    pictures = Figures(comparison).pictures()
    shared, own = _options(comparison)
    statuses = set(comparison.answer.status.values())
    return render_page(
        "report.html",
        headline=headline(comparison),
        words=WORDS.items(),
        contents=CONTENTS.items(),
        statuses=[(label, kind) for label, kind in KINDS.items() if label in statuses],
        summary=_summary(comparison),
        tables=_tables(comparison),
        notes=_notes(comparison),
        first=[picture for picture in pictures if picture.name in FIRST],
        pictures=[picture for picture in pictures if picture.name not in FIRST],
        shared_options=shared,
        own_options=own,
        comparison=comparison,
        command=command,
        files=list(files),
        tutorial=tutorial,
    )


def render_fragment(comparison: Evaluations) -> str:
    """The answer and the first table alone, as a notebook shows a comparison."""
    return render_page("fragment.html", answer=comparison.answer, table=_summary(comparison))


def _summary(comparison: Evaluations) -> PageTable:
    """The one table that is read first."""
    table, status = comparison.table, comparison.answer.status
    tags = {
        str(name): [status[str(name)]] + ["reference"] * (name == comparison.reference)
        for name in table.index
    }
    columns = summary_columns(table, comparison.units, comparison.split.task)
    return PageTable(SUMMARY, columns, table, ordered_by="to the best", tags=tags)


def _tables(comparison: Evaluations) -> list[PageTable]:
    table = comparison.table
    tags = {str(name): ["one draw"] for name, draws in table["draws"].items() if draws == 1}
    found = []
    for title, columns in shown(table, sections(comparison.units, comparison.split.task)):
        rows = own_rows(table, columns)
        own, caption = settings(rows, columns)
        found.append(PageTable(title, own, rows, ordered_by="", tags=tags, caption=caption))
    return [*found, *(PageTable(*target, ordered_by="") for target in target_sections(comparison))]


def _notes(comparison: Evaluations) -> list[tuple[str, str]]:
    notes = [(str(name), text) for name, text in comparison.table["notes"].items() if text]
    if comparison.split.note:
        notes.append((comparison.split.name, comparison.split.note))
    return notes


def _options(comparison: Evaluations) -> tuple[str, dict[str, str]]:
    """Options that all fits share, and those of each that are its own, as JSON."""
    options = {name: dict(one.fit.options) for name, one in comparison.evaluations.items()}
    shared = _shared(list(options.values()))
    own = {name: {k: v for k, v in one.items() if k not in shared} for name, one in options.items()}
    return _as_json(shared) if shared else "", {name: _as_json(one) for name, one in own.items()}


def _shared(options: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Options that several fits have and that are equal in all of these."""
    found = {}
    for key in dict.fromkeys(key for own in options for key in own):
        values = [own[key] for own in options if key in own]
        if len(values) > 1 and all(value == values[0] for value in values):
            found[key] = values[0]
    return found


def _as_json(options: Mapping[str, Any]) -> str:
    return json.dumps(dict(options), sort_keys=True, default=str)
