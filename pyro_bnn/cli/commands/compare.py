"""``pyro-bnn compare``: several methods on the same rows, and their report."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer

from pyro_bnn.cli.app import AGAINST, command
from pyro_bnn.cli.option_groups import option, spread
from pyro_bnn.cli.options import DataOptions, FitOptions, NetworkOptions
from pyro_bnn.cli.results import Result, document_of, warnings_of
from pyro_bnn.cli.saves import Saves
from pyro_bnn.errors import BNNError


@dataclass(frozen=True, kw_only=True)
class CompareOptions:
    """What 'pyro-bnn compare' compares, and where its report goes."""

    methods: str = option(
        "Guides (fitted by SVI) and samplers of 'pyro-bnn list'; unambiguous abbreviations such as "
        "auto-low-rank will do. NAME:OPTION=VALUE, such as auto-low-rank:rank=5 or "
        "laplace:structure=kron:num_steps=2000, sets options of that method; NAME@PRIOR, such as "
        "nuts@half-cauchy-scale, is that method on a network with that prior.",
        ...,
        metavar="NAME,NAME,...",
    )
    out: Path = option("Folder of the report; made where it does not exist.", Path("report"))
    reference: str | None = option(
        "Method that the others are measured against; auto looks for one beside them, by MAMS, "
        "NUTS and longer chains in turn, until the checks of the report pass or 600 s are over, or "
        "those of auto:seconds=120.",
        metavar="NAME|auto",
        shown="nuts where it is one of several methods, else none",
    )
    splits: str = option(
        "Splits of the data, such as 0-4 or 0,3,7: of several a report for each, and one over all.",
        "0",
        metavar="K-K|K,K,...",
    )
    seeds: str = option("Seeds on each split, such as 0-2 or 0,1,2.", "0", metavar="N-N|N,N,...")
    num_jobs: int | None = option(
        "Fits at a time, or runs over splits and seeds where there are several, each in a process "
        "of its own with the threads of --threads; the numbers are the same.",
        spelt="--jobs",
        shown="the cores, where that saves more than the processes take to begin; 1 on a GPU",
        min=1,
    )
    backend: str | None = option(
        "What does them in place of processes that this command starts, a backend of joblib: dask, "
        "the workers of DASK_SCHEDULER_ADDRESS or of a cluster started here, ray, or loky. Workers "
        "write --out and --checkpoint, on a disk of all; a fit whose worker is lost goes on "
        "elsewhere from its checkpoint.",
        shown="processes here",
    )


LONG = 5_000  # steps of fits that go side by side


@command(short_help="Fit one network by several methods, compare them, write a report.")
@spread(unlisted=("split", "seed"), fails_on=AGAINST)
def compare(
    context: typer.Context,
    source: DataOptions,
    options: CompareOptions,
    network: NetworkOptions,
    how: FitOptions,
    saves: Saves,
) -> Iterator[Result]:
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
    start_server(options, how)

    from pyro_bnn.cli import fits, many_runs, networks
    from pyro_bnn.cli.before_fits import check_and_describe
    from pyro_bnn.cli.jobs import number_of_jobs
    from pyro_bnn.cli.kept import locked_folder
    from pyro_bnn.cli.methods import find_methods, find_reference
    from pyro_bnn.cli.number_lists import one_or_several
    from pyro_bnn.cli.runs import RunOutcome, RunPlan
    from pyro_bnn.infer.parallel.tasks import backend

    # All that can fail early does so before the first fit
    methods, elsewhere = find_methods(options.methods), options.backend
    plan = dataclasses.replace(
        RunPlan.of(context, methods, network, how),
        reference=find_reference(options.reference, methods),
        saves=saves,
        backend=None if elsewhere is None else partial(backend, elsewhere, options.num_jobs),
    )
    fits.check_draws(plan.engines)
    splits = one_or_several(context, "split", options.splits)
    seeds = one_or_several(context, "seed", options.seeds)
    num_runs = len(splits) * len(seeds)
    processes = number_of_jobs(
        options.num_jobs,
        plan.engines,
        num_runs,
        how.threads,
        is_here=elsewhere is None,
        device=how.device,
    )
    sources = {split: dataclasses.replace(source, split=split) for split in splits}
    data_of = {split: networks.load_rows(one, network.likelihood) for split, one in sources.items()}
    many_runs.check_saves(plan, data_of, seeds)
    rows = data_of[splits[0]]
    models = plan.models(rows, seeds[0])
    plan = dataclasses.replace(plan, engines=fits.in_batches(plan.engines, models, rows.train))
    check_and_describe(context, how, rows, models, network, options.out, saves.checkpoint)
    done: RunOutcome | many_runs.RunsOutcome
    own = locked_folder(options.out, can_go_on=bool(saves.checkpoint))
    with own as fits_folder, saves.alone(fits_folder):
        if num_runs > 1:
            done = many_runs.run_all(plan, data_of, seeds, options.out, num_processes=processes)
        else:
            done = plan.run(models, rows, seeds[0], options.out, num_processes=processes)
    files = [] if done.folder is None else [done.folder / file for file in done.files]
    yield Result(
        text=f"\n{done.comparison.summary()}\n",
        document=lambda: document_of(done.comparison),
        files=[path for path in files if path.exists()],
        warnings=lambda: warnings_of(done.comparison),
    )
    if done.failures:
        raise BNNError("; ".join(done.failures))


def start_server(options: CompareOptions, how: FitOptions) -> None:
    """Start importing for fits that are likely to go side by side."""
    from pyro_bnn.cli import fork_server  # which --help does without

    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    is_long = how.steps is None or how.steps >= LONG
    default = cores // how.threads if is_long and how.device == "cpu" else 1
    is_one_run = options.splits.isdigit() and options.seeds.isdigit()
    is_one_fit = is_one_run and "," not in options.methods
    if options.backend is None and not is_one_fit and (options.num_jobs or default) > 1:
        fork_server.start(how.threads)
