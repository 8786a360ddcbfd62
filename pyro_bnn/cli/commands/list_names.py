"""``pyro-bnn list``: the names of all there is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from pyro_bnn.cli.app import command
from pyro_bnn.cli.option_groups import spread
from pyro_bnn.cli.results import Result
from pyro_bnn.cli.terminal import WIDTH


@command(name="list", short_help="Print the names of all there is.")
@spread()
def list_names() -> Iterator[Result]:
    """Print guides, engines, priors, likelihoods, models and data sets, a line each."""
    from pyro_bnn.cli.catalogue import catalogue, listing

    lines = listing(min(shutil.get_terminal_size().columns, WIDTH))
    yield Result(text="\n".join(lines), document=catalogue)
