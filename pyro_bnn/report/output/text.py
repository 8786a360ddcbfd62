"""A comparison in a terminal: the most important columns, then the verdicts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyro_bnn.plotting.numbers import counted
from pyro_bnn.report.evaluation.units import OF_EACH
from pyro_bnn.report.output.target_tables import target_sections
from pyro_bnn.report.tables.metric import Metric
from pyro_bnn.report.tables.table import own_rows, sections, shown

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.report.comparison import Evaluations
    from pyro_bnn.report.verdicts.verdict import Verdict

WIDTH = 100
MAX_UNIT = 14


def text_summary(comparison: Evaluations) -> str:
    """Table by sections and verdicts, at most 100 columns wide (names longer than 24 are cut)."""
    lines = textwrap.wrap(headline(comparison), WIDTH)
    for line in model_lines(comparison):
        lines.extend(textwrap.wrap(line, WIDTH, subsequent_indent="  "))
    columns = sections(comparison.units, comparison.split.task)
    for title, found in shown(comparison.table, columns):
        lines += ["", *grid(title, found, own_rows(comparison.table, found))]
    for title, found, scores in target_sections(comparison):
        lines += ["", *grid(title, found, scores)]
    return "\n".join([*lines, "", *marked(comparison.findings)])


def marked(findings: Sequence[Verdict]) -> Iterator[str]:
    """Lines of the verdicts, warnings with another mark than results."""
    for finding in findings:
        mark = "! " if finding.is_warning else "- "
        yield from textwrap.wrap(finding.text, WIDTH, initial_indent=mark, subsequent_indent="  ")


def headline(comparison: Evaluations) -> str:
    """What was compared on what, in one sentence."""
    split, methods = comparison.split, counted(len(comparison.evaluations), "method")
    target = f"; y is {comparison.units.name}" if split.test.target_name else ""
    taken = sorted({len(one.held_out.function_draws) for one in comparison.evaluations.values()})
    draws = " to ".join(f"{number:,}" for number in dict.fromkeys((taken[0], taken[-1])))
    return (
        f"{split.name}: {methods} on {comparison.num_test:,} held-out rows "
        f"({comparison.num_train:,} for training), {draws} draws each{target}"
    )


def model_lines(comparison: Evaluations) -> list[str]:
    """The models that the methods answer under, a line each."""
    models = comparison.models
    if len(models) == 1:
        whose = "Model" if len(comparison.evaluations) == 1 else "Model of all methods"
        return [f"{whose}: {models[0].label}"]
    return [
        f"Model {number}: {model.label}; of {', '.join(model.methods)}"
        for number, model in enumerate(models, start=1)
    ]


def grid(title: str, columns: Sequence[Metric], table: pd.DataFrame) -> list[str]:
    """Lines of one section; columns that do not fit the width go on below, labelled again."""
    rows = table.to_dict("records")
    labels = [title, "", *(cut(str(name)) for name in table.index)]
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


def _short(column: Metric) -> str:
    """The unit, or a word for it where the name of the target would make the column too wide."""
    if column.unit == OF_EACH:
        return "sds of y"
    return column.unit if len(column.unit) <= MAX_UNIT else "units of y"


def cut(name: str, width: int = 24) -> str:
    """A name that fits the first column."""
    return name if len(name) <= width else name[: width - 1] + "…"
