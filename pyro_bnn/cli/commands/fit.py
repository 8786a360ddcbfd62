"""``pyro-bnn fit``: one method, saved to predict new rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import typer

from pyro_bnn.cli.app import command
from pyro_bnn.cli.option_groups import flag, option, spread
from pyro_bnn.cli.options import DataOptions, FitOptions, NetworkOptions
from pyro_bnn.cli.results import ANY, Result
from pyro_bnn.cli.saves import Saves, check
from pyro_bnn.cli.terminal import refuse_idle
from pyro_bnn.errors import OutputError


@dataclass(frozen=True, kw_only=True)
class OneFitOptions:
    """What 'pyro-bnn fit' fits, and where that goes."""

    method: str = option(
        "Guide (fitted by SVI) or sampler of 'pyro-bnn list'; options and prior as in "
        "auto-low-rank:rank=5@cauchy.",
        ...,
    )
    out: Path = option("Folder of the fit; made where it does not exist.", Path("fit"))
    all_rows: bool = flag("--all-rows", "Fit every row, so that none is held out for scores.")


@command(short_help="Fit a network by one method and save it, to predict new rows.")
@spread(fails_on=(ANY,))
def fit(
    context: typer.Context,
    source: DataOptions,
    options: OneFitOptions,
    network: NetworkOptions,
    how: FitOptions,
    saves: Saves,
) -> Iterator[Result]:
    """Fit a Bayesian network by one method, and save it for 'pyro-bnn predict'.

    The training rows of the split are fitted, and the held-out rows scored in the units of the
    data; --all-rows fits all. What speaks against convergence is printed, and how much the checks
    could have seen; silence proves nothing, and compare has more checks. FOLDER gets
    posterior.safetensors, fit.json and training.safetensors, which holds the inputs of the training
    rows (of more than 10,000 a random sample) to measure new rows to. A run that was stopped goes
    on with --checkpoint and --resume, on one machine to the same numbers.
    """
    from pyro_bnn.cli import fits, networks, saved_fit
    from pyro_bnn.cli.before_fits import check_and_describe
    from pyro_bnn.cli.kept import EndedFits, locked_folder, write_or_rescue
    from pyro_bnn.cli.methods import find_one
    from pyro_bnn.data.split import all_rows

    methods = find_one(options.method)
    engines = how.engines(context, methods)
    check(saves, [saves])
    if options.all_rows:
        refuse_idle(context, ("split", "max_rows"), ("--all-rows",))
    loaded = networks.load_rows(source, network.likelihood)
    columns = saved_fit.input_columns(loaded)
    rows = all_rows(loaded) if options.all_rows else loaded
    plans = networks.make_networks(methods, rows, network, how.seed)
    models = networks.build_models(plans, how.device)
    engines = fits.in_batches(engines, models, rows.train)
    networks.check_layers(context, models)  # before what takes longer
    fits.check_starts(engines, models, rows.train)
    folders = options.out, saves.checkpoint
    check_and_describe(context, how, rows, models, network, *folders, all_rows=options.all_rows)
    with locked_folder(options.out, can_go_on=bool(saves.checkpoint)):
        ended = EndedFits(options.out, engines)
        posteriors, _ = fits.fit_all(
            engines,
            models,
            rows,
            seed=how.seed,
            progress=how.progress,
            say=how.say,
            saves=dict.fromkeys(engines, saves),
            ended=ended,
        )
        ((name, posterior),) = posteriors.items()
        done = saved_fit.SavedFit.of(
            posterior, plans[name], columns, rows, all_rows=options.all_rows, command=context.obj
        )
        out, unwritten = write_or_rescue(options.out, done.save)
        if not unwritten:
            ended.forget(engines)
    verdicts = fits.convergence(name, posterior, rows, how.seed)
    words = [verdict.text for verdict in verdicts]
    yield Result(
        text="\n".join([done.summary(), *words]),
        document=lambda: {"method": name, "held_out": done.held_out, "convergence": words},
        files=[] if out is None else [out / file for file in saved_fit.FILES],
        warnings=lambda: [(ANY, verdict.text) for verdict in verdicts if verdict.is_warning],
    )
    if unwritten:
        raise OutputError(unwritten)
