"""The table over several runs: means of each method over splits, paired differences to the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.max_t import FAMILY_WISE_ERROR
from pyro_bnn.diagnostics.ranking import paired
from pyro_bnn.report.evaluation.units import SDS
from pyro_bnn.report.splits.statistics import (
    MIN_SPLITS,
    OverSplits,
    behind_over_splits,
    over_splits,
)
from pyro_bnn.report.tables.metric import OF_F, OF_Y, SCORES, Metric
from pyro_bnn.report.tables.metrics import ON_PAGE
from pyro_bnn.report.tables.table import in_units

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.report.splits.run import SplitRun

NAN = float("nan")
NOTHING = OverSplits(mean=NAN)


def keys_of(how: str, task: str) -> list[str]:
    """Names of the numbers that the table has by ``OverRuns.how``."""
    metrics = (metric for metric in ON_PAGE if metric.runs and task in metric.tasks)
    return [metric.key for metric in metrics if metric.runs and metric.runs.how == how]


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One method over all runs.

    Attributes:
        name: The method.
        rank: 1 for every method that is not behind another, then by place; None where there are too
            few splits for a standard error, or no run that all methods have.
        log_score: Mean held-out log score over the common runs.
        difference: Paired difference to the best over the same runs; its error is corrected, and
            of this pair alone.
        p_value: Family-wise p-value of "no method is better"; 1 where there is no rank.
        num_runs: Runs that the method has.
        num_best: Common runs in which no method has a higher log score.
    """

    name: str
    rank: int | None = None
    log_score: OverSplits = NOTHING
    difference: OverSplits = NOTHING
    p_value: float = 1.0
    num_runs: int = 0
    num_best: int = 0


def common_runs(runs: Sequence[SplitRun]) -> list[SplitRun]:
    """The runs that have every method which has any run: averages are over these alone."""
    present = {str(name) for run in runs for name in run.methods}
    return [run for run in runs if present and present <= set(run.methods)]


def count_splits(runs: Sequence[SplitRun]) -> int:
    """How many different splits there are."""
    return len({run.split for run in runs})


def correction(runs: Sequence[SplitRun]) -> float:
    """Test over training rows, averaged over runs: the correction of paired differences."""
    return float(np.mean([run.num_test / run.num_train for run in runs])) if runs else NAN


def by_split(runs: Sequence[SplitRun], name: str, key: str) -> list[Float[np.ndarray, " R"]]:
    """Values of a method's column: an array over seeds for each split, in the order of splits."""
    splits = sorted({run.split for run in runs})
    return [
        np.array([float(run.table.loc[name, key]) for run in runs if run.split == split])
        for split in splits
    ]


def standings(runs: Sequence[SplitRun]) -> list[Standing]:
    """All methods by mean held-out log score, best first; methods without a run are last."""
    common = common_runs(runs)
    names = list(dict.fromkeys(name for run in runs for name in (*run.methods, *run.lost)))
    present = [name for name in names if any(name in run.methods for run in runs)]
    scores = {name: by_split(common, name, "log_score") for name in present}
    means = {name: over_splits(scores[name]) for name in present}
    if common:
        present.sort(key=lambda name: -means[name].mean)
    tops = [max(run.table["log_score"]) for run in common]
    is_ranked = count_splits(common) >= MIN_SPLITS
    p = behind_over_splits([scores[name] for name in present], correction(common))
    found = []
    for place, name in enumerate(present, start=1):
        differences = [
            paired(own, best) for own, best in zip(scores[name], scores[present[0]], strict=True)
        ]
        gap = over_splits(differences, correction(common) if common else 0.0)
        found.append(
            Standing(
                name=name,
                rank=None if not is_ranked else 1 if p[place - 1] > FAMILY_WISE_ERROR else place,
                log_score=means[name],
                difference=gap,
                p_value=float(p[place - 1]),
                num_runs=sum(name in run.methods for run in runs),
                num_best=sum(
                    bool(run.table.loc[name, "log_score"] == top)
                    for run, top in zip(common, tops, strict=True)
                ),
            )
        )
    return [*found, *(Standing(name=name) for name in names if name not in present)]


def make_run_table(
    runs: Sequence[SplitRun], places: Sequence[Standing], task: str, units: str
) -> pd.DataFrame:
    """All averages, a row a method in the order of the standings.

    ``<score>_se`` is the standard error over splits, NaN with fewer than three; ``<score>_sd`` the
    standard deviation over seeds, with one split only. ``difference_se`` is corrected for rows that
    the splits share. ``rhat, khat, threads, processes`` are the largest over all runs of a method.

    Args:
        runs: All runs.
        places: From :func:`standings`.
        task: ``"regression"`` or ``"classification"``.
        units: Of errors: name of the target with its unit, or sds of several.
    """
    import pandas as pd

    common = common_runs(runs)
    rows = []
    for place in places:
        row: dict[str, Any] = {"rank": NAN if place.rank is None else place.rank}
        _put(row, "log_score", place.log_score)
        _put(row, "difference", place.difference)
        row |= {"tied": place.rank == 1, "p_value": place.p_value if place.rank else NAN}
        for key in keys_of("mean", task):
            has_runs = place.num_runs > 0 and bool(common)
            _put(row, key, over_splits(by_split(common, place.name, key) if has_runs else []))
        own = [run for run in runs if place.name in run.methods]
        for key in keys_of("largest", task):
            values = [float(run.table.loc[place.name, key]) for run in own]
            row[key] = max((v for v in values if v == v), default=NAN)
        row |= {
            "best_in": place.num_best,
            "common_runs": len(common),
            "runs": place.num_runs,
            "all_runs": len(runs),
            "splits": count_splits(common),
            "units": "log scores: nats per test row"
            + f"; rmse, crps: {in_units(units)}" * (task == "regression"),
        }
        rows.append(row)
    return pd.DataFrame(rows, index=pd.Index([place.name for place in places], name="method"))


def run_sections(task: str, units: str, of_function: str = SDS) -> dict[str, list[Metric]]:
    """The columns of the summary of several runs, by section.

    Args:
        task: ``"regression"`` or ``"classification"``.
        units: Of errors.
        of_function: Of distances of functions.
    """
    in_words = {OF_Y: units, OF_F: of_function}
    columns: dict[str, list[Metric]] = {"Scores": [], "Fits": []}
    for metric in ON_PAGE:
        if metric.runs and task in metric.tasks:
            title = "Scores" if metric.section == SCORES else "Fits"
            columns[title].append(metric.over_runs().in_units(in_words))
    return columns


def _put(row: dict[str, Any], key: str, value: OverSplits) -> None:
    row |= {
        key: value.mean,
        f"{key}_se": value.standard_error,
        f"{key}_sd": value.sd_over_seeds,
    }
