r"""Clusters of Markov chains by their functions: which chains are in one place, which apart.

Two chains are apart if their equal mixture would have two modes along the line that parts them. For
two normals of one sd that is where their means are more than two sds apart,

.. math:: d_{jk} = \frac{\bigl| \bar u_j - \bar u_k \bigr|}{s_u} > 2, \qquad
          u = \sum_n \frac{\bar f_{jn} - \bar f_{kn}}{s_n^2} \, f(x_n)

with u the draws of f along the line between the means of the two chains, each point by its variance
within them. The line is found on one half of each chain and the distance measured on the other, and
the other way round: on the same draws noise alone would part chains, the more points there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.convergence import MIN_DRAWS_A_CHAIN
from pyro_bnn.diagnostics.shapes import check_axes
from pyro_bnn.errors import ShapeError

SEPARATION = 2.0  # sds: two normals of equal sd and weight have two modes from here on
ROUNDING = 1e-12  # of the largest variance: what moves less stands still


@dataclass(frozen=True, eq=False)
class ChainClusters:
    """Which chains are in one place.

    Attributes:
        labels: Number of the cluster of each chain ``[C]``: 0 for the largest, and on.
        separation: Distance between each two chains ``[C, C]``, in sds within them.
    """

    labels: tuple[int, ...]
    separation: Float[np.ndarray, "C C"]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of chains in each cluster, the largest first."""
        return tuple(int(count) for count in np.bincount(self.labels))

    def __len__(self) -> int:
        return len(self.sizes)


def chain_clusters(f: Float[np.ndarray, "C S N F"]) -> ChainClusters:
    """Groups of chains whose functions overlap; chains of different groups are all apart.

    Two chains are in one cluster if they are less than two sds apart, or a row of chains joins them
    in which each two neighbours are. A cluster is a mode of the posterior, or a place in which its
    chains were stuck: draws alone do not tell these apart. Modes with the same mean function and
    another spread are not parted.

    Args:
        f: Function draws ``[C, S, N, F]``, S draws in each of C chains.

    Returns:
        The clusters, and the distance between each two chains.

    Raises:
        ShapeError: If ``f`` is not ``[C, S, N, F]`` or a chain has fewer than 8 draws.

    References:
        Yao, Vehtari & Gelman, "Stacking for Non-mixing Bayesian Computations: The Curse and
        Blessing of Multimodal Posteriors", JMLR 23, 2022, arXiv:2006.12335, for chains that stay in
        modes of their own. Behboodian, "On the Modes of a Mixture of Two Normal Distributions",
        Technometrics 12, 1970, for two sds.

    Example:
        >>> f = np.random.default_rng(0).standard_normal((4, 100, 3, 1))
        >>> f[3] += 5.0
        >>> chain_clusters(f).labels
        (0, 0, 0, 1)
    """
    f = check_axes("f", f, "C S N F")
    if f.shape[1] < MIN_DRAWS_A_CHAIN:
        raise ShapeError(
            f"clusters need at least {MIN_DRAWS_A_CHAIN} draws in each chain, got {f.shape[1]}"
        )
    num_chains, num_draws = f.shape[:2]
    draws = f.reshape(num_chains, num_draws, -1).astype(float)
    half = num_draws // 2
    halves = draws[:, :half], draws[:, half:]
    apart = np.zeros((num_chains, num_chains))
    for j in range(num_chains):
        for k in range(j):
            ways = [
                _separation(*(part[[j, k]] for part in order)) for order in (halves, halves[::-1])
            ]
            apart[j, k] = apart[k, j] = max(float(np.mean(ways)), 0.0)
    return ChainClusters(_labels(apart <= SEPARATION), apart)


def _separation(line: Float[np.ndarray, "2 s M"], rest: Float[np.ndarray, "2 t M"]) -> float:
    """Distance of two chains on ``rest``, in sds, along the line between their means on ``line``.

    Negative where the other draws lie the other way round, as those of one place do half the time.
    """
    gap = line[0].mean(0) - line[1].mean(0)  # [M]
    variance = line.var(1).mean(0)
    largest = variance.max()
    still = variance <= ROUNDING * largest
    if (still & (gap**2 > largest)).any():  # chains that stand still, apart
        return float("inf")
    direction = np.divide(gap, variance, out=np.zeros_like(gap), where=~still)
    along = rest @ direction  # [2, t]
    sd = np.sqrt(along.var(1).mean())
    difference = float(along[0].mean() - along[1].mean())
    return 0.0 if difference == 0 else difference / sd if sd > 0 else float("inf")


def _labels(joined: np.ndarray) -> tuple[int, ...]:
    """Connected groups of ``joined [C, C]``, numbered from the largest on, then in order."""
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(joined, directed=False)
    counts = np.bincount(labels)
    order = sorted(set(labels.tolist()), key=lambda g: (-counts[g], int(np.argmax(labels == g))))
    place = {group: number for number, group in enumerate(order)}
    return tuple(place[group] for group in labels.tolist())
