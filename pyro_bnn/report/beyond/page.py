"""The page of a `Judged`: the answer, its figures, tables with errors, and the command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.report.beyond.answer import answer
from pyro_bnn.report.beyond.plots import PLOTS
from pyro_bnn.report.output.page import PageTable, render_page
from pyro_bnn.report.plots.figures import Figures
from pyro_bnn.report.tables.metric import Metric

if TYPE_CHECKING:
    from pyro_bnn.report.beyond.judged import Judged

NATS = "nats a row"


def estimate(value: float, *, se: float) -> str:
    """A number with its error."""
    return with_error(value, se)


def share(value: float, *, se: float) -> str:
    """A share with its error."""
    text = percent(value, 2)
    return f"{text} ± {percent(se, 2)}" if se == se else text


def gap(value: float, *, se: float) -> str:
    """A paired difference with its error; blank for the method that others differ from."""
    return with_error(value, se) if value else ""


def over_seeds(error: float) -> str:
    """An error of fits of other seeds."""
    return number(error, 2)


SCORE = Metric(
    "log_score", None, "log score", "Mean log probability of the observed class.", unit=NATS,
    text=estimate,
)  # fmt: skip
GAP = Metric(
    "log_score_gap", None, "to the best",
    "Paired difference to the method with the highest log score.", unit=NATS, text=gap,
)  # fmt: skip
SEEDS = Metric(
    "log_score_seeds_se", None, "over seeds",
    "The part of the error of fits of other seeds; none of one fit.", unit=NATS, text=over_seeds,
)  # fmt: skip
ACCURACY = Metric("accuracy", None, "accuracy", text=share)
BRIER = Metric("brier", None, "Brier score", "0 to 2, lower is better.", text=estimate)
ECE = Metric(
    "ece", None, "ECE", "Calibration error of the largest probability, equal-mass bins.",
    text=estimate,
)  # fmt: skip
FLOOR = Metric("floor", None, "floor", "About what ECE is where the probabilities are right.")
AUGRC = Metric(
    "augrc", None, "AUGRC", "Joint risk over shares of rows kept by entropy; lower is better.",
    text=estimate,
)  # fmt: skip
NEVER_RANKED = "Shown beside their errors, never ranked by; the floor is of the calibration error."


CALIBRATION = (
    ECE, FLOOR,
    Metric("smooth_ece", None, "smooth ECE",
           "The same without bins, smoothed by its own width.", text=estimate),
    Metric("smooth_floor", None, "its floor", "About what smooth ECE is where they are right."),
    Metric("classwise_ece", None, "class-wise ECE", "Mean over classes of each one's error.",
           text=estimate),
    Metric("debiased_ece2", None, "debiased ECE squared",
           "About 0, on either side, if calibrated."),
    Metric("debiased_ece2_sd", None, "its sd by chance", "Its scatter where they are right."),
    Metric("skce", None, "SKCE",
           "Squared kernel error, first 1,000 rows; about 0 if calibrated."),
    Metric("temperature", None, "temperature",
           "The best one on one half of the rows, mean of both halves; above 1: too sure.",
           text=estimate),
    Metric("temperature_gain", None, "its gain", "On the other half.", unit=NATS, text=estimate),
)  # fmt: skip
REJECTION = (
    ACCURACY, AUGRC, replace(GAP, key="augrc_gap", unit=""),
    Metric("augrc_random", None, "at random"), Metric("augrc_best", None, "at best"),
    Metric("aurc", None, "AURC", "Mean error rate over shares kept.", text=estimate),
)  # fmt: skip
UNKNOWN = (
    Metric("auroc", None, "AUROC", text=estimate),
    Metric("auroc_gap", None, "to the best", "Paired.", text=gap),
    Metric("fpr95_known", None, "FPR95, known found",
           "Unknown rows kept where 95 % of the known are (OpenOOD's).", text=estimate),
    Metric("fpr95_unknown", None, "FPR95, unknown found",
           "Known rows refused where 95 % of the unknown are (TorchUncertainty's).", text=estimate),
)  # fmt: skip
ATTACKED = (
    Metric("before", None, "before", "Log score of the rows as they are.", unit=NATS,
           text=estimate),
    Metric("control", None, "at random", "Moved by up to as much, with random signs.", unit=NATS,
           text=estimate),
    Metric("moved", None, "attacked", "Moved up the gradient of the mean over draws.", unit=NATS,
           text=estimate),
    Metric("lost", None, "attack less random", "Paired.", unit=NATS, text=estimate),
    Metric("before_accuracy", None, "accuracy before", text=share),
    Metric("control_accuracy", None, "at random", text=share),
    Metric("moved_accuracy", None, "attacked", text=share),
)  # fmt: skip


def tables(found: Judged) -> Iterator[PageTable]:
    """All tables, that of the test rows first."""
    own = [SCORE, GAP, SEEDS, ACCURACY, BRIER, ECE, FLOOR, AUGRC]
    if found.num_fits == 1:
        own.remove(SEEDS)
    rows = f"{len(found.split.test):,} {found.noun}, {found.num_draws:,} draws, {_fits(found)}."
    yield PageTable(
        f"Test {found.noun}", own, found.table, caption=f"{rows} ± is one standard error."
    )
    if found.conditions:
        caption = (
            f"Mean over {len(found.conditions)} corruptions (kinds and severities) of the number "
            f"of each, of the first {len(found.conditions[0].x):,} test images. {NEVER_RANKED}"
        )
        yield PageTable("Corrupted", own, found.shifted, caption=caption)
    yield PageTable("Calibration", CALIBRATION, found.table, ordered_by="", caption=NEVER_RANKED)
    yield PageTable("Rejection", REJECTION, found.table, ordered_by="", caption=NEVER_RANKED)
    if found.ood_name is not None:
        for score, part in found.unknown.groupby("score", sort=False):
            by_method = part.set_index("method").drop(columns="score")
            yield PageTable(f"{found.ood_name} by {score}", UNKNOWN, by_method, ordered_by="")
    if found.epsilon is not None:
        title = f"Attack of {found.epsilon:g} of the largest pixel"
        yield PageTable(title, ATTACKED, found.attacked, ordered_by="")
    if found.conditions:
        columns = [SCORE, GAP, ACCURACY, BRIER, ECE, FLOOR, AUGRC]
        for kind, part in found.by_condition.groupby("kind", sort=False):
            names = part["method"] + ", severity " + part["severity"].astype(str)
            by_severity = part.set_index(names.rename("method"))
            by_severity = by_severity.drop(columns=["kind", "severity", "method"])
            title = str(kind).replace("-", " ").capitalize()
            yield PageTable(title, columns, by_severity, ordered_by="")


def render(found: Judged, command: str, files: Sequence[str]) -> str:
    """The page as HTML with nothing to load from elsewhere."""
    title, statements = answer(found)
    first, *folded = tables(found)
    return render_page(
        "trust.html",
        data_name=found.split.name,
        lead=_lead(found),
        headline=title,
        statements=statements,
        pictures=Figures(found, PLOTS).pictures(),
        table=first,
        tables=folded,
        note=found.split.note,
        files=list(files),
        command=command,
    )


def _lead(found: Judged) -> str:
    text = f"{len(found.names)} methods, {_fits(found)}, on {len(found.split.test):,} test "
    text += found.noun
    if found.conditions:
        text += f", {len(found.conditions)} corruptions of {len(found.conditions[0].x):,} of them"
    if found.ood_name is not None:
        text += f", and {found.ood_name} as unknown inputs"
    text += (
        ". Ranked only by the log score; a method is behind where a test over all pairs says so, "
        "at a family-wise error of 5 %"
    )
    if found.num_fits > 1:
        text += (
            "; the variance over seeds is that of all methods, or its own where that is larger, by "
            "Student's t"
        )
    if found.num_fits == 2:
        text += " (of two fits each, where one method alone scatters, up to 12 %)"
    return text


def _fits(found: Judged) -> str:
    least, most = min(map(len, found.fits.values())), found.num_fits
    if most == 1:
        return "one fit each"
    return f"{most} fits each" if least == most else f"{least} to {most} fits each"
