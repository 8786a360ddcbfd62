"""How far the function of a method is from that of the reference, at some rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.reference import ReferenceDistance, reference_distance
from pyro_bnn.diagnostics.row_by_row import RowByRow, mean_shift, sd_ratio


@dataclass(frozen=True, kw_only=True)
class AgainstReference:
    """A method against the reference at some rows.

    Attributes:
        where: The rows, in words.
        of: Identity of the reference's evaluation.
        distance: Distance to the reference and its floor.
        sd_ratio: Epistemic sd over that of the reference, row by row.
        mean_shift: Distance of the mean from that of the reference, in its sds, row by row.
        reference_sd: Mean epistemic sd of the reference, in the units of the distance.
        counts: Number of rows of each kind, in their order; empty for one kind, or for several
            outputs.
    """

    where: str
    of: str = ""
    distance: ReferenceDistance
    sd_ratio: RowByRow
    mean_shift: RowByRow
    reference_sd: float
    counts: Mapping[str, int]


def against(
    draws: Float[np.ndarray, "S N G"],
    reference: Float[np.ndarray, "C T N G"],
    *,
    where: str,
    of: str = "",
    scale: float = 1.0,
    least_sd: float = 0.0,
    counts: Mapping[str, int] | None = None,
) -> AgainstReference:
    """Marginals of a method against those of the reference.

    Args:
        draws: Draws of the method.
        reference: Draws of the reference by chain.
        where: The rows, in words.
        of: Identity of the reference.
        scale: Unit of the distances, in units of the draws.
        least_sd: Rows and outputs where the reference's sd is not above this are not judged, unless
            the means differ by more than this.
        counts: Number of rows of each kind, in their order.
    """
    return AgainstReference(
        where=where,
        of=of,
        distance=reference_distance(draws, reference, scale=scale),
        sd_ratio=sd_ratio(draws, reference, least_sd),
        mean_shift=mean_shift(draws, reference, least_sd),
        reference_sd=float(reference.std((0, 1)).mean() / scale),
        counts=(counts or {}) if draws.shape[2] == 1 else {},
    )
