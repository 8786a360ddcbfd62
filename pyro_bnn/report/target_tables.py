"""Tables of a regression on several targets: one a target, a row a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyro_bnn.report.numbers import number, percent
from pyro_bnn.report.table import Column

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.report.compare import Comparison


def target_table(comparison: Comparison) -> pd.DataFrame:
    """Scores by target and method, in the order of the ranking; empty where there is one target."""
    import pandas as pd

    rows = {
        (target, entry.name): {
            "rmse": scores.rmse,
            "crps": scores.crps,
            "coverage_95": scores.coverage.observed,
            "coverage_low": scores.coverage.low,
            "coverage_high": scores.coverage.high,
        }
        for entry in comparison.ranked
        for target, scores in enumerate(entry.held_out.targets, start=1)
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    if rows:
        table.index = pd.MultiIndex.from_tuples(rows, names=["target", "method"])
    return table.sort_index(level=0, sort_remaining=False)


def target_sections(comparison: Comparison) -> Iterator[tuple[str, list[Column], pd.DataFrame]]:
    """Title, columns and rows of each target's part of the report."""
    table = comparison.targets
    for target in dict.fromkeys(table.index.get_level_values(0)) if len(table) else ():
        yield f"Target {target} of {comparison.units.name}", COLUMNS, table.loc[target]


def _coverage(row: Mapping[str, Any]) -> str:
    low, high = percent(row["coverage_low"], 0)[:-2], percent(row["coverage_high"], 0)
    return f"{percent(row['coverage_95'], 0)} ({low} to {high})"


COLUMNS = [
    Column(
        title="RMSE",
        unit="its units",
        cell=lambda row: number(row["rmse"]),
        meaning="Error of the predictive mean of this target.",
        keys=("rmse",),
    ),
    Column(
        title="CRPS",
        unit="its units",
        cell=lambda row: number(row["crps"]),
        meaning="Score of the whole predictive of this target; lower is better.",
        keys=("crps",),
    ),
    Column(
        title="95 % coverage",
        unit="",
        cell=_coverage,
        meaning="Share of held-out values of this target inside the 95 % interval, and what chance "
        "allows a calibrated method (99 % binomial band).",
        keys=("coverage_95",),
    ),
]
