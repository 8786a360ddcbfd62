"""The page of a `TrustNumbers`: the answer, its figures, tables with errors, and the command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyro_bnn.report.beyond.answer import answer
from pyro_bnn.report.beyond.metrics import (
    ACCURACY,
    ATTACKED,
    AUGRC,
    BRIER,
    CALIBRATION,
    ECE,
    FLOOR,
    GAP,
    NEVER_RANKED,
    REJECTION,
    SCORE,
    SEEDS,
    UNKNOWN,
)
from pyro_bnn.report.beyond.plots import PLOTS
from pyro_bnn.report.output.page import PageTable, render_page
from pyro_bnn.report.plots.figures import Figures

if TYPE_CHECKING:
    from pyro_bnn.report.beyond.numbers import TrustNumbers


def tables(found: TrustNumbers) -> Iterator[PageTable]:
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


def render(found: TrustNumbers, command: str, files: Sequence[str]) -> str:
    """The page as HTML with nothing to load from elsewhere."""
    first, *folded = tables(found)
    return render_page(
        "trust.html",
        data_name=found.split.name,
        lead=_lead(found),
        answer=answer(found),
        pictures=Figures(found, PLOTS).pictures(),
        table=first,
        tables=folded,
        note=found.split.note,
        files=list(files),
        command=command,
    )


def _lead(found: TrustNumbers) -> str:
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


def _fits(found: TrustNumbers) -> str:
    least, most = min(map(len, found.fits.values())), found.num_fits
    if most == 1:
        return "one fit each"
    return f"{most} fits each" if least == most else f"{least} to {most} fits each"
