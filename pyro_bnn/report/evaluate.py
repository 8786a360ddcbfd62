"""All numbers of one method: held-out scores, checks of the fit, distance to the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.reference import (
    ReferenceDistance,
    SdRatio,
    reference_distance,
    sd_ratio,
)
from pyro_bnn.report.fit_checks import FitChecks, fit_checks
from pyro_bnn.report.held_out import HeldOut, held_out, marginals
from pyro_bnn.report.units import to_numpy

if TYPE_CHECKING:
    from pyro_bnn.data.split import Split
    from pyro_bnn.report.protocol import PosteriorLike


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Numbers of one method on one split.

    Attributes:
        name: Name in the comparison.
        posterior: The posterior.
        num_draws: Draws of the function behind the scores; 1 for a point estimate, K for K atoms.
        held_out: Scores on the test rows.
        checks: What the fit says about itself.
        distance: Distance to the reference and its floor; None for the reference and without one.
        sd_ratio: Epistemic sd over that of the reference.
        notes: Why a number is blank, and what limits the others.
    """

    name: str
    posterior: PosteriorLike
    num_draws: int
    held_out: HeldOut
    checks: FitChecks
    distance: ReferenceDistance | None = None
    sd_ratio: SdRatio | None = None
    notes: tuple[str, ...] = ()


def evaluate(
    name: str,
    posterior: PosteriorLike,
    split: Split,
    *,
    num_draws: int,
    seed: int,
    reference: Float[np.ndarray, "C T N G"] | None = None,
) -> Evaluation:
    """Evaluates one posterior.

    Args:
        name: Name in the comparison.
        posterior: Any posterior.
        split: The data; training rows for the checks, test rows for the scores.
        num_draws: Draws for every method of the comparison.
        seed: Seed of the draws.
        reference: Marginals of the reference by chain, from `reference_marginals`; None for the
            reference itself, without one, and where its predictive mean does not exist.
    """
    stored = posterior.num_stored_draws
    available = num_draws if stored is None else min(num_draws, stored)
    scores = held_out(posterior, split, available, seed)
    checks = fit_checks(posterior, split, available, seed, is_point=scores.is_point)
    distance = ratio = None
    notes = scores.notes + checks.notes
    if (atoms := posterior.num_atoms) is not None and not scores.is_point:
        available = min(atoms, available)
        notes += (f"{available} functions of equal weight, of which all draws of y are",)
    if reference is not None and not scores.has_mean:
        notes += ("no distance and no sd ratio: its spread has no finite mean or sd",)
    elif reference is not None:
        own = marginals(scores.function_draws, split.task, _num_targets(split))
        if scores.is_point:  # rounding between rows of a batch is no spread
            own = np.broadcast_to(own[:1], own.shape)
        distance = reference_distance(own, reference, scale=_target_sd(split))
        ratio = sd_ratio(own, reference)
    return Evaluation(
        name=name,
        posterior=posterior,
        num_draws=1 if scores.is_point else available,
        held_out=scores,
        checks=checks,
        distance=distance,
        sd_ratio=ratio,
        notes=notes,
    )


def reference_marginals(
    posterior: PosteriorLike, split: Split, *, num_draws: int, seed: int
) -> Float[np.ndarray, "C T N G"]:
    """Marginals of the reference at the test rows, all stored draws by chain.

    Args:
        posterior: The reference.
        split: The data.
        num_draws: Draws where the reference stores none (an approximation as the reference).
        seed: Seed of the draws.
    """
    f = posterior.function_draws(
        split.test.x,
        num_samples=posterior.num_stored_draws or num_draws,
        seed=seed,
        group_by_chain=True,
    )
    return marginals(to_numpy(f), split.task, _num_targets(split))


def _num_targets(split: Split) -> int:
    return 1 if split.test.y.ndim == 1 else int(split.test.y.shape[1])


def _target_sd(split: Split) -> float:
    """Standard deviation of y over the training rows, in the units of f; 1 for probabilities."""
    if split.task == "classification":
        return 1.0
    return float(to_numpy(split.train.y).std(0).mean()) or 1.0
