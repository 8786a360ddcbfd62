"""``pyro-bnn prior``: functions that priors believe in."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from pyro_bnn.cli.app import command
from pyro_bnn.cli.option_groups import MOST_DRAWS, named, option, spread
from pyro_bnn.cli.options import DataOptions, NetworkOptions
from pyro_bnn.cli.results import Result
from pyro_bnn.cli.terminal import refuse_idle
from pyro_bnn.errors import OutputError


@dataclass(frozen=True, kw_only=True)
class PriorOptions:
    """What 'pyro-bnn prior' draws, and where the picture goes."""

    out: Path = option("Picture to write, .png, .svg or .pdf.", Path("prior.png"), metavar="FILE")
    along: Literal["principal", "features"] = option(
        "Of several inputs along their first principal direction, or along each of the first eight "
        "with the others at 0.",
        "principal",
    )
    draws: int = option("Functions drawn from each prior.", 1_000, min=400, max=MOST_DRAWS)
    seed: int = option("Seed of all draws.", 0, min=0, max=2**32 - 1)


@command(name="prior", short_help="Draw the functions that priors believe in.")
@spread(
    without=("max_rows",),
    data=option(
        "Data set as in the other commands, of which only the inputs are used.",
        "",
        metavar="NAME|PATH",
        shown="one input from -2 to 2",
        autocompletion=named("data sets"),
    ),
    prior=option(
        "Priors of 'pyro-bnn list', drawn together.",
        "normal",
        metavar="NAME,NAME,...",
        autocompletion=named("priors"),
    ),
)
def draw_prior(
    context: typer.Context, source: DataOptions, network: NetworkOptions, options: PriorOptions
) -> Iterator[Result]:
    """Draw the functions that a network believes in before it sees data, for one or several priors.

    FILE shows draws of the first network output f along a line of inputs, with its median and
    central 50 % and 95 % bands, and the histogram of f in the middle of that line: its tail index
    is 1 for Cauchy tails, and shows as 4 or more for Gaussian ones. Inputs and f are standardised:
    the targets of the data would have a standard deviation of one.
    """
    from pyro_bnn.cli import networks
    from pyro_bnn.cli.kept import write_or_rescue
    from pyro_bnn.cli.methods import NamedMethod, comma_parts
    from pyro_bnn.data import Dataset, Split
    from pyro_bnn.diagnostics.simulation.prior_predictive import prior_predictive
    from pyro_bnn.files.atomic import followed
    from pyro_bnn.registry import lookup
    from pyro_bnn.report.plots import prior as figures

    if source.data:
        loaded = networks.load_rows(source, network.likelihood)
    else:
        refuse_idle(context, ("target", "task", "split"), ("a line without data",))
        rows = Dataset([[-2.0], [2.0]], [-1.0, 1.0])
        loaded = Split(rows, rows, "regression", "one input from -2 to 2")
    expected = "priors are names separated by commas, such as normal,cauchy"
    names = [lookup("prior", name).__name__ for name in comma_parts(network.prior or "", expected)]
    methods = {name: NamedMethod(object, name) for name in names}
    network = dataclasses.replace(network, prior=None)
    models = networks.build_models(networks.make_networks(methods, loaded, network, options.seed))
    networks.check_layers(context, models)
    figures.check_picture(options.out)
    for line in list(networks.describe(loaded, models, network))[0 if source.data else 2 :]:
        typer.echo(line)
    lines = figures.lines(loaded.train.x, options.along, loaded.train.input_names)
    draws = {
        name: prior_predictive(model, lines[0].x, options.draws, options.seed)
        for name, model in models.items()
    }
    middles = {name: figures.middle(functions, lines[0]) for name, functions in draws.items()}
    words = [figures.describe_middle(name, middle) for name, middle in middles.items()]
    figure, path = figures.prior_functions(draws, lines), followed(options.out)
    out, unwritten = write_or_rescue(
        path.parent, lambda folder: figures.save_picture(figure, folder / path.name)
    )
    yield Result(
        text="\n".join(["", *words, ""]),
        document=lambda: {
            name: {k: v for k, v in own._asdict().items() if k != "values"}
            for name, own in middles.items()
        },
        files=[] if out is None else [out / path.name if unwritten else options.out],
    )
    if unwritten:
        raise OutputError(unwritten)
