"""The page of a `Judged`: the answer, its figures, tables with errors, and the command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyro_bnn.plotting.numbers import number, percent, with_error
from pyro_bnn.report.beyond.answer import answer
from pyro_bnn.report.beyond.plots import PLOTS
from pyro_bnn.report.output.page import Table, render_page
from pyro_bnn.report.plots.figures import Figures
from pyro_bnn.report.tables.metrics import Column, Record

if TYPE_CHECKING:
    from pyro_bnn.report.beyond.judged import Judged

NATS = "nats a row"


def _column(title: str, key: str, meaning: str = "", unit: str = "") -> Column:
    """A number with its error where it has one."""

    def cell(row: Record) -> str:
        return with_error(row[key], row[f"{key}_se"]) if f"{key}_se" in row else number(row[key])

    return Column(title, unit, cell, meaning, key)


def _share(title: str, key: str, meaning: str = "") -> Column:
    def cell(row: Record) -> str:
        value, error = percent(row[key], 2), row.get(f"{key}_se", float("nan"))
        return f"{value} ± {percent(error, 2)}" if error == error else value

    return Column(title, "", cell, meaning, key)


def _gap(
    key: str = "log_score_gap",
    unit: str = NATS,
    meaning: str = "Paired difference to the method with the highest log score.",
) -> Column:
    def cell(row: Record) -> str:
        return with_error(row[key], row[f"{key}_se"]) if row[key] else ""

    return Column("to the best", unit, cell, meaning, key)


SCORE = _column("log score", "log_score", "Mean log probability of the observed class.", NATS)
SEEDS = Column(
    "over seeds", NATS, lambda row: number(row["log_score_seeds_se"], 2),
    "The part of the error of fits of other seeds; none of one fit.", "log_score_seeds_se",
)  # fmt: skip
ACCURACY = _share("accuracy", "accuracy")
BRIER = _column("Brier score", "brier", "0 to 2, lower is better.")
ECE = _column("ECE", "ece", "Calibration error of the largest probability, equal-mass bins.")
FLOOR = _column("floor", "floor", "About what ECE is where the probabilities are right.")
AUGRC = _column(
    "AUGRC", "augrc", "Joint risk over shares of rows kept by entropy; lower is better."
)
NEVER_RANKED = "Shown beside their errors, never ranked by; the floor is of the calibration error."


CALIBRATION = (
    ECE, FLOOR,
    _column("smooth ECE", "smooth_ece", "The same without bins, smoothed by its own width."),
    _column("its floor", "smooth_floor", "About what smooth ECE is where they are right."),
    _column("class-wise ECE", "classwise_ece", "Mean over classes of each one's error."),
    _column("debiased ECE squared", "debiased_ece2", "About 0, on either side, if calibrated."),
    _column("its sd by chance", "debiased_ece2_sd", "Its scatter where they are right."),
    _column("SKCE", "skce", "Squared kernel error, first 1,000 rows; about 0 if calibrated."),
    _column("temperature", "temperature",
            "The best one on one half of the rows, mean of both halves; above 1: too sure."),
    _column("its gain", "temperature_gain", "On the other half.", NATS),
)  # fmt: skip
REJECTION = (
    ACCURACY, AUGRC, _gap("augrc_gap", ""),
    _column("at random", "augrc_random"), _column("at best", "augrc_best"),
    _column("AURC", "aurc", "Mean error rate over shares kept."),
)  # fmt: skip
UNKNOWN = (
    _column("AUROC", "auroc"), _gap("auroc_gap", "", "Paired."),
    _column("FPR95, known found", "fpr95_known",
            "Unknown rows kept where 95 % of the known are (OpenOOD's)."),
    _column("FPR95, unknown found", "fpr95_unknown",
            "Known rows refused where 95 % of the unknown are (TorchUncertainty's)."),
)  # fmt: skip
ATTACKED = (
    _column("before", "before", "Log score of the rows as they are.", NATS),
    _column("at random", "control", "Moved by up to as much, with random signs.", NATS),
    _column("attacked", "moved", "Moved up the gradient of the mean over draws.", NATS),
    _column("attack less random", "lost", "Paired.", NATS),
    _share("accuracy before", "before_accuracy"),
    _share("at random", "control_accuracy"),
    _share("attacked", "moved_accuracy"),
)


def tables(found: Judged) -> Iterator[Table]:
    """All tables, that of the test rows first."""
    own = [SCORE, _gap(), SEEDS, ACCURACY, BRIER, ECE, FLOOR, AUGRC]
    if found.num_fits == 1:
        own.remove(SEEDS)
    rows = f"{len(found.split.test):,} {found.noun}, {found.num_draws:,} draws, {_fits(found)}."
    yield Table(f"Test {found.noun}", own, found.table, caption=f"{rows} ± is one standard error.")
    if found.conditions:
        caption = (
            f"Mean over {len(found.conditions)} corruptions (kinds and severities) of the number "
            f"of each, of the first {len(found.conditions[0].x):,} test images. {NEVER_RANKED}"
        )
        yield Table("Corrupted", own, found.shifted, caption=caption)
    yield Table("Calibration", CALIBRATION, found.table, ordered_by="", caption=NEVER_RANKED)
    yield Table("Rejection", REJECTION, found.table, ordered_by="", caption=NEVER_RANKED)
    if found.ood_name is not None:
        for score, part in found.unknown.groupby("score", sort=False):
            by_method = part.set_index("method").drop(columns="score")
            yield Table(f"{found.ood_name} by {score}", UNKNOWN, by_method, ordered_by="")
    if found.epsilon is not None:
        title = f"Attack of {found.epsilon:g} of the largest pixel"
        yield Table(title, ATTACKED, found.attacked, ordered_by="")
    if found.conditions:
        columns = [SCORE, _gap(), ACCURACY, BRIER, ECE, FLOOR, AUGRC]
        for kind, part in found.by_condition.groupby("kind", sort=False):
            names = part["method"] + ", severity " + part["severity"].astype(str)
            by_severity = part.set_index(names.rename("method"))
            by_severity = by_severity.drop(columns=["kind", "severity", "method"])
            title = str(kind).replace("-", " ").capitalize()
            yield Table(title, columns, by_severity, ordered_by="")


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
