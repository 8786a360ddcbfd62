"""The program that the commands belong to; a command is a thin call of the library.

Commands import torch, and all that needs it, when they run: ``--help`` and a mistyped option are
instant.
"""

from __future__ import annotations

import functools
from typing import Annotated

import typer

from pyro_bnn import __version__
from pyro_bnn.cli.option_groups import GroupedCommand
from pyro_bnn.cli.results import ANY
from pyro_bnn.cli.terminal import PROGRAM, WIDTH

AGAINST = (ANY, "refit", "unchecked", "function", "predictions")
"""What --fail-on names: any warning, or what a rule of the report speaks against."""

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)
command = functools.partial(app.command, cls=GroupedCommand)


@app.callback(invoke_without_command=True)
def pyro_bnn(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Bayesian neural networks in Pyro: fit them in many ways, and see which posterior to trust.

    Exit codes: 2 where an option does not do, 1 where data, a file, a disk or a fit fails, 3 where
    there is a verdict that --fail-on names, and 130 after Ctrl-C, 143 after SIGTERM, 129 after
    SIGHUP, all of which save what is running if it has a --checkpoint.
    """
    if version:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
