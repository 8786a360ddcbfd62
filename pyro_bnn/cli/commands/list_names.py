"""``pyro-bnn list``: the names of all there is."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from pyro_bnn.cli import options as opt
from pyro_bnn.cli.app import command
from pyro_bnn.cli.results import Found
from pyro_bnn.cli.terminal import WIDTH


@command(name="list", short_help="Print the names of all there is.")
@opt.spread()
def list_names() -> Iterator[Found]:
    """Print guides, engines, priors, likelihoods, models and data sets, a line each."""
    from pyro_bnn.cli.catalogue import catalogue, listing

    lines = listing(min(shutil.get_terminal_size().columns, WIDTH))
    yield Found(text="\n".join(lines), document=catalogue)
