"""``pyro-bnn sbc``: a method on data simulated from the prior."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import typer

from pyro_bnn.cli import options as opt
from pyro_bnn.cli.app import command
from pyro_bnn.cli.results import ANY, Found
from pyro_bnn.errors import OptionError


@command(short_help="Check a method on data simulated from a network's prior.")
@opt.spread(
    without=("chains", "max_rows"), hidden="5", fails_on=(ANY,), steps=2_000, samples=500,
    batch_size=opt.option(None, "N", "all", min=1),
)  # fmt: skip
def sbc(
    context: typer.Context,
    source: opt.Source,
    simulated: opt.Simulated,
    network: opt.NetworkOptions,
    how: opt.FitOptions,
) -> Iterator[Found]:
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
    --fail-on warning is given.
    """
    from pyro_bnn.cli import networks
    from pyro_bnn.cli.before_fits import check_and_describe
    from pyro_bnn.cli.methods import find_one
    from pyro_bnn.diagnostics import simulation_based_calibration, variational_calibration

    found = find_one(simulated.method)
    for name, method in found.items():
        if "num_chains" in method.options:
            raise OptionError(f"a sampler runs one chain on each data set: leave it out of {name}")
    engines = dataclasses.replace(how, chains=1).engines(context, found)
    loaded = networks.load_rows(source, network.likelihood)
    plans = networks.make_networks(found, loaded, network, how.seed)
    models = networks.build_models(plans, how.device)
    x = loaded.train.x[: simulated.rows]
    data = f"Data:  inputs of {len(x):,} training rows of {loaded.name}; targets are simulated"
    check_and_describe(context, how, loaded, models, network, simulated.out, data_line=data)
    ((name, engine),) = engines.items()
    has_density = getattr(found[name].cls, "has_log_prob", False)
    if simulated.ranks and not has_density:
        raise OptionError(f"--ranks does nothing for {name}, which has no others: leave it out")
    calibrate: Any = simulation_based_calibration
    if has_density and not simulated.ranks:
        calibrate = variational_calibration
    result = calibrate(
        models[name],
        x,
        engine,
        num_simulations=simulated.simulations,
        **({} if simulated.draws is None else {"num_draws": simulated.draws}),
        seed=how.seed,
        progress=how.progress,
    )
    yield Found(
        text=f"\n{result.summary()}\n",
        document=lambda: {"table": result.table, "is_calibrated": result.is_calibrated},
        files=list(result.save(simulated.out)),
        warnings=lambda: [] if result.is_calibrated else [(ANY, f"{name} is not calibrated")],
    )
