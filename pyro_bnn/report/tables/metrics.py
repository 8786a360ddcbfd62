"""The numbers of a report, each defined once: its source, its format, its meaning.

A number is one entry of `METRICS`. The tables of one comparison, of several targets and of several
runs take their columns from that list.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from pyro_bnn.diagnostics.ranking import Ranked
from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.natures import is_biased_sampler
from pyro_bnn.report.tables import cells
from pyro_bnn.report.tables.metric import (
    CHAINS,
    CLASSES,
    COST,
    FIT,
    OF_F,
    OF_Y,
    REFERENCE,
    REGRESSION,
    SCORES,
    Metric,
    OverRuns,
    Text,
    Value,
    value_of,
)

if TYPE_CHECKING:
    from pyro_bnn.report.evaluation.held_out import HeldOut, TargetScores

LOW, HIGH = 0.05, 0.95  # quantiles over rows
NATS = "nats per row"


class RankedMethod(NamedTuple):
    """A method, its place and its scores: the source of the numbers of a row.

    Attributes:
        entry: All numbers of the method.
        place: Its place in the ranking.
        log_score: Mean held-out log score, of one target or of all.
        log_score_error: Its standard error.
        log_scale: Nats that a log density loses by conversion to the user's units.
        target: Scores of one target, in a table of targets; else None.
    """

    entry: Evaluation
    place: Ranked
    log_score: float
    log_score_error: float
    log_scale: float = 0.0
    target: TargetScores | None = None

    @property
    def scores(self) -> HeldOut | TargetScores:
        """Scores over all targets, or of one."""
        return self.target or self.entry.held_out


def is_tied(method: RankedMethod) -> bool:
    """Whether no method is shown to be better."""
    return not method.place.is_behind


def is_biased(method: RankedMethod) -> bool:
    """Whether its chains converge to another distribution than the posterior."""
    return is_biased_sampler(method.entry.fit)


def epistemic_share(method: RankedMethod) -> float | None:
    """Mean over rows of the share of the predictive variance that comes from the function."""
    shares = method.entry.held_out.epistemic_share
    return float(shares.mean()) if shares.size else None


def log_evidence(method: RankedMethod) -> object:
    """The log evidence, where the engine computes it."""
    return method.entry.fit.options.get("log_evidence")


def log_evidence_error(method: RankedMethod) -> object:
    """Its error over islands."""
    return method.entry.fit.options.get("log_evidence_error")


def loo(method: RankedMethod) -> float | None:
    """Leave-one-out log score a row, in the user's units."""
    result = method.entry.checks.loo
    return None if result is None else result.elpd / len(result.pointwise) - method.log_scale


def loo_error(method: RankedMethod) -> float | None:
    """Its standard error."""
    result = method.entry.checks.loo
    return None if result is None else result.se / len(result.pointwise)


def quantile(attributes: str, level: float) -> Value:
    """The quantile over rows of the numbers at a path of attributes."""

    def value(method: RankedMethod) -> float | None:
        rows = value_of(attributes, method)
        return None if rows is None else float(rows.quantile(level)[0])

    return value


def against_reference(suffix: str, at: str, rows: str) -> list[Metric]:
    """Numbers against the reference at some rows; the ratio and the shift are medians over them.

    Args:
        suffix: Ends the names of the numbers.
        at: The attribute of an evaluation that holds the numbers.
        rows: The rows, in words.
    """
    at, where = f"entry.{at}", suffix.replace("_", " ")
    return [
        Metric(f"mean_shift{suffix}", f"{at}.mean_shift.value", f"mean shift{where}",
               "Distance of the mean of the function from that of the reference over the "
               f"reference's epistemic sd: median and 95 % quantile over {rows}.",
               error=f"mean_shift_se{suffix}",
               more={f"mean_shift_se{suffix}": f"{at}.mean_shift.standard_error",
                     f"mean_shift_high{suffix}": quantile(f"{at}.mean_shift", HIGH)},
               unit="reference sds", section=REFERENCE, text=cells.shift),
        Metric(f"sd_ratio{suffix}", f"{at}.sd_ratio.value", f"epistemic sd ratio{where}",
               "Spread of the function over that of the reference, below 1 is too sure: median, "
               f"5 % and 95 % quantile over {rows}.",
               error=f"sd_ratio_se{suffix}",
               more={f"sd_ratio_se{suffix}": f"{at}.sd_ratio.standard_error",
                     f"sd_ratio_low{suffix}": quantile(f"{at}.sd_ratio", LOW),
                     f"sd_ratio_high{suffix}": quantile(f"{at}.sd_ratio", HIGH)},
               section=REFERENCE, text=cells.ratio,
               runs=None if suffix else OverRuns(
                   "Spread of the function over that of the reference.", cells.mean)),
    ]  # fmt: skip


METRICS = [
    *(Metric("model_number", None, "model", "Number of the model that the method answers under.",
             section=section, text=cells.count) for section in (SCORES, FIT)),
    Metric("rank", "place.rank"),
    Metric("log_score", "log_score", "log score",
           "Log of the predictive density averaged over draws, at held-out rows, with its standard "
           "error over rows and draws; higher is better. The only score that ranks.",
           error="log_score_se", more={"log_score_se": "log_score_error"}, unit=NATS,
           text=with_error,
           runs=OverRuns("Held-out log score; higher is better. The only score that ranks.",
                         cells.mean, "ranking")),
    Metric("log_score_draws_se", "place.draws_error"),
    Metric("difference", "place.difference.mean", "to the best",
           "Difference paired over rows, with its standard error over rows and draws. Tied: a test "
           "over all pairs of methods at once, with a family-wise error of 5 %, does not show any "
           "to be better.",
           error="difference_se",
           more={"difference_se": "place.difference.standard_error",
                 "difference_draws_se": "place.difference.draws_error",
                 "tied": is_tied,
                 "p_value": "place.p_value"},
           unit=NATS, text=cells.difference,
           runs=OverRuns(
               "Paired difference over the same splits and seeds; its standard error is corrected "
               "for rows that splits share. Tied: a test over all pairs of methods at once, with a "
               "family-wise error of 5 %, does not show any to be better.",
               cells.mean_difference, "ranking")),
    Metric("best_in", title="best in", unit="runs",
           runs=OverRuns("Runs in which no method has a higher held-out log score.",
                         cells.of_common_runs, "ranking")),
    Metric("accuracy", "entry.held_out.accuracy", "accuracy",
           LIKELIEST := "Share of rows whose likeliest class is right.", tasks=CLASSES,
           text=percent, runs=OverRuns(LIKELIEST, cells.mean_share)),
    Metric("brier", "entry.held_out.brier", "Brier",
           "Squared error of the probabilities; lower is better.", unit="0 to 2", tasks=CLASSES,
           runs=OverRuns("Squared error of the probabilities.", cells.mean)),
    Metric("ece", "entry.held_out.ece", "ECE (if exact)",
           "Expected calibration error, and what it is if the posterior is exact: its mean, and "
           "the limit that 1 % exceed, over classes drawn from the posterior itself, all rows from "
           "one draw of the function.",
           more={"ece_floor": "entry.held_out.ece_floor", "ece_high": "entry.held_out.ece_high"},
           tasks=CLASSES, text=cells.ece,
           runs=OverRuns("Expected calibration error.", cells.mean, title="ECE")),
    Metric("ece_floor", title="ECE floor", tasks=CLASSES,
           runs=OverRuns(
               "Mean ECE of classes drawn from the method's own posterior: if it is exact.",
               cells.mean)),
    Metric("rejection_area", "entry.held_out.rejection_area", "rejection area",
           REJECTION := "Accuracy of the rows kept when those of largest entropy are rejected, "
           "averaged over the shares that are kept; higher is better.",
           tasks=CLASSES, text=percent, runs=OverRuns(REJECTION, cells.mean_share)),
    Metric("gaussian_log_score", "entry.held_out.gaussian_log_score", "Gaussian score",
           "Log density of one Normal with the predictive mean and sd: another number than the log "
           "score, for comparison with papers; never ranked.",
           unit=NATS, tasks=REGRESSION, after="coverage_95",
           runs=OverRuns(
               "Log density of one Normal with the predictive mean and sd; never ranked.",
               cells.mean)),
    Metric("rmse", "scores.rmse", "RMSE", "Error of the predictive mean.",
           unit=OF_Y, tasks=REGRESSION,
           runs=OverRuns(
               "Error of the predictive mean, or of the median where there is no mean.",
               cells.mean)),
    Metric("crps", "scores.crps", "CRPS",
           WHOLE := "Score of the whole predictive; lower is better.", unit=OF_Y, tasks=REGRESSION,
           runs=OverRuns(WHOLE, cells.mean)),
    Metric("coverage_95", "scores.coverage.observed", "95 % coverage",
           "Share of held-out values inside the 95 % interval, and what it is in 99 % of data sets "
           "drawn from the method's own posterior, all rows from one draw of the function.",
           more={"coverage_low": "scores.coverage.low", "coverage_high": "scores.coverage.high"},
           tasks=REGRESSION, text=cells.coverage,
           runs=OverRuns(
               "Share of held-out values inside the 95 % interval.", cells.mean_share)),
    Metric("epistemic_share", epistemic_share, "epistemic share",
           "Share of the predictive variance that is of the function and not of noise, mean over "
           "test rows: where it is small the log score hardly sees how large it is.",
           text=percent),
    Metric("runs", title="runs", section=FIT,
           runs=OverRuns("Runs that ended with a posterior.", cells.of_all_runs, "ranking")),
    Metric("elbo", "entry.checks.elbo", "ELBO",
           "Lower bound of the log evidence of the training rows (standardised target) with its "
           "Monte Carlo error; comparable only between guides of one model with equal point "
           "estimates.",
           error="elbo_error", more={"elbo_error": "entry.checks.elbo_error"}, unit="nats",
           section=FIT, text=with_error, after="ebfmi"),
    Metric("log_evidence", log_evidence, "log evidence",
           "Log density of the training rows (standardised target) under the model, all weights "
           "integrated out, with its error over islands; of Laplace an approximation without one. "
           "It compares priors and models of the same rows.",
           error="log_evidence_error", more={"log_evidence_error": log_evidence_error},
           unit="nats", section=FIT, text=with_error, after="khat"),
    Metric("rhat", "entry.checks.sampling.worst_rhat", "worst R-hat",
           "Of the function at every test row, the log likelihood and every scale; at most 1.01. "
           "Of a biased sampler: whether it has settled, not on what.",
           more={"biased": is_biased}, section=CHAINS, text=cells.rhat,
           runs=OverRuns("Of f, the log likelihood and scales; at most 1.01.", cells.largest,
                         "largest")),
    Metric("rhat_within", "entry.checks.rhat_within", "R-hat within members",
           "Of the function in one member of an ensemble that samples, of the worst; the worst "
           "R-hat is then that over members.", section=CHAINS, text=cells.rhat),
    Metric("ess", "entry.checks.sampling.smallest_ess", "smallest ESS",
           "Effective draws of the worst of these, in the bulk; at least 400. Those of a biased "
           "sampler are of another distribution, and do not compare with those of an exact one.",
           section=CHAINS, text=cells.effective_draws),
    Metric("ess_tail", "entry.checks.sampling.smallest_ess_tail", "in the tails",
           "Effective draws of the worst 5 % or 95 % quantile of these; at least 400.",
           section=CHAINS, text=cells.effective_draws),
    Metric("sampler_bias", "entry.checks.sampler_bias", "bias of variances",
           "Relative error of variances that the energy errors of a sampler without a test of "
           "acceptance imply if all directions are equally stiff; at most 10 %.",
           section=CHAINS, text=percent),
    Metric("divergent", "entry.checks.num_divergent", "divergent",
           "Draws after divergent trajectories.", section=CHAINS, text=cells.count),
    Metric("saturated", "entry.checks.sampling.saturated", "full trees",
           "Trajectories that max_tree_depth stopped; at most 1 %.", section=CHAINS, text=percent),
    Metric("ebfmi", "entry.checks.sampling.ebfmi", "E-BFMI",
           "How far a new momentum moves the energy, of the worst chain; at least 0.3.",
           section=CHAINS),
    Metric("khat", "entry.checks.khat", "k-hat",
           "Below 1 - 1/log10(draws), and 0.7, draws of the guide can be reweighted to the "
           "posterior around them; with its error over draws. Blind to modes that the guide lacks; "
           "above 1 a larger value need not be worse.",
           error="khat_se", more={"khat_se": "entry.checks.khat_error"}, section=FIT,
           text=cells.khat,
           runs=OverRuns("The largest of a run; above 1 a larger value need not be worse.",
                         cells.largest_khat, "largest", "worst k-hat")),
    Metric("loo", loo, "PSIS-LOO",
           "Leave-one-out log score of the EXACT posterior on the training rows; blank where draws "
           "cannot be reweighted to it, in brackets the rows with too large a k-hat.",
           error="loo_se", more={"loo_se": loo_error, "loo_bad": "entry.checks.loo.num_bad"},
           unit=NATS, text=cells.loo, after="gaussian_log_score"),
    Metric("distance", "entry.at_rows.distance.value", "distance",
           "Mean over test rows of the Wasserstein distance between marginal draws of the "
           "function; marked where the reference answers under another model or holds other "
           "point estimates, so that the guide need not be the cause.",
           unit=OF_F, section=REFERENCE, text=cells.distance,
           runs=OverRuns("Distance of the function to the reference.", cells.mean)),
    Metric("distance_floor", "entry.at_rows.distance.floor", "floor",
           "The same between two halves of the reference.", unit=OF_F, section=REFERENCE,
           is_setting=True),
    *against_reference("", "at_rows", "test rows"),
    Metric("distance_off_data", "entry.off_data.distance.value"),
    Metric("distance_floor_off_data", "entry.off_data.distance.floor"),
    *against_reference("_off_data", "off_data",
              "probes, rows off the data made of the training inputs: points between two of them "
              "in the largest gaps, points along the first principal components up to half the "
              "range beyond its ends, outlying rows at twice their distance from the mean"),
    Metric("draws", "entry.num_draws", "draws",
           "Draws of the function behind the scores.", section=COST, text=cells.count,
           after="parameters"),
    Metric("seconds", "entry.fit.wall_time", "fit", "Wall time of the fit.",
           unit="s", section=COST, runs=OverRuns("Wall time of one fit.", cells.mean)),
    Metric("threads", "entry.fit.threads", "threads",
           "CPU threads that the fit used.", section=COST, text=cells.count, is_setting=True,
           runs=OverRuns("Most CPU threads that one fit used.", cells.largest, "largest")),
    Metric("processes", "entry.fit.processes", "processes",
           "Fits that ran at a time, each in a process of its own.", section=COST,
           text=cells.count, is_setting=True,
           runs=OverRuns("Most fits that ran at a time, each in a process.", cells.largest,
                         "largest")),
    Metric("parameters", "entry.fit.num_parameters", "parameters",
           "Numbers that were fitted.", section=COST, text=cells.count),
]  # fmt: skip
"""All numbers, in the order of the tables that are written."""

FIRST: dict[str, Text] = {
    "difference": cells.difference, "log_score": with_error, "rmse": number, "accuracy": percent,
    "coverage_95": percent, "ece": number,
    "sd_ratio": cells.ratio_in_brief, "sd_ratio_off_data": cells.ratio_in_brief, "seconds": number,
}  # fmt: skip
"""Numbers of the table that is read first, and how each and its error read there."""


def in_order_of_the_page(metrics: Iterable[Metric]) -> list[Metric]:
    """The order of columns on the page: a metric with ``after`` follows the one named there."""
    metrics = list(metrics)
    ordered = [metric for metric in metrics if not metric.after]
    for metric in metrics:
        if metric.after:
            ordered.insert(1 + [other.key for other in ordered].index(metric.after), metric)
    return ordered


ON_PAGE = in_order_of_the_page(METRICS)
