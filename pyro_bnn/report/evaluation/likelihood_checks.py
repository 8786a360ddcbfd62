"""Whether the likelihood fits a target: errors that grow with the mean, intervals below zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.bands import BAND_PROBABILITY, central_band
from pyro_bnn.report.evaluation.units import Units, to_numpy

if TYPE_CHECKING:
    from pyro_bnn.data.split import Split

LEVEL_OF_THIRDS = 0.9
ROUNDING = 1e-6  # of a target of zero that was standardised in single precision, in its sds


@dataclass(frozen=True, kw_only=True)
class CoverageByMean:
    """Coverage of the central 90 % interval by thirds of the rows, by predictive mean.

    Attributes:
        shares: Coverage of the rows with the smallest, middle and largest means ``[3]``.
        low: Least difference of the first and the last that chance allows; NaN if not known.
        high: Largest such difference.
    """

    shares: Float[np.ndarray, " 3"]
    low: float
    high: float

    @property
    def difference(self) -> float:
        """Coverage at the smallest means less that at the largest."""
        return float(self.shares[0] - self.shares[2])

    @property
    def is_uneven(self) -> bool:
        """Whether intervals are too wide at one end and too narrow at the other, beyond chance.

        Intervals that are too narrow, or too wide, at both ends are a fault of another kind.
        """
        first, _, last = self.shares - LEVEL_OF_THIRDS
        is_beyond = self.difference < self.low or self.difference > self.high
        return bool(first * last < 0 and is_beyond)


def coverage_by_mean(
    pit: Float[np.ndarray, "N O"],
    simulated: Float[np.ndarray, "S N O"],
    mean: Float[np.ndarray, "N O"],
) -> CoverageByMean | None:
    """Coverage by thirds of the rows, those of each target in order of its mean.

    Args:
        pit: PIT values of the observations.
        simulated: Those of data sets drawn from the posterior itself, which give the band.
        mean: Predictive means.

    Returns:
        Coverage and band; None where there are less than three rows.
    """
    size = len(mean) // 3
    if not size:
        return None
    order = mean.argsort(0, kind="stable")
    ends = [size, len(mean) - size]

    def shares(values: Float[np.ndarray, "S N O"]) -> Float[np.ndarray, "S 3"]:
        inside = np.abs(values - 0.5) <= LEVEL_OF_THIRDS / 2
        ordered = np.take_along_axis(inside, order[None], 1)
        return np.stack([part.mean((1, 2)) for part in np.split(ordered, ends, 1)], 1)

    expected = shares(simulated)
    low, high = central_band(expected[:, 0] - expected[:, 2])
    return CoverageByMean(shares=shares(pit[None])[0], low=float(low), high=float(high))


def share_below_zero(
    split: Split, interval: Float[np.ndarray, "2 N O"], negative: Float[np.ndarray, " O"]
) -> float:
    r"""Share of 95 % intervals that reach below zero though their target never does.

    A target counts where its own forecast would have given it a negative value: with a share
    :math:`r` of negative draws, none in N rows has a chance of

    .. math:: (1 - r)^N \le 1 - \beta

    Args:
        split: All rows, of training and test.
        interval: Ends of the intervals, in the user's units.
        negative: Share of the predictive draws of each target that are negative.
    """
    units = Units.of(split)
    z = np.concatenate(
        [to_numpy(rows.y).reshape(len(rows), -1) for rows in (split.train, split.test)]
    )
    y = units.values(z)
    zero = -ROUNDING * (units.scale + np.abs(units.loc))
    chance = (1 - negative) ** len(y) * len(units.scale)  # of one of several targets
    is_odd = (y >= zero).all(0) & (chance <= 1 - BAND_PROBABILITY)
    if not is_odd.any():
        return 0.0
    return float((interval[0] < zero)[:, is_odd].mean())
