"""The table: one row a method, best held-out log score first; columns with their meaning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyro_bnn.diagnostics.ranking import Ranked
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.shared_models import (
    same_posterior,
    shared_evidences,
    shared_models,
)
from pyro_bnn.report.evaluation.units import OF_EACH, Units
from pyro_bnn.report.tables.metric import (
    CHAINS,
    COST,
    FIT,
    OF_F,
    OF_Y,
    REFERENCE,
    SCORES,
    Metric,
)
from pyro_bnn.report.tables.metrics import FIRST, METRICS, ON_PAGE, RankedMethod

if TYPE_CHECKING:
    import pandas as pd


def make_table(
    evaluations: Sequence[Evaluation],
    ranking: Sequence[Ranked],
    units: Units,
    task: str,
    reference: str | None = None,
) -> pd.DataFrame:
    """All numbers, a row for each method in the order of the ranking; NaN where none applies.

    Args:
        evaluations: One of each method.
        ranking: Places by held-out log score, best first.
        units: Units of the target, named in the column ``units``.
        task: ``"regression"`` or ``"classification"``.
        reference: Name of the reference, or None.
    """
    import pandas as pd

    by_name = {entry.name: entry for entry in evaluations}
    under = _models(evaluations, reference)
    of_scores, log_scale = "log scores: nats per test row", 0.0
    if task == "regression":
        of_scores += f", densities of {units.name}; rmse, crps: {in_units(units.of_errors)}"
        log_scale = units.log_scale
    rows = []
    for place in ranking:
        score, error = place.score, place.standard_error
        method = RankedMethod(by_name[place.name], place, score, error, log_scale)
        notes = (*method.entry.notes, *method.entry.distance_notes)
        row: dict[str, Any] = {"units": of_scores, "notes": "; ".join(notes)}
        rows.append(numbers(method, task) | row | under[place.name])
    return pd.DataFrame(rows, index=pd.Index([place.name for place in ranking], name="method"))


def numbers(method: RankedMethod, task: str) -> dict[str, Any]:
    """All numbers of a method by name."""
    of_task = (metric for metric in METRICS if task in metric.tasks)
    return {name: value for metric in of_task for name, value in metric.numbers(method).items()}


def _models(evaluations: Sequence[Evaluation], reference: str | None) -> dict[str, dict[str, Any]]:
    """The model of each method, and the methods that its ELBO and its distance compare with.

    ``model`` is the model in words, ``model_number`` its number from 1, NaN where all share one;
    methods of one ``evidence`` have comparable ELBOs; ``reference_model`` is ``"same"`` or
    ``"other"`` where there is a distance to the reference.
    """
    fits = {entry.name: entry.fit for entry in evaluations}
    models = shared_models(fits)
    columns: dict[str, dict[str, Any]] = {
        name: {"model": model.label, "model_number": float("nan") if len(models) == 1 else place}
        for place, model in enumerate(models, start=1)
        for name in model.methods
    }
    for evidence, names in enumerate(shared_evidences(fits), start=1):
        for name in names:
            columns[name]["evidence"] = evidence
    for entry in evaluations:
        is_measured = reference is not None and entry.at_rows is not None
        is_same = is_measured and same_posterior(entry.fit, fits[str(reference)])
        columns[entry.name]["reference_model"] = (
            "" if not is_measured else "same" if is_same else "other"
        )
    return columns


def sections(units: Units, task: str) -> dict[str, list[Metric]]:
    """The columns of the report by section.

    Args:
        units: Units of the target.
        task: ``"regression"`` or ``"classification"``.
    """
    in_words = {OF_Y: units.of_errors, OF_F: units.of_function}
    return {
        section: [
            metric.in_units(in_words)
            for metric in ON_PAGE
            if metric.meaning and task in metric.tasks and metric.section == section
        ]
        for section in (SCORES, CHAINS, FIT, REFERENCE, COST)
    }


def shown(
    table: pd.DataFrame, groups: Mapping[str, Sequence[Metric]]
) -> Iterator[tuple[str, list[Metric]]]:
    """Sections and their columns that have a number in the table, in equal decimal places."""
    for title, columns in groups.items():
        known = [column.aligned(table) for column in columns if not table[column.key].isna().all()]
        if known:
            yield title, known


def summary_columns(table: pd.DataFrame, units: Units, task: str) -> list[Metric]:
    """The columns that are read first, beginning with the difference to the best."""
    metrics = {m.key: m for m in METRICS if m.meaning and task in m.tasks}
    in_words = {OF_Y: units.of_errors, OF_F: units.of_function}
    columns = [
        metrics[key].in_brief(text).in_units(in_words)
        for key, text in FIRST.items()
        if key in metrics
    ]
    return next(known for _, known in shown(table, {"": columns}))


def own_rows(table: pd.DataFrame, columns: Sequence[Metric]) -> pd.DataFrame:
    """The rows that have a number in one of the columns, other than the model's number."""
    keys = [column.key for column in columns if column.key != "model_number"]
    return table[table[keys].notna().any(axis=1)]


def settings(table: pd.DataFrame, columns: Sequence[Metric]) -> tuple[list[Metric], str]:
    """The columns to show, and a sentence on the settings that all rows share."""
    rows = table.to_dict("records")
    texts = {c.key: {c.cell(row) for row in rows} - {""} for c in columns if c.is_setting}
    same = [c for c in columns if len(rows) > 1 and len(texts.get(c.key, ())) == 1]
    words = [f"{c.title} {next(iter(texts[c.key]))}{f' {c.unit}' if c.unit else ''}" for c in same]
    others = [column for column in columns if column not in same]
    return others, f"The same for all: {', '.join(words)}." if words else ""


def in_units(of_errors: str) -> str:
    """The unit of errors, in words."""
    return of_errors if of_errors == OF_EACH else f"units of {of_errors}"
