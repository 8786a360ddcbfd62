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
        where: What the rows are.
        of: Identity of the reference's evaluation.
        distance: Distance to the reference and its floor.
        sd_ratio: Epistemic sd over that of the reference, row by row.
        mean_shift: Distance of the mean from that of the reference, in its sds, row by row.
        reference_sd: Mean epistemic sd of the reference, in the units of the distance.
        counts: Rows of each kind, in their order; empty where they are of one, and of several
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
    own: Float[np.ndarray, "S N G"],
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
        own: Draws of the method.
        reference: Draws of the reference by chain.
        where: What the rows are.
        of: Identity of the reference.
        scale: Unit of distances, in that of the draws.
        least_sd: Rows and outputs with no larger sd of the reference are not judged, but for means
            that are farther apart than this.
        counts: Rows of each kind, in their order.
    """
    return AgainstReference(
        where=where,
        of=of,
        distance=reference_distance(own, reference, scale=scale),
        sd_ratio=sd_ratio(own, reference, least_sd),
        mean_shift=mean_shift(own, reference, least_sd),
        reference_sd=float(reference.std((0, 1)).mean() / scale),
        counts=(counts or {}) if own.shape[2] == 1 else {},
    )
