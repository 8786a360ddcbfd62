"""What a command checks and says before its first fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import typer

from pyro_bnn.cli.networks import check_layers, describe
from pyro_bnn.cli.options import FitOptions, NetworkOptions
from pyro_bnn.data import Split
from pyro_bnn.files.atomic import check_writable
from pyro_bnn.program.handlers import Model


def check_and_describe(
    context: typer.Context,
    how: FitOptions,
    rows: Split,
    models: Mapping[str, Model],
    network: NetworkOptions,
    *folders: Path | None,
    all_rows: bool = False,
    data_line: str | None = None,
) -> None:
    """Refuse what cannot be done, say what will be; torch gets the threads of the fits.

    Args:
        context: That of the command.
        how: Options of the fits.
        rows: The data.
        models: By name of the method.
        network: What the command says of the networks.
        folders: Where files will be written.
        all_rows: Whether the fit is to all rows, so that none is held out.
        data_line: What is said of data whose targets are not used, in place of data and task.

    Raises:
        OptionError: If an option of layers does nothing.
        OutputError: If a folder cannot be written to.
    """
    check_layers(context, models)
    for folder in folders:
        if folder is not None:
            check_writable(folder)
    lines = list(describe(rows, models, network, all_rows=all_rows))
    for line in lines if data_line is None else [data_line, *lines[2:]]:
        how.say(line)
    torch.set_num_threads(how.threads)
