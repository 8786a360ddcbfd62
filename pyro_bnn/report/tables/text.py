"""A comparison in a terminal: the most important columns, then the verdicts."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from pyro_bnn.report.tables.table import Column, sections
from pyro_bnn.report.tables.target_tables import target_sections

if TYPE_CHECKING:
    from pyro_bnn.report.evaluation.comparison import Evaluations

WIDTH = 100
MAX_UNIT = 14


def text_summary(comparison: Evaluations) -> str:
    """Table by sections and verdicts, at most 100 columns wide (names longer than 24 are cut)."""
    lines = textwrap.wrap(headline(comparison), WIDTH)
    for line in model_lines(comparison):
        lines.extend(textwrap.wrap(line, WIDTH, subsequent_indent="  "))
    names = [cut(str(name)) for name in comparison.table.index]
    rows = comparison.table.to_dict("records")
    for title, columns in sections(comparison.units, comparison.split.task).items():
        shown = [
            column
            for column in columns
            if not comparison.table[list(column.keys)].isna().all(axis=None)
        ]
        if not shown:
            continue
        lines.append("")
        lines.extend(grid([title, "", *names], shown, rows))
    for title, columns, scores in target_sections(comparison):
        labels = [title, "", *(cut(str(name)) for name in scores.index)]
        lines.extend(["", *grid(labels, columns, scores.to_dict("records"))])
    lines.append("")
    for finding in comparison.findings:
        mark = "! " if finding.is_warning else "- "
        lines.extend(
            textwrap.wrap(finding.text, WIDTH, initial_indent=mark, subsequent_indent="  ")
        )
    return "\n".join(lines)


def headline(comparison: Evaluations) -> str:
    """What was compared on what, in one sentence."""
    split, count = comparison.split, len(comparison.posteriors)
    methods = "1 method" if count == 1 else f"{count} methods"
    target = f"; y is {comparison.units.name}" if split.test.target_name else ""
    return (
        f"{split.name}: {methods} on {len(split.test):,} held-out rows "
        f"({len(split.train):,} for training), {comparison.num_draws:,} draws each{target}"
    )


def model_lines(comparison: Evaluations) -> list[str]:
    """The models that the methods answer under, a line each."""
    models = comparison.models
    if len(models) == 1:
        whose = "Model" if len(comparison.posteriors) == 1 else "Model of all methods"
        return [f"{whose}: {models[0].label}"]
    return [
        f"Model {number}: {model.label}; of {', '.join(model.methods)}"
        for number, model in enumerate(models, start=1)
    ]


def grid(labels: list[str], columns: list[Column], rows: list[dict[str, Any]]) -> list[str]:
    """Lines of one section; columns that do not fit the width go on below, labelled again."""
    cells = [
        [column.title, _short(column), *(column.cell(row) for row in rows)] for column in columns
    ]
    width = max(len(label) for label in labels)
    first = [label.ljust(width) for label in labels]
    done: list[str] = []
    lines = first
    for cell in cells:
        padded = [text.rjust(max(len(other) for other in cell)) for text in cell]
        if len(lines[0]) + 2 + len(padded[0]) > WIDTH:
            done += lines
            lines = first
        lines = [f"{line}  {text}" for line, text in zip(lines, padded, strict=True)]
    return [line.rstrip() for line in done + lines]


def _short(column: Column) -> str:
    """The unit, or a word for it where the name of the target would make the column too wide."""
    return column.unit if len(column.unit) <= MAX_UNIT else "units of y"


def cut(name: str, width: int = 24) -> str:
    """A name that fits the first column."""
    return name if len(name) <= width else name[: width - 1] + "…"
