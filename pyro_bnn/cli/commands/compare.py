"""``pyro-bnn compare``: several methods on the same rows, and their report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pyro_bnn.cli import options as opt
from pyro_bnn.cli.app import AGAINST, command
from pyro_bnn.cli.results import Found, document_of, warnings_of
from pyro_bnn.cli.saves import Saves
from pyro_bnn.errors import DivergenceError, OutputError

if TYPE_CHECKING:
    from pyro_bnn.report import Comparison, RepeatedComparison


@command(short_help="Fit one network by several methods, compare them, write a report.")
@opt.spread(unlisted=("split", "seed"), fails_on=AGAINST)
def compare(
    context: typer.Context,
    source: opt.Source,
    compared: opt.Compared,
    network: opt.NetworkOptions,
    how: opt.FitOptions,
    saves: Saves,
) -> Iterator[Found]:
    """Fit one Bayesian network by several methods, compare them, and write a report.

    The network is a multilayer perceptron, where nothing else is said with ReLU units and a fan-in
    Gaussian prior; its likelihood follows the task: Normal of learned scale, Bernoulli for two
    classes, Categorical for more. Methods of one model and prior share one network. FOLDER gets
    index.html, table.csv, verdicts.json and one ArviZ NetCDF file for each method.

    With several splits or seeds FOLDER gets a folder split-K-seed-S with these files for each, and
    index.html and table.csv over all: means with their errors over splits, paired differences.
    Runs, or the fits of a single one, go side by side, a process on each core, where they are long.

    --checkpoint saves each method in a folder of its own: with --resume those that were done are
    not fitted again, and the one that was stopped goes on, on one machine to the same numbers.

    A fit that has ended is evaluated, and is in FOLDER/fits until the report has its draws. A
    method that diverges, is refused, or runs out of memory is one row less, with a verdict, and the
    exit code is 1 though the report is there. Where FOLDER fails, another is named that has all of
    it.
    """
    compared.start_server(how)

    from pyro_bnn.cli import fits, networks, runs
    from pyro_bnn.cli.before_fits import check_and_describe
    from pyro_bnn.cli.kept import alone
    from pyro_bnn.cli.methods import find_methods, find_reference
    from pyro_bnn.infer.parallel.tasks import backend
    from pyro_bnn.report.output.names import file_names

    # All that can fail early does so before the first fit
    methods, elsewhere = find_methods(compared.methods), compared.backend
    plan = dataclasses.replace(
        runs.Plan.of(context, methods, network, how),
        reference=find_reference(compared.reference, methods),
        saves=saves,
        backend=None if elsewhere is None else partial(backend, elsewhere, compared.num_jobs),
    )
    fits.check_draws(plan.engines)
    splits = runs.one_or_several(context, "split", compared.splits)
    seeds = runs.one_or_several(context, "seed", compared.seeds)
    num_runs = len(splits) * len(seeds)
    processes = runs.number_of_jobs(
        compared.num_jobs,
        plan.engines,
        num_runs,
        how.threads,
        is_here=elsewhere is None,
        device=how.device,
    )
    sources = {split: dataclasses.replace(source, split=split) for split in splits}
    data_of = {split: networks.load_rows(own, network.likelihood) for split, own in sources.items()}
    runs.check_saves(plan, data_of, seeds)
    rows = data_of[splits[0]]
    models = plan.models(rows, seeds[0])
    plan = dataclasses.replace(plan, engines=fits.in_batches(plan.engines, models, rows.train))
    check_and_describe(context, how, rows, models, network, compared.out, saves.checkpoint)
    whole: Comparison | RepeatedComparison
    with alone(compared.out):
        if num_runs > 1:
            whole, out, unwritten = runs.run_all(
                plan, data_of, seeds, compared.out, num_processes=processes
            )
            lost = runs.lost_lines(whole.runs)
            files = ["runs.csv", *(f"{run.folder}/index.html" for run in whole.runs if run.methods)]
        else:
            done = plan.run(models, rows, seeds[0], compared.out, num_processes=processes)
            whole, out, unwritten = done.comparison, done.folder, [done.why] if done.why else []
            lost = [f"{name}: {reason}" for name, reason in done.lost.items()]
            draws = file_names(whole.posteriors).values()
            files = ["verdicts.json", *(f"{name}.nc" for name in draws)]
    files = [] if out is None else ["index.html", "table.csv", *files]
    yield Found(
        text=f"\n{whole.summary()}\n",
        document=lambda: document_of(whole),
        files=[path for file in files if (path := Path(out or "", file)).exists()],
        warnings=lambda: warnings_of(whole),
    )
    if unwritten:
        raise OutputError("; ".join([*unwritten, *lost]))
    if lost:
        raise DivergenceError("; ".join(lost))
