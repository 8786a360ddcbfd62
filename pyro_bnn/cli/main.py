"""The command ``pyro-bnn``: one function a command, each a thin call of the library."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import gc
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from pyro_bnn import __version__
from pyro_bnn.cli import options as opt
from pyro_bnn.cli.config_file import with_file
from pyro_bnn.cli.results import ANY, Found, UnwantedError
from pyro_bnn.cli.saves import Saves, check, more_to_go_on
from pyro_bnn.cli.terminal import (
    FAILURE,
    PROGRAM,
    UNWANTED,
    USAGE,
    USAGE_ERROR,
    WIDTH,
    fail,
    plain_notes,
    refuse_idle,
    usage,
    write_standard,
)
from pyro_bnn.errors import (
    BNNError,
    DataError,
    DivergenceError,
    FileFormatError,
    OptionError,
    OutputError,
    ShapeError,
)

# torch and all that needs it are imported by the commands: --help and a mistyped option are instant

FAILURES = (DataError, DivergenceError, FileFormatError, OutputError, ShapeError)
"""What may go wrong with a command that is right."""
INTERRUPTED = 130
COLLECT_AFTER = 50_000  # objects made, in place of 700

AGAINST = (ANY, "refit", "unchecked", "function", "predictions")
"""What --fail-on names: any warning, or what a rule of the report speaks against."""

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)
command = functools.partial(app.command, cls=opt.GroupedCommand)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Errors of usage, such as an option that does not suit the method, become one line and exit code
    2; those of data, files, disks and fits that diverge one line and 1; a verdict that --fail-on
    names one line and 3; Ctrl-C one line, on how a run that was saved goes on, and 130; any other
    exception is a bug and keeps its traceback.

    Args:
        args: Arguments after the program's name; by default those of the process.

    Returns:
        The exit code.
    """
    if args is None:
        _collect_less()
    args = sys.argv[1:] if args is None else list(args)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # no terminal's encoding may end a long run
            stream.reconfigure(errors="replace")
    program: Any = typer.main.get_command(app)
    try:
        if args and (chosen := program.commands.get(args[0])):
            args = [args[0], *with_file(args[1:], args[0], opt.takes(chosen))]
        obj = shlex.join([PROGRAM, *args])
        with plain_notes():
            code = program.main(args, prog_name=PROGRAM, standalone_mode=False, obj=obj)
    except BNNError as error:
        is_failure = type(error) is BNNError or isinstance(error, FAILURES)  # a process that ended
        return fail(str(error), FAILURE if is_failure else USAGE)
    except UnwantedError as error:
        return fail(str(error), UNWANTED)
    except USAGE_ERROR as error:
        return fail(usage(error), USAGE)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code != INTERRUPTED:
        return int(code or 0)
    return fail(f"interrupted{_how_to_go_on(args)}", code)


def _collect_less() -> None:
    """Collect garbage seldom: 300,000 objects of imports stay to the end, and end with it."""
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)


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
    """Bayesian neural networks in Pyro: fit them in many ways, and see which posterior to trust.

    Exit codes: 2 where an option does not do, 1 where data, a file, a disk or a fit fails, 3 where
    there is a verdict that --fail-on names, and 130 after Ctrl-C.
    """
    if version:
        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


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
    """
    compared.start_server(how)

    import torch

    from pyro_bnn.cli import fits, networks, runs
    from pyro_bnn.cli.methods import find_methods, find_reference
    from pyro_bnn.report.output.names import file_names

    # All that can fail early does so before the first fit
    found = find_methods(compared.methods)
    judge = find_reference(compared.reference, found)
    engines = how.engines(context, found)
    splits = runs.one_or_several(context, "split", compared.splits)
    seeds = runs.one_or_several(context, "seed", compared.seeds)
    num_runs = len(splits) * len(seeds)
    processes = runs.number_of_jobs(
        compared.num_jobs,
        engines,
        num_runs,
        how.threads,
        is_here=compared.backend is None,
        device=how.device,
    )
    sources = {split: dataclasses.replace(source, split=split) for split in splits}
    data_of = {split: networks.load_rows(own, network.likelihood) for split, own in sources.items()}
    plan = runs.Plan(
        methods=found,
        engines=engines,
        choice=network,
        reference=judge,
        progress=how.progress,
        say=how.say,
        command=context.obj,
        device=how.device,
        saves=saves,
        notes=plain_notes,
        backend=compared.make_backend(),
    )
    runs.check_saves(plan, data_of, seeds)
    rows = data_of[splits[0]]
    models = plan.models(rows, seeds[0])
    plan = dataclasses.replace(plan, engines=fits.in_batches(engines, models, rows.train))
    networks.check_layers(context, models)
    _check_writable(compared.out, saves.checkpoint)
    for line in networks.describe(rows, models, network):
        how.say(line)
    torch.set_num_threads(how.threads)
    if num_runs > 1:
        repeated = runs.run_all(plan, data_of, seeds, compared.out, num_processes=processes)
        whole: Any = repeated
        lost = runs.lost_lines(repeated.runs)
        files = ["runs.csv", *(f"{run.folder}/index.html" for run in repeated.runs if run.methods)]
    else:
        one, without = plan.run(models, rows, seeds[0], compared.out, num_processes=processes)
        whole, lost = one, [f"{name}: {why}" for name, why in without.items()]
        files = ["verdicts.json", *(f"{name}.nc" for name in file_names(one.posteriors).values())]
    yield Found(
        text=f"\n{whole.summary()}\n",
        document=lambda: _of_comparison(whole),
        files=[compared.out / file for file in ("index.html", "table.csv", *files)],
        warnings=lambda: _warnings(whole),
    )
    if lost:
        raise DivergenceError("; ".join(lost))


@command(short_help="Make the report of saved ArviZ files again, or of files of several runs.")
@opt.spread(fails_on=AGAINST)
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
    reported: opt.Reported,
) -> Iterator[Found]:
    """Compare posteriors that were saved as ArviZ NetCDF files; nothing is fitted anew.

    FOLDER gets index.html, table.csv and verdicts.json, with the numbers of the comparison that
    wrote the files. A file holds predictions at its held-out rows only, so there is no predictive
    band.
    """
    from pyro_bnn.report import compare_files
    from pyro_bnn.report.saved.compare_files import named_files

    named = named_files(files)
    _check_writable(reported.out)
    comparison = compare_files(named, reference=reported.reference)
    comparison.save(reported.out, command=context.obj, with_draws=False)
    yield Found(
        text=f"{comparison.summary()}\n",
        document=lambda: _of_comparison(comparison),
        files=[reported.out / name for name in ("index.html", "table.csv", "verdicts.json")],
        warnings=lambda: _warnings(comparison),
    )


@command(short_help="Fit a network by one method and save it, to predict new rows.")
@opt.spread(fails_on=(ANY,))
def fit(
    context: typer.Context,
    source: opt.Source,
    fitted: opt.Fitted,
    network: opt.NetworkOptions,
    how: opt.FitOptions,
    saves: Saves,
) -> Iterator[Found]:
    """Fit a Bayesian network by one method, and save it for 'pyro-bnn predict'.

    The training rows of the split are fitted, and the held-out rows scored in the units of the
    data; --all-rows fits all. What speaks against convergence is printed, and how much the checks
    could have seen; silence proves nothing, and compare has more checks. FOLDER gets
    posterior.safetensors, fit.json and training.safetensors, which holds the inputs of the training
    rows (of more than 10,000 a random sample) to measure new rows to. A run that was stopped goes
    on with --checkpoint and --resume, on one machine to the same numbers.
    """
    import torch

    from pyro_bnn.cli import fits, networks, saved_fit
    from pyro_bnn.cli.methods import find_one
    from pyro_bnn.data.split import all_rows

    found = find_one(fitted.method)
    engines = how.engines(context, found)
    check(saves, [saves])
    if fitted.all_rows:
        refuse_idle(context, {"split": "split", "max_rows": "max_rows"}, {"--all-rows": None})
    loaded = networks.load_rows(source, network.likelihood)
    columns = saved_fit.input_columns(source.data, source.target, loaded)
    rows = all_rows(loaded) if fitted.all_rows else loaded
    plans = networks.make_networks(found, rows, network, how.seed)
    models = networks.build_models(plans, how.device)
    engines = fits.in_batches(engines, models, rows.train)
    networks.check_layers(context, models)
    fits.check_starts(engines, models, rows.train)
    _check_writable(fitted.out, saves.checkpoint)
    for line in networks.describe(rows, models, network, all_rows=fitted.all_rows):
        how.say(line)
    torch.set_num_threads(how.threads)
    posteriors, _ = fits.fit_all(
        engines,
        models,
        rows,
        seed=how.seed,
        progress=how.progress,
        say=how.say,
        saves=dict.fromkeys(engines, saves),
    )
    ((name, posterior),) = posteriors.items()
    done = saved_fit.SavedFit.of(
        posterior, plans[name], columns, rows, all_rows=fitted.all_rows, command=context.obj
    )
    done.save(fitted.out)
    verdicts = fits.convergence(name, posterior, rows, how.seed)
    words = [verdict.text for verdict in verdicts]
    yield Found(
        text="\n".join([done.summary(), *words]),
        document=lambda: {"method": name, "held_out": done.held_out, "convergence": words},
        files=[fitted.out / file for file in saved_fit.FILES],
        warnings=lambda: [(ANY, verdict.text) for verdict in verdicts if verdict.is_warning],
    )


@command(short_help="Predict the rows of a CSV file from a saved fit.")
@opt.spread()
def predict(
    context: typer.Context,
    new: Annotated[
        Path,
        typer.Argument(
            metavar="NEW.csv",
            help="CSV or TSV file with the input columns of the fit, in any order; the target may "
            "be there or not. - is standard input.",
        ),
    ],
    predicted: opt.Predicted,
) -> Iterator[Found]:
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
    training rows, both under the draws of the fit's own seed; a guide's draws are others on another
    device. Above the largest value of a training row, which is printed, do not trust it. It is
    one-sided, a small value proves nothing: in a gap of the data, or far from them, it can be below
    1. Where NEW.csv has the target, the predictions are scored.
    """
    import pandas as pd

    from pyro_bnn.cli import predict_file as predictions
    from pyro_bnn.cli.saved_fit import SavedFit
    from pyro_bnn.data.tables import STANDARD

    out, is_standard = predicted.out, predicted.out == STANDARD
    if is_standard and context.params["as_json"]:
        raise OptionError("--json and --out - both write to standard output: leave one out")
    if not is_standard:
        predictions.check_out(out, new)
    saved = SavedFit.load(predicted.posterior, predicted.device)
    found = predictions.predict_file(
        saved, new, level=predicted.level, num_samples=predicted.samples, seed=predicted.seed
    )
    if is_standard:
        write_standard(found.text)
    else:
        predictions.write_predictions(found, out, new)
    words = list(found.summary())
    if is_standard:
        for line in words:
            typer.echo(line, err=True)
        return
    yield Found(
        text="\n".join(words),
        document=lambda: {"rows": pd.DataFrame(found.columns), "summary": words},
        files=[out],
    )


@command(short_help="Judge classifiers on corrupted, unknown and attacked images too.")
@opt.spread(unlisted=("seed",))
def trust(
    context: typer.Context,
    source: opt.Source,
    trusted: opt.Trusted,
    network: opt.NetworkOptions,
    how: opt.FitOptions,
) -> Iterator[Found]:
    """Fit a classifier by several methods and ask of each what its probabilities are worth.

    On the held-out images: log score, calibration beside its floor, rejection. With --corrupt the
    same under corruption, the noise of an image the same for every method; with --ood how well
    uncertainty tells images of another data set; with --attack what a step against the prediction
    does, beside one of random signs. Numbers have standard errors over images, paired
    against the best method, and over seeds where --seeds names several. Methods are ranked by the
    log score alone.

    FOLDER gets index.html and the tables as CSV files.
    """
    import torch

    from pyro_bnn.cli import fits, networks, runs
    from pyro_bnn.cli.methods import comma_parts, find_methods
    from pyro_bnn.data import load
    from pyro_bnn.report import trust as judge
    from pyro_bnn.report.beyond.trust import check_trust

    found = find_methods(trusted.methods)
    engines = how.engines(context, found)
    seeds = runs.one_or_several(context, "seed", trusted.seeds)
    severities = [] if trusted.corrupt is None else runs.numbers(trusted.corrupt, "--corrupt")
    example = "kinds are names separated by commas, such as rotate,jpeg"
    kinds = None if trusted.kinds is None else comma_parts(trusted.kinds, example)
    rows = networks.load_rows(source, network.likelihood)
    unknown = None if trusted.ood is None else load(trusted.ood)
    asked: dict[str, Any] = {
        "ood": unknown,
        "corruptions": severities,
        "kinds": kinds,
        "scale": trusted.scale,
        "attack": trusted.attack,
    }
    check_trust(rows, **asked)
    plan = runs.Plan(
        methods=found,
        engines=engines,
        choice=network,
        reference=None,
        progress=how.progress,
        say=how.say,
        command=context.obj,
        device=how.device,
        notes=plain_notes,
    )
    models = {seed: plan.models(rows, seed) for seed in seeds}
    engines = fits.in_batches(engines, models[seeds[0]], rows.train)
    plan = dataclasses.replace(plan, engines=engines)
    networks.check_layers(context, models[seeds[0]])
    _check_writable(trusted.out)
    for line in networks.describe(rows, models[seeds[0]], network):
        how.say(line)
    torch.set_num_threads(how.threads)
    posteriors: dict[str, list[Any]] = {}
    lost: list[str] = []
    for seed in seeds:
        fitted, without = plan.fit(models[seed], rows, seed, say=how.say)
        lost += [f"{name}, seed {seed}: {why}" for name, why in without.items()]
        for name, posterior in fitted.items():
            posteriors.setdefault(name, []).append(posterior)
    how.say("Judging ...")
    page = judge(
        posteriors,
        rows,
        **asked,
        num_samples=trusted.draws,
        num_rows=trusted.rows,
        seed=seeds[0],
    )
    page.save(trusted.out, command=context.obj)
    yield Found(
        text=f"\n{page.summary()}\n",
        document=lambda: {
            name: getattr(page, name)
            for name in ("table", "shifted", "by_condition", "unknown", "attacked")
        },
        files=[trusted.out / "index.html"],
    )
    if lost:
        raise DivergenceError("; ".join(lost))


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
    import torch

    from pyro_bnn.cli import networks
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
    networks.check_layers(context, models)
    _check_writable(simulated.out)
    x = loaded.train.x[: simulated.rows]
    how.say(f"Data:  inputs of {len(x):,} training rows of {loaded.name}; targets are simulated")
    for line in list(networks.describe(loaded, models, network))[2:]:  # after data and task
        how.say(line)
    torch.set_num_threads(how.threads)
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


@command(name="prior", short_help="Draw the functions that priors believe in.")
@opt.spread(without=("max_rows",), data=opt.INPUTS, prior=opt.PRIORS)
def draw_prior(
    context: typer.Context, source: opt.Source, network: opt.NetworkOptions, drawn: opt.Drawn
) -> Iterator[Found]:
    """Draw the functions that a network believes in before it sees data, for one or several priors.

    FILE shows draws of the first network output f along a line of inputs, with its median and
    central 50 % and 95 % bands, and the histogram of f in the middle of that line: its tail index
    is 1 for Cauchy tails, and shows as 4 or more for Gaussian ones. Inputs and f are standardised:
    the targets of the data would have a standard deviation of one.
    """
    from pyro_bnn.cli import networks
    from pyro_bnn.cli.methods import Method, comma_parts
    from pyro_bnn.data import Dataset, Split
    from pyro_bnn.diagnostics.simulation.prior_predictive import prior_predictive
    from pyro_bnn.registry import lookup
    from pyro_bnn.report.plots import prior as figures

    if source.data:
        loaded = networks.load_rows(source, network.likelihood)
    else:
        refuse_idle(context, {"target": "", "task": "", "split": ""}, {"a line without data": None})
        rows = Dataset([[-2.0], [2.0]], [-1.0, 1.0])
        loaded = Split(rows, rows, "regression", "one input from -2 to 2")
    expected = "priors are names separated by commas, such as normal,cauchy"
    names = [lookup("prior", name).__name__ for name in comma_parts(network.prior or "", expected)]
    methods = {name: Method(object, name) for name in names}
    network = dataclasses.replace(network, prior=None)
    models = networks.build_models(networks.make_networks(methods, loaded, network, drawn.seed))
    networks.check_layers(context, models)
    figures.check_picture(drawn.out)
    for line in list(networks.describe(loaded, models, network))[0 if source.data else 2 :]:
        typer.echo(line)
    lines = figures.lines(loaded.train.x, drawn.along, loaded.train.input_names)
    found = {
        name: prior_predictive(model, lines[0].x, drawn.draws, drawn.seed)
        for name, model in models.items()
    }
    middles = {name: figures.middle(functions, lines[0]) for name, functions in found.items()}
    words = [figures.describe_middle(name, own) for name, own in middles.items()]
    figures.save_picture(figures.prior_functions(found, lines), drawn.out)
    yield Found(
        text="\n".join(["", *words, ""]),
        document=lambda: {
            name: {k: v for k, v in own._asdict().items() if k != "values"}
            for name, own in middles.items()
        },
        files=[drawn.out],
    )


@command(name="list", short_help="Print the names of all there is.")
@opt.spread()
def list_names() -> Iterator[Found]:
    """Print guides, engines, priors, likelihoods, models and data sets, a line each."""
    from pyro_bnn.cli.catalogue import catalogue, listing

    lines = listing(min(shutil.get_terminal_size().columns, WIDTH))
    yield Found(text="\n".join(lines), document=catalogue)


def _check_writable(*folders: Path | None) -> None:
    """Refuse folders that cannot be written to, before the first fit."""
    from pyro_bnn.report import check_writable

    for folder in folders:
        if folder is not None:
            check_writable(folder)


def _warnings(whole: Any) -> list[tuple[str, str]]:
    """The warnings of a comparison, or of several, each with what it speaks against."""
    from pyro_bnn.report.verdicts.verdicts import RULES

    against = {rule.kind: rule.against for rule in RULES}
    return [(against.get(v.kind, ""), v.text) for v in whole.findings if v.is_warning]


def _of_comparison(whole: Any) -> dict[str, Any]:
    """The table of a comparison, or of several, with the verdicts."""
    from pyro_bnn.report import Comparison
    from pyro_bnn.report.output.verdict_file import verdict_document

    if isinstance(whole, Comparison):
        return {"table": whole.table, **verdict_document(whole)}
    return {"table": whole.table, "runs": whole.all_rows, "verdicts": whole.verdicts}
