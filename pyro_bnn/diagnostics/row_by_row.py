r"""Spread and mean of the function against a reference, row by row.

A mean over rows hides a posterior that is too narrow at one half of them and too wide at the
other, and a ratio of spreads says nothing of a mean that is off: both are taken at every row, and
judged by quantiles over rows with the Monte Carlo error of the draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.reference import check_pair

NUM_BLOCKS = 8  # of the method's draws, for the errors
NUMBERS_AT_ONCE = 1 << 22


@dataclass(frozen=True, kw_only=True)
class RowByRow:
    r"""A number of each row, with the values that it takes without some of the draws.

    Errors are those of the jackknife over blocks of draws, of the method and of the reference:

    .. math:: \mathrm{se}^2 = \sum_{\text{samples}} \frac{B - 1}{B}
        \sum_{b=1}^B (\theta_{-b} - \bar\theta)^2

    Attributes:
        values: The number ``[M]`` at each row and output that is judged.
        without: Of each sample, the values without each block of its draws ``[B, M]``; none where
            it has too few draws for an error.

    References:
        Künsch, "The jackknife and the bootstrap for general stationary observations", Annals of
        Statistics 1989.
    """

    values: Float[np.ndarray, " M"]
    without: tuple[Float[np.ndarray, "_ M"], ...]

    @property
    def value(self) -> float:
        """Median over rows; NaN without rows."""
        return self.quantile(0.5)[0]

    @property
    def standard_error(self) -> float:
        """Monte Carlo error of the median; NaN where there are too few draws."""
        return self.quantile(0.5)[1]

    @property
    def errors(self) -> Float[np.ndarray, " M"]:
        """Monte Carlo error of each value; NaN where there are too few draws."""
        return self._error_of(self.without)

    def quantile(self, level: float) -> tuple[float, float]:
        """A quantile over rows, and its Monte Carlo error."""
        if not self.values.size:
            return float("nan"), float("nan")
        quantiles = [np.quantile(values, level, axis=1) for values in self.without]  # [B] each
        return float(np.quantile(self.values, level)), float(self._error_of(quantiles))

    @staticmethod
    def _error_of(without: Sequence[np.ndarray]) -> np.ndarray:
        variances = [(len(moments) - 1) * moments.var(0) for moments in without]
        return np.asarray(np.sqrt(np.sum(variances, axis=0)))


def sd_ratio(
    f: Float[np.ndarray, "S N F"], reference: Float[np.ndarray, "C T N F"], least_sd: float = 0.0
) -> RowByRow:
    r"""Epistemic standard deviation over that of the reference, row by row.

    .. math:: \rho_n = \frac{\mathrm{sd}_s f_{sn}}{\mathrm{sd}_s f^{\mathrm{ref}}_{sn}}

    Below 1 the method is more certain of its function there than the reference. Quantiles of the
    ratio are those of its log. The blocks of the errors are contiguous draws of the method, and the
    chains of the reference (halves of chains below four chains).

    Args:
        f: Function draws of the method ``[S, N, F]``, in the same units as the reference.
        reference: Function draws of the reference ``[C, T, N, F]``.
        least_sd: Rows and outputs with no larger sd of the reference are left out: a ratio of
            spreads that do not matter.

    Raises:
        ShapeError: If points or outputs differ, or the reference has fewer than two draws.

    Example:
        >>> draws = np.random.default_rng(0).standard_normal((4, 500, 40, 1))
        >>> f = draws[0] * np.where(np.arange(40) % 2, 0.3, 1.7)[:, None]
        >>> ratio = sd_ratio(f, draws)
        >>> [round(ratio.quantile(level)[0], 1) for level in (0.1, 0.9)]
        [0.3, 1.7]
    """
    (_, own), (_, judge) = _both(f, reference)
    rows = judge[0] > least_sd
    own, judge = own[:, rows], judge[:, rows]
    return RowByRow(values=own[0] / judge[0], without=(own[1:] / judge[0], own[0] / judge[1:]))


def mean_shift(
    f: Float[np.ndarray, "S N F"], reference: Float[np.ndarray, "C T N F"], least_sd: float = 0.0
) -> RowByRow:
    r"""How far the mean of the function is from that of the reference, row by row, in its sds.

    .. math:: \delta_n = \frac{|\bar f_n - \bar f^{\mathrm{ref}}_n|}
        {\mathrm{sd}_s f^{\mathrm{ref}}_{sn}}

    It is a bias whatever the spread of the method, and worst where the reference is certain.

    Args:
        f: Function draws of the method ``[S, N, F]``, in the same units as the reference.
        reference: Function draws of the reference ``[C, T, N, F]``.
        least_sd: Smallest sd of the reference that a distance is divided by. Rows and outputs
            where neither that sd nor the distance is larger are left out: they do not matter.

    Raises:
        ShapeError: If points or outputs differ, or the reference has fewer than two draws.

    Example:
        >>> draws = np.random.default_rng(0).standard_normal((4, 500, 40, 1))
        >>> round(mean_shift(draws[0] + 3, draws).value, 1)
        3.0
    """
    (own, _), (judge, sd) = _both(f, reference)
    rows = sd[0] > least_sd
    if least_sd > 0:
        rows |= np.abs(own[0] - judge[0]) > least_sd
    own, judge, sd = own[:, rows], judge[:, rows], np.maximum(sd[:, rows], least_sd)
    return RowByRow(
        values=np.abs(own[0] - judge[0]) / sd[0],
        without=(np.abs(own[1:] - judge[0]) / sd[0], np.abs(own[0] - judge[1:]) / sd[1:]),
    )


def _both(
    f: Float[np.ndarray, "S N F"], reference: Float[np.ndarray, "C T N F"]
) -> tuple[Float[np.ndarray, "2 R M"], Float[np.ndarray, "2 R M"]]:
    """Moments of both at all rows and outputs, as `_moments` gives them."""
    f, reference = check_pair(f, reference)
    C, T = reference.shape[:2]
    per_chain = 1 if C >= 4 or T < 4 else 2
    chains = reference.reshape(C * T, -1)
    whole = _moments(f.reshape(len(f), -1), NUM_BLOCKS if len(f) >= 2 * NUM_BLOCKS else 1)
    return whole, _moments(chains, C * per_chain)


def _moments(draws: Float[np.ndarray, "S M"], num_blocks: int) -> Float[np.ndarray, "2 R M"]:
    """Means and sds: first of all draws, then without each of the contiguous blocks.

    The blocks are of about equal size; a block alone gives no error.
    """
    size = max(1, NUMBERS_AT_ONCE // len(draws))
    parts = [
        _moments_of_columns(draws[:, start : start + size], num_blocks)
        for start in range(0, draws.shape[1], size)
    ]
    return np.concatenate(parts, axis=-1)


def _moments_of_columns(
    draws: Float[np.ndarray, "S M"], num_blocks: int
) -> Float[np.ndarray, "2 R M"]:
    S, M = draws.shape
    mean = draws.mean(0)
    apart = draws - mean
    apart[:, np.ptp(draws, axis=0) == 0] = 0  # a point, whose mean may be rounded
    starts = np.arange(num_blocks) * S // num_blocks
    total, squares = apart.sum(0), np.square(apart).sum(0)
    if num_blocks == 1:
        means = sds = np.where(squares > 0, np.nan, np.zeros((2, M)))  # few draws tell a point
    else:
        left = (S - np.diff([*starts, S]))[:, None]  # draws that remain
        means = (total - np.add.reduceat(apart, starts)) / left
        variances = (squares - np.add.reduceat(np.square(apart), starts)) / left - means**2
        sds = np.sqrt(variances.clip(min=0))
    sd = np.sqrt(squares / S)
    return np.stack([np.vstack([mean, mean + means]), np.vstack([sd, sds])])
