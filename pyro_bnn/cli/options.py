"""Options that commands of ``pyro-bnn`` share: each a type with its flag, range and help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

DataOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NAME|PATH",
        help="Data set of 'pyro-bnn list', or path of a CSV or TSV file with a header, an NPZ "
        "file with arrays x and y, or a folder in the UCI layout.",
    ),
]
TargetOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN,...",
        help="Column of a CSV that is predicted, or several, which are numbers.",
        show_default="the last",
    ),
]
TaskOption: TypeAlias = Annotated[
    Literal["regression", "classification", "counts"] | None,
    typer.Option(
        help="What the target of a file is.",
        show_default="classification for text and truth values, and for whole numbers in an "
        "NPZ; counts for --likelihood poisson; else regression",
    ),
]
SplitOption: TypeAlias = Annotated[
    int, typer.Option(metavar="K", min=0, help="Which training and held-out rows, from 0.")
]
MaxRowsOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="At most so many training rows, and held-out rows: the first of the split.",
        show_default="all",
    ),
]
HiddenOption: TypeAlias = Annotated[
    str, typer.Option(metavar="UNITS,...", help="Units of each hidden layer, such as 50 or 50,50.")
]
SplitsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="K-K|K,K,...",
        help="Several splits in place of --split, such as 0-4 or 0,3,7: a report for each, and one "
        "over all.",
        show_default="that of --split",
    ),
]
SeedsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="N-N|N,N,...",
        help="Several seeds on each split in place of --seed, such as 0-2 or 0,1,2.",
        show_default="that of --seed",
    ),
]
ModelOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Model of 'pyro-bnn list'.",
        show_default="mlp, or the one that a method needs",
    ),
]
PriorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Prior of 'pyro-bnn list', with its defaults; over the factors of a rank1-mlp it is "
        "around 1.",
        show_default="the model's own, normal",
    ),
]
LikelihoodOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Likelihood of 'pyro-bnn list' that suits the task.",
        show_default="normal for regression, bernoulli for two classes, categorical for more",
    ),
]
ActivationOption: TypeAlias = Annotated[
    str,
    typer.Option(metavar="NAME", help="relu, leaky_relu, tanh, erf, silu or identity."),
]
DepthOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Layers with weights of a residual network, 6 n + 2 such as 8 or 20.",
        show_default="the model's own, 20",
    ),
]
WidthOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Filters of the first stage of a residual network.",
        show_default="the model's own, 16",
    ),
]
EstimatorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How SVI estimates the likelihood's expectation: weight_sampling, which serves every "
        "guide, or for guides of independent Gaussians such as auto-normal "
        "local_reparameterization, flipout, or analytic (one hidden ReLU layer, Normal noise).",
        show_default="weight_sampling",
    ),
]
StepsOption: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=1, help="Gradient steps of each fit (num_steps).")
]
BatchSizeOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Rows of a gradient step (batch_size).",
        show_default="all",
    ),
]
ChainsOption: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=1, help="Markov chains of a sampler (num_chains).")
]
WarmupOption: TypeAlias = Annotated[
    int,
    typer.Option(metavar="N", min=0, help="Warm-up draws of each chain, dropped (warmup_steps)."),
]
SamplesOption: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=1, help="Draws of each chain that are kept (num_samples).")
]
SeedOption: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=0, max=2**32 - 1, help="Seed of all fits and draws.")
]
ThreadsOption: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=1, help="CPU threads of torch; 1 is best for small nets.")
]
JobsOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        metavar="N",
        min=1,
        help="Fits at a time, or runs over splits and seeds where there are several, each in a "
        "process of its own with the threads of --threads; the numbers are the same.",
        show_default="the cores, where that saves more than the processes take to begin",
    ),
]
QuietOption: TypeAlias = Annotated[
    bool, typer.Option("--quiet", help="Print only results and the names of files.")
]
MethodsOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NAME,NAME,...",
        help="Guides (fitted by SVI) and samplers of 'pyro-bnn list'; unambiguous "
        "abbreviations such as auto-low-rank will do. NAME@PRIOR, such as "
        "nuts@half-cauchy-scale, is that method on a network with that prior.",
    ),
]
MethodOption: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Guide (fitted by SVI) or sampler of 'pyro-bnn list', or NAME@PRIOR."
    ),
]
FitFolderOption: TypeAlias = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder of the fit; made where it does not exist.")
]
AllRowsOption: TypeAlias = Annotated[
    bool, typer.Option("--all-rows", help="Fit every row, so that none is held out for scores.")
]
NewRowsArgument: TypeAlias = Annotated[
    Path,
    typer.Argument(
        metavar="NEW.csv",
        help="CSV or TSV file with the input columns of the fit, in any order; the target may be "
        "there or not. - is standard input.",
    ),
]
PosteriorOption: TypeAlias = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder that 'pyro-bnn fit' wrote.")
]
PredictionsOption: TypeAlias = Annotated[
    Path, typer.Option(metavar="FILE", help="CSV file of the predictions; - is standard output.")
]
LevelOption: TypeAlias = Annotated[
    float, typer.Option(metavar="P", help="Probability of the interval from low to high.")
]
DrawsOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=2,
        help="Draws of the posterior.",
        show_default="1,000, or all that a sampler stored where they are fewer",
    ),
]
ReportFolderOption: TypeAlias = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder of the report; made where it does not exist.")
]
SBCFolderOption: TypeAlias = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder of the ranks; made where it does not exist.")
]
SimulationsOption: TypeAlias = Annotated[
    int, typer.Option(metavar="N", min=1, help="Simulated data sets, at least 20.")
]
RankedDrawsOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Draws that the truth is ranked among, one less than a multiple of 20; or that a "
        "guide's probabilities are taken from, any number.",
        show_default="99, or 999",
    ),
]
RanksOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--ranks", help="Rank the truth among the draws of a guide that has a density, too."
    ),
]
RowsOption: TypeAlias = Annotated[
    int,
    typer.Option(
        metavar="N", min=1, help="How many training rows, the first ones, each simulation has."
    ),
]
