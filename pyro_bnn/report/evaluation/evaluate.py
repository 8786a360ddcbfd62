"""All numbers of one method: held-out scores, checks of the fit, distance to the reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.probes import Probes
from pyro_bnn.diagnostics.ranking import check_scores
from pyro_bnn.diagnostics.reference import ReferenceDistance, reference_distance
from pyro_bnn.diagnostics.row_by_row import RowByRow, mean_shift, sd_ratio
from pyro_bnn.posterior.rows import rows_with_draws
from pyro_bnn.report.evaluation.fit_checks import FitChecks, fit_checks
from pyro_bnn.report.evaluation.held_out import HeldOut, held_out, marginals
from pyro_bnn.report.evaluation.likelihood_checks import share_below_zero
from pyro_bnn.report.evaluation.units import to_numpy

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_bnn.data.split import Split
    from pyro_bnn.posterior.protocol import PosteriorLike

LEAST_SD = 0.01  # of a class probability: a smaller spread, or distance of means, does not matter


@dataclass(frozen=True, kw_only=True)
class AgainstReference:
    """A method against the reference at some rows.

    Attributes:
        where: What the rows are.
        distance: Distance to the reference and its floor.
        sd_ratio: Epistemic sd over that of the reference, row by row.
        mean_shift: Distance of the mean from that of the reference, in its sds, row by row.
        reference_sd: Mean epistemic sd of the reference, in the units of the distance.
        counts: Rows of each kind, in their order; empty where they are of one, and of several
            outputs.
    """

    where: str
    distance: ReferenceDistance
    sd_ratio: RowByRow
    mean_shift: RowByRow
    reference_sd: float
    counts: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class ReferenceDraws:
    """Marginals of the reference by chain.

    Attributes:
        rows: At the test rows ``[C, T, N, G]``.
        probes: At the probes ``[C, T, P, G]``; None without probes.
        at: The probes' inputs ``[P, I]``, in the dtype of the data.
        counts: How many probes there are of each kind.
    """

    rows: Float[np.ndarray, "C T N G"]
    probes: Float[np.ndarray, "C T P G"] | None = None
    at: Tensor | None = None
    counts: Mapping[str, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Numbers of one method on one split.

    Attributes:
        name: Name in the comparison.
        posterior: The posterior.
        num_draws: Draws of the function behind the scores; 1 for a point estimate, K for K atoms.
        held_out: Scores on the test rows.
        checks: What the fit says about itself.
        below_zero: Share of the intervals of y that reach below zero though y never does.
        at_rows: Against the reference at the test rows; None for the reference and without one.
        off_data: Against the reference at the probes; None also without these.
        notes: Why a number is blank, and what limits the others.
    """

    name: str
    posterior: PosteriorLike
    num_draws: int
    held_out: HeldOut
    checks: FitChecks
    below_zero: float = 0.0
    at_rows: AgainstReference | None = None
    off_data: AgainstReference | None = None
    notes: tuple[str, ...] = ()


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
        posterior=posterior,
        num_draws=1 if scores.is_point else available,
        held_out=scores,
        checks=checks,
        below_zero=0.0
        if scores.interval is None
        else share_below_zero(split, scores.interval, scores.negative),
        notes=notes,
    )


def with_distances(
    entry: Evaluation, reference: ReferenceDraws, split: Split, *, num_draws: int, seed: int
) -> Evaluation:
    """Adds how far a method is from the reference.

    Args:
        entry: The numbers of the method by itself.
        reference: Marginals of the reference by chain, from `reference_draws`.
        split: The data.
        num_draws: Draws for every method of the comparison.
        seed: Seed of the draws.
    """
    scores, off_data = entry.held_out, None
    if not scores.has_mean:
        note = "no distance and no sd ratio: its spread has no finite mean or sd"
        return replace(entry, notes=(*entry.notes, note))
    f, rows = scores.function_draws, split_with_draws(split, num_draws)
    at_rows = _against(f, reference.rows, rows, is_point=scores.is_point)
    if reference.probes is not None and reference.at is not None:
        draws = entry.posterior.function_draws(reference.at, num_samples=len(f), seed=seed)
        off_data = _against(
            to_numpy(draws),
            reference.probes,
            split,
            is_point=scores.is_point,
            counts=reference.counts,
        )
    return replace(entry, at_rows=at_rows, off_data=off_data)


def _against(
    f: Float[np.ndarray, "S N F"],
    reference: Float[np.ndarray, "C T N G"],
    split: Split,
    *,
    is_point: bool,
    counts: Mapping[str, int] | None = None,
) -> AgainstReference:
    own = marginals(f, split.task, _num_targets(split))
    if is_point:  # rounding between rows of a batch is no spread
        own = np.broadcast_to(own[:1], own.shape)
    what = "test rows" if counts is None else "probes off the data"
    return against(
        own,
        reference,
        where=what if own.shape[2] == 1 else f"outputs at {what}",
        scale=_target_sd(split),
        least_sd=LEAST_SD if split.task == "classification" else 0.0,
        counts=counts,
    )


def against(
    own: Float[np.ndarray, "S N G"],
    reference: Float[np.ndarray, "C T N G"],
    *,
    where: str,
    scale: float = 1.0,
    least_sd: float = 0.0,
    counts: Mapping[str, int] | None = None,
) -> AgainstReference:
    """Marginals of a method against those of the reference.

    Args:
        own: Draws of the method.
        reference: Draws of the reference by chain.
        where: What the rows are.
        scale: Unit of distances, in that of the draws.
        least_sd: Rows and outputs with no larger sd of the reference are not judged, but for means
            that are farther apart than this.
        counts: Rows of each kind, in their order.
    """
    return AgainstReference(
        where=where,
        distance=reference_distance(own, reference, scale=scale),
        sd_ratio=sd_ratio(own, reference, least_sd),
        mean_shift=mean_shift(own, reference, least_sd),
        reference_sd=float(reference.std((0, 1)).mean() / scale),
        counts=(counts or {}) if own.shape[2] == 1 else {},
    )


def reference_draws(
    posterior: PosteriorLike,
    split: Split,
    *,
    num_draws: int,
    seed: int,
    probes: Probes | None = None,
) -> ReferenceDraws:
    """Marginals of the reference at test rows and probes, all stored draws by chain.

    Args:
        posterior: The reference.
        split: The data.
        num_draws: Draws where the reference stores none (an approximation as the reference).
        seed: Seed of the draws.
        probes: Rows off the data, or None.
    """

    def at(x: Tensor) -> np.ndarray:
        f = posterior.function_draws(
            x,
            num_samples=posterior.num_stored_draws or num_draws,
            seed=seed,
            group_by_chain=True,
        )
        return marginals(to_numpy(f), split.task, _num_targets(split))

    rows = at(split_with_draws(split, num_draws).test.x)
    if probes is None:
        return ReferenceDraws(rows=rows)
    x = split.test.x.new_tensor(probes.x)
    return ReferenceDraws(rows=rows, probes=at(x), at=x, counts=probes.counts)


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


def _num_targets(split: Split) -> int:
    return 1 if split.test.y.ndim == 1 else int(split.test.y.shape[1])


def _target_sd(split: Split) -> float:
    """Standard deviation of y over the training rows, in the units of f; 1 where f is no y."""
    if split.train.target is None:  # classes or counts
        return 1.0
    return float(to_numpy(split.train.y).std(0).mean()) or 1.0
