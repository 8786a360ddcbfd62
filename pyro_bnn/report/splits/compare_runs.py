"""Comparisons repeated over splits and seeds, and what holds over them all."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_bnn.errors import DataError, OptionError
from pyro_bnn.files.atomic import made_folder, write_text
from pyro_bnn.plotting.numbers import counted, with_error
from pyro_bnn.report.compare import Comparison
from pyro_bnn.report.output.names import warn_of_others
from pyro_bnn.report.output.page import PageTable, render_page
from pyro_bnn.report.output.text import WIDTH, grid, marked
from pyro_bnn.report.splits.run import SplitRun
from pyro_bnn.report.splits.table import Standing, make_run_table, run_sections, standings
from pyro_bnn.report.splits.verdicts import run_verdicts
from pyro_bnn.report.tables.metric import Metric
from pyro_bnn.report.tables.table import shown
from pyro_bnn.report.verdicts.verdict import Verdict

if TYPE_CHECKING:
    import pandas as pd


class RepeatedComparison:
    """Comparisons of the same methods over several splits and seeds; made by `compare_runs`.

    Printing it gives a summary for the terminal.

    Attributes:
        runs: All runs, by split and seed.
        standings: Methods by mean held-out log score, best first.
        table: A row a method; see :func:`pyro_bnn.report.splits.table.make_run_table`.
    """

    def __init__(self, runs: Iterable[SplitRun]) -> None:
        self.runs = sorted(runs, key=lambda run: (run.split, run.seed))
        first = self.runs[0]
        self.task, self.units, self.data_name = first.task, first.units, first.data_name
        self.standings: list[Standing] = standings(self.runs)
        self.table: pd.DataFrame = make_run_table(self.runs, self.standings, self.task, self.units)

    @cached_property
    def findings(self) -> list[Verdict]:
        """The verdicts with the rule that each comes from."""
        return run_verdicts(self.runs, self.standings)

    @property
    def verdicts(self) -> list[str]:
        """What holds over the runs in plain words."""
        return [finding.text for finding in self.findings]

    @property
    def all_rows(self) -> pd.DataFrame:
        """The tables of all runs below each other, with the columns ``split`` and ``seed``."""
        import pandas as pd

        parts = [run for run in self.runs if run.methods]
        keys = [(run.split, run.seed) for run in parts]
        return pd.concat([run.table for run in parts], keys=keys, names=["split", "seed"])

    @property
    def headline(self) -> str:
        """What was compared on what, in one sentence."""
        splits = sorted({run.split for run in self.runs})
        seeds = sorted({run.seed for run in self.runs})
        return (
            f"{self.data_name}: {counted(len(self.standings), 'method')} in "
            f"{counted(len(self.runs), 'run')} ({_numbers('split', splits)}; "
            f"{_numbers('seed', seeds)}), {_span(run.num_test for run in self.runs)} held-out rows "
            f"({_span(run.num_train for run in self.runs)} for training) each"
        )

    @property
    def _sections(self) -> dict[str, list[Metric]]:
        return run_sections(self.task, self.units, self.runs[0].of_function)

    def summary(self) -> str:
        """Table and verdicts for a terminal, at most 100 columns wide."""
        lines = textwrap.wrap(self.headline, WIDTH)
        for title, found in shown(self.table, self._sections):
            lines += ["", *grid(title, found, self.table)]
        return "\n".join([*lines, "", *marked(self.findings)])

    def __repr__(self) -> str:
        return self.summary()

    def save(self, folder: str | Path, *, command: str = "") -> Path:
        """Writes ``index.html``, ``table.csv`` and ``runs.csv``, the tables of all runs.

        The page links the report of a run with a score where ``split-K-seed-S/index.html`` lies in
        the folder. Reports and NetCDF files that are of none of these runs stay, with a
        :class:`~pyro_bnn.errors.BNNWarning` that names them.

        Args:
            folder: Made where it does not exist; files of the same names are replaced.
            command: What to run to get this again, shown at the end of the page.

        Returns:
            The folder.

        Raises:
            OutputError: If a file cannot be written.
        """
        folder = made_folder(folder)
        links = {
            run.name: f"{run.folder}/index.html"
            for run in self.runs
            if run.methods and (folder / run.folder / "index.html").is_file()
        }
        write_text(folder / "table.csv", self.table.to_csv(), follow=False)
        write_text(folder / "runs.csv", self.all_rows.to_csv(), follow=False)
        page = render_page(
            "runs.html",
            data_name=self.data_name,
            headline=self.headline,
            findings=self.findings,
            tables=[
                PageTable(title, columns, self.table)
                for title, columns in shown(self.table, self._sections)
            ],
            runs=_rows(self.runs, links),
            command=command,
        )
        write_text(folder / "index.html", page, follow=False)
        warn_of_others(folder, [run.folder for run in self.runs if run.methods])
        return folder


def compare_runs(runs: Iterable[SplitRun | Comparison]) -> RepeatedComparison:
    """Puts comparisons of the same methods on several splits, with several seeds, together.

    Means are over splits, of means over seeds within each, and only over the runs that all methods
    have; methods are ranked by the held-out log score with paired differences over the same runs,
    whose standard errors are corrected for rows that splits share (Nadeau & Bengio 2003), by a test
    over all pairs at once with a family-wise error of 5 %. With fewer than three splits nothing is
    ranked.

    Args:
        runs: Comparisons of one data set, or what :meth:`SplitRun.of` keeps of them.

    Raises:
        OptionError: If there is no run with a method, or two have one split and seed.
        DataError: If they are of different data sets.
    """
    kept = [SplitRun.of(run) if isinstance(run, Comparison) else run for run in runs]
    if not any(run.methods for run in kept):
        raise OptionError("nothing to put together: give at least one comparison")
    seen: set[str] = set()
    for run in kept:
        if run.name in seen:
            raise OptionError(f"{run.name} is there twice: give every split and seed once")
        seen.add(run.name)
    about = {(run.data_name, run.task, run.units) for run in kept}
    if len(about) > 1:
        names = ", ".join(sorted(f"{name} ({task}, {units})" for name, task, units in about))
        raise DataError(f"the runs are of different data: {names}; put those of one together")
    return RepeatedComparison(kept)


def _numbers(word: str, values: list[int]) -> str:
    """Numbers in words: ``split 3``, ``splits 0 to 4``, ``seeds 0, 3, 7``."""
    if len(values) == 1:
        return f"{word} {values[0]}"
    if len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
        return f"{word}s {values[0]} to {values[-1]}"
    return f"{word}s {', '.join(map(str, values))}"


def _span(counts: Iterable[int]) -> str:
    values = list(counts)
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _rows(runs: Sequence[SplitRun], links: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the page says of each run, with a link to its report where there is one."""
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
