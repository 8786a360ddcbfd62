"""Predictions of a saved fit for the rows of a file, in the file's own units."""

from __future__ import annotations

import csv
import io
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.data.csv_file import count_rows
from pyro_bnn.data.new_rows import NewRows, read_new_rows
from pyro_bnn.diagnostics.calibration import coverage, pit
from pyro_bnn.diagnostics.scores import accuracy, rmse
from pyro_bnn.errors import BNNWarning, DataError, OptionError
from pyro_bnn.prediction import Prediction
from pyro_bnn.report.files import check_writable, write_text
from pyro_bnn.report.numbers import number
from pyro_bnn.report.units import to_numpy
from pyro_bnn.saved_fit import SavedFit
from pyro_bnn.uncertainty import ROWS_AT_ONCE, epistemic

RATIO = "uncertainty_vs_training"


@dataclass(frozen=True, eq=False, kw_only=True)
class FilePredictions:
    """What a saved fit says of the rows of a file.

    Attributes:
        rows: The rows.
        columns: Predictions by name of their column, ``[N]`` each: numbers, or names of classes.
        ratio: Epistemic uncertainty of each row over the median of the training rows ``[N]``;
            None for a point estimate.
        training_maximum: The largest ratio of a training row.
        scores: Lines on how the predictions compare with the file's target; none without it.
    """

    rows: NewRows
    columns: dict[str, np.ndarray]
    ratio: np.ndarray | None
    training_maximum: float | None
    scores: list[str]

    @property
    def text(self) -> str:
        """The file's columns as they were, then the predictions; the file's separator."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, delimiter=self.rows.separator, lineterminator="\n")
        writer.writerow([*self.rows.header, *self.columns])
        predicted = zip(*(map(_field, values) for values in self.columns.values()), strict=True)
        for own, new in zip(self.rows.fields, predicted, strict=True):
            writer.writerow([*own, *new])
        return buffer.getvalue()

    def summary(self) -> Iterator[str]:
        """Lines on what to trust."""
        if self.ratio is None or self.training_maximum is None:
            yield (
                f"{RATIO} is empty: a point estimate has no epistemic uncertainty; its intervals "
                "hold noise alone"
            )
        else:
            beyond = int((self.ratio > self.training_maximum).sum())
            yield (
                f"{beyond:,} of {len(self.ratio):,} rows are more uncertain than any training row "
                f"({RATIO} above {self.training_maximum:.3g}; the median training row has 1)"
            )
        yield from self.scores


def predict_file(
    fit: SavedFit,
    path: Path,
    *,
    level: float = 0.95,
    num_samples: int | None = None,
    seed: int = 0,
) -> FilePredictions:
    """Predict the rows of a CSV file.

    Args:
        fit: The fit.
        path: A CSV file with the input columns of the fit, in any order; where it has the target
            too, the predictions are scored.
        level: Probability of the central interval, between 0 and 1.
        num_samples: Draws of the posterior; None for 1,000, or all stored where there are fewer.
        seed: Seed of the draws.

    Raises:
        DataError: If the file cannot be used; see :func:`pyro_bnn.data.new_rows.read_new_rows`.
        OptionError: If ``level`` or ``num_samples`` is out of range.
    """
    if not 0 < level < 1:
        raise OptionError(f"the level of an interval is between 0 and 1, such as 0.95, not {level}")
    stored = fit.posterior.num_stored_draws
    if num_samples is not None and stored is not None and num_samples > stored:
        raise OptionError(f"the fit holds {stored:,} draws: take at most that, not {num_samples:,}")
    rows = read_new_rows(path, fit.columns, fit.target_name, fit.class_names)
    blocks = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BNNWarning)  # moments that do not exist: said once, below
        for index in torch.arange(len(rows.x)).split(ROWS_AT_ONCE):
            prediction = fit.posterior.predict(
                rows.x[index], num_samples=num_samples, seed=seed, raw=True
            )
            y = None if rows.y is None else rows.y[index]
            blocks.append(_predict_block(fit, prediction, y, level, seed))
    columns, extra = (
        {name: np.concatenate([block[part][name] for block in blocks]) for name in blocks[0][part]}
        for part in (0, 1)
    )
    _check_names(path, rows, columns)
    if fit.class_names is None:
        _warn_of_moments(columns)
    scores = [] if rows.y is None else [_scores(fit, columns, extra, to_numpy(rows.y), level)]
    ratio, maximum = None, None
    if fit.uncertainty.median is not None and fit.uncertainty.maximum is not None:
        ratio = extra["epistemic"] / fit.uncertainty.median
        maximum = fit.uncertainty.maximum / fit.uncertainty.median
    columns[RATIO] = np.full(len(rows.x), np.nan) if ratio is None else ratio
    return FilePredictions(
        rows=rows, columns=columns, ratio=ratio, training_maximum=maximum, scores=scores
    )


def write_predictions(predictions: FilePredictions, out: Path, source: Path) -> None:
    """Write predictions to a CSV file.

    Args:
        predictions: What is written.
        out: The file; one of this name is replaced.
        source: The file that was predicted, which is never replaced.

    Raises:
        OptionError: If both are one file.
        OutputError: If the file cannot be written.
    """
    check_out(out, source)
    write_text(out, predictions.text)


def check_out(out: Path, source: Path) -> None:
    """Check where predictions are to be written, before they are made.

    Raises:
        OptionError: If it is the file that is predicted.
        OutputError: If its folder cannot be written.
    """
    if out.resolve() == source.resolve():
        raise OptionError(f"{str(out)!r} is the file that is predicted: choose another --out")
    check_writable(out.parent)


Block: TypeAlias = "tuple[dict[str, np.ndarray], dict[str, np.ndarray]]"


def _predict_block(
    fit: SavedFit, prediction: Prediction, y: Tensor | None, level: float, seed: int
) -> Block:
    """Columns for the file, and what is computed beside them, for up to ROWS_AT_ONCE rows."""
    extra = {"epistemic": to_numpy(epistemic(prediction, fit.uncertainty.measure))}
    if y is not None:
        extra["log_score"] = to_numpy(prediction.log_prob(y)).astype(float)
    if fit.class_names is not None:
        probs = to_numpy(prediction.probs).astype(float)  # [N, C]
        extra["probs"] = probs
        columns = {"predicted_class": np.array(fit.class_names)[probs.argmax(1)]}
        columns |= {f"predicted_p_{name}": probs[:, c] for c, name in enumerate(fit.class_names)}
        columns["predicted_entropy"] = to_numpy(prediction.entropy)
        columns["predicted_mutual_information"] = to_numpy(prediction.mutual_information)
        return columns, extra
    low, median, high = prediction.quantile([(1 - level) / 2, 0.5, (1 + level) / 2])
    values = {
        "mean": prediction.mean,
        "median": median,
        "sd": prediction.sd,
        "low": low,
        "high": high,
        "sd_epistemic": prediction.sd_epistemic,
        "sd_aleatoric": prediction.sd_aleatoric,
    }
    if y is not None:
        draws = to_numpy(prediction.draws[..., 0]).astype(float)  # [S, N]
        extra["pit"] = pit(draws, to_numpy(y), seed=seed)
    return {f"predicted_{name}": to_numpy(value[:, 0]) for name, value in values.items()}, extra


def _check_names(path: Path, rows: NewRows, columns: dict[str, np.ndarray]) -> None:
    taken = [name for name in rows.header if name in {*columns, RATIO}]
    if taken:
        raise DataError(
            f"{str(path)!r} has {', '.join(map(repr, taken))} already, which predictions would "
            "write: rename or drop it"
        )


def _warn_of_moments(columns: dict[str, np.ndarray]) -> None:
    count = int(np.isnan(columns["predicted_mean"] + columns["predicted_sd"]).sum())
    if count:
        warnings.warn(
            f"the predictive mean or sd does not exist in {count_rows(count)} and is empty there; "
            "predicted_median and the interval do exist",
            BNNWarning,
            stacklevel=3,
        )


def _scores(
    fit: SavedFit,
    columns: dict[str, np.ndarray],
    extra: dict[str, np.ndarray],
    y: np.ndarray,
    level: float,
) -> str:
    """A line on how the predictions compare with the target."""
    log_score = f"log score {number(float(extra['log_score'].mean()))} nats a row"
    start = f"Against {fit.target_name!r} of {count_rows(len(y))}: {log_score}"
    if fit.class_names is not None:
        return f"{start}, accuracy {100 * accuracy(extra['probs'], y):.1f} %"
    mean = columns["predicted_mean"]
    point, what = mean, ""
    if not np.isfinite(mean).all():
        point, what = columns["predicted_median"], " of the median"
    covered = coverage(extra["pit"], level)
    return (
        f"{start}, RMSE{what} {number(rmse(point, y))}, {100 * level:g} % interval covers "
        f"{100 * covered.observed:.1f} % (chance allows {100 * covered.low:.1f} to "
        f"{100 * covered.high:.1f} %)"
    )


def _field(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return "" if math.isnan(value) else f"{value:.7g}"
