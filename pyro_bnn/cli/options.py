"""Options that several commands share, in groups: dataclasses, a field an option.

An option of one command stands in that command's file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import typer

from pyro_bnn.cli.option_groups import flag, named, option
from pyro_bnn.cli.terminal import refuse_idle

if TYPE_CHECKING:
    from pyro_bnn.cli.methods import NamedMethod

# torch and all that needs it are imported by the methods: --help and a mistyped option are instant


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which rows of which data."""

    heading: ClassVar[str] = "Data"

    data: str = option(
        "Data set of 'pyro-bnn list', or path of a CSV (.csv, .tsv, .txt, or these with .gz) or "
        "Parquet file, an NPZ file with arrays x and y, or a folder in the UCI layout.",
        ...,
        metavar="NAME|PATH",
        autocompletion=named("data sets"),
    )
    target: str | None = option(
        "Column of a CSV or Parquet file that is predicted, or several, which are numbers.",
        metavar="COLUMN,...",
        shown="the last",
    )
    task: Literal["regression", "classification", "counts"] | None = option(
        "What the target of a file is.",
        shown="classification for text and truth values, and for whole numbers in an NPZ; counts "
        "for --likelihood poisson; else regression",
    )
    split: int = option("Which training and held-out rows, from 0.", 0, metavar="K", min=0)
    max_rows: int | None = option(
        "At most so many training rows, and held-out rows: the first of the split.",
        shown="all",
        min=1,
    )


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """What a user may say of the network; names as :func:`pyro_bnn.registry.lookup` takes them."""

    heading: ClassVar[str] = "Network"

    model: str | None = option(
        "Model of 'pyro-bnn list'.",
        shown="mlp, le-net for images, or the one that a method needs",
        autocompletion=named("models"),
    )
    prior: str | None = option(
        "Prior of 'pyro-bnn list', with its defaults; over the factors of a rank1-mlp it is around "
        "1.",
        shown="the model's own, normal",
        autocompletion=named("priors"),
    )
    likelihood: str | None = option(
        "Likelihood of 'pyro-bnn list' that suits the task.",
        shown="normal for regression, bernoulli for two classes, categorical for more",
        autocompletion=named("likelihoods"),
    )
    hidden: str = option(
        "Units of each hidden layer, such as 50 or 50,50.", "50", metavar="UNITS,..."
    )
    activation: str = option("relu, leaky_relu, tanh, erf, silu or identity.", "relu")
    depth: int | None = option(
        "Layers with weights of a residual network, 6 n + 2 such as 8 or 20.",
        shown="the model's own, 20",
        min=1,
    )
    width: int | None = option(
        "Filters of the first stage of a residual network.", shown="the model's own, 16", min=1
    )


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
    """How methods are fitted, and what is said of it."""

    heading: ClassVar[str] = "Fits"

    estimator: str | None = option(
        "How SVI estimates the likelihood's expectation: weight_sampling, which serves every "
        "guide; for auto-normal and auto-low-rank local_reparameterization or flipout; for "
        "auto-normal analytic (one hidden ReLU layer, Normal noise); last_layer or "
        "last_layer_draws for auto-composite; auto takes local_reparameterization where it can.",
        shown="auto",
    )
    steps: int | None = option(
        "Gradient steps of each fit (num_steps).",
        shown="the method's own; guides go on until they have converged",
        min=1,
    )
    batch_size: int | None = option(
        "Rows of a gradient step (batch_size).",
        shown="of guides all rows up to 1,024, else 256; of others their own, all, or 256 where "
        "inputs are more than 500,000 numbers",
        min=1,
    )
    chains: int | None = option(
        "Markov chains of a sampler (num_chains).", shown="the method's own, 4", min=1
    )
    warmup: int | None = option(
        "Warm-up draws of each chain, dropped (warmup_steps).",
        shown="the method's own, 300, and 5,000 of samplers by minibatches",
        min=0,
    )
    samples: int | None = option(
        "Draws of each chain that are kept (num_samples).", shown="the method's own, 1,000", min=1
    )
    seed: int = option("Seed of all fits and draws.", 0, min=0, max=2**32 - 1)
    threads: int = option("CPU threads of torch; 1 is best for small nets.", 1, min=1)
    device: str = option("Where networks are fitted: cpu, cuda, or of several GPUs cuda:1.", "cpu")
    quiet: bool = flag("--quiet", "Print only results and the names of files.")

    def engines(self, context: typer.Context, methods: Mapping[str, NamedMethod]) -> dict[str, Any]:
        """The engine of each method; an option that none takes is refused."""
        from pyro_bnn.cli.methods import is_set_by, make_engines

        every = {name: getattr(self, option) for name, (option, _) in OF_ENGINES.items()}
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
