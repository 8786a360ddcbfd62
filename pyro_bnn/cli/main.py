"""The command ``pyro-bnn``: one function a command, each a thin call of the library."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pyro_bnn import __version__
from pyro_bnn.cli import options as opt
from pyro_bnn.cli.saves import CheckpointOption, ResumeOption, Saves, check, more_to_go_on
from pyro_bnn.cli.terminal import (
    PROGRAM,
    USAGE_ERROR,
    WIDTH,
    fail,
    given,
    plain_notes,
    refuse_idle,
    usage,
    write_standard,
)
from pyro_bnn.errors import BNNError, DivergenceError, OptionError

if TYPE_CHECKING:
    from pyro_bnn.cli.methods import Method

# torch and all that needs it are imported by the commands: --help and a mistyped option are instant

INTERRUPTED = 130

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Errors of this package and of usage become one line and exit code 2, Ctrl-C one line, on how a
    run that was saved goes on, and 130; any other exception is a bug and keeps its traceback.

    Args:
        args: Arguments after the program's name; by default those of the process.

    Returns:
        The exit code.
    """
    args = sys.argv[1:] if args is None else list(args)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # no terminal's encoding may end a long run
            stream.reconfigure(errors="replace")
    command = typer.main.get_command(app)
    obj = shlex.join([PROGRAM, *args])
    try:
        with plain_notes():
            code = command.main(args, prog_name=PROGRAM, standalone_mode=False, obj=obj)
    except BNNError as error:
        return fail(str(error))
    except USAGE_ERROR as error:
        return fail(usage(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code != INTERRUPTED:
        return int(code or 0)
    return fail(f"interrupted{_how_to_go_on(args)}", code)


def _how_to_go_on(args: Sequence[str]) -> str:
    """What to do after a command that was stopped, so that it, or the next one, goes on."""
    more = more_to_go_on(args)
    if more is not None:
        return f"; to go on: {shlex.join([PROGRAM, *args, *more])}"
    has_it = list(args[:1]) in (["compare"], ["fit"])
    return "; with --checkpoint FOLDER a run can go on" if has_it else ""


@app.callback(invoke_without_command=True)
def pyro_bnn(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Bayesian neural networks in Pyro: fit them in many ways, and see which posterior to trust."""
    if version:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(short_help="Fit one network by several methods, compare them, write a report.")
def compare(
    context: typer.Context,
    data: opt.DataOption,
    methods: opt.MethodsOption,
    out: opt.ReportFolderOption = Path("report"),
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Method that the others are measured against.",
            show_default="nuts where it is one of several methods, else none",
        ),
    ] = None,
    target: opt.TargetOption = None,
    task: opt.TaskOption = None,
    split: opt.SplitOption = 0,
    splits: opt.SplitsOption = None,
    max_rows: opt.MaxRowsOption = None,
    model: opt.ModelOption = None,
    prior: opt.PriorOption = None,
    likelihood: opt.LikelihoodOption = None,
    hidden: opt.HiddenOption = "50",
    activation: opt.ActivationOption = "relu",
    depth: opt.DepthOption = None,
    width: opt.WidthOption = None,
    estimator: opt.EstimatorOption = None,
    steps: opt.StepsOption = 10_000,
    batch_size: opt.BatchSizeOption = None,
    chains: opt.ChainsOption = 4,
    warmup: opt.WarmupOption = 300,
    samples: opt.SamplesOption = 300,
    seed: opt.SeedOption = 0,
    seeds: opt.SeedsOption = None,
    checkpoint: CheckpointOption = None,
    resume: ResumeOption = False,
    threads: opt.ThreadsOption = 1,
    num_jobs: opt.JobsOption = None,
    quiet: opt.QuietOption = False,
) -> None:
    """Fit one Bayesian network by several methods, compare them, and write a report.

    The network is a multilayer perceptron, where nothing else is said with ReLU units and a fan-in
    Gaussian prior; its likelihood follows the task: Normal of learned scale, Bernoulli for two
    classes, Categorical for more. Methods of one model and prior share one network. FOLDER gets
    index.html, table.csv and one ArviZ NetCDF file for each method.

    With several splits or seeds FOLDER gets a folder split-K-seed-S with these files for each, and
    index.html and table.csv over all: means with their errors over splits, paired differences.
    Runs, or the fits of a single one, go side by side, a process on each core, where they are long.

    --checkpoint saves each method in a folder of its own: with --resume those that were done are
    not fitted again, and the one that was stopped goes on, on one machine to the same numbers.
    """
    import torch

    from pyro_bnn.cli import networks
    from pyro_bnn.cli import runs as repeats
    from pyro_bnn.cli.methods import find_methods, find_reference
    from pyro_bnn.data import load
    from pyro_bnn.report import check_writable
    from pyro_bnn.report.output.names import file_names

    # All that can fail early does so before the first fit
    found = find_methods(methods)
    judge = find_reference(reference, found)
    engines = _engines(
        context, found, steps, batch_size, chains, warmup, samples, estimator=estimator
    )
    numbers = repeats.one_or_several(split, splits, "split", given=given(context, "split"))
    all_seeds = repeats.one_or_several(seed, seeds, "seed", given=given(context, "seed"))
    num_runs = len(numbers) * len(all_seeds)
    processes = repeats.number_of_jobs(num_jobs, engines, num_runs, threads)
    what = networks.task_of(task, likelihood)
    data_of = {number: load(data, target=target, task=what, split=number) for number in numbers}
    if max_rows is not None:
        data_of = {number: rows.first(max_rows) for number, rows in data_of.items()}
    choice = networks.NetworkOptions(
        model=model,
        prior=prior,
        likelihood=likelihood,
        hidden=hidden,
        activation=activation,
        depth=depth,
        width=width,
    )
    say = _nothing if quiet else typer.echo
    plan = repeats.Plan(
        methods=found,
        engines=engines,
        choice=choice,
        reference=judge,
        progress=not quiet and sys.stderr.isatty(),
        say=say,
        command=context.obj,
        saves=Saves(checkpoint, resume),
        notes=plain_notes,
    )
    repeats.check_saves(plan, data_of, all_seeds)
    rows = data_of[numbers[0]]
    models = plan.models(rows, all_seeds[0])
    _check_layers(context, models)
    check_writable(out)
    if checkpoint is not None:
        check_writable(checkpoint)
    for line in networks.describe(rows, models, choice):
        say(line)
    torch.set_num_threads(threads)
    if num_runs > 1:
        repeated = repeats.run_all(plan, data_of, all_seeds, out, num_processes=processes)
        typer.echo(f"\n{repeated.summary()}\n")
        folders = [f"{run.folder}/index.html" for run in repeated.runs if run.methods]
        files = ["index.html", "table.csv", "runs.csv", *folders]
        lost = repeats.lost_lines(repeated.runs)
    else:
        comparison, without = plan.run(models, rows, all_seeds[0], out, num_processes=processes)
        typer.echo(f"\n{comparison.summary()}\n")
        trees = [f"{name}.nc" for name in file_names(comparison.posteriors).values()]
        files = ["index.html", "table.csv", *trees]
        lost = [f"{name}: {why}" for name, why in without.items()]
    for file in files:
        typer.echo(f"Wrote {out / file}")
    if lost:
        raise DivergenceError("; ".join(lost))


@app.command(short_help="Make the report of saved ArviZ files again, or of files of several runs.")
def report(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="NetCDF files of 'pyro-bnn compare' or of posterior.to_arviz(train, test), of the "
            "same data and split. NAME=FILE names a method; files of equal names need it.",
            show_default=False,
        ),
    ],
    out: opt.ReportFolderOption = Path("report"),
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Method that the others are measured against.",
            show_default="that of the comparison which wrote the files, else nuts where one of "
            "several files is",
        ),
    ] = None,
) -> None:
    """Compare posteriors that were saved as ArviZ NetCDF files; nothing is fitted anew.

    FOLDER gets index.html and table.csv, with the numbers of the comparison that wrote the files.
    A file holds predictions at its held-out rows only, so there is no predictive band.
    """
    from pyro_bnn import report as reports
    from pyro_bnn.files.atomic import write_text
    from pyro_bnn.report.saved.compare_files import named_files

    named = named_files(files)
    reports.check_writable(out)
    comparison = reports.compare_files(named, reference=reference)
    write_text(out / "table.csv", comparison.table.to_csv())
    comparison.to_html(out / "index.html", command=context.obj)
    typer.echo(f"{comparison.summary()}\n")
    for name in ("index.html", "table.csv"):
        typer.echo(f"Wrote {out / name}")


@app.command(short_help="Fit a network by one method and save it, to predict new rows.")
def fit(
    context: typer.Context,
    data: opt.DataOption,
    method: opt.MethodOption,
    out: opt.FitFolderOption = Path("fit"),
    target: opt.TargetOption = None,
    task: opt.TaskOption = None,
    split: opt.SplitOption = 0,
    all_rows: opt.AllRowsOption = False,
    max_rows: opt.MaxRowsOption = None,
    model: opt.ModelOption = None,
    prior: opt.PriorOption = None,
    likelihood: opt.LikelihoodOption = None,
    hidden: opt.HiddenOption = "50",
    activation: opt.ActivationOption = "relu",
    depth: opt.DepthOption = None,
    width: opt.WidthOption = None,
    estimator: opt.EstimatorOption = None,
    steps: opt.StepsOption = 10_000,
    batch_size: opt.BatchSizeOption = None,
    chains: opt.ChainsOption = 4,
    warmup: opt.WarmupOption = 300,
    samples: opt.SamplesOption = 300,
    seed: opt.SeedOption = 0,
    checkpoint: CheckpointOption = None,
    resume: ResumeOption = False,
    threads: opt.ThreadsOption = 1,
    quiet: opt.QuietOption = False,
) -> None:
    """Fit a Bayesian network by one method, and save it for 'pyro-bnn predict'.

    The training rows of the split are fitted, and the held-out rows scored in the units of the
    data; --all-rows fits all. FOLDER gets posterior.safetensors, fit.json and training.safetensors,
    which holds the inputs of the training rows (of more than 10,000 a random sample) to measure new
    rows to. A run that was stopped goes on with --checkpoint and --resume, on one machine to the
    same numbers.
    """
    import torch

    from pyro_bnn.cli import fits, networks, saved_fit
    from pyro_bnn.cli.methods import find_one
    from pyro_bnn.data import load
    from pyro_bnn.report import check_writable

    found = find_one(method)
    engines = _engines(
        context, found, steps, batch_size, chains, warmup, samples, estimator=estimator
    )
    saves = Saves(checkpoint, resume)
    check(saves, [saves])
    if all_rows:
        refuse_idle(context, {"split": "split", "max_rows": "max_rows"}, {"--all-rows": None})
    loaded = load(data, target=target, task=networks.task_of(task, likelihood), split=split)
    loaded = loaded if max_rows is None else loaded.first(max_rows)
    columns = saved_fit.input_columns(data, target, loaded)
    rows = saved_fit.all_rows(loaded) if all_rows else loaded
    choice = networks.NetworkOptions(
        model=model,
        prior=prior,
        likelihood=likelihood,
        hidden=hidden,
        activation=activation,
        depth=depth,
        width=width,
    )
    plans = networks.make_networks(found, rows, choice, seed)
    models = networks.build_models(plans)
    _check_layers(context, models)
    fits.check_starts(engines, models)
    fits.check_estimators(engines, models, rows.train)
    check_writable(out)
    if checkpoint is not None:
        check_writable(checkpoint)
    say = _nothing if quiet else typer.echo
    for line in networks.describe(rows, models, choice, all_rows=all_rows):
        say(line)
    torch.set_num_threads(threads)
    posteriors, _ = fits.fit_all(
        engines,
        models,
        rows,
        seed=seed,
        progress=not quiet and sys.stderr.isatty(),
        say=say,
        saves=dict.fromkeys(engines, saves),
    )
    (name,) = posteriors
    done = saved_fit.SavedFit.of(
        posteriors[name], plans[name], columns, rows, all_rows=all_rows, command=context.obj
    )
    done.save(out)
    typer.echo(done.summary())
    for file in saved_fit.FILES:
        typer.echo(f"Wrote {out / file}")


@app.command(short_help="Predict the rows of a CSV file from a saved fit.")
def predict(
    new: opt.NewRowsArgument,
    posterior: opt.PosteriorOption,
    out: opt.PredictionsOption = Path("predictions.csv"),
    level: opt.LevelOption = 0.95,
    samples: opt.DrawsOption = None,
    seed: opt.SeedOption = 0,
) -> None:
    """Predict the rows of NEW.csv in its own units, with intervals, from a fit of 'pyro-bnn fit'.

    FILE, which replaces earlier predictions but no other file, gets the columns of NEW.csv as they
    are; a device or pipe is written to, and - is standard output, with the words on standard error.
    Then come for numbers predicted_mean, _median, _sd, _low and _high (the ends of the central
    interval), _sd_epistemic (what more data would remove) and _sd_aleatoric (noise), of several
    targets predicted_TARGET_mean and so on for each; for classes predicted_class, predicted_p_CLASS
    for each, _entropy and _mutual_information (what more data would remove), in nats.

    distance_to_training is the Euclidean distance of the row's inputs, in the network's units, to
    the nearest training row, inf where it differs from all of them in a column in which these are
    equal. distance_p_value is the share of rows, this one among them, that are as far from all
    others: of rows like the training rows about 5 % have 0.05 or less, and how many rows do is
    printed. Do not trust the predictions of those. A row that is near can be predicted badly all
    the same, and among many columns one that is far off may be missed.

    The last column, uncertainty_vs_training, is the epistemic uncertainty of the row (sd of the
    network's function over draws; for classes the mutual information) over its median over the
    training rows, both under the draws of the fit's own seed. Above the largest value of a training
    row, which is printed, the network extrapolates. It is one-sided, a small value proves nothing:
    in a gap of the data, or far from them, it can be below 1. Where NEW.csv has the target, the
    predictions are scored.
    """
    from pyro_bnn.cli import predict_file as predictions
    from pyro_bnn.cli.saved_fit import SavedFit
    from pyro_bnn.data.tables import STANDARD

    is_standard = out == STANDARD
    if not is_standard:
        predictions.check_out(out, new)
    saved = SavedFit.load(posterior)
    found = predictions.predict_file(saved, new, level=level, num_samples=samples, seed=seed)
    if is_standard:
        write_standard(found.text)
    else:
        predictions.write_predictions(found, out, new)
    for line in found.summary():
        typer.echo(line, err=is_standard)
    if not is_standard:
        typer.echo(f"Wrote {out}")


@app.command(short_help="Check a method on data simulated from a network's prior.")
def sbc(
    context: typer.Context,
    data: opt.DataOption,
    method: opt.MethodOption = "nuts",
    out: opt.SBCFolderOption = Path("sbc"),
    rows: opt.RowsOption = 40,
    simulations: opt.SimulationsOption = 200,
    draws: opt.RankedDrawsOption = None,
    ranks: opt.RanksOption = False,
    target: opt.TargetOption = None,
    task: opt.TaskOption = None,
    split: opt.SplitOption = 0,
    model: opt.ModelOption = None,
    prior: opt.PriorOption = None,
    likelihood: opt.LikelihoodOption = None,
    hidden: opt.HiddenOption = "5",
    activation: opt.ActivationOption = "relu",
    depth: opt.DepthOption = None,
    width: opt.WidthOption = None,
    estimator: opt.EstimatorOption = None,
    steps: opt.StepsOption = 2_000,
    batch_size: opt.BatchSizeOption = None,
    warmup: opt.WarmupOption = 300,
    samples: opt.SamplesOption = 500,
    seed: opt.SeedOption = 0,
    threads: opt.ThreadsOption = 1,
    quiet: opt.QuietOption = False,
) -> None:
    """Simulation-based calibration: does a method sample the posterior that it says it does?

    Weights are drawn from the prior and targets simulated at inputs of the data, whose own targets
    are not used; the method is run on each simulated data set. The truth is one more draw of the
    right posterior, so its rank among the draws is uniform: a U shape is a posterior too narrow, a
    hump one too wide, a slope a bias. A sampler runs one chain on each.

    A guide with a density is asked for the probability below the true value instead, of functions
    and scales: a U is common, as many guides are too narrow by their nature; where the histogram
    is asymmetric, their means are biased too. --ranks ranks the truth among its draws as well.

    FOLDER gets ranks.png, ranks.csv (a row a simulation) and table.csv, of probabilities
    probabilities.png and probabilities.csv. The exit code says nothing of the verdict.
    """
    import torch

    from pyro_bnn.cli import networks
    from pyro_bnn.cli.methods import find_one
    from pyro_bnn.data import load
    from pyro_bnn.diagnostics import simulation_based_calibration, variational_calibration
    from pyro_bnn.report import check_writable

    found = find_one(method)
    engines = _engines(context, found, steps, batch_size, 1, warmup, samples, estimator=estimator)
    what = networks.task_of(task, likelihood)
    loaded = load(data, target=target, task=what, split=split)
    choice = networks.NetworkOptions(
        model=model,
        prior=prior,
        likelihood=likelihood,
        hidden=hidden,
        activation=activation,
        depth=depth,
        width=width,
    )
    models = networks.build_models(networks.make_networks(found, loaded, choice, seed))
    _check_layers(context, models)
    check_writable(out)
    x = loaded.train.x[:rows]
    say = _nothing if quiet else typer.echo
    say(f"Data:  inputs of {len(x):,} training rows of {loaded.name}; targets are simulated")
    for line in list(networks.describe(loaded, models, choice))[2:]:  # after data and task
        say(line)
    torch.set_num_threads(threads)
    (name,) = engines
    has_density = getattr(found[name].cls, "has_log_prob", False)
    if ranks and not has_density:
        raise OptionError(f"--ranks does nothing for {name}, which has no others: leave it out")
    calibrate: Any = simulation_based_calibration
    if has_density and not ranks:
        calibrate = variational_calibration
    result = calibrate(
        models[name],
        x,
        engines[name],
        num_simulations=simulations,
        **({} if draws is None else {"num_draws": draws}),
        seed=seed,
        progress=not quiet and sys.stderr.isatty(),
    )
    typer.echo(f"\n{result.summary()}\n")
    for path in result.save(out):
        typer.echo(f"Wrote {path}")


@app.command(name="prior", short_help="Draw the functions that priors believe in.")
def draw_prior(
    context: typer.Context,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|PATH",
            help="Data set as in the other commands, of which only the inputs are used.",
            show_default="one input from -2 to 2",
        ),
    ] = None,
    prior: Annotated[
        str,
        typer.Option(metavar="NAME,NAME,...", help="Priors of 'pyro-bnn list', drawn together."),
    ] = "normal",
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="Picture to write: .png, .svg or .pdf.")
    ] = Path("prior.png"),
    along: Annotated[
        Literal["principal", "features"],
        typer.Option(
            help="Of several inputs: along their first principal direction, or along each of the "
            "first eight with the others at 0."
        ),
    ] = "principal",
    target: opt.TargetOption = None,
    task: opt.TaskOption = None,
    split: opt.SplitOption = 0,
    model: opt.ModelOption = None,
    likelihood: opt.LikelihoodOption = None,
    hidden: opt.HiddenOption = "50",
    activation: opt.ActivationOption = "relu",
    depth: opt.DepthOption = None,
    width: opt.WidthOption = None,
    draws: Annotated[
        int, typer.Option(metavar="N", min=400, help="Functions drawn from each prior.")
    ] = 1_000,
    seed: opt.SeedOption = 0,
) -> None:
    """Draw the functions that a network believes in before it sees data, for one or several priors.

    FILE shows draws of the first network output f along a line of inputs, with its median and
    central 50 % and 95 % bands, and the histogram of f in the middle of that line: its tail index
    is 1 for Cauchy tails, and shows as 4 or more for Gaussian ones. Inputs and f are standardised:
    the targets of the data would have a standard deviation of one.
    """
    from pyro_bnn.cli import networks
    from pyro_bnn.cli.methods import Method, comma_parts
    from pyro_bnn.data import Dataset, Split, load
    from pyro_bnn.diagnostics.simulation.prior_predictive import prior_predictive
    from pyro_bnn.registry import lookup
    from pyro_bnn.report.plots import prior as prior_figures

    if data is None:
        refuse_idle(context, {"target": "", "task": "", "split": ""}, {"a line without data": None})
        rows = Dataset([[-2.0], [2.0]], [-1.0, 1.0])
        loaded = Split(rows, rows, "regression", "one input from -2 to 2")
    else:
        loaded = load(data, target=target, task=task, split=split)
    names = comma_parts(prior, "priors are names separated by commas, such as normal,cauchy")
    classes = [lookup("prior", name) for name in names]
    choice = networks.NetworkOptions(
        model=model,
        likelihood=likelihood,
        hidden=hidden,
        activation=activation,
        depth=depth,
        width=width,
    )
    methods = {cls.__name__: Method(object, cls.__name__) for cls in classes}
    models = networks.build_models(networks.make_networks(methods, loaded, choice, seed))
    _check_layers(context, models)
    prior_figures.check_picture(out)
    for line in list(networks.describe(loaded, models, choice))[2 * (data is None) :]:
        typer.echo(line)
    lines = prior_figures.lines(loaded.train.x, along, loaded.train.input_names)
    found = {
        name: prior_predictive(model, lines[0].x, draws, seed) for name, model in models.items()
    }
    typer.echo()
    for name, drawn in found.items():
        typer.echo(prior_figures.describe_middle(name, prior_figures.middle(drawn, lines[0])))
    prior_figures.save_picture(prior_figures.prior_functions(found, lines), out)
    typer.echo(f"\nWrote {out}")


@app.command(name="list", short_help="Print the names of all there is.")
def list_names() -> None:
    """Print guides, engines, priors, likelihoods, models and data sets, a line each."""
    from pyro_bnn.cli.catalogue import listing

    for line in listing(min(shutil.get_terminal_size().columns, WIDTH)):
        typer.echo(line)


def _engines(
    context: typer.Context,
    methods: Mapping[str, Method],
    *values: int | None,
    estimator: str | None,
) -> dict[str, Any]:
    """The engine of each method with values of ``OPTION_WORDS``; what does nothing is refused."""
    from pyro_bnn.cli import fits
    from pyro_bnn.cli.methods import make_engines

    options = dict(zip(fits.OPTION_WORDS, values, strict=True))
    engines = make_engines(methods, options, estimator)
    flags = dict(zip(("steps", "batch_size", "chains", "warmup", "samples"), options, strict=True))
    refuse_idle(context, flags, engines)
    return engines


def _check_layers(context: typer.Context, models: Mapping[str, Any]) -> None:
    """Refuse options of layers that no model has; names those that have them."""
    from pyro_bnn.cli.networks import LAYER_OPTIONS, takes
    from pyro_bnn.registry import entries

    classes = dict.fromkeys(type(model) for model in models.values())
    for option in LAYER_OPTIONS:
        if given(context, option) and not any(takes(cls, option) for cls in classes):
            names = ", ".join(cls.__name__ for cls in classes)
            others = [name for name, cls in entries("model").items() if takes(cls, option)]
            raise OptionError(
                f"--{option} does nothing for {names}: leave it out, or take the model "
                f"{', '.join(others[:-1])} or {others[-1]}"
            )


def _nothing(line: str) -> None:
    """Say nothing of a line, for --quiet."""
