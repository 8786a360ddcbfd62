"""The page of several runs: what holds over them, and a link to the report of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyro_bnn.plotting.numbers import with_error
from pyro_bnn.report.output.page import Table, render_page
from pyro_bnn.report.splits.table import run_sections
from pyro_bnn.report.tables.table import shown

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.report.splits.run import Run
    from pyro_bnn.report.verdicts.verdict import Verdict


def render_runs(
    runs: Sequence[Run],
    table: pd.DataFrame,
    findings: Sequence[Verdict],
    headline: str,
    links: Mapping[str, str],
    command: str = "",
) -> str:
    """Renders several runs as HTML with nothing to load from elsewhere.

    Args:
        runs: The runs, of one data set.
        table: A row a method.
        findings: The verdicts.
        headline: What was compared on what.
        links: Address of a run's own report by its name; runs without one are listed plainly.
        command: What to run to get this again; not shown if empty.
    """
    return render_page(
        "runs.html",
        data_name=runs[0].data_name,
        headline=headline,
        results=[finding.text for finding in findings if not finding.is_warning],
        warnings=[finding.text for finding in findings if finding.is_warning],
        tables=[
            Table(title, columns, table)
            for title, columns in shown(table, run_sections(runs[0].task, runs[0].units))
        ],
        runs=_runs(runs, links),
        command=command,
    )


def _runs(runs: Sequence[Run], links: Mapping[str, str]) -> list[dict[str, Any]]:
    found = []
    for run in runs:
        best = run.methods[0] if run.methods else ""
        row = run.table.loc[best] if best else {}
        found.append(
            {
                "name": run.name,
                "link": links.get(run.name, ""),
                "best": best,
                "score": with_error(row["log_score"], row["log_score_se"]) if best else "",
                "warnings": sum(finding.is_warning for finding in run.findings),
                "lost": ", ".join(run.lost),
            }
        )
    return found
