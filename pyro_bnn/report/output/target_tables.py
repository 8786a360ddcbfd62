"""Tables of a regression on several targets: one a target, a row a method."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from pyro_bnn.report.tables.metric import OF_Y, Metric
from pyro_bnn.report.tables.metrics import ON_PAGE, RankedMethod

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.report.comparison import Evaluations
    from pyro_bnn.report.evaluation.held_out import TargetScores

MEANINGS = {
    "log_score": "Log of the predictive density of this target alone, with its standard error over "
    "rows; the targets' do not add up to the log score of all, which ranks.",
    "rmse": "Error of the predictive mean of this target.",
    "crps": "Score of the whole predictive of this target; lower is better.",
    "coverage_95": "Share of held-out values of this target inside the 95 % interval, and what it "
    "is in 99 % of data sets drawn from the method's own posterior, all rows from one draw of the "
    "function.",
}
"""Numbers of one target, and what each means there."""
OF_A_TARGET = [
    replace(metric.in_units({OF_Y: "its units"}), meaning=MEANINGS[metric.key])
    for metric in ON_PAGE
    if metric.key in MEANINGS
]


def target_table(comparison: Evaluations) -> pd.DataFrame:
    """Scores by target and method, in the order of the ranking; empty where there is one target.

    Targets go by their names, or by their numbers from 1 where they have none.
    """
    import pandas as pd

    names = comparison.split.test.target_names
    rows = {}
    for o in range(max(len(entry.held_out.targets) for entry in comparison.ranked)):
        for entry, place in zip(comparison.ranked, comparison.ranking, strict=True):
            for scores in entry.held_out.targets[o : o + 1]:
                method = RankedMethod(entry, place, *_log_score(scores), target=scores)
                rows[o + 1 if names is None else names[o], entry.name] = {
                    name: value
                    for metric in OF_A_TARGET
                    for name, value in metric.numbers(method).items()
                }
    table = pd.DataFrame.from_dict(rows, orient="index")
    if rows:
        table.index = pd.MultiIndex.from_tuples(rows, names=["target", "method"])
    return table


def _log_score(scores: TargetScores) -> tuple[float, float]:
    """Mean log score and its standard error over rows; NaN where there is none."""
    values = scores.log_score
    if values is None:
        return math.nan, math.nan
    error = values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), float(error)


def target_sections(comparison: Evaluations) -> Iterator[tuple[str, list[Metric], pd.DataFrame]]:
    """Title, columns and rows of each target's part of the report."""
    table = target_table(comparison)
    for target in dict.fromkeys(table.index.get_level_values(0)) if len(table) else ():
        title = f"Target {target}"
        if comparison.split.test.target_names is None:
            title += f" of {comparison.units.name}"
        yield title, OF_A_TARGET, table.loc[target]
