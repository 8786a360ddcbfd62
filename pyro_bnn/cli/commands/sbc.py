"""``pyro-bnn sbc``: a method on data simulated from the prior."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from pyro_bnn.cli.app import command
from pyro_bnn.cli.option_groups import MOST_DRAWS, flag, option, spread
from pyro_bnn.cli.options import DataOptions, FitOptions, NetworkOptions
from pyro_bnn.cli.results import ANY, Result
from pyro_bnn.cli.saves import Saves, check
from pyro_bnn.errors import OptionError, OutputError

RANKED = 99  # draws that a truth is ranked among, where the command does not say


@dataclass(frozen=True, kw_only=True)
class SBCOptions:
    """What 'pyro-bnn sbc' simulates, and where the ranks go."""

    method: str = option(
        "Guide (fitted by SVI) or sampler of 'pyro-bnn list'; options and prior as in "
        "auto-low-rank:rank=5@cauchy.",
        "nuts",
    )
    out: Path = option("Folder of the ranks; made where it does not exist.", Path("sbc"))
    rows: int = option("How many training rows, the first ones, each simulation has.", 40, min=1)
    simulations: int = option("Simulated data sets, at least 20.", 200, min=1)
    draws: int | None = option(
        "Draws that the truth is ranked among, one less than a multiple of 20; or that a guide's "
        "probabilities are taken from, any number.",
        shown="99, or 999",
        min=1,
        max=MOST_DRAWS,
    )
    ranks: bool = flag(
        "--ranks", "Rank the truth among the draws of a guide that has a density, too."
    )


@command(short_help="Check a method on data simulated from a network's prior.")
@spread(
    without=("chains", "max_rows"), hidden="5", fails_on=(ANY,), steps=2_000, samples=500,
    batch_size=option("Rows of a gradient step (batch_size).", metavar="N", shown="all", min=1),
)  # fmt: skip
def sbc(
    context: typer.Context,
    source: DataOptions,
    options: SBCOptions,
    network: NetworkOptions,
    how: FitOptions,
    saves: Saves,
) -> Iterator[Result]:
    """Simulation-based calibration: does a method sample the posterior that it says it does?

    Weights are drawn from the prior and targets simulated at inputs of the data, whose own targets
    are not used; the method is run on each simulated data set. The truth is one more draw of the
    right posterior, so its rank among the draws is uniform: a U shape is a posterior too narrow, a
    hump one too wide, a slope a bias. A sampler runs one chain on each.

    A guide with a density is asked for the probability below the true value instead, of functions
    and scales: a U is common, as many guides are too narrow by their nature; where the histogram
    is asymmetric, their means are biased too. --ranks ranks the truth among its draws as well.

    FOLDER gets ranks.png, ranks.csv (a row a simulation) and table.csv, of probabilities
    probabilities.png and probabilities.csv. The exit code says nothing of the verdict, unless
    --fail-on warning is given. With --checkpoint a run that was stopped goes on with --resume, on
    one machine to the same numbers.
    """
    from pyro_bnn.cli import networks
    from pyro_bnn.cli.before_fits import check_and_describe
    from pyro_bnn.cli.kept import locked_folder, write_or_rescue
    from pyro_bnn.cli.methods import find_one
    from pyro_bnn.diagnostics import simulation_based_calibration, variational_calibration

    methods = find_one(options.method)
    for name, method in methods.items():
        if "num_chains" in method.options:
            raise OptionError(f"a sampler runs one chain on each data set: leave it out of {name}")
    engines = dataclasses.replace(how, chains=1).engines(context, methods)
    loaded = networks.load_rows(source, network.likelihood)
    plans = networks.make_networks(methods, loaded, network, how.seed)
    models = networks.build_models(plans, how.device)
    x = loaded.train.x[: options.rows]
    data = f"Data:  inputs of {len(x):,} training rows of {loaded.name}; targets are simulated"
    check(saves, saves.saved_runs())
    folders = options.out, saves.checkpoint
    check_and_describe(context, how, loaded, models, network, *folders, data_line=data)
    ((name, engine),) = engines.items()
    has_density = getattr(methods[name].cls, "has_log_prob", False)
    if options.ranks and not has_density:
        raise OptionError(f"--ranks does nothing for {name}, which has no others: leave it out")
    calibrate: Any = simulation_based_calibration
    if has_density and not options.ranks:
        calibrate = variational_calibration
    _check_draws(engine, options, has_density=calibrate is variational_calibration)
    own = locked_folder(options.out, can_go_on=bool(saves.checkpoint))
    with own as fits_folder, saves.alone(fits_folder):
        try:
            result = calibrate(
                models[name],
                x,
                engine,
                num_simulations=options.simulations,
                **({} if options.draws is None else {"num_draws": options.draws}),
                seed=how.seed,
                progress=how.progress,
                checkpoint=saves.checkpoint,
                resume=saves.resume,
            )
        except OptionError as error:
            raise OptionError(_in_own_words(str(error))) from error
        out, unwritten = write_or_rescue(options.out, result.save)
    yield Result(
        text=f"\n{result.summary()}\n",
        document=lambda: {"table": result.table, "is_calibrated": result.is_calibrated},
        files=[] if out is None else result.paths(out),
        warnings=lambda: [] if result.is_calibrated else [(ANY, f"{name} is not calibrated")],
    )
    if unwritten:
        raise OutputError(unwritten)


OWN_WORDS = {
    "num_simulations=": "--simulations ",
    "num_draws=": "--draws ",
    "num_samples": "--samples",
    "resume=True": "--resume",
}
"""Arguments of the library: what this command calls them."""


def _in_own_words(message: str) -> str:
    for argument, typed in OWN_WORDS.items():
        message = message.replace(argument, typed)
    return message


def _check_draws(engine: Any, options: SBCOptions, *, has_density: bool) -> None:
    """Refuse, before the first run, draws that are fewer than those that are ranked."""
    ranked, kept = options.draws or RANKED, getattr(engine, "num_samples", None)
    if not has_density and kept is not None and kept < ranked:
        raise OptionError(
            f"--samples {kept} keeps fewer draws than the {ranked} that the truth is ranked among: "
            "raise it, or lower --draws"
        )
