"""The table: one row a method, best held-out log score first; columns with their meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyro_bnn.diagnostics.ranking import Ranked
from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.report.evaluation.evaluate import AgainstReference, Evaluation
from pyro_bnn.report.evaluation.shared_models import same_evidence, shared_evidences, shared_models
from pyro_bnn.report.evaluation.units import Units

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")
LOW, HIGH = 0.05, 0.95  # quantiles over rows
Cell = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column as people read it.

    Attributes:
        title: Heading.
        unit: Unit, or empty.
        cell: Text of the cell from a row of the table.
        meaning: One sentence for the legend.
        keys: Columns of the table it shows; it is left out where all are blank.
    """

    title: str
    unit: str
    cell: Cell
    meaning: str
    keys: tuple[str, ...]


def make_table(
    evaluations: Sequence[Evaluation],
    ranking: Sequence[Ranked],
    units: Units,
    task: str,
    reference: str | None = None,
) -> pd.DataFrame:
    """All numbers, one row a method, in the order of the ranking; NaN where one does not apply.

    Args:
        evaluations: One a method.
        ranking: By held-out log score, best first.
        units: Units of the target, named in the column ``units``.
        task: ``"regression"`` or ``"classification"``.
        reference: Name of the reference, or None.
    """
    import pandas as pd

    by_name = {entry.name: entry for entry in evaluations}
    under = _models(evaluations, reference)
    rows = [_row(by_name[place.name], place, units, task) | under[place.name] for place in ranking]
    index = pd.Index([place.name for place in ranking], name="method")
    return pd.DataFrame(rows, index=index)


def _models(evaluations: Sequence[Evaluation], reference: str | None) -> dict[str, dict[str, Any]]:
    """What each method answers under: its model, the evidence of its ELBO, what it is held against.

    ``model`` is the model in words, ``model_number`` its number from 1, NaN where all share one;
    methods of one ``evidence`` have ELBOs that compare; ``reference_model`` is ``"same"`` or
    ``"other"`` where there is a distance to the reference.
    """
    posteriors = {entry.name: entry.posterior for entry in evaluations}
    models = shared_models(posteriors)
    found: dict[str, dict[str, Any]] = {
        name: {"model": model.label, "model_number": NAN if len(models) == 1 else place}
        for place, model in enumerate(models, start=1)
        for name in model.methods
    }
    for evidence, names in enumerate(shared_evidences(posteriors), start=1):
        for name in names:
            found[name]["evidence"] = evidence
    for entry in evaluations:
        is_measured = reference is not None and entry.at_rows is not None
        is_same = is_measured and same_evidence(entry.posterior, posteriors[str(reference)])
        found[entry.name]["reference_model"] = (
            "" if not is_measured else "same" if is_same else "other"
        )
    return found


def _row(entry: Evaluation, place: Ranked, units: Units, task: str) -> dict[str, Any]:
    scores, checks = entry.held_out, entry.checks
    row: dict[str, Any] = {
        "rank": place.rank,
        "log_score": place.score,
        "log_score_se": place.standard_error,
        "log_score_draws_se": place.draws_error,
        "difference": place.difference.mean,
        "difference_se": place.difference.standard_error,
        "difference_draws_se": place.difference.draws_error,
        "tied": not place.is_behind,
        "p_value": place.p_value,
    }
    log_scale = 0.0
    if task == "classification":
        row |= {
            "accuracy": scores.accuracy,
            "brier": scores.brier,
            "ece": scores.ece,
            "ece_floor": scores.ece_floor,
            "ece_high": scores.ece_high,
            "rejection_area": scores.rejection_area,
            "units": "log scores: nats per test row",
        }
    else:
        log_scale = units.log_scale
        band = scores.coverage
        row |= {
            "gaussian_log_score": scores.gaussian_log_score,
            "rmse": scores.rmse,
            "crps": scores.crps,
            "coverage_95": NAN if band is None else band.observed,
            "coverage_low": NAN if band is None else band.low,
            "coverage_high": NAN if band is None else band.high,
            "units": f"log scores: nats per test row, densities of {units.name}; "
            f"rmse, crps: {_unit(units, f'units of {units.name}')}",
        }
    unit_text = row.pop("units")
    chains, loo = checks.sampling, checks.loo
    num_train = NAN if loo is None else len(loo.pointwise)
    row |= {
        "elbo": checks.elbo,
        "elbo_error": checks.elbo_error,
        "rhat": NAN if chains is None else chains.worst_rhat,
        "ess": NAN if chains is None else chains.smallest_ess,
        "ess_tail": NAN if chains is None else chains.smallest_ess_tail,
        "divergent": NAN if checks.num_divergent is None else checks.num_divergent,
        "saturated": NAN if chains is None else chains.saturated,
        "ebfmi": NAN if chains is None else chains.ebfmi,
        "khat": checks.khat,
        "khat_se": checks.khat_error,
        "loo": NAN if loo is None else loo.elpd / num_train - log_scale,
        "loo_se": NAN if loo is None else loo.se / num_train,
        "loo_bad": NAN if loo is None else loo.num_bad,
        **_against(entry.at_rows, ""),
        **_against(entry.off_data, "_off_data"),
        "draws": entry.num_draws,
        "seconds": entry.posterior.wall_time,
        "threads": NAN if entry.posterior.threads is None else entry.posterior.threads,
        "processes": entry.posterior.processes,
        "parameters": entry.posterior.num_parameters,
        "units": unit_text,
        "notes": "; ".join(entry.notes),
    }
    return row


def _against(at: AgainstReference | None, suffix: str) -> dict[str, float]:
    """Numbers against the reference at some rows; the ratio and the shift are medians over them."""
    names = [
        *("distance", "distance_floor", "mean_shift", "mean_shift_se", "mean_shift_high"),
        *("sd_ratio", "sd_ratio_se", "sd_ratio_low", "sd_ratio_high"),
    ]
    values: list[float] = [NAN] * len(names)
    if at is not None:
        shift, ratio = at.mean_shift, at.sd_ratio
        values = [
            *(at.distance.value, at.distance.floor),
            *(*shift.quantile(0.5), shift.quantile(HIGH)[0]),
            *(*ratio.quantile(0.5), ratio.quantile(LOW)[0], ratio.quantile(HIGH)[0]),
        ]
    return {f"{name}{suffix}": value for name, value in zip(names, values, strict=True)}


def sections(units: Units, task: str) -> dict[str, list[Column]]:
    """The columns of the report by section.

    Args:
        units: Units of the target.
        task: ``"regression"`` or ``"classification"``.
    """
    shared = [
        Column(
            title="log score",
            unit="nats per row",
            cell=lambda row: with_error(row["log_score"], row["log_score_se"]),
            meaning="Log of the predictive density averaged over draws, at held-out rows, with its "
            "standard error over rows and draws; higher is better. The only score that ranks.",
            keys=("log_score",),
        ),
        Column(
            title="to the best",
            unit="nats per row",
            cell=_difference,
            meaning="Difference paired over rows, with its standard error over rows and draws. "
            "Tied: a test over all pairs of methods at once, with a family-wise error of 5 %, does "
            "not show any to be better.",
            keys=("difference",),
        ),
    ]
    if task == "classification":
        quality = [
            _plain(
                "accuracy", "accuracy", "", "Share of rows whose likeliest class is right.", percent
            ),
            _plain(
                "Brier", "brier", "0 to 2", "Squared error of the probabilities; lower is better."
            ),
            Column(
                title="ECE (if exact)",
                unit="",
                cell=_ece,
                meaning="Expected calibration error, and what it is if the posterior is exact: its "
                "mean, and the limit that 1 % exceed, over classes drawn from the posterior "
                "itself, all rows from one draw of the function.",
                keys=("ece",),
            ),
            _plain(
                "rejection area",
                "rejection_area",
                "",
                "Accuracy of the rows kept when those of largest entropy are rejected, averaged "
                "over the shares that are kept; higher is better.",
                percent,
            ),
        ]
    else:
        quality = [
            _plain("RMSE", "rmse", _unit(units, units.name), "Error of the predictive mean."),
            _plain(
                "CRPS",
                "crps",
                _unit(units, units.name),
                "Score of the whole predictive; lower is better.",
            ),
            Column(
                title="95 % coverage",
                unit="",
                cell=coverage_cell,
                meaning="Share of held-out values inside the 95 % interval, and what it is in 99 % "
                "of data sets drawn from the method's own posterior, all rows from one draw of "
                "the function.",
                keys=("coverage_95",),
            ),
            _plain(
                "Gaussian score",
                "gaussian_log_score",
                "nats per row",
                "Log density of one Normal with the predictive mean and sd: another number than "
                "the log score, for comparison with papers; never ranked.",
            ),
        ]
    return {
        "Held-out scores": [_model_column(), *shared, *quality],
        "Checks of the fit": _fit_columns(),
        "Against the reference": _reference_columns(task),
        "Cost": [
            _plain("fit", "seconds", "s", "Wall time of the fit."),
            _plain("threads", "threads", "", "CPU threads that the fit used.", _count),
            _plain(
                "processes",
                "processes",
                "",
                "Fits that ran at a time, each in a process of its own.",
                _count,
            ),
            _plain("parameters", "parameters", "", "Numbers that were fitted.", _count),
            _plain("draws", "draws", "", "Draws of the function behind the scores.", _count),
        ],
    }


def _unit(units: Units, name: str) -> str:
    """The unit of errors over all targets: theirs, or the sd of each where there are several."""
    return name if len(units.scale) == 1 else "sds of each target"


def _fit_columns() -> list[Column]:
    return [
        _model_column(),
        Column(
            title="ELBO",
            unit="nats",
            cell=lambda row: with_error(row["elbo"], row["elbo_error"]),
            meaning="Lower bound of the log evidence of the training rows (standardised target) "
            "with its Monte Carlo error; comparable only between guides of one model with equal "
            "point estimates.",
            keys=("elbo",),
        ),
        Column(
            title="k-hat",
            unit="",
            cell=lambda row: with_error(row["khat"], row["khat_se"]),
            meaning="Below 1 - 1/log10(draws), and 0.7, draws of the guide can be reweighted to "
            "the posterior around them; with its error over draws. Blind to modes that the guide "
            "lacks; above 1 values order nothing.",
            keys=("khat",),
        ),
        _plain("worst R-hat", "rhat", "", "Of the function at every test row, the log likelihood "
               "and every scale; at most 1.01.",
               lambda value: "" if value != value else f"{value:.3f}"),
        _plain("smallest ESS", "ess", "", "Effective draws of the worst of these, in the bulk; at "
               "least 400.", _count),
        _plain("in the tails", "ess_tail", "", "Effective draws of the worst 5 % or 95 % quantile "
               "of these; at least 400.", _count),
        Column(
            title="PSIS-LOO",
            unit="nats per row",
            cell=_loo,
            meaning="Leave-one-out log score of the EXACT posterior on the training rows; blank "
            "where draws cannot be reweighted to it, in brackets the rows with too large a k-hat.",
            keys=("loo",),
        ),
        _plain("divergent", "divergent", "", "Draws after divergent trajectories.", _count),
        _plain("full trees", "saturated", "", "Trajectories that max_tree_depth stopped; at most "
               "1 %.", percent),
        _plain("E-BFMI", "ebfmi", "", "How far a new momentum moves the energy, of the worst "
               "chain; at least 0.3."),
    ]  # fmt: skip


def _reference_columns(task: str) -> list[Column]:
    unit = "probability" if task == "classification" else "sds of y"
    return [
        Column(
            title="distance",
            unit=unit,
            cell=lambda row: _between(row, number(row["distance"])),
            meaning="Mean over test rows of the Wasserstein distance between marginal draws of the "
            "function; marked where the reference answers under another model or holds other "
            "point estimates, so that the guide need not be the cause.",
            keys=("distance",),
        ),
        _plain("floor", "distance_floor", unit, "The same between two halves of the reference."),
        *_by_row("", "test rows"),
        *_by_row("_off_data", "probes, rows off the data made of the training inputs: points "
                 "between two of them in the largest gaps, points along the first principal "
                 "components up to half the range beyond its ends, outlying rows at twice their "
                 "distance from the mean"),
    ]  # fmt: skip


def _by_row(suffix: str, rows: str) -> list[Column]:
    """Mean and spread against the reference over some rows."""
    where = suffix.replace("_", " ")

    def shift(row: Mapping[str, Any]) -> str:
        text = with_error(row[f"mean_shift{suffix}"], row[f"mean_shift_se{suffix}"])
        return _between(row, text and f"{text} (to {number(row[f'mean_shift_high{suffix}'], 2)})")

    def ratio(row: Mapping[str, Any]) -> str:
        text = with_error(row[f"sd_ratio{suffix}"], row[f"sd_ratio_se{suffix}"])
        ends = (number(row[f"sd_ratio_{end}{suffix}"], 2) for end in ("low", "high"))
        return _between(row, text and f"{text} ({' to '.join(ends)})")

    return [
        Column(
            title=f"mean shift{where}",
            unit="sds of the reference",
            cell=shift,
            meaning="Distance of the mean of the function from that of the reference over the "
            f"reference's epistemic sd: median and 95 % quantile over {rows}.",
            keys=(f"mean_shift{suffix}",),
        ),
        Column(
            title=f"epistemic sd ratio{where}",
            unit="",
            cell=ratio,
            meaning="Spread of the function over that of the reference, below 1 is too sure: "
            f"median, 5 % and 95 % quantile over {rows}.",
            keys=(f"sd_ratio{suffix}",),
        ),
    ]


def _model_column() -> Column:
    return Column(
        title="model",
        unit="",
        cell=lambda row: _count(row["model_number"]),
        meaning="Number of the model that the method answers under.",
        keys=("model_number",),
    )


def _between(row: Mapping[str, Any], text: str) -> str:
    """A number against the reference, marked where that is of another model."""
    return f"{text} (other model)" if text and row["reference_model"] == "other" else text


def _plain(
    title: str, key: str, unit: str, meaning: str, text: Callable[[float], str] = number
) -> Column:
    return Column(
        title=title, unit=unit, cell=lambda row: text(row[key]), meaning=meaning, keys=(key,)
    )


def _count(value: float) -> str:
    return "" if value != value else f"{round(value):,}"


def _difference(row: Mapping[str, Any]) -> str:
    if row["difference"] == 0 and row["rank"] == 1 and row["difference_se"] == 0:
        return "best"
    text = with_error(row["difference"], row["difference_se"])
    return f"{text} (tied)" if row["tied"] else text


def _loo(row: Mapping[str, Any]) -> str:
    text = with_error(row["loo"], row["loo_se"])
    return f"{text} ({round(row['loo_bad'])} bad)" if text and row["loo_bad"] else text


def _ece(row: Mapping[str, Any]) -> str:
    limit = number(row["ece_high"])
    of_exact = f"{number(row['ece_floor'])}, up to {limit}" if limit else "unchecked"
    return f"{number(row['ece'])} ({of_exact})"


def coverage_cell(row: Mapping[str, Any]) -> str:
    """Coverage with its band, or that it is unchecked."""
    low, high = percent(row["coverage_low"], 0)[:-2], percent(row["coverage_high"], 0)
    return f"{percent(row['coverage_95'], 0)} ({f'{low} to {high}' if high else 'unchecked'})"
