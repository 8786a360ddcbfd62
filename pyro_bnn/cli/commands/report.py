"""``pyro-bnn report``: the report of saved files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from pyro_bnn.cli import options as opt
from pyro_bnn.cli.app import AGAINST, command
from pyro_bnn.cli.results import Found, document_of, warnings_of


@command(short_help="Make the report of saved ArviZ files again, or of files of several runs.")
@opt.spread(fails_on=AGAINST)
def report(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="NetCDF files of 'pyro-bnn compare' or of Comparison.save, of the same data and "
            "split. NAME=FILE names a method; files of equal names need it.",
            show_default=False,
        ),
    ],
    reported: opt.Reported,
) -> Iterator[Found]:
    """Compare posteriors that were saved as ArviZ NetCDF files; nothing is fitted or scored anew.

    FOLDER gets index.html, table.csv and verdicts.json, with the numbers of the comparison that
    wrote the files. A file holds predictions at its held-out rows only, so there is no predictive
    band.
    """
    from pyro_bnn.report import check_writable, compare_files
    from pyro_bnn.report.saved.compare_files import named_files

    named = named_files(files)
    check_writable(reported.out)
    comparison = compare_files(named, reference=reported.reference)
    comparison.save(reported.out, command=context.obj, with_draws=False)
    yield Found(
        text=f"{comparison.summary()}\n",
        document=lambda: document_of(comparison),
        files=[reported.out / name for name in ("index.html", "table.csv", "verdicts.json")],
        warnings=lambda: warnings_of(comparison),
    )
