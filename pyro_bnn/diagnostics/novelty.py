r"""How far new rows lie from the training rows, in their inputs alone.

.. math::
    d(x) = \min_i \lVert x - x_i \rVert, \qquad d_i = \min_{j \ne i} \lVert x_i - x_j \rVert, \qquad
    p(x) = \frac{1 + \#\{i : d_i \ge d(x)\}}{N + 1}

No posterior is asked, so none can hide a gap: a mean-field posterior is sure of itself between
clusters of data, and with bounded units far from all data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float

from pyro_bnn.diagnostics.shapes import check_axes
from pyro_bnn.errors import ShapeError

if TYPE_CHECKING:
    from sklearn.neighbors import NearestNeighbors

TREE = 8  # inputs up to which a tree is faster than all pairs
AT_ONCE = 64  # rows whose products with all training rows stay in the cache
MOST_NEAR = 8  # training rows of about the least distance, of each row, that are measured again
LEVEL = 0.05
"""p-value from which down a row counts as far from the training rows."""
ROUNDING = 1e-6  # of the norm of a row, or of 1: nearer rows are copies in other units or digits
DIGITS = float(np.finfo(np.float32).eps)  # of a number, or of 1: nearer ones are the same number


@dataclass(frozen=True, eq=False)
class Novelty:
    r"""Distances of rows to the nearest of N training rows, and how unusual they are.

    ``p_value`` is a conformal p-value: if the new row and the training rows are exchangeable, as
    draws from one population are, and distances are fixed beforehand,

    .. math:: \Pr(p(x) \le \alpha) \le \alpha

    for every N and every distribution; ties, as of two rows nearest to one another, only
    lower it. The :math:`d_i` need not be computed anew with x among the rows: :math:`d_i \ge d(x)`
    holds then as before, because no row is nearer to x than d(x). What this does not say:

    * It is a mean over training sets and new rows. Of one training set more or fewer of such rows
      may be far, all together, as they are held against the same rows.
    * Units that were standardised by the training rows are not fixed beforehand: of few rows with
      outliers the share above exceeds :math:`\alpha` (``python -m benchmarks.verdicts distance``).
    * Rows that were copied, or several of one subject, are not exchangeable with a new subject. If
      more than :math:`1 - \alpha` of the training rows have an exact copy, every row that has
      none is far.
    * p is at least 1 / (N + 1): with fewer than 19 rows none is far at 0.05.
    * A small p says that a row is unlike the training rows, not that its prediction is wrong; a
      large one does not say that it is right. Among many inputs a large change of one of them
      adds little to the distance.

    A row that alone differs from all others in an input is infinitely far from them: an input
    that never varied has no scale. This holds for training rows among each other too.

    Args:
        x: Training inputs ``[N, I]`` in units in which distances mean something (standardised).
        sizes: How many inputs each column of the data became, where columns of text became one
            for each category. Their differences are divided by the root of the number of
            categories that vary, so that a column of two categories counts as one of zeros and
            ones. By default every input is a column.

    Raises:
        ShapeError: If x is not ``[N, I]``, or the sizes are not those of I inputs.

    Example:
        >>> novelty = Novelty(np.arange(99.0)[:, None])  # each 1 from its nearest other
        >>> distance = novelty.distance(np.array([[0.5], [200.0]]))
        >>> distance.tolist(), novelty.p_value(distance).tolist()
        ([0.5, 102.0], [1.0, 0.01])

    References:
        Vovk, Gammerman & Shafer, *Algorithmic Learning in a Random World*, Springer 2005.
        Laxhammar & Falkman, "Online Learning and Sequential Anomaly Detection in Trajectories",
        IEEE TPAMI 36, 2014 (by nearest neighbours). Bates, Candes, Lei, Romano & Sesia, "Testing
        for Outliers with Conformal p-values", Annals of Statistics 51, 2023, arXiv:2104.08279.
        Sun, Ming, Zhu & Li, "Out-of-Distribution Detection with Deep Nearest Neighbors", ICML
        2022, arXiv:2204.06507.
    """

    x: Float[np.ndarray, "N I"]
    sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        x = check_axes("x", self.x, "N I")
        object.__setattr__(self, "x", x)
        if self.sizes is not None and (min(self.sizes) < 1 or sum(self.sizes) != x.shape[1]):
            raise ShapeError(
                f"sizes {list(self.sizes)} are not those of the {x.shape[1]} inputs of x"
            )

    def distance(self, x: Float[np.ndarray, "M I"]) -> Float[np.ndarray, " M"]:
        """Euclidean distance of rows to the nearest training row, in the units of x.

        Args:
            x: Inputs ``[M, I]``.

        Raises:
            ShapeError: If x is not ``[M, I]``.
        """
        x = check_axes("x", x, "M I")
        if x.shape[1] != self.x.shape[1]:
            raise ShapeError(f"x has {x.shape[1]} inputs, the training rows {self.x.shape[1]}")
        nearest = self._nearest(x, 1)
        differs = (np.abs(x - self.x[0]) > _rounding(self.x[0]))[:, ~self._varies].any(1)
        return np.where(differs, np.inf, nearest)

    def p_value(self, distance: Float[np.ndarray, " M"]) -> Float[np.ndarray, " M"]:
        """Share of rows, the new one among them, that are as far from all others as it is.

        Args:
            distance: Of new rows ``[M]``; see :meth:`distance`.
        """
        num_nearer = np.searchsorted(self.training_distance, distance, side="left")
        return np.asarray(
            (1 + len(self.training_distance) - num_nearer) / (1 + len(self.training_distance))
        )

    @cached_property
    def training_distance(self) -> Float[np.ndarray, " N"]:
        """Distance of each training row to the nearest other, in ascending order."""
        nearest = self._nearest(self.x, 2)  # the nearest is itself
        return np.sort(np.where(self._alone, np.inf, nearest))

    @property
    def own(self) -> Float[np.ndarray, " N"]:
        """The older name of `training_distance`, for one version."""
        return self.training_distance

    def _nearest(self, x: Float[np.ndarray, "M I"], k: int) -> Float[np.ndarray, " M"]:
        """Distance to the k-th nearest training row, 0 where that is rounding."""
        if k > len(self.x):  # one row has no other
            return np.full(len(x), np.inf)
        x = x / self._divisor
        if k == 1 and self.x.shape[1] > TREE:
            distance = np.concatenate(
                [self._nearest_of_all(x[i : i + AT_ONCE]) for i in range(0, len(x), AT_ONCE)]
            )
        else:
            distance = self._search.kneighbors(x, k)[0][:, -1]
        with np.errstate(over="ignore"):
            is_copy = distance < ROUNDING * np.linalg.norm(x, axis=1).clip(min=1)
        return np.asarray(np.where(is_copy, 0.0, distance))

    def _nearest_of_all(self, x: Float[np.ndarray, "m I"]) -> Float[np.ndarray, " m"]:
        r"""Distance to the nearest of all training rows, which single precision makes few.

        .. math:: \tfrac12 \lVert x - x_i \rVert^2 = \tfrac12 \lVert x \rVert^2 + s_i, \qquad
            s_i = \tfrac12 \lVert x_i \rVert^2 - x^\top x_i

        with x and x_i about the mean of the training rows. Those whose :math:`s_i` is the least but
        for its rounding error are measured in double precision. Where they are many, as of copies,
        or numbers are too large, all are.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            centred = x - self._center
            norm = np.linalg.norm(centred, axis=1)
            s = np.c_[centred, np.ones(len(x))].astype(np.float32) @ self._products  # [m, N]
            least = s.min(1)
            reach = norm + np.sqrt(np.maximum(norm**2 + 2 * least, 0))  # of the nearest row
            error = 4 * (x.shape[1] + 4) * 2.0**-24 * reach**2
        near = np.flatnonzero(s <= (least + error)[:, None].astype(np.float32))
        row, of = np.divmod(near, len(self.x))
        starts = np.searchsorted(row, np.arange(len(x)))
        if not np.isfinite(error).all() or len(near) > MOST_NEAR * len(x):
            return np.asarray(self._search.kneighbors(x, 1)[0][:, 0])
        squares = np.square(x[row] - self._train[of]).sum(1)
        return np.asarray(np.sqrt(np.minimum.reduceat(squares, starts)))

    @property
    def _alone(self) -> Bool[np.ndarray, " N"]:
        """Whether a row differs from all others in an input in which these are equal."""
        least, most = self.x.min(0), self.x.max(0)  # [I]
        is_low, is_high = self.x <= least + _rounding(least), self.x >= most - _rounding(most)
        low, high = is_low.sum(0), is_high.sum(0)
        others = len(self.x) - 1
        is_low_one, is_high_one = (low == 1) & (high == others), (high == 1) & (low == others)
        return np.asarray((is_low & is_low_one | is_high & is_high_one).any(1))

    @cached_property
    def _varies(self) -> Bool[np.ndarray, " I"]:
        """Whether the training rows differ in an input by more than rounding."""
        return np.asarray(np.ptp(self.x, 0) > _rounding(self.x[0]))

    @cached_property
    def _search(self) -> NearestNeighbors:
        """A tree of few inputs; of more all pairs are faster, 8 times so of 21."""
        from sklearn.neighbors import NearestNeighbors

        algorithm = "kd_tree" if self.x.shape[1] <= TREE else "brute"
        return NearestNeighbors(algorithm=algorithm).fit(self._train)

    @cached_property
    def _train(self) -> Float[np.ndarray, "N I"]:
        """The training rows, each input over its divisor."""
        return np.asarray(self.x / self._divisor)

    @cached_property
    def _center(self) -> Float[np.ndarray, " I"]:
        return np.asarray(self._train.mean(0))

    @cached_property
    def _products(self) -> Float[np.ndarray, "I+1 N"]:
        """What rows with a 1 at their end are multiplied by, single precision."""
        x = self._train - self._center
        half = np.square(x).sum(1, keepdims=True) / 2
        return np.ascontiguousarray(np.c_[-x, half].T, np.float32)

    @cached_property
    def _divisor(self) -> Float[np.ndarray, " I"]:
        """The root of how many inputs of its column vary, for each input."""
        sizes = np.ones(self.x.shape[1], dtype=int) if self.sizes is None else list(self.sizes)
        of_column = np.add.reduceat(self._varies, np.cumsum([0, *sizes[:-1]]), dtype=int)
        return np.asarray(np.sqrt(np.repeat(of_column.clip(min=1), sizes)))


def _rounding(values: Float[np.ndarray, " I"]) -> Float[np.ndarray, " I"]:
    """How far a number may be from these and be the same to the digits of single precision."""
    return np.asarray(DIGITS * np.abs(values).clip(min=1))
