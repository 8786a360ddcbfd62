"""Options of the commands of ``pyro-bnn``, in groups: dataclasses, a field an option.

What the docstring of a group says of a field is the help of the option.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_type_hints

import typer
from typer.core import TyperCommand

from pyro_bnn.cli.config_file import FLAG, Takes
from pyro_bnn.cli.results import Found, show
from pyro_bnn.cli.terminal import refuse_idle

if TYPE_CHECKING:
    from pyro_bnn.cli.methods import Method

# torch and all that needs it are imported by the methods: --help and a mistyped option are instant

Command = Callable[..., Iterator[Found]]
KEYWORD = inspect.Parameter.KEYWORD_ONLY


def option(
    default: Any, metavar: str | None = None, shown: str | bool = True, *flags: str, **more: Any
) -> Any:
    """A field of a group that is an option.

    Args:
        default: Its value where it is not given; ``...`` if it must be.
        metavar: What stands for a value in the help; None for the type's own.
        shown: What the help says of the default where it is not the value itself.
        flags: Spellings, where they do not follow from the field's name.
        more: As ``typer.Option`` takes it, such as ``min``.
    """
    info = typer.Option(default, *flags, metavar=metavar, show_default=shown, **more)
    value = {} if default is ... else {"default": default}
    return dataclasses.field(**value, metadata={"option": info})


def named(kind: str) -> Callable[[str], list[str]]:
    """What a shell completes a value by: the names of a kind in 'pyro-bnn list'."""

    def complete(incomplete: str) -> list[str]:
        from pyro_bnn.cli.catalogue import catalogue

        return [name for name in catalogue()[kind] if name.startswith(incomplete)]

    return complete


class GroupedCommand(TyperCommand):
    """A command whose help has the options of each group under its heading."""

    def format_options(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        """Write the arguments and options, sections in the order of what is first in each."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                other = "Options" if parameter.param_type_name == "option" else "Arguments"
                heading = getattr(parameter, "rich_help_panel", None) or other
                sections.setdefault(heading, []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def takes(command: TyperCommand) -> dict[str, Takes]:
    """The options of a command, such as ``--steps``, and what each takes."""

    def kind(parameter: Any) -> Takes:
        if getattr(parameter, "is_flag", False):
            return "nothing"
        return "values" if parameter.multiple else "value"

    spelt = ((name, parameter) for parameter in command.params for name in parameter.opts)
    return {name: kind(own) for name, own in spelt if name.startswith("--")}


def spread(
    *,
    without: Collection[str] = (),
    unlisted: Collection[str] = (),
    fails_on: Sequence[str] = (),
    **changed: Any,
) -> Callable[[Command], Callable[..., None]]:
    """Turn the parameters of a command that are groups into the options of these.

    The command yields what it found, which is printed. It gets ``--json`` and ``--config``, and
    ``--fail-on`` where its findings may fail it.

    Args:
        without: Options that the command does not have; they keep their defaults.
        unlisted: Options that its help leaves out.
        fails_on: What ``--fail-on`` may name.
        changed: By name of an option another default, or what :func:`option` gives in its place.
    """

    def parameters(group: Any) -> dict[str, inspect.Parameter]:
        types, words, made = get_type_hints(group), _words(group), {}
        for field in dataclasses.fields(group):
            own = changed.get(field.name, field.default)
            info = copy.copy(getattr(own, "metadata", field.metadata)["option"])
            if field.name in changed and not isinstance(own, dataclasses.Field):
                info.default, info.show_default = own, True
            info.help, info.hidden = info.help or words[field.name], field.name in unlisted
            info.rich_help_panel = getattr(group, "heading", None)
            made[field.name] = inspect.Parameter(
                field.name, KEYWORD, default=info, annotation=types[field.name]
            )
        return {name: parameter for name, parameter in made.items() if name not in without}

    def decorate(command: Command) -> Callable[..., None]:
        hints = get_type_hints(command)
        groups = {
            n: parameters(kind) for n, kind in hints.items() if dataclasses.is_dataclass(kind)
        }

        @functools.wraps(command)
        def grouped(
            *, as_json: bool, config: str | None, fail_on: Sequence[str] = (), **values: Any
        ) -> None:
            del config  # main has put its options in its place
            for name, options in groups.items():
                values[name] = hints[name](**{key: values.pop(key) for key in options})
            show(command, values, as_json=as_json, fail_on=fail_on)

        every: list[inspect.Parameter] = []
        for name, own in inspect.signature(command, eval_str=True).parameters.items():
            every += groups[name].values() if name in groups else [own]
        every += parameters(Printed).values()
        if fails_on:
            every.append(_fail_on(fails_on))
        grouped.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        return grouped

    return decorate


def _fail_on(names: Sequence[str]) -> inspect.Parameter:
    """The option ``--fail-on`` with these words."""
    field = option(
        (),
        "WORD",
        "nothing",
        "--fail-on",
        help=f"End with exit code 3 if there is such a verdict: {', '.join(names)}; may be given "
        "several times.",
    )
    make: Any = StrEnum  # whose members mypy would see as literals alone
    words = make("Unwanted", {name: name for name in names})
    return inspect.Parameter(
        "fail_on",
        KEYWORD,
        default=field.metadata["option"],
        annotation=list[words],  # type: ignore[valid-type]
    )


def _words(group: Any) -> dict[str, str]:
    """What the docstring of a group says of each field."""
    text = (inspect.getdoc(group) or "").partition("Args:\n")[2].partition("\n\n")[0]
    _, *parts = re.split(r"^    (\w+): ", text, flags=re.MULTILINE)
    return {
        name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)
    }


@dataclass(frozen=True, kw_only=True)
class Printed:
    """What every command takes.

    Args:
        as_json: Print one JSON document, and what is said on the way as errors are.
        config: TOML file whose table of this command's name has options, such as steps = 2000; what
            stands on the command line as well replaces it.
    """

    as_json: bool = option(False, None, True, "--json")  # noqa: FBT003
    config: str | None = option(None, "FILE.toml", "none", FLAG)


@dataclass(frozen=True, kw_only=True)
class Source:
    """Which rows of which data.

    Args:
        data: Data set of 'pyro-bnn list', or path of a CSV (.csv, .tsv, .txt, or these with
            .gz) or Parquet file, an NPZ file with arrays x and y, or a folder in the UCI layout.
        target: Column of a CSV or Parquet file that is predicted, or several, which are numbers.
        task: What the target of a file is.
        split: Which training and held-out rows, from 0.
        max_rows: At most so many training rows, and held-out rows: the first of the split.
    """

    heading: ClassVar[str] = "Data"

    data: str = option(..., "NAME|PATH", autocompletion=named("data sets"))
    target: str | None = option(None, "COLUMN,...", "the last")
    task: Literal["regression", "classification", "counts"] | None = option(
        None,
        None,
        "classification for text and truth values, and for whole numbers in an NPZ; counts for "
        "--likelihood poisson; else regression",
    )
    split: int = option(0, "K", min=0)
    max_rows: int | None = option(None, "N", "all", min=1)


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """What a user may say of the network; names as :func:`pyro_bnn.registry.lookup` takes them.

    Args:
        model: Model of 'pyro-bnn list'.
        prior: Prior of 'pyro-bnn list', with its defaults; over the factors of a rank1-mlp it is
            around 1.
        likelihood: Likelihood of 'pyro-bnn list' that suits the task.
        hidden: Units of each hidden layer, such as 50 or 50,50.
        activation: relu, leaky_relu, tanh, erf, silu or identity.
        depth: Layers with weights of a residual network, 6 n + 2 such as 8 or 20.
        width: Filters of the first stage of a residual network.
    """

    heading: ClassVar[str] = "Network"

    model: str | None = option(
        None,
        "NAME",
        "mlp, le-net for images, or the one that a method needs",
        autocompletion=named("models"),
    )
    prior: str | None = option(
        None, "NAME", "the model's own, normal", autocompletion=named("priors")
    )
    likelihood: str | None = option(
        None,
        "NAME",
        "normal for regression, bernoulli for two classes, categorical for more",
        autocompletion=named("likelihoods"),
    )
    hidden: str = option("50", "UNITS,...")
    activation: str = option("relu", "NAME")
    depth: int | None = option(None, "N", "the model's own, 20", min=1)
    width: int | None = option(None, "N", "the model's own, 16", min=1)


OF_ENGINES = {
    "num_steps": ("steps", "steps"),
    "batch_size": ("batch_size", "rows a step"),
    "num_chains": ("chains", "chains"),
    "warmup_steps": ("warmup", "warm-up steps"),
    "num_samples": ("samples", "draws a chain"),
}
"""Options of engines: the option of commands that sets each, and what its number counts."""


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """How methods are fitted, and what is said of it.

    Args:
        estimator: How SVI estimates the likelihood's expectation: weight_sampling, which serves
            every guide; for auto-normal and auto-low-rank local_reparameterization or flipout;
            for auto-normal analytic (one hidden ReLU layer, Normal noise); last_layer for
            auto-composite; auto takes local_reparameterization where it can.
        steps: Gradient steps of each fit (num_steps).
        batch_size: Rows of a gradient step (batch_size).
        chains: Markov chains of a sampler (num_chains).
        warmup: Warm-up draws of each chain, dropped (warmup_steps).
        samples: Draws of each chain that are kept (num_samples).
        seed: Seed of all fits and draws.
        threads: CPU threads of torch; 1 is best for small nets.
        device: Where networks are fitted: cpu, cuda, or of several GPUs cuda:1.
        quiet: Print only results and the names of files.
    """

    heading: ClassVar[str] = "Fits"

    estimator: str | None = option(None, "NAME", "auto")
    steps: int | None = option(
        None, "N", "the method's own; guides go on until they have converged", min=1
    )
    batch_size: int | None = option(
        None,
        "N",
        "of guides all rows up to 1,024, else 256; of others their own, all, or 256 where inputs "
        "are more than 500,000 numbers",
        min=1,
    )
    chains: int | None = option(None, "N", "the method's own, 4", min=1)
    warmup: int | None = option(
        None, "N", "the method's own, 300, and 5,000 of samplers by minibatches", min=0
    )
    samples: int | None = option(None, "N", "the method's own, 1,000", min=1)
    seed: int = option(0, "N", min=0, max=2**32 - 1)
    threads: int = option(1, "N", min=1)
    device: str = option("cpu", "NAME")
    quiet: bool = option(False, None, True, "--quiet")  # noqa: FBT003

    def engines(self, context: typer.Context, methods: Mapping[str, Method]) -> dict[str, Any]:
        """The engine of each method; an option that none takes is refused."""
        from pyro_bnn.cli.methods import is_set_by, make_engines

        every = {name: getattr(self, own) for name, (own, _) in OF_ENGINES.items()}
        options = {name: value for name, value in every.items() if value is not None}
        engines = make_engines(methods, options, self.estimator)

        def is_idle(option: str) -> bool:
            return not any(
                is_set_by(engine, option) or is_set_by(getattr(engine, "engine", engine), option)
                for name, engine in engines.items()
                if option not in methods[name].options
            )

        refuse_idle(context, (o for name, (o, _) in OF_ENGINES.items() if is_idle(name)), engines)
        return engines

    def say(self, line: str) -> None:
        """Print a line on what is done, unless all is to be quiet."""
        if not self.quiet:
            typer.echo(line)

    @property
    def progress(self) -> bool:
        """Whether to show progress bars."""
        return not self.quiet and sys.stderr.isatty()


LONG = 5_000  # steps of fits that go side by side


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What 'pyro-bnn compare' compares, and where its report goes.

    Args:
        methods: Guides (fitted by SVI) and samplers of 'pyro-bnn list'; unambiguous abbreviations
            such as auto-low-rank will do. NAME:OPTION=VALUE, such as auto-low-rank:rank=5 or
            laplace:structure=kron:num_steps=2000, sets options of that method; NAME@PRIOR, such as
            nuts@half-cauchy-scale, is that method on a network with that prior.
        out: Folder of the report; made where it does not exist.
        reference: Method that the others are measured against; auto looks for one beside them, by
            MAMS, NUTS and longer chains in turn, until the checks of the report pass or 600 s are
            over, or those of auto:seconds=120.
        splits: Splits of the data, such as 0-4 or 0,3,7: of several a report for each, and one
            over all.
        seeds: Seeds on each split, such as 0-2 or 0,1,2.
        num_jobs: Fits at a time, or runs over splits and seeds where there are several, each in a
            process of its own with the threads of --threads; the numbers are the same.
        backend: What does them in place of processes that this command starts, a backend of
            joblib: dask, the workers of DASK_SCHEDULER_ADDRESS or of a cluster started here, ray,
            or loky. Workers write --out and --checkpoint, on a disk of all; a fit whose worker is
            lost goes on elsewhere from its checkpoint.
    """

    methods: str = option(..., "NAME,NAME,...")
    out: Path = option(Path("report"), "FOLDER")
    reference: str | None = option(
        None, "NAME|auto", "nuts where it is one of several methods, else none"
    )
    splits: str = option("0", "K-K|K,K,...")
    seeds: str = option("0", "N-N|N,N,...")
    num_jobs: int | None = option(
        None,
        "N",
        "the cores, where that saves more than the processes take to begin; 1 on a GPU",
        "--jobs",
        min=1,
    )
    backend: str | None = option(None, "NAME", "processes here")

    def start_server(self, how: FitOptions) -> None:
        """Start importing for fits that are likely to go side by side."""
        from pyro_bnn.cli import fork_server  # which --help does without

        has_affinity = hasattr(os, "sched_getaffinity")
        cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
        is_long = how.steps is None or how.steps >= LONG
        default = cores // how.threads if is_long and how.device == "cpu" else 1
        is_one_fit = "," not in self.methods and self.splits.isdigit() and self.seeds.isdigit()
        if self.backend is None and not is_one_fit and (self.num_jobs or default) > 1:
            fork_server.start(how.threads)


@dataclass(frozen=True, kw_only=True)
class Reported:
    """What 'pyro-bnn report' does with files.

    Args:
        out: Folder of the report; made where it does not exist.
        reference: Method that the others are measured against.
    """

    out: Path = option(Path("report"), "FOLDER")
    reference: str | None = option(
        None,
        "NAME",
        "that of the comparison which wrote the files, else nuts where one of several files is",
    )


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What 'pyro-bnn fit' fits, and where that goes.

    Args:
        method: Guide (fitted by SVI) or sampler of 'pyro-bnn list'; options and prior as in
            auto-low-rank:rank=5@cauchy.
        out: Folder of the fit; made where it does not exist.
        all_rows: Fit every row, so that none is held out for scores.
    """

    method: str = option(..., "NAME")
    out: Path = option(Path("fit"), "FOLDER")
    all_rows: bool = option(False, None, True, "--all-rows")  # noqa: FBT003


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """What 'pyro-bnn predict' predicts from, and where that goes.

    Args:
        posterior: Folder that 'pyro-bnn fit' wrote.
        out: CSV file of the predictions; - is standard output.
        level: Probability of the interval from low to high.
        samples: Draws of the posterior.
        seed: Seed of all draws.
        device: Where it is predicted, as in the other commands.
    """

    posterior: Path = option(..., "FOLDER")
    out: Path = option(Path("predictions.csv"), "FILE")
    level: float = option(0.95, "P")
    samples: int | None = option(
        None, "N", "1,000, or all that a sampler stored where they are fewer", min=2
    )
    seed: int = option(0, "N", min=0, max=2**32 - 1)
    device: str = option("cpu", "NAME")


@dataclass(frozen=True, kw_only=True)
class Trusted:
    """What 'pyro-bnn trust' judges, beyond the test images as they are.

    Args:
        methods: As in 'pyro-bnn compare'.
        out: Folder of the page; made where it does not exist.
        ood: Data set of other images of the same size, whose held-out rows are unknown inputs.
        corrupt: Severities of corruption, some of 1 to 5, such as 1,3,5.
        kinds: Corruptions, such as gaussian-noise,rotate.
        scale: Whose constants of corruptions, those of MNIST-C or of CIFAR-10-C.
        attack: Step of an attack by the sign of the gradient, in units of the largest pixel.
        seeds: Seeds of the fits, such as 0-2: errors over seeds need several.
        rows: How many test images, the first ones, are corrupted and attacked.
        draws: Draws of the posterior, the same for every method.
    """

    methods: str = option(..., "NAME,NAME,...")
    out: Path = option(Path("trust"), "FOLDER")
    ood: str | None = option(None, "NAME|PATH", autocompletion=named("data sets"))
    corrupt: str | None = option(None, "K,K,...")
    kinds: str | None = option(None, "NAME,NAME,...", "eight usual ones")
    scale: Literal["mnist", "cifar"] | None = option(None, None, "mnist for one channel")
    attack: float | None = option(None, "STEP")
    seeds: str = option("0", "N-N|N,N,...")
    rows: int = option(1_000, "N", min=1)
    draws: int = option(200, "N", min=1)


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """What 'pyro-bnn sbc' simulates, and where the ranks go.

    Args:
        method: Guide (fitted by SVI) or sampler of 'pyro-bnn list'; options and prior as in
            auto-low-rank:rank=5@cauchy.
        out: Folder of the ranks; made where it does not exist.
        rows: How many training rows, the first ones, each simulation has.
        simulations: Simulated data sets, at least 20.
        draws: Draws that the truth is ranked among, one less than a multiple of 20; or that a
            guide's probabilities are taken from, any number.
        ranks: Rank the truth among the draws of a guide that has a density, too.
    """

    method: str = option("nuts", "NAME")
    out: Path = option(Path("sbc"), "FOLDER")
    rows: int = option(40, "N", min=1)
    simulations: int = option(200, "N", min=1)
    draws: int | None = option(None, "N", "99, or 999", min=1)
    ranks: bool = option(False, None, True, "--ranks")  # noqa: FBT003


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What 'pyro-bnn prior' draws, and where the picture goes.

    Args:
        out: Picture to write, .png, .svg or .pdf.
        along: Of several inputs along their first principal direction, or along each of the first
            eight with the others at 0.
        draws: Functions drawn from each prior.
        seed: Seed of all draws.
    """

    out: Path = option(Path("prior.png"), "FILE")
    along: Literal["principal", "features"] = option("principal")
    draws: int = option(1_000, "N", min=400)
    seed: int = option(0, "N", min=0, max=2**32 - 1)


INPUTS = option(
    "",
    "NAME|PATH",
    "one input from -2 to 2",
    help="Data set as in the other commands, of which only the inputs are used.",
    autocompletion=named("data sets"),
)
PRIORS = option(
    "normal",
    "NAME,NAME,...",
    help="Priors of 'pyro-bnn list', drawn together.",
    autocompletion=named("priors"),
)
"""Options of 'pyro-bnn prior' in place of those of the same names."""
