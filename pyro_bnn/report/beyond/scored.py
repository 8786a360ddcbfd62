"""What one posterior says of rows of classes, and the numbers that are taken from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from pyro_bnn.diagnostics.trust.calibration_error import (
    debiased_squared_ece,
    debiased_squared_ece_sd,
    skce,
)
from pyro_bnn.diagnostics.trust.out_of_distribution import novelty_scores
from pyro_bnn.report.beyond.estimate import RowNumbers
from pyro_bnn.report.evaluation.held_out import class_draws
from pyro_bnn.report.evaluation.units import to_numpy

if TYPE_CHECKING:
    from pyro_bnn.diagnostics.one_pass.single_pass import OnePass
    from pyro_bnn.posterior.protocol import PosteriorLike

AT_ONCE = 1 << 22  # numbers of class probabilities
SKCE_ROWS = 1_000  # all pairs are compared: one block, in which no order matters
ENTROPY = "entropy"


@dataclass(frozen=True, eq=False)
class Scored:
    """Rows as a posterior sees them.

    Attributes:
        probs: Predictive class probabilities ``[N, C]``, the mean over draws.
        log_score: Log of that of the observed class ``[N]``, nats; NaN where none is given.
        novelty: Scores ``[N]`` that are high where the input is unlike those of the training.
    """

    probs: Float[np.ndarray, "N C"]
    log_score: Float[np.ndarray, " N"]
    novelty: Mapping[str, Float[np.ndarray, " N"]]

    def at(self, rows: RowNumbers, labels: Int[np.ndarray, " N"]) -> LabelledRows:
        """Some of the rows, with their classes."""
        entropy = self.novelty[ENTROPY][rows]
        return LabelledRows(self.probs[rows], self.log_score[rows], entropy, labels[rows])


class LabelledRows(NamedTuple):
    """What numbers of classes are taken from.

    Attributes:
        probs: Predictive class probabilities ``[N, C]``.
        log_score: Log of that of the observed class ``[N]``, nats.
        entropy: Of the probabilities ``[N]``.
        labels: The observed classes ``[N]``.
    """

    probs: Float[np.ndarray, "N C"]
    log_score: Float[np.ndarray, " N"]
    entropy: Float[np.ndarray, " N"]
    labels: Int[np.ndarray, " N"]


def score_rows(
    posterior: PosteriorLike | OnePass, x: Tensor, y: Tensor | None, num_draws: int, seed: int
) -> Scored:
    """Predict rows a part at a time, by the same draws of the weights.

    Args:
        posterior: Of a classifier.
        x: Inputs ``[N, ...]`` in the model's units.
        y: Classes ``[N]``; None where there are none.
        num_draws: Draws S.
        seed: Of the draws.
    """
    first = posterior.predict(x[:1], num_samples=num_draws, seed=seed)
    at_once = max(1, AT_ONCE // (num_draws * first.probs.shape[-1]))
    parts = []
    for start in range(0, len(x), at_once):
        rows = slice(start, start + at_once)
        prediction = posterior.predict(x[rows], num_samples=num_draws, seed=seed)
        f = to_numpy(prediction.function_draws).astype(float)
        draws = class_draws(f)
        novelty = novelty_scores(draws, f if f.shape[-1] > 1 else None)
        novelty |= getattr(prediction, "novelty", {})  # of the features, where a method has them
        found = draws.mean(0)
        observed = np.full(len(found), np.nan)
        if y is not None:
            observed = to_numpy(prediction.log_prob(y[rows])).astype(float)
        parts.append(Scored(found, observed, novelty))
    return Scored(
        np.concatenate([part.probs for part in parts]),
        np.concatenate([part.log_score for part in parts]),
        {name: np.concatenate([part.novelty[name] for part in parts]) for name in parts[0].novelty},
    )


def of_pairs(scored: Scored, y: Int[np.ndarray, " N"]) -> dict[str, float]:
    """Calibration errors that are sums over pairs of rows: resamples do not give their errors.

    With the standard deviation of the first where the probabilities are right.
    """
    return {
        "debiased_ece2": debiased_squared_ece(scored.probs, y),
        "debiased_ece2_sd": debiased_squared_ece_sd(scored.probs),
        "skce": skce(scored.probs[:SKCE_ROWS], y[:SKCE_ROWS]),
    }
