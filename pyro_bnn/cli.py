"""The command ``pyro-bnn``: one function a command, each a thin call of the library."""

from __future__ import annotations

import logging
import shlex
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from pyro_bnn import __version__
from pyro_bnn.errors import BNNError, BNNWarning, DivergenceError, OptionError

# torch and all that needs it are imported by the commands: --help and a mistyped option are instant

PROGRAM = "pyro-bnn"
WIDTH = 100
INTERRUPTED = 130
# UsageError, whose module differs between releases of typer
USAGE_ERROR = cast(type[Exception], typer.BadParameter.__mro__[1])

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDTH},
)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Errors of this package and of usage become one line and exit code 2, Ctrl-C one line and 130;
    any other exception is a bug and keeps its traceback.

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
        with _plain_notes():
            code = command.main(args, prog_name=PROGRAM, standalone_mode=False, obj=obj)
    except BNNError as error:
        return _fail(str(error))
    except USAGE_ERROR as error:
        return _fail(_usage(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    return _fail("interrupted", code) if code == INTERRUPTED else int(code or 0)


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
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            help="Data set of 'pyro-bnn list', or path of a CSV or TSV file with a header, an NPZ "
            "file with arrays x and y, or a folder in the UCI layout.",
        ),
    ],
    methods: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME,...",
            help="Guides (fitted by SVI) and samplers of 'pyro-bnn list'; unambiguous "
            "abbreviations such as auto-low-rank will do.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="FOLDER", help="Folder of the report; made where it does not exist."),
    ] = Path("report"),
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Method that the others are measured against.",
            show_default="nuts where it is one of several methods, else none",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Column of a CSV that is predicted.",
            show_default="the last",
        ),
    ] = None,
    task: Annotated[
        Literal["regression", "classification"] | None,
        typer.Option(
            help="What the target of a file is.",
            show_default="classification for text and truth values, and for whole numbers in an "
            "NPZ; else regression",
        ),
    ] = None,
    split: Annotated[
        int, typer.Option(metavar="K", min=0, help="Which training and held-out rows, from 0.")
    ] = 0,
    hidden: Annotated[
        str,
        typer.Option(metavar="UNITS,...", help="Units of each hidden layer, such as 50 or 50,50."),
    ] = "50",
    steps: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Gradient steps of SVI for each guide (num_steps)."),
    ] = 10_000,
    batch_size: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Rows of a gradient step of SVI (batch_size).",
            show_default="all",
        ),
    ] = None,
    chains: Annotated[
        int, typer.Option(metavar="N", min=1, help="Markov chains of a sampler (num_chains).")
    ] = 4,
    warmup: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Warm-up draws of each chain, dropped (warmup_steps)."
        ),
    ] = 300,
    samples: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Draws of each chain that are kept (num_samples)."),
    ] = 300,
    seed: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=2**32 - 1, help="Seed of all fits and draws."),
    ] = 0,
    threads: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="CPU threads of torch; 1 is best for small nets."),
    ] = 1,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print only the table, the verdicts and the files.")
    ] = False,
) -> None:
    """Fit one Bayesian network by several methods, compare them, and write a report.

    The network is a multilayer perceptron with ReLU units and a fan-in Gaussian prior; its
    likelihood follows the task: Normal of learned scale, Bernoulli for two classes, Categorical
    for more. FOLDER gets index.html, table.csv and one ArviZ NetCDF file for each method.
    """
    import torch

    from pyro_bnn import jobs
    from pyro_bnn import report as reports
    from pyro_bnn.data import load
    from pyro_bnn.report.files import file_names

    # All that can fail early does so before the first fit
    found = jobs.find_methods(methods)
    judge = jobs.find_reference(reference, found)
    options = {
        "num_steps": steps,
        "batch_size": batch_size,
        "num_chains": chains,
        "warmup_steps": warmup,
        "num_samples": samples,
    }
    engines = jobs.make_engines(found, options)
    flags = dict(zip(("steps", "batch_size", "chains", "warmup", "samples"), options, strict=True))
    _refuse_idle(context, flags, engines)
    rows = load(data, target=target, task=task, split=split)
    model = jobs.make_model(rows, hidden)
    reports.check_writable(out)

    def say(line: str) -> None:
        if not quiet:
            typer.echo(line)

    for line in jobs.describe(rows, model):
        say(line)
    torch.set_num_threads(threads)
    posteriors, diverged = jobs.fit_all(
        engines, model, rows, seed=seed, progress=not quiet and sys.stderr.isatty(), say=say
    )
    say("Comparing ...")
    judge = judge if judge in posteriors else None
    comparison = reports.compare(posteriors, rows, reference=judge, seed=seed)
    comparison.save(out, command=context.obj)
    typer.echo(f"\n{comparison.summary()}\n")
    for name in ("index", "table", *file_names(posteriors).values()):
        suffix = {"index": "html", "table": "csv"}.get(name, "nc")
        typer.echo(f"Wrote {out / name}.{suffix}")
    if diverged:
        raise DivergenceError("; ".join(diverged))


@app.command(name="list", short_help="Print the names of all there is.")
def list_names() -> None:
    """Print guides, engines, priors, likelihoods, models and data sets, a line each."""
    from pyro_bnn.jobs import catalogue

    columns = min(shutil.get_terminal_size().columns, WIDTH)
    for kind, group in catalogue().items():
        width = max(len(name) for name in group)
        typer.echo(kind.capitalize())
        for name, sentence in group.items():
            start = f"  {name:{width}}  "
            room = max(columns, len(start) + 30)
            indent = " " * len(start)
            typer.echo(textwrap.fill(start + sentence, room, subsequent_indent=indent))
        typer.echo()


def _refuse_idle(
    context: typer.Context, flags: Mapping[str, str], engines: Mapping[str, Any]
) -> None:
    """Refuse options that were given and that no engine takes.

    Raises:
        OptionError: If there is one.
    """
    for parameter, option in flags.items():
        source = context.get_parameter_source(parameter)
        given = source is not None and source.name == "COMMANDLINE"
        if given and not any(hasattr(engine, option) for engine in engines.values()):
            raise OptionError(
                f"--{parameter.replace('_', '-')} does nothing for {', '.join(engines)}: "
                "leave it out"
            )


@contextmanager
def _plain_notes() -> Iterator[None]:
    """Show what this package logs and warns of as one plain line each; others' as they come."""
    logger, handler = logging.getLogger("pyro_bnn"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{PROGRAM}: note: %(message)s"))
    with warnings.catch_warnings():
        show_as_usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, BNNWarning):
                typer.echo(f"{PROGRAM}: note: {message}", err=True)
            else:
                show_as_usual(message, category, *rest, **more)

        warnings.showwarning = show
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


def _usage(error: Any) -> str:
    """A usage error and where to read on."""
    context = error.ctx
    where = PROGRAM if context is None else context.command_path
    return f"{error.format_message().rstrip('.')}; see '{where} --help'"


def _fail(message: str, code: int = 2) -> int:
    """Print the one line of an error, return the exit code."""
    line = " ".join(part.strip() for part in message.splitlines())
    typer.echo(f"{PROGRAM}: {line}", err=True)
    return code
