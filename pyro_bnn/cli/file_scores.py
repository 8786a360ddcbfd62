"""How predictions compare with the target of a file, whose rows come in blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor

from pyro_bnn.data.arrays import count_rows
from pyro_bnn.diagnostics.bands import gives_band, simulated_pit
from pyro_bnn.diagnostics.calibration import coverage, covered_share, pit
from pyro_bnn.diagnostics.scores import accuracy, rmse
from pyro_bnn.plotting.numbers import number
from pyro_bnn.predictive.prediction import Prediction
from pyro_bnn.report.evaluation.units import to_numpy


class RowArrays(dict[str, np.ndarray]):
    """Arrays by name whose rows come in blocks; made at once: small parts would split the heap."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self._num_rows = num_rows

    def fill(self, rows: slice, values: Mapping[str, np.ndarray]) -> None:
        """Write some rows of each."""
        for name, of_rows in values.items():
            if name not in self:
                self[name] = np.empty((self._num_rows, *of_rows.shape[1:]), of_rows.dtype)
            self[name][rows] = of_rows


class FileScores:
    """Scores by the functions of `pyro_bnn.report.evaluation.held_out`, a block of rows at a time.

    That one keeps every draw at every row, which a file may have too many of.

    Args:
        y: The target ``[N]`` or ``[N, O]``, of numbers or labels, in the units of the predictions.
        level: Probability of the central interval.
    """

    def __init__(self, y: Tensor, level: float) -> None:
        self._y, self._level = y, level
        self._of_rows = RowArrays(len(y))
        self._num_covered: np.ndarray | float = 0.0  # rows within the interval, [S, O]

    def add(self, rows: slice, prediction: Prediction, seed: int) -> None:
        """Score some rows, with noise of a seed."""
        y = self._y[rows]
        scores = {"log_score": to_numpy(prediction.log_prob(y)).astype(float)}
        if not y.is_floating_point():  # labels
            scores["probs"] = to_numpy(prediction.probs).astype(float)  # [N, C]
            self._of_rows.fill(rows, scores)
            return
        draws = to_numpy(prediction.draws).astype(float)  # [S, N, O]
        observed = to_numpy(y).reshape(len(y), -1)
        pits, shares = [], []
        for o in range(observed.shape[1]):
            of_target = draws[..., o], observed[:, o]
            pits.append(pit(*of_target, seed=seed))
            shares.append(
                covered_share(simulated_pit(*of_target, seed=seed), self._level)
                if gives_band(len(draws))
                else np.full(len(draws), np.nan)
            )
        self._num_covered = self._num_covered + len(y) * np.stack(shares, axis=1)  # [S, O]
        scores["pit"] = np.stack(pits, axis=1)  # [N, O]
        if observed.shape[1] > 1 and prediction.has_target_densities:
            scores["target_log_score"] = to_numpy(prediction.target_log_prob(y)).astype(float)
        self._of_rows.fill(rows, scores)

    def lines(
        self,
        columns: Mapping[str, np.ndarray],
        starts: Sequence[str],
        target: str,
        names: Sequence[str] | None,
    ) -> Iterator[str]:
        """The scores of all rows together, then of each of several targets.

        Args:
            columns: Predictions by name of their column.
            starts: How the columns of each target begin; none for classes.
            target: What the file calls the target.
            names: What it calls each of several.
        """
        scores, y = self._of_rows, to_numpy(self._y)
        start = f"Against {target!r} of {count_rows(len(y))}: {_nats(scores['log_score'])}"
        if not starts:
            yield f"{start}, accuracy {100 * accuracy(scores['probs'], y):.1f} %"
            return
        if names is not None:
            yield start
        for o, name in enumerate(starts):
            line = self._of_target(o, columns[f"{name}_mean"], columns[f"{name}_median"])
            yield f"{start}, {line}" if names is None else f"  {names[o]!r} alone: {line}"

    def _of_target(self, o: int, mean: np.ndarray, median: np.ndarray) -> str:
        scores, y = self._of_rows, to_numpy(self._y).reshape(len(self._y), -1)[:, o]
        point, what = (mean, "") if np.isfinite(mean).all() else (median, " of the median")
        shares = np.asarray(self._num_covered)[:, o] / len(y)
        covered = coverage(scores["pit"][:, o], self._level, shares)
        band = (
            f"expected if the model is right: {100 * covered.low:.1f} to {100 * covered.high:.1f} %"
        )
        line = (
            f"RMSE{what} {number(rmse(point, y))}, {100 * self._level:g} % interval covers "
            f"{100 * covered.observed:.1f} % "
            f"({'too few draws to check it' if math.isnan(covered.low) else band})"
        )
        if "target_log_score" not in scores:
            return line
        return f"{_nats(scores['target_log_score'][:, o])}, {line}"


def _nats(log_scores: np.ndarray) -> str:
    return f"log score {number(float(log_scores.mean()))} nats a row"
