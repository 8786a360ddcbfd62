"""Probes: rows off the data, where a posterior shows what it does between and beyond its rows.

At rows like the training rows independent weights look too wide, and in gaps they are too narrow
(Foong, Burt, Li & Turner, "On the Expressiveness of Approximate Inference in Bayesian Neural
Networks", NeurIPS 2020, arXiv:1909.00719): a spread is to be compared at both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from pyro_bnn.diagnostics.shapes import check_axes, evenly_spread

NUM_BETWEEN, NUM_ALONG, NUM_BEYOND = 16, 24, 8
NUM_COMPONENTS = 3
FRACTIONS = (0.25, 0.5, 0.75)  # of a segment between two rows
EXTENSION = 0.5  # of the range along a component, at both ends
FURTHER = 2.0  # times the distance from the mean
OFF_DATA = 0.95  # share of training rows that are nearer to their nearest one than a probe is
MOST_ROWS, MOST_PAIRED = 1_000, 64  # training rows that are looked at; those of all pairs
KINDS = {
    "between": "points between two training rows, in the largest gaps",
    "along": "points along the first principal components of the inputs, up to half the range "
    "beyond its ends",
    "beyond": "outlying training rows at twice their distance from the mean",
}
"""How the probes of each kind are made."""


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Rows off the data.

    Attributes:
        x: Inputs ``[P, I]``.
        counts: How many there are of each of `KINDS`.
    """

    x: Float[np.ndarray, "P I"]
    counts: Mapping[str, int]

    @property
    def description(self) -> str:
        """How they were made, in words."""
        parts = [f"{count} {KINDS[kind]}" for kind, count in self.counts.items() if count]
        return (
            f"{len(self.x)} probes off the data: {'; '.join(parts)}. Each lies beyond the range of "
            "the training rows along its component, or further from its nearest training row than "
            f"{100 * OFF_DATA:g} % of training rows do from theirs"
        )


def probe_rows(x: Float[np.ndarray, "N I"], whole: Bool[np.ndarray, " I"] | None = None) -> Probes:
    """At most 48 rows off the data, made of the training inputs alone and without chance.

    * 16 points a quarter, half and three quarters of the way between two training rows: of those of
      64 rows evenly over the file, the one furthest from all rows, then the one furthest from rows
      and chosen points, and so on. They fill the largest gaps.
    * 24 points of the lines through the mean along the first three principal components (8 of each;
      24 of a single one), evenly over the range of the training rows and half of it beyond either
      end.
    * 8 outlying training rows, each the furthest from those before it, at twice their distance
      from the mean.

    Of these are kept the points beyond the range along a component, and all that lie further from
    their nearest training row than 95 % of training rows do from theirs. Distances are Euclidean,
    and of large files to 1,000 rows evenly over them. In columns of whole numbers, which may be
    indices of groups, a point takes the nearest value that occurs.

    Args:
        x: Training inputs ``[N, I]``, in units in which distances mean something (standardised).
        whole: Which columns ``[I]`` are of whole numbers in the user's units; None for none.

    Raises:
        ShapeError: If x is not ``[N, I]``.

    Example:
        >>> two_clusters = np.concatenate([np.linspace(-2, -1, 20), np.linspace(1, 2, 20)])
        >>> probes = probe_rows(two_clusters[:, None])
        >>> dict(probes.counts)
        {'between': 16, 'along': 18, 'beyond': 6}
        >>> float(probes.x[0, 0]), float(probes.x.max())
        (0.0, 4.0)
    """
    x = check_axes("x", x, "N I")
    columns = () if whole is None else np.flatnonzero(whole).tolist()
    occurring = {i: np.unique(x[:, i]) for i in columns}
    rows = x[evenly_spread(len(x), MOST_ROWS)]
    mean = x.mean(0)
    inside, outside = _along_components(x - mean)
    among = _distances(rows, rows)
    np.fill_diagonal(among, np.inf)
    limit = np.quantile(among.min(1), OFF_DATA, method="inverted_cdf")

    def far(points: Float[np.ndarray, "M I"]) -> Float[np.ndarray, "P I"]:
        points = _at_values(points, occurring)
        return np.asarray(points[_distances(points, rows).min(1) > limit])

    outlying = _spread_out(rows, _distances(rows, mean[None])[:, 0], NUM_BEYOND)
    beyond_range = far(mean + outside) if occurring else mean + outside
    kept = {
        "between": far(_between(rows)),
        "along": np.concatenate([far(mean + inside), beyond_range]),
        "beyond": far(mean + FURTHER * (outlying - mean)),
    }
    return Probes(
        x=np.concatenate(list(kept.values())),
        counts={kind: len(new) for kind, new in kept.items()},
    )


def _at_values(
    points: Float[np.ndarray, "M I"], occurring: Mapping[int, np.ndarray]
) -> Float[np.ndarray, "P I"]:
    """Points with some columns at the nearest value that occurs there, each point once."""
    if not occurring:
        return points
    points = points.copy()
    for column, values in occurring.items():
        middles = (values[1:] + values[:-1]) / 2
        points[:, column] = values[np.searchsorted(middles, points[:, column])]
    first = np.unique(points, axis=0, return_index=True)[1]
    return points[np.sort(first)]


def _distances(a: Float[np.ndarray, "N I"], b: Float[np.ndarray, "M I"]) -> np.ndarray:
    """Distances ``[N, M]`` between all rows of both."""
    from scipy.spatial.distance import cdist

    return np.asarray(cdist(a, b))


def _between(rows: Float[np.ndarray, "N I"]) -> Float[np.ndarray, "P I"]:
    """Points of segments that are furthest from the rows and from one another, in this order."""
    some = rows[evenly_spread(len(rows), MOST_PAIRED)]
    first, second = np.triu_indices(len(some), 1)
    points = np.concatenate([some[first] + t * (some[second] - some[first]) for t in FRACTIONS])
    if not len(points):
        return points
    return _spread_out(points, _distances(points, rows).min(1), NUM_BETWEEN)


def _spread_out(
    points: Float[np.ndarray, "M I"], distance: Float[np.ndarray, " M"], most: int
) -> Float[np.ndarray, "P I"]:
    """Of points those furthest from what ``distance`` is to, and from the points before."""
    chosen = []
    for _ in range(min(most, len(points))):
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, _distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _along_components(
    centred: Float[np.ndarray, "N I"],
) -> tuple[Float[np.ndarray, "P I"], Float[np.ndarray, "P I"]]:
    """Points of the first principal components: within the range of the rows, and beyond it."""
    _, scales, components = np.linalg.svd(centred, full_matrices=False)
    components = components[:NUM_COMPONENTS][scales[:NUM_COMPONENTS] > 0]
    inside, outside = ([np.zeros((0, centred.shape[1]))] for _ in range(2))
    for component in components:
        places = centred @ component
        low, high = places.min(), places.max()
        room = EXTENSION * (high - low)
        at = np.linspace(low - room, high + room, NUM_ALONG // len(components))
        is_inside = (at >= low) & (at <= high)
        inside.append(at[is_inside, None] * component)
        outside.append(at[~is_inside, None] * component)
    return np.concatenate(inside), np.concatenate(outside)
