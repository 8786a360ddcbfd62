"""All numbers of one method: held-out scores, checks of the fit, distance to the reference."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.ranking import check_scores
from pyro_bnn.posterior.rows import rows_with_draws
from pyro_bnn.report.evaluation.against import AgainstReference
from pyro_bnn.report.evaluation.fit_checks import FitChecks, fit_checks
from pyro_bnn.report.evaluation.fit_record import FitRecord, ModelRecord
from pyro_bnn.report.evaluation.held_out import HeldOut, held_out
from pyro_bnn.report.evaluation.likelihood_checks import share_below_zero

if TYPE_CHECKING:
    from pyro_bnn.data.split import Split
    from pyro_bnn.posterior.protocol import PosteriorLike


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Numbers of one method on one split: all that a report needs of it, no posterior.

    Attributes:
        name: Name in the comparison.
        fit: How the posterior came about.
        num_draws: Draws of the function behind the scores; 1 for a point estimate, K for K atoms.
        held_out: Scores on the test rows.
        checks: What the fit says about itself.
        below_zero: Share of the intervals of y that reach below zero though y never does.
        at_probes: Draws of the function at rows off the data ``[S, P, F]``; None without these.
        at_rows: Against the reference at the test rows; None for the reference and without one.
        off_data: Against the reference at the probes; None also without these.
        notes: Why a number is blank, and what limits the others.
        distance_notes: Why there is no distance.
    """

    name: str
    fit: FitRecord
    num_draws: int
    held_out: HeldOut
    checks: FitChecks
    below_zero: float = 0.0
    at_probes: Float[np.ndarray, "S P F"] | None = None
    at_rows: AgainstReference | None = None
    off_data: AgainstReference | None = None
    notes: tuple[str, ...] = ()
    distance_notes: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """What no other evaluation has: a digest of its scores and of some draws of f."""
        scores = self.held_out
        parts = (scores.log_score, np.ascontiguousarray(scores.function_draws[:, 0]))
        return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()

    def of_model(self, model: ModelRecord) -> Evaluation:
        """The same, with a record of its model that others share."""
        return replace(self, fit=replace(self.fit, model=model))


def evaluate(
    name: str,
    posterior: PosteriorLike,
    split: Split,
    *,
    num_draws: int,
    seed: int,
) -> Evaluation:
    """Evaluates one posterior by itself; :func:`with_distances` adds what needs a reference.

    Args:
        name: Name in the comparison.
        posterior: Any posterior.
        split: The data; training rows for the checks, test rows for the scores. Of a large table
            what needs all draws of a row is at some of them.
        num_draws: Draws for every method of the comparison.
        seed: Seed of the draws.

    Raises:
        DataError: If a held-out log score is NaN.
    """
    stored = posterior.num_stored_draws
    available = num_draws if stored is None else min(num_draws, stored)
    rows = split_with_draws(split, num_draws)
    scores = held_out(posterior, rows, available, seed, split.test)
    check_scores(name, scores.log_score)
    available = len(scores.function_draws)  # chains give equally many
    checks = fit_checks(posterior, split, available, seed, is_point=scores.is_point)
    notes = scores.notes + checks.notes
    if (atoms := posterior.num_atoms) is not None and not scores.is_point:
        available = min(atoms, available)
        notes += (f"all draws of y come from {available} functions of equal weight",)
    return Evaluation(
        name=name,
        fit=FitRecord.of(posterior),
        num_draws=1 if scores.is_point else available,
        held_out=scores,
        checks=checks,
        below_zero=0.0
        if scores.interval is None
        else share_below_zero(split, scores.interval, scores.negative),
        notes=notes,
    )


def split_with_draws(split: Split, num_draws: int) -> Split:
    """The rows at which all draws are compared and drawn; of a large table some of them.

    Args:
        split: All rows.
        num_draws: Draws of the comparison.
    """
    train = rows_with_draws(split.train, num_draws)
    test = rows_with_draws(split.test, num_draws)
    if train is split.train and test is split.test:
        return split
    return replace(split, train=train, test=test, train_rows=None, test_rows=None)
