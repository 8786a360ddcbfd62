"""The page of a `TrustNumbers`: the answer, its figures, tables with errors, and the command."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyro_bnn.report.beyond.answer import answer
from pyro_bnn.report.beyond.metrics import (
    ATTACKED,
    CALIBRATION,
    NEVER_RANKED,
    OF_REFERENCE,
    REJECTION,
    ROWS,
    SEEDS,
    UNKNOWN,
)
from pyro_bnn.report.beyond.plots import PLOTS
from pyro_bnn.report.output.page import PageTable, render_page
from pyro_bnn.report.plots.figures import Figures

if TYPE_CHECKING:
    from pyro_bnn.report.beyond.numbers import TrustNumbers


def tables(results: TrustNumbers) -> Iterator[PageTable]:
    """All tables, that of the test rows first."""
    of_a_fit = [column for column in ROWS if column is not SEEDS]
    columns = of_a_fit if results.num_fits == 1 else ROWS
    draws = f"{results.num_draws:,} draws, {_fits(results)}."
    rows = f"{len(results.split.test):,} {results.noun}, {draws}"
    yield PageTable(
        f"Test {results.noun}", columns, results.table, caption=f"{rows} ± is one standard error."
    )
    if results.conditions:
        caption = (
            f"Mean over {len(results.conditions)} corruptions (kinds and severities) of the number "
            f"of each, of the first {len(results.conditions[0].x):,} test images. {NEVER_RANKED}"
        )
        yield PageTable("Corrupted", columns, results.shifted, caption=caption)
    yield PageTable("Calibration", CALIBRATION, results.table, ordered_by="", caption=NEVER_RANKED)
    yield PageTable("Rejection", REJECTION, results.table, ordered_by="", caption=NEVER_RANKED)
    if results.reference is not None:
        title = f"Distance to {results.reference_name}"
        yield PageTable(title, OF_REFERENCE, results.table, ordered_by="", caption=NEVER_RANKED)
    if results.ood_name is not None:
        for score, part in results.unknown.groupby("score", sort=False):
            by_method = part.set_index("method").drop(columns="score")
            yield PageTable(f"{results.ood_name} by {score}", UNKNOWN, by_method, ordered_by="")
    if results.epsilon is not None:
        title = f"Attack of {results.epsilon:g} of the largest pixel"
        yield PageTable(title, ATTACKED, results.attacked, ordered_by="")
    if results.conditions:
        for kind, part in results.by_condition.groupby("kind", sort=False):
            names = part["method"] + ", severity " + part["severity"].astype(str)
            by_severity = part.set_index(names.rename("method"))
            by_severity = by_severity.drop(columns=["kind", "severity", "method"])
            title = str(kind).replace("-", " ").capitalize()
            yield PageTable(title, of_a_fit, by_severity, ordered_by="")


def render(results: TrustNumbers, command: str, files: Sequence[str]) -> str:
    """The page as HTML with nothing to load from elsewhere."""
    first, *folded = tables(results)
    return render_page(
        "trust.html",
        data_name=results.split.name,
        lead=_lead(results),
        answer=answer(results),
        pictures=Figures(results, PLOTS).pictures(),
        table=first,
        tables=folded,
        note=results.split.note,
        files=list(files),
        command=command,
    )


def _lead(results: TrustNumbers) -> str:
    text = f"{len(results.names)} methods, {_fits(results)}, on {len(results.split.test):,} test "
    text += results.noun
    if results.conditions:
        text += (
            f", {len(results.conditions)} corruptions of {len(results.conditions[0].x):,} of them"
        )
    if results.ood_name is not None:
        text += f", and {results.ood_name} as unknown inputs"
    text += (
        ". Ranked only by the log score; a method is behind where a test over all pairs says so, "
        "at a family-wise error of 5 %"
    )
    if results.num_fits > 1:
        text += (
            "; the variance over seeds is that of all methods, or its own where that is larger, by "
            "Student's t"
        )
    if results.num_fits == 2:
        text += " (of two fits each, where one method alone scatters, up to 12 %)"
    return text


def _fits(results: TrustNumbers) -> str:
    least, most = min(map(len, results.fits.values())), results.num_fits
    if most == 1:
        return "one fit each"
    return f"{most} fits each" if least == most else f"{least} to {most} fits each"
