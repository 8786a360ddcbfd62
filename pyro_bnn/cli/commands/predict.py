"""``pyro-bnn predict``: rows of a file, by a saved fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pyro_bnn.cli.app import command
from pyro_bnn.cli.option_groups import option, spread
from pyro_bnn.cli.results import Result
from pyro_bnn.cli.terminal import write_standard
from pyro_bnn.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class PredictOptions:
    """What 'pyro-bnn predict' predicts from, and where that goes."""

    posterior: Path = option("Folder that 'pyro-bnn fit' wrote.", ...)
    out: Path = option(
        "CSV file of the predictions; - is standard output.",
        Path("predictions.csv"),
        metavar="FILE",
    )
    level: float = option("Probability of the interval from low to high.", 0.95, metavar="P")
    samples: int | None = option(
        "Draws of the posterior.",
        shown="1,000, or all that a sampler stored where they are fewer",
        min=2,
    )
    seed: int = option("Seed of all draws.", 0, min=0, max=2**32 - 1)
    device: str = option("Where it is predicted, as in the other commands.", "cpu")


@command(short_help="Predict the rows of a CSV file from a saved fit.")
@spread()
def predict(
    context: typer.Context,
    new: Annotated[
        Path,
        typer.Argument(
            metavar="NEW.csv",
            help="CSV, TSV or Parquet file with the input columns of the fit, in any order; the "
            "target may be there or not. - is standard input.",
        ),
    ],
    options: PredictOptions,
) -> Iterator[Result]:
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
    training rows, of which at most 10,000 are measured. Above the largest value of these, which is
    printed, do not trust it. It is one-sided, a small value proves nothing: in a gap of the data,
    or far from them, it can be below 1. Where NEW.csv has the target, the predictions are scored.
    """
    import pandas as pd

    from pyro_bnn.cli import predict_file as predictions
    from pyro_bnn.cli.saved_fit import SavedFit
    from pyro_bnn.data.tables import STANDARD

    out, is_standard = options.out, options.out == STANDARD
    if is_standard and context.params["as_json"]:
        raise OptionError("--json and --out - both write to standard output: leave one out")
    if not is_standard:
        predictions.check_out(out, new)
    saved = SavedFit.load(options.posterior, options.device)
    predicted = predictions.predict_file(
        saved, new, level=options.level, num_samples=options.samples, seed=options.seed
    )
    if is_standard:
        write_standard(predicted.text())
    else:
        predictions.write_predictions(predicted, out, new)
    words = list(predicted.summary())
    if is_standard:
        for line in words:
            typer.echo(line, err=True)
        return
    yield Result(
        text="\n".join(words),
        document=lambda: {"rows": pd.DataFrame(predicted.columns), "summary": words},
        files=[out],
    )
