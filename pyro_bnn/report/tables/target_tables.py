"""Tables of a regression on several targets: one a target, a row a method."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyro_bnn.plotting.numbers import number, with_error
from pyro_bnn.report.tables.table import Column, coverage_cell

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.report.evaluation.comparison import Evaluations
    from pyro_bnn.report.evaluation.target_scores import TargetScores


def target_table(comparison: Evaluations) -> pd.DataFrame:
    """Scores by target and method, in the order of the ranking; empty where there is one target.

    Targets go by their names, or by their numbers from 1 where they have none.
    """
    import pandas as pd

    names = comparison.split.test.target_names
    counts = [len(entry.held_out.targets) for entry in comparison.ranked]
    rows = {
        (o + 1 if names is None else names[o], entry.name): {
            **_log_score(scores),
            "rmse": scores.rmse,
            "crps": scores.crps,
            "coverage_95": scores.coverage.observed,
            "coverage_low": scores.coverage.low,
            "coverage_high": scores.coverage.high,
        }
        for o in range(max(counts))
        for entry in comparison.ranked
        for scores in entry.held_out.targets[o : o + 1]
    }
    table = pd.DataFrame.from_dict(rows, orient="index")
    if rows:
        table.index = pd.MultiIndex.from_tuples(rows, names=["target", "method"])
    return table


def _log_score(scores: TargetScores) -> dict[str, float]:
    """Mean log score and its standard error over rows; NaN where there is none."""
    values = scores.log_score
    if values is None:
        return {"log_score": math.nan, "log_score_se": math.nan}
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"log_score": float(values.mean()), "log_score_se": float(error)}


def target_sections(comparison: Evaluations) -> Iterator[tuple[str, list[Column], pd.DataFrame]]:
    """Title, columns and rows of each target's part of the report."""
    table = target_table(comparison)
    for target in dict.fromkeys(table.index.get_level_values(0)) if len(table) else ():
        title = f"Target {target}"
        if comparison.split.test.target_names is None:
            title += f" of {comparison.units.name}"
        yield title, COLUMNS, table.loc[target]


COLUMNS = [
    Column(
        title="log score",
        unit="nats per row",
        cell=lambda row: with_error(row["log_score"], row["log_score_se"]),
        meaning="Log of the predictive density of this target alone, with its standard error over "
        "rows; the targets' do not add up to the log score of all, which ranks.",
        keys=("log_score",),
    ),
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
        cell=coverage_cell,
        meaning="Share of held-out values of this target inside the 95 % interval, and what it is "
        "in 99 % of data sets drawn from the method's own posterior, all rows from one draw of the "
        "function.",
        keys=("coverage_95",),
    ),
]
