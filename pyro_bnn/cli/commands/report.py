"""``pyro-bnn report``: the report of saved files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pyro_bnn.cli.app import AGAINST, command
from pyro_bnn.cli.option_groups import option, spread
from pyro_bnn.cli.results import Result, document_of, warnings_of
from pyro_bnn.errors import OutputError


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """What 'pyro-bnn report' does with files."""

    out: Path = option("Folder of the report; made where it does not exist.", Path("report"))
    reference: str | None = option(
        "Method that the others are measured against.",
        shown="that of the comparison which wrote the files, else nuts where one of several files "
        "is",
    )


@command(short_help="Make the report of saved ArviZ files again, or of files of several runs.")
@spread(fails_on=AGAINST)
def report(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="NetCDF files of 'pyro-bnn compare' or of Comparison.save, of the "
            "same data and split. NAME=FILE names a method; files of equal names need it.",
            show_default=False,
        ),
    ],
    options: ReportOptions,
) -> Iterator[Result]:
    """Compare posteriors that were saved as ArviZ NetCDF files; nothing is fitted or scored anew.

    FOLDER gets index.html, table.csv and verdicts.json, with the numbers of the comparison that
    wrote the files. A file holds predictions at its held-out rows only, so there is no predictive
    band.
    """
    from pyro_bnn.cli.kept import write_or_rescue
    from pyro_bnn.report import check_writable, compare_files
    from pyro_bnn.report.saved.compare_files import named_files

    named = named_files(files)
    check_writable(options.out)
    comparison = compare_files(named, reference=options.reference)
    write = partial(comparison.save, command=context.obj, with_draws=False)
    out, unwritten = write_or_rescue(options.out, write)
    names = ("index.html", "table.csv", "verdicts.json")
    yield Result(
        text=f"{comparison.summary()}\n",
        document=lambda: document_of(comparison),
        files=[] if out is None else [out / name for name in names],
        warnings=lambda: warnings_of(comparison),
    )
    if unwritten:
        raise OutputError(unwritten)
