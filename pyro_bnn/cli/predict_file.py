"""Predictions of a saved fit for the rows of a file, in the file's own units."""

from __future__ import annotations

import itertools
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.cli.file_scores import FileScores, RowArrays
from pyro_bnn.cli.saved_fit import SavedFit
from pyro_bnn.cli.uncertainty import ROWS_AT_ONCE, Uncertainty, epistemic
from pyro_bnn.data.arrays import count_rows
from pyro_bnn.data.csv_file import lines_of
from pyro_bnn.data.new_rows import NewRows, read_new_rows
from pyro_bnn.diagnostics.novelty import LEVEL, Novelty
from pyro_bnn.errors import BNNWarning, DataError, OptionError
from pyro_bnn.files.atomic import check_file, written
from pyro_bnn.memory import GIB
from pyro_bnn.plotting.numbers import number
from pyro_bnn.predictive.draws import Draws
from pyro_bnn.predictive.predict import predict
from pyro_bnn.predictive.prediction import Names, Prediction, column_starts, require_level
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.report.evaluation.units import to_numpy

RATIO = "uncertainty_vs_training"
DISTANCE, P_VALUE = "distance_to_training", "distance_p_value"
ROUNDING = 1e-4  # relative rounding of a training row in another batch
PLACES = ("mean", "median", "low", "high")  # in the units of the target
MOST_ROW_DRAWS = 10**8  # rows times draws that are predicted unless more draws are asked for
FEWEST_DRAWS = 100
ROWS_WRITTEN, ROWS_MEASURED = 10_000, 50_000  # at once
KEPT = 64  # bytes of a number at a draw: f, the mean, variance and a draw of y, up to float64
DIGITS = 7  # significant digits of a number, or of its distance from 0 in interval widths


@dataclass(frozen=True, eq=False, kw_only=True)
class FilePredictions:
    """What a saved fit says of the rows of a file.

    Attributes:
        rows: The rows.
        columns: Predictions by name of their column, ``[N]`` each: numbers, or names of classes.
        epistemic: Epistemic uncertainty of each row ``[N]`` in the model's units.
        training: That of the training rows, under the same draws.
        note: On fewer draws than usual, or nothing.
        scores: Lines on how the predictions compare with the file's target; none without it.
        starts: How the columns of each target begin; none for classes.
        novelty: The training rows that the rows are measured to.
        distance: Distance of each row to the nearest of these ``[N]``, in the model's units.
    """

    rows: NewRows
    columns: dict[str, np.ndarray]
    epistemic: np.ndarray
    training: Uncertainty
    note: str
    scores: list[str]
    starts: tuple[str, ...]
    novelty: Novelty
    distance: np.ndarray

    @property
    def p_value(self) -> np.ndarray:
        """Conformal p-value of each distance ``[N]``; see :class:`Novelty`."""
        return self.novelty.p_value(self.distance)

    @property
    def is_far(self) -> np.ndarray:
        """Whether a row is farther from the training rows than all but 5 % of these ``[N]``."""
        return self.p_value <= LEVEL

    @property
    def ratio(self) -> np.ndarray:
        """``epistemic`` over the median of the training rows ``[N]``; NaN where there is none."""
        return self.epistemic / (self.training.median or math.nan)

    def text(self) -> Iterator[str]:
        """The file's columns as they were, then the predictions, some rows at a time."""
        widths = {
            f"{start}_{name}": self.columns[f"{start}_high"] - self.columns[f"{start}_low"]
            for start in self.starts
            for name in PLACES
        }
        separator = self.rows.separator
        yield from lines_of([[*self.rows.header, *self.columns]], separator)
        yield "\n"
        lines = self.rows.text.lines()
        for begin in range(0, len(self.distance), ROWS_WRITTEN):
            rows = slice(begin, begin + ROWS_WRITTEN)
            texts = [
                lines_of(values[rows, None].tolist(), separator)
                if values.dtype.kind not in "fc"
                else _numbers(values[rows], widths[name][rows] if name in widths else None)
                for name, values in self.columns.items()
            ]
            some = itertools.islice(lines, len(self.distance[rows]))
            yield "".join(f"{separator.join(row)}\n" for row in zip(some, *texts, strict=True))

    def summary(self) -> Iterator[str]:
        """Lines on what to trust."""
        yield self._far()
        yield self._beyond()
        yield from self.scores
        yield from filter(None, [self.note])
        unused = self.rows.unused
        if unused:
            what = "1 column that is" if len(unused) == 1 else f"{len(unused)} columns that are"
            more = ", ..." if len(unused) > 5 else ""
            yield f"Copied {what} not of the fit: {', '.join(map(repr, unused[:5]))}{more}"

    def _far(self) -> str:
        num_training = len(self.novelty.x)
        if (least := 1 / (num_training + 1)) > LEVEL:
            return (
                f"{num_training} training rows are too few to tell which rows look unusual: "
                f"{P_VALUE} cannot fall below {least:.2g}, and {LEVEL} would be unusual"
            )
        count, expected = int(self.is_far.sum()), LEVEL * len(self.is_far)
        chance = f"about {number(expected, 2)}" if expected >= 1 else "fewer than 1"
        return (
            f"{count:,} of {len(self.is_far):,} rows {'looks' if count == 1 else 'look'} unusual: "
            f"far from the training rows, {P_VALUE} at most {LEVEL} ({chance} would by chance)"
        )

    def _beyond(self) -> str:
        median, maximum = self.training.median, self.training.maximum
        if median is None or maximum is None:
            return (
                f"{RATIO} is empty: a point estimate has no epistemic uncertainty; its intervals "
                "hold noise alone"
            )
        count = int((self.epistemic > maximum * (1 + ROUNDING)).sum())
        measured = self.training.num_rows
        than = "training row" if measured is None else f"of {measured:,} training rows"
        line = f"{count:,} of {len(self.epistemic):,} rows are more uncertain than any {than}"
        if not median:
            return (
                f"{line}; {RATIO} is empty: the median training row has no epistemic uncertainty "
                "to compare with"
            )
        return (
            f"{line} ({RATIO} above {maximum / median:.3g}; the median training row has 1); "
            "a small uncertainty proves nothing"
        )


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
        num_samples: Draws of the posterior; None for 1,000, or all stored where there are fewer,
            and of more than 100,000 rows for 10^8 over their number, at least 100.
        seed: Seed of the draws.

    Raises:
        DataError: If the file cannot be used; see :func:`pyro_bnn.data.new_rows.read_new_rows`.
        OptionError: If ``level`` or ``num_samples`` is out of range.
    """
    require_level(level)
    stored = fit.posterior.num_stored_draws
    if num_samples is not None and stored is not None and num_samples > stored:
        raise OptionError(f"the fit holds {stored:,} draws: take at most that, not {num_samples:,}")
    targets = fit.target_names or fit.target_name
    rows = read_new_rows(path, fit.columns, targets, fit.class_names)
    num_targets = len(fit.target_names or (1,))
    posterior, measure = fit.posterior, fit.uncertainty.measure
    z = posterior.in_blocks(_count(fit, num_samples, len(rows.x)), seed)
    at_once = ROWS_AT_ONCE if fit.class_names else _rows_at_once(len(z), num_targets)
    whole = RowArrays(len(rows.x))
    scores = None if rows.y is None else FileScores(rows.y, level)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BNNWarning)  # moments that do not exist: said once, below
        for block, start in enumerate(range(0, len(rows.x), at_once)):
            index = slice(start, start + at_once)
            # otherwise every block has the same noise
            noise_seed = derived_seed(seed, block + 2) if block else seed
            prediction = _predict(fit, _in_its_units(fit, rows.x[index]), z, noise_seed)
            whole.fill(index, prediction.columns(level))
            if scores is not None:
                scores.add(index, prediction, noise_seed)
            uncertainty = to_numpy(epistemic(prediction, measure, num_targets))
            whole.fill(index, {"epistemic": uncertainty})
    columns = {name: values for name, values in whole.items() if name.startswith("predicted")}
    written = {*columns, DISTANCE, P_VALUE, RATIO}
    if taken := [name for name in rows.header if name in written]:
        raise DataError(
            f"{str(path)!r} has {', '.join(map(repr, taken))} already, which predictions would "
            "write: rename or drop it; an input of the fit is renamed in its data, and fitted again"
        )
    starts = () if fit.class_names else column_starts(fit.target_names)
    _warn_of_moments(columns, starts)
    predictions = FilePredictions(
        rows=rows,
        columns=columns,
        epistemic=whole["epistemic"],
        note=_note(fit, z, num_samples, len(rows.x)),
        training=_of_training(fit, z, seed, at_once),
        scores=[]
        if scores is None
        else [*scores.lines(columns, starts, str(fit.target_name), fit.target_names)],
        starts=starts,
        novelty=fit.novelty,
        distance=_distance(fit, rows.x),
    )
    columns[DISTANCE], columns[P_VALUE] = predictions.distance, predictions.p_value
    columns[RATIO] = predictions.ratio
    return predictions


def write_predictions(predictions: FilePredictions, out: Path, source: Path) -> None:
    """Write predictions to a CSV file.

    Args:
        predictions: What is written.
        out: The file; earlier predictions of this name are replaced, any other file stays.
        source: The file that was predicted, which is never replaced.

    Raises:
        OptionError: If a file is there that must stay; see :func:`check_out`.
        OutputError: If the file cannot be written.
    """
    check_out(out, source)
    with written(out) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        file.writelines(predictions.text())


def check_out(out: Path, source: Path) -> None:
    """Check where predictions are to be written, before they are made.

    Raises:
        OptionError: If it is the file that is predicted, a folder, or any other file that is not
            empty and does not hold predictions.
        OutputError: If its folder cannot be written.
    """
    if os.path.realpath(out) == os.path.realpath(source):
        raise OptionError(f"{str(out)!r} is the file that is predicted: choose another --out")
    if out.is_dir():
        raise OptionError(f"{str(out)!r} is a folder: choose a file as --out")
    if out.is_file() and out.stat().st_size and not _holds_predictions(out):
        raise OptionError(
            f"{str(out)!r} exists and holds no predictions, so it is not replaced: choose another "
            "--out, or remove it"
        )
    check_file(out)


def _holds_predictions(path: Path) -> bool:
    """Whether the header of a file ends as those that are written here."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            first = file.readline()
            # a quoted name continues on the next line
            while first.count('"') % 2 and (line := file.readline()):
                first += line
    except (OSError, UnicodeDecodeError):
        return False
    return first.rstrip("\r\n").endswith(tuple(f"{separator}{RATIO}" for separator in ",;\t"))


def _rows_at_once(num_draws: int, num_targets: int) -> int:
    """How many rows of numbers are predicted together, so that their draws fit in half the bound.

    Raises:
        OptionError: If those of a single row do not.
    """
    most = GIB // 2 // (KEPT * num_targets)
    if num_draws > most:
        raise OptionError(
            f"{num_draws:,} draws are more than are kept of a row: take at most {most:,}"
        )
    return min(ROWS_AT_ONCE, most // num_draws)


def _count(fit: SavedFit, num_samples: int | None, num_rows: int) -> int:
    """How many draws are predicted from: those asked for, or what suits so many rows."""
    most = max(FEWEST_DRAWS, MOST_ROW_DRAWS // num_rows)
    count = fit.posterior.count(num_samples)
    return count if num_samples is not None else min(count, most)


def _note(fit: SavedFit, z: Draws, num_samples: int | None, num_rows: int) -> str:
    """What to say of draws that are fewer because rows are many."""
    if num_samples is not None or len(z) == fit.posterior.count(None):
        return ""
    return f"{len(z):,} draws, as there are {count_rows(num_rows)}; --samples takes more"


def _of_training(fit: SavedFit, z: Draws, seed: int, at_once: int) -> Uncertainty:
    """Epistemic uncertainty of the training rows at the same draws, or of those that are kept."""
    posterior, stored = fit.posterior, fit.posterior.num_stored_draws
    same_seed = seed == posterior.seed or len(z) == stored
    if same_seed and len(z) == posterior.count(None):
        return fit.uncertainty
    x = torch.as_tensor(fit.novelty.x, dtype=torch.float32)
    x = x.reshape(-1, *posterior.program.example_x.shape[1:])
    blocks = (_predict(fit, rows, z, seed) for rows in x.split(at_once))
    num_targets = len(fit.target_names or (1,))
    num_rows = len(x) if len(x) < fit.num_rows else None
    return Uncertainty.over(blocks, fit.uncertainty.measure, num_targets, num_rows)


def _predict(fit: SavedFit, x: Tensor, z: Draws, seed: int) -> Prediction:
    """Predict rows in the units of the network from draws z, with noise of a seed."""
    posterior, target = fit.posterior, fit.posterior.provenance.target
    return predict(
        posterior.chunks,
        posterior.params,
        z,
        x,
        seed=seed,
        memory=GIB,
        target=target,
        has_moments=posterior.has_moments,
        names=Names(targets=fit.target_names, classes=fit.class_names),
    )


def _distance(fit: SavedFit, x: Tensor) -> np.ndarray:
    """Distance of rows ``[N, I]`` in the user's units to the training rows, in those of the model.

    They are rounded to float32 as the training rows are, so that a copy of one is at 0.
    """
    blocks = []
    for rows in x.split(ROWS_MEASURED):
        inputs = torch.nan_to_num(_in_its_units(fit, rows).float())  # its largest for those beyond
        blocks.append(fit.novelty.distance(to_numpy(inputs.flatten(1))))
    return np.concatenate(blocks)


def _in_its_units(fit: SavedFit, x: Tensor) -> Tensor:
    """Rows ``[N, I]`` in the user's units, in the units and the shape of the training inputs.

    Images ``[N, C, H, W]`` are rows of C, then H, then W pixels in a file.
    """
    posterior = fit.posterior
    x = x.reshape(-1, *posterior.program.example_x.shape[1:])
    inputs = posterior.provenance.inputs
    return x if inputs is None else inputs.transform(x)


def _warn_of_moments(columns: dict[str, np.ndarray], starts: Sequence[str]) -> None:
    for start in starts:
        count = int(np.isnan(columns[f"{start}_mean"] + columns[f"{start}_sd"]).sum())
        if count:
            warnings.warn(
                "the predictive mean or sd does not exist or hangs on few draws in "
                f"{count_rows(count)} and is empty there; {start}_median and the interval do exist",
                BNNWarning,
                stacklevel=3,
            )


def _numbers(values: np.ndarray, width: np.ndarray | None = None) -> list[str]:
    """Text of numbers ``[N]``, with more digits where they lie many widths ``[N]`` from 0."""
    digits = np.full(len(values), DIGITS)
    if width is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            far = np.nan_to_num(np.ceil(np.log10(np.abs(values) / width)), nan=0.0)
        digits = np.clip(DIGITS + far, DIGITS, np.finfo(np.float64).precision + 2).astype(int)
    pairs = zip(digits.tolist(), values.tolist(), strict=True)
    text = "%.*g\n" * len(values) % tuple(itertools.chain.from_iterable(pairs))  # at once: fast
    return text.replace("nan", "").split("\n")[:-1]
