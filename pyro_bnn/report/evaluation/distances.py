"""Methods of a comparison against the reference, at the test rows and off the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.probes import Probes
from pyro_bnn.report.evaluation.against import AgainstReference, against
from pyro_bnn.report.evaluation.evaluate import Evaluation, split_with_draws
from pyro_bnn.report.evaluation.held_out import marginals
from pyro_bnn.report.evaluation.units import to_numpy

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_bnn.data.split import Split
    from pyro_bnn.posterior.protocol import PosteriorLike

LEAST_SD = 0.01  # of a class probability: a smaller spread, or distance of means, does not matter


@dataclass(frozen=True, kw_only=True)
class ReferenceDraws:
    """Marginals of the reference by chain.

    Attributes:
        of: Identity of its evaluation.
        rows: At the test rows ``[C, T, N, G]``.
        probes: At the probes ``[C, T, P, G]``; None without probes.
        counts: How many probes there are of each kind.
    """

    of: str
    rows: Float[np.ndarray, "C T N G"]
    probes: Float[np.ndarray, "C T P G"] | None = None
    counts: Mapping[str, int] | None = None


def with_distances(
    entry: Evaluation, reference: ReferenceDraws, split: Split, num_draws: int
) -> Evaluation:
    """Adds how far a method is from the reference.

    Args:
        entry: The numbers of the method by itself, with its draws at the probes where there are
            any.
        reference: Marginals of the reference by chain.
        split: The data.
        num_draws: Draws for every method of the comparison.
    """
    scores, off_data = entry.held_out, None
    if not scores.has_mean:
        note = "no distance and no sd ratio: its spread has no finite mean or sd"
        return replace(entry, distance_notes=(note,))
    rows = split_with_draws(split, num_draws)
    at_rows = _against(scores.function_draws, reference.rows, rows, reference.of, scores.is_point)
    if reference.probes is not None and entry.at_probes is not None:
        off_data = _against(
            entry.at_probes,
            reference.probes,
            split,
            reference.of,
            scores.is_point,
            reference.counts,
        )
    return replace(entry, at_rows=at_rows, off_data=off_data)


def at_probes(entry: Evaluation, posterior: PosteriorLike, x: Tensor, seed: int) -> Evaluation:
    """Adds draws of the function at rows x ``[P, I]`` off the data, as many as at the test rows."""
    f = posterior.function_draws(x, num_samples=len(entry.held_out.function_draws), seed=seed)
    return replace(entry, at_probes=to_numpy(f))


def as_reference(entry: Evaluation, why: str) -> Evaluation:
    """The numbers of the reference, which say why others are not measured against it.

    Args:
        entry: Its numbers.
        why: Why there are no probes; empty where there are.
    """
    note = f"not compared with others off the data: {why}" if why else ""
    if not entry.held_out.has_mean:
        note = "no distances to it: its spread has no finite mean or sd"
    notes = (note,) if note else ()
    return replace(entry, at_rows=None, off_data=None, distance_notes=notes)


def _against(
    f: Float[np.ndarray, "S N F"],
    reference: Float[np.ndarray, "C T N G"],
    split: Split,
    of: str,
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
        of=of,
        scale=_target_sd(split),
        least_sd=LEAST_SD if split.task == "classification" else 0.0,
        counts=counts,
    )


def reference_draws(
    entry: Evaluation,
    posterior: PosteriorLike,
    split: Split,
    *,
    num_draws: int,
    seed: int,
    probes: Probes | None = None,
) -> ReferenceDraws:
    """Marginals of the reference at test rows and probes, all stored draws by chain.

    Args:
        entry: The numbers of the reference.
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
        return ReferenceDraws(of=entry.identity, rows=rows)
    x = split.test.x.new_tensor(probes.x)
    return ReferenceDraws(of=entry.identity, rows=rows, probes=at(x), counts=probes.counts)


def kept_reference_draws(entry: Evaluation, split: Split, probes: Probes | None) -> ReferenceDraws:
    """The same of the draws that an evaluation keeps, where there is no posterior.

    Args:
        entry: The numbers of the reference.
        split: The data.
        probes: Rows off the data at which all methods have draws, or None.
    """

    def by_chain(f: Float[np.ndarray, "S N F"]) -> Float[np.ndarray, "C T N G"]:
        chains = f.reshape(entry.fit.num_chains, -1, *f.shape[1:])
        return marginals(chains, split.task, _num_targets(split))

    rows = by_chain(entry.held_out.function_draws)
    if probes is None or entry.at_probes is None:
        return ReferenceDraws(of=entry.identity, rows=rows)
    at = by_chain(entry.at_probes)
    return ReferenceDraws(of=entry.identity, rows=rows, probes=at, counts=probes.counts)


def _num_targets(split: Split) -> int:
    return 1 if split.test.y.ndim == 1 else int(split.test.y.shape[1])


def _target_sd(split: Split) -> float:
    """Standard deviation of y over the training rows, in the units of f; 1 where f is no y."""
    if split.train.target is None:  # classes or counts
        return 1.0
    return float(to_numpy(split.train.y).std(0).mean()) or 1.0
