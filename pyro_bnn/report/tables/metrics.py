"""The numbers of a report, each written once: what it is taken from, how it reads, what it means.

A number is one entry of `METRICS`. The tables of one comparison, of several targets and of several
runs are walks along that list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from pyro_bnn.diagnostics.ranking import Ranked
from pyro_bnn.plotting.numbers import decimals_of, number, percent, with_error
from pyro_bnn.report.evaluation.against import AgainstReference
from pyro_bnn.report.evaluation.evaluate import Evaluation
from pyro_bnn.report.evaluation.natures import is_biased_sampler

if TYPE_CHECKING:
    import pandas as pd

    from pyro_bnn.arviz_io.loo import LooResult
    from pyro_bnn.diagnostics.calibration import Coverage
    from pyro_bnn.diagnostics.convergence import ChainChecks
    from pyro_bnn.report.evaluation.held_out import HeldOut, TargetScores

LOW, HIGH = 0.05, 0.95  # quantiles over rows
SCORES, CHAINS, FIT, REFERENCE, COST = (
    "Held-out scores", "Checks of chains", "Checks of fits", "Against the reference", "Cost",
)  # fmt: skip
REGRESSION, CLASSES = ("regression",), ("classification",)
OF_Y, OF_F = "of y", "of f"  # units that go by the data
NATS = "nats per row"
BIASED = " (biased)"  # beside what chains of a biased sampler have of their own distribution
BEYOND = "above 1"  # of k-hat: which number it is there says nothing

Record = Mapping[str, Any]  # a row of a table


class Method(NamedTuple):
    """What the numbers of a row are taken from.

    Attributes:
        entry: All numbers of the method.
        place: Its place in the ranking.
        log_score: Mean held-out log score with its standard error, of one target or of all.
        log_scale: What a log density loses on the way to the user's units.
        target: Scores of the one target that a row is about.
    """

    entry: Evaluation
    place: Ranked
    log_score: tuple[float, float]
    log_scale: float = 0.0
    target: TargetScores | None = None

    @property
    def scores(self) -> HeldOut | TargetScores:
        """Scores over all targets, or of one."""
        return self.target or self.entry.held_out

    @property
    def band(self) -> Coverage | None:
        """Coverage with its band."""
        return self.scores.coverage

    @property
    def chains(self) -> ChainChecks | None:
        """Checks of Markov chains."""
        return self.entry.checks.sampling

    @property
    def loo(self) -> LooResult | None:
        """PSIS-LOO."""
        return self.entry.checks.loo


Value = Callable[[Method], object]  # None where there is none


@dataclass(frozen=True)
class Column:
    """A column as people read it.

    Attributes:
        title: Heading.
        unit: Unit, or empty.
        cell: Text of the cell from a row of the table, and the decimal places of all, if they
            share some.
        meaning: One sentence for the legend.
        key: The number of the table it shows; it is left out where all are blank.
        error: Name of the number's error, by which places go; empty where it has none.
        is_setting: Whether it goes to the caption where it is the same in all rows.
    """

    title: str
    unit: str
    cell: Callable[..., str]
    meaning: str
    key: str
    error: str = ""
    is_setting: bool = False

    def of(self, table: pd.DataFrame) -> Column:
        """The column with the decimal places that all its numbers in a table share."""
        errors = list(table[self.error]) if self.error else None
        decimals = decimals_of(list(table[self.key]), errors)
        return replace(self, cell=lambda row: self.cell(row, decimals))


def spread(row: Record, key: str) -> float:
    """The number after the plus-minus: a standard error over splits, or an sd over seeds."""
    se, sd = float(row[f"{key}_se"]), float(row[f"{key}_sd"])
    return sd if se != se else se


def mean(row: Record, key: str) -> str:
    """An average over splits."""
    return with_error(row[key], spread(row, key))


def mean_share(row: Record, key: str) -> str:
    """An average of shares."""
    share, error = percent(row[key]), spread(row, key)
    return f"{share} ± {percent(error)}" if share and error == error else share


def largest(row: Record, key: str) -> str:
    """The largest of all runs."""
    return BEYOND if key == "khat" and row[key] > 1 else number(row[key])


@dataclass(frozen=True)
class Metric:
    """One number of a method.

    Attributes:
        key: Its name in the tables that are written.
        value: Where it comes from; None for what is only shown, under the name of another.
        title: Heading of its column; it has none if empty.
        meaning: One sentence for the legend of a comparison; it is not shown there if empty.
        more: What belongs to it, such as its error, by name.
        unit: Unit, ``OF_Y`` for that of the target, ``OF_F`` for that of the function.
        where: Section of the page.
        tasks: Tasks that it applies to.
        text: The cell of the number and of what belongs to it.
        brief: The cell in the table that is read first, of the number and its error; that of
            all else where there is none.
        is_setting: Whether it goes to the caption where it is the same in all rows.
        is_distance: Whether a cell says that the reference is of another model.
        after: Name of the number that it stands behind on the page, if not where it stands here.
        runs: Its meaning over several runs; it is not shown there if empty.
        over: The cell over several runs.
        targets: Its meaning for one of several targets; it is not shown there if empty.
    """

    key: str
    value: Value | None = None
    title: str = ""
    meaning: str = ""
    _: KW_ONLY
    more: Mapping[str, Value] = field(default_factory=dict)
    unit: str = ""
    where: str = SCORES
    tasks: tuple[str, ...] = (*REGRESSION, *CLASSES)
    text: Callable[..., str] = number
    brief: Callable[..., str] | None = None
    is_setting: bool = False
    is_distance: bool = False
    after: str = ""
    runs: str = ""
    over: Callable[[Record, str], str] = mean
    targets: str = ""

    def numbers(self, method: Method) -> dict[str, Any]:
        """The number and what belongs to it by name, NaN where one does not apply."""
        values = {} if self.value is None else {self.key: self.value, **self.more}
        found = {name: value(method) for name, value in values.items()}
        return {name: float("nan") if value is None else value for name, value in found.items()}

    @property
    def error(self) -> str:
        """Name of its error; empty where it has none."""
        return next((name for name in self.more if "_se" in name or name.endswith("_error")), "")

    def cell(self, row: Record, decimals: int | None = None) -> str:
        """The cell of a comparison, or of one target."""
        values = (row[name] for name in (self.key, *self.more))
        fixed = self.text in WITH_PLACES and decimals is not None
        return self._marked(self.text(*values, **({"decimals": decimals} if fixed else {})), row)

    def in_brief(self, row: Record, decimals: int | None = None) -> str:
        """The cell of the table that is read first."""
        if self.brief is None:
            return self.cell(row, decimals)
        if not self.error:
            return self.brief(row[self.key])
        return self._marked(self.brief(row[self.key], row[self.error], decimals=decimals), row)

    def _marked(self, text: str, row: Record) -> str:
        is_marked = self.is_distance and text and row["reference_model"] == "other"
        return f"{text} (other model)" if is_marked else text

    def first_column(self, units: Mapping[str, str]) -> Column:
        """The column of the table that is read first."""
        return replace(self.column(units, self.meaning), cell=self.in_brief)

    def column(self, units: Mapping[str, str], meaning: str, *, over: bool = False) -> Column:
        """The column with this meaning; ``over`` several runs, or of one comparison."""
        cell = (lambda row, _=None: self.over(row, self.key)) if over else self.cell
        return Column(
            self.title, units.get(self.unit, self.unit), cell, meaning, self.key, self.error,
            self.is_setting,
        )  # fmt: skip


def _khat(value: float, error: float) -> str:
    return BEYOND if value > 1 else with_error(value, error)


def _count(value: float) -> str:
    return "" if value != value else f"{round(value):,}"


def _rhat(value: float) -> str:
    return "" if value != value else f"{value:.3f}"


def _marked_if_biased(text: Callable[[float], str]) -> Callable[[float, bool], str]:
    return lambda value, is_biased: text(value) and f"{text(value)}{BIASED * is_biased}"


def _mean_share(scores: HeldOut) -> float | None:
    return float(scores.epistemic_share.mean()) if scores.epistemic_share.size else None


def _is_biased(method: Method) -> bool:
    return is_biased_sampler(method.entry.fit)


def _difference(
    mean: float, error: float, _: float, is_tied: bool, _p: float, decimals: int | None = None
) -> str:
    if mean == 0 and error == 0 and is_tied:
        return "best"
    text = with_error(mean, error, decimals=decimals)
    return f"{text} (tied)" if is_tied else text


def _difference_over(row: Record, key: str) -> str:
    if row[key] == 0:
        return "best" if row["rank"] == 1 else "highest mean"
    text = mean(row, key)
    return f"{text} (tied)" if text and row["tied"] else text


def _loo(value: float, error: float, num_bad: float, decimals: int | None = None) -> str:
    text = with_error(value, error, decimals=decimals)
    return f"{text} ({round(num_bad)} bad)" if text and num_bad else text


def _ece(value: float, floor: float, high: float) -> str:
    limit = number(high)
    return f"{number(value)} ({f'{number(floor)}, up to {limit}' if limit else 'unchecked'})"


def _coverage(share: float, low: float, high: float) -> str:
    ends = f"{percent(low, 0)[:-2]} to {percent(high, 0)}" if high == high else "unchecked"
    return f"{percent(share, 0)} ({ends})"


def _shift(value: float, error: float, high: float, decimals: int | None = None) -> str:
    text = with_error(value, error, decimals=decimals)
    return text and f"{text} (to {number(high, decimals=2)})"


def _ratio(value: float, error: float, low: float, high: float, decimals: int | None = None) -> str:
    text = with_error(value, error, decimals=decimals)
    return text and f"{text} ({number(low, decimals=2)} to {number(high, decimals=2)})"


WITH_PLACES = (number, with_error, _difference, _loo, _shift, _ratio)
"""Texts that take the decimal places of their column."""


def _against(suffix: str, rows: str) -> list[Metric]:
    """Numbers against the reference at some rows; the ratio and the shift are medians over them."""
    where, is_at_rows = suffix.replace("_", " "), not suffix

    def of(get: Callable[[AgainstReference], float]) -> Value:
        def value(method: Method) -> float | None:
            at = method.entry.at_rows if is_at_rows else method.entry.off_data
            return None if at is None else get(at)

        return value

    return [
        Metric(f"distance{suffix}", of(lambda at: at.distance.value), "distance",
               "Mean over test rows of the Wasserstein distance between marginal draws of the "
               "function; marked where the reference answers under another model or holds other "
               "point estimates, so that the guide need not be the cause." * is_at_rows,
               unit=OF_F, where=REFERENCE, is_distance=True,
               runs="Distance of the function to the reference." * is_at_rows),
        Metric(f"distance_floor{suffix}", of(lambda at: at.distance.floor), "floor",
               "The same between two halves of the reference." * is_at_rows,
               unit=OF_F, where=REFERENCE, is_setting=True),
        Metric(f"mean_shift{suffix}", of(lambda at: at.mean_shift.value), f"mean shift{where}",
               "Distance of the mean of the function from that of the reference over the "
               f"reference's epistemic sd: median and 95 % quantile over {rows}.",
               more={f"mean_shift_se{suffix}": of(lambda at: at.mean_shift.standard_error),
                     f"mean_shift_high{suffix}": of(lambda at: at.mean_shift.quantile(HIGH)[0])},
               unit="reference sds", where=REFERENCE, text=_shift, is_distance=True),
        Metric(f"sd_ratio{suffix}", of(lambda at: at.sd_ratio.value), f"epistemic sd ratio{where}",
               "Spread of the function over that of the reference, below 1 is too sure: median, "
               f"5 % and 95 % quantile over {rows}.",
               more={f"sd_ratio_se{suffix}": of(lambda at: at.sd_ratio.standard_error),
                     f"sd_ratio_low{suffix}": of(lambda at: at.sd_ratio.quantile(LOW)[0]),
                     f"sd_ratio_high{suffix}": of(lambda at: at.sd_ratio.quantile(HIGH)[0])},
               where=REFERENCE, text=_ratio, brief=with_error, is_distance=True,
               runs="Spread of the function over that of the reference." * is_at_rows),
    ]  # fmt: skip


METRICS = [
    *(Metric("model_number", None, "model", "Number of the model that the method answers under.",
             where=where, text=_count) for where in (SCORES, FIT)),
    Metric("rank", lambda m: m.place.rank),
    Metric("log_score", lambda m: m.log_score[0], "log score",
           "Log of the predictive density averaged over draws, at held-out rows, with its standard "
           "error over rows and draws; higher is better. The only score that ranks.",
           more={"log_score_se": lambda m: m.log_score[1]}, unit=NATS, text=with_error,
           runs="Held-out log score; higher is better. The only score that ranks.",
           targets="Log of the predictive density of this target alone, with its standard error "
           "over rows; the targets' do not add up to the log score of all, which ranks."),
    Metric("log_score_draws_se", lambda m: m.place.draws_error),
    Metric("difference", lambda m: m.place.difference.mean, "to the best",
           "Difference paired over rows, with its standard error over rows and draws. Tied: a test "
           "over all pairs of methods at once, with a family-wise error of 5 %, does not show any "
           "to be better.",
           more={"difference_se": lambda m: m.place.difference.standard_error,
                 "difference_draws_se": lambda m: m.place.difference.draws_error,
                 "tied": lambda m: not m.place.is_behind,
                 "p_value": lambda m: m.place.p_value},
           unit=NATS, text=_difference, over=_difference_over,
           runs="Paired difference over the same splits and seeds; its standard error is corrected "
           "for rows that splits share. Tied: a test over all pairs of methods at once, with a "
           "family-wise error of 5 %, does not show any to be better."),
    Metric("best_in", title="best in", unit="runs",
           runs="Runs in which no method has a higher held-out log score.",
           over=lambda row, key: f"{row[key]} of {row['common_runs']}"),
    Metric("accuracy", lambda m: m.entry.held_out.accuracy, "accuracy",
           "Share of rows whose likeliest class is right.", tasks=CLASSES, text=percent,
           runs="Share of rows whose likeliest class is right.", over=mean_share),
    Metric("brier", lambda m: m.entry.held_out.brier, "Brier",
           "Squared error of the probabilities; lower is better.", unit="0 to 2", tasks=CLASSES,
           runs="Squared error of the probabilities."),
    Metric("ece", lambda m: m.entry.held_out.ece, "ECE (if exact)",
           "Expected calibration error, and what it is if the posterior is exact: its mean, and "
           "the limit that 1 % exceed, over classes drawn from the posterior itself, all rows from "
           "one draw of the function.",
           more={"ece_floor": lambda m: m.entry.held_out.ece_floor,
                 "ece_high": lambda m: m.entry.held_out.ece_high}, tasks=CLASSES, text=_ece,
           brief=number),
    Metric("ece", title="ECE", tasks=CLASSES, runs="Expected calibration error."),
    Metric("ece_floor", title="ECE floor", tasks=CLASSES,
           runs="Mean ECE of classes drawn from the method's own posterior: if it is exact."),
    Metric("rejection_area", lambda m: m.entry.held_out.rejection_area, "rejection area",
           REJECTION := "Accuracy of the rows kept when those of largest entropy are rejected, "
           "averaged over the shares that are kept; higher is better.",
           tasks=CLASSES, text=percent, runs=REJECTION, over=mean_share),
    Metric("gaussian_log_score", lambda m: m.entry.held_out.gaussian_log_score, "Gaussian score",
           "Log density of one Normal with the predictive mean and sd: another number than the log "
           "score, for comparison with papers; never ranked.",
           unit=NATS, tasks=REGRESSION, after="coverage_95",
           runs="Log density of one Normal with the predictive mean and sd; never ranked."),
    Metric("rmse", lambda m: m.scores.rmse, "RMSE", "Error of the predictive mean.",
           unit=OF_Y, tasks=REGRESSION, targets="Error of the predictive mean of this target.",
           runs="Error of the predictive mean, or of the median where there is no mean."),
    Metric("crps", lambda m: m.scores.crps, "CRPS",
           "Score of the whole predictive; lower is better.", unit=OF_Y, tasks=REGRESSION,
           runs="Score of the whole predictive; lower is better.",
           targets="Score of the whole predictive of this target; lower is better."),
    Metric("coverage_95", lambda m: m.band and m.band.observed, "95 % coverage",
           "Share of held-out values inside the 95 % interval, and what it is in 99 % of data sets "
           "drawn from the method's own posterior, all rows from one draw of the function.",
           more={"coverage_low": lambda m: m.band and m.band.low,
                 "coverage_high": lambda m: m.band and m.band.high},
           tasks=REGRESSION, text=_coverage, brief=percent, over=mean_share,
           runs="Share of held-out values inside the 95 % interval.",
           targets="Share of held-out values of this target inside the 95 % interval, and what it "
           "is in 99 % of data sets drawn from the method's own posterior, all rows from one draw "
           "of the function."),
    Metric("epistemic_share", lambda m: _mean_share(m.entry.held_out), "epistemic share",
           "Share of the predictive variance that is of the function and not of noise, mean over "
           "test rows: where it is small the log score hardly sees how large it is.",
           text=percent),
    Metric("runs", title="runs", where=FIT, runs="Runs that ended with a posterior.",
           over=lambda row, key: f"{row[key]} of {row['all_runs']}"),
    Metric("elbo", lambda m: m.entry.checks.elbo, "ELBO",
           "Lower bound of the log evidence of the training rows (standardised target) with its "
           "Monte Carlo error; comparable only between guides of one model with equal point "
           "estimates.",
           more={"elbo_error": lambda m: m.entry.checks.elbo_error}, unit="nats", where=FIT,
           text=with_error),
    Metric("log_evidence", lambda m: m.entry.fit.options.get("log_evidence"), "log evidence",
           "Log density of the training rows (standardised target) under the model, all weights "
           "integrated out, with its error over islands; of Laplace an approximation without one. "
           "It compares priors and models of the same rows.",
           more={"log_evidence_error":
                 lambda m: m.entry.fit.options.get("log_evidence_error")},
           unit="nats", where=FIT, text=with_error),
    Metric("rhat", lambda m: m.chains and m.chains.worst_rhat, "worst R-hat",
           "Of the function at every test row, the log likelihood and every scale; at most 1.01. "
           "Of a biased sampler: whether it has settled, not on what.",
           more={"biased": _is_biased}, where=CHAINS, text=_marked_if_biased(_rhat), over=largest,
           runs="Of f, the log likelihood and scales; at most 1.01."),
    Metric("rhat_within", lambda m: m.entry.checks.rhat_within, "R-hat within members",
           "Of the function in one member of an ensemble that samples, of the worst; the worst "
           "R-hat is then that over members.", where=CHAINS, text=_rhat),
    Metric("khat", title="worst k-hat", where=FIT, over=largest,
           runs="The largest of a run; above 1 a larger value need not be worse."),
    Metric("ess", lambda m: m.chains and m.chains.smallest_ess, "smallest ESS",
           "Effective draws of the worst of these, in the bulk; at least 400. Those of a biased "
           "sampler are of another distribution, and do not compare with those of an exact one.",
           more={"biased": _is_biased}, where=CHAINS, text=_marked_if_biased(_count)),
    Metric("ess_tail", lambda m: m.chains and m.chains.smallest_ess_tail, "in the tails",
           "Effective draws of the worst 5 % or 95 % quantile of these; at least 400.",
           more={"biased": _is_biased}, where=CHAINS, text=_marked_if_biased(_count)),
    Metric("sampler_bias", lambda m: m.entry.checks.sampler_bias, "bias of variances",
           "Relative error of variances that the energy errors of a sampler without a test of "
           "acceptance imply if all directions are equally stiff; at most 10 %.",
           where=CHAINS, text=percent),
    Metric("divergent", lambda m: m.entry.checks.num_divergent, "divergent",
           "Draws after divergent trajectories.", where=CHAINS, text=_count),
    Metric("saturated", lambda m: m.chains and m.chains.saturated, "full trees",
           "Trajectories that max_tree_depth stopped; at most 1 %.", where=CHAINS, text=percent),
    Metric("ebfmi", lambda m: m.chains and m.chains.ebfmi, "E-BFMI",
           "How far a new momentum moves the energy, of the worst chain; at least 0.3.",
           where=CHAINS),
    Metric("khat", lambda m: m.entry.checks.khat, "k-hat",
           "Below 1 - 1/log10(draws), and 0.7, draws of the guide can be reweighted to the "
           "posterior around them; with its error over draws. Blind to modes that the guide lacks; "
           "above 1 a larger value need not be worse.",
           more={"khat_se": lambda m: m.entry.checks.khat_error}, where=FIT, text=_khat,
           after="elbo"),
    Metric("loo", lambda m: m.loo and m.loo.elpd / len(m.loo.pointwise) - m.log_scale, "PSIS-LOO",
           "Leave-one-out log score of the EXACT posterior on the training rows; blank where draws "
           "cannot be reweighted to it, in brackets the rows with too large a k-hat.",
           more={"loo_se": lambda m: m.loo and m.loo.se / len(m.loo.pointwise),
                 "loo_bad": lambda m: m.loo and m.loo.num_bad},
           unit=NATS, text=_loo, after="gaussian_log_score"),
    *_against("", "test rows"),
    *_against("_off_data", "probes, rows off the data made of the training inputs: points between "
              "two of them in the largest gaps, points along the first principal components up to "
              "half the range beyond its ends, outlying rows at twice their distance from the "
              "mean"),
    Metric("draws", lambda m: m.entry.num_draws, "draws",
           "Draws of the function behind the scores.", where=COST, text=_count,
           after="parameters"),
    Metric("seconds", lambda m: m.entry.fit.wall_time, "fit", "Wall time of the fit.",
           unit="s", where=COST, runs="Wall time of one fit."),
    Metric("threads", lambda m: m.entry.fit.threads, "threads",
           "CPU threads that the fit used.", where=COST, text=_count, is_setting=True,
           runs="Most CPU threads that one fit used.", over=largest),
    Metric("processes", lambda m: m.entry.fit.processes, "processes",
           "Fits that ran at a time, each in a process of its own.", where=COST, text=_count,
           is_setting=True,
           runs="Most fits that ran at a time, each in a process.", over=largest),
    Metric("parameters", lambda m: m.entry.fit.num_parameters, "parameters",
           "Numbers that were fitted.", where=COST, text=_count),
]  # fmt: skip
"""All numbers, in the order of the tables that are written."""


def _in_order_of_the_page(metrics: Iterable[Metric]) -> list[Metric]:
    metrics = list(metrics)
    found = [metric for metric in metrics if not metric.after]
    for metric in metrics:
        if metric.after:
            found.insert(1 + [other.key for other in found].index(metric.after), metric)
    return found


ON_PAGE = _in_order_of_the_page(METRICS)
