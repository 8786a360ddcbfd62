"""Scores of each of several targets of a regression, in its own units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.calibration import Coverage, coverage, covered_share
from pyro_bnn.diagnostics.scores import crps, rmse


@dataclass(frozen=True, kw_only=True)
class TargetScores:
    """Scores of one target on the test rows, in its units.

    Attributes:
        rmse: Of the predictive mean, or of the median where the mean does not exist.
        crps: Mean continuous ranked probability score.
        coverage: Of the central 95 % interval.
        log_score: Log of the mean density over draws of this target alone, every row ``[N]``,
            nats; None where it has no density of its own.
    """

    rmse: float
    crps: float
    coverage: Coverage
    log_score: Float[np.ndarray, " N"] | None = None


def score_targets(
    draws: Float[np.ndarray, "S N O"],
    y: Float[np.ndarray, "N O"],
    mean: Float[np.ndarray, "N O"],
    pit: Float[np.ndarray, "N O"],
    simulated: Float[np.ndarray, "S N O"],
    level: float,
    log_scores: Float[np.ndarray, "N O"] | None = None,
) -> tuple[TargetScores, ...]:
    """Score every target alone; none where there is one.

    Args:
        draws: Predictive draws.
        y: Observations.
        mean: Predictive means or medians.
        pit: PIT values.
        simulated: Those of data drawn from the posterior.
        level: Of the interval.
        log_scores: Log densities of each target alone; None where there are none.
    """
    num_targets = y.shape[1]
    return tuple(
        TargetScores(
            rmse=rmse(mean[:, o], y[:, o]),
            crps=float(crps(draws[..., o], y[:, o]).mean()),
            coverage=coverage(pit[:, o], level, covered_share(simulated[..., o], level)),
            log_score=None if log_scores is None else log_scores[:, o],
        )
        for o in range(num_targets if num_targets > 1 else 0)
    )
