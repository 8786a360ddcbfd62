r"""What chains that do not mix agree on: the share of variance between them, and their scores.

Chains that R-hat calls apart are no sample of the posterior. They may still say nearly the same of
some quantities, and their mixture may predict better than each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes


@dataclass(frozen=True, kw_only=True)
class PooledScore:
    """Log score of chains together, and of each alone.

    Attributes:
        pooled: Mean over rows of the log of the mean density over all draws, nats.
        each: The same over the draws of each chain alone ``[C]``.
    """

    pooled: float
    each: tuple[float, ...]

    @property
    def gain(self) -> float:
        """How far the pooled score is above the mean of single chains; never below 0."""
        return self.pooled - float(np.mean(self.each))


def between_share(f: Float[np.ndarray, "C S N F"]) -> Float[np.ndarray, "N F"]:
    r"""Share of the variance of f that is between chains, at every point.

    .. math:: \frac{B}{B + W}, \qquad
              B = \frac1C \sum_c (\bar f_c - \bar f)^2, \quad W = \frac1C \sum_c \mathrm{Var}_c(f)

    of the draws of all chains together: 0 where all chains have the same mean, 1 where each
    chain stands still at another place. For chains that mix it is about 1 / ESS of one chain.

    Args:
        f: Function draws ``[C, S, N, F]``.

    Returns:
        The share; NaN where all draws are equal.

    Raises:
        ShapeError: If ``f`` is not ``[C, S, N, F]``.

    Example:
        >>> apart = np.array([0.0, 6.0])[:, None, None, None] + np.array([-1.0, 1.0])[:, None, None]
        >>> between_share(apart)  # B = 9, W = 1
        array([[0.9]])
    """
    f = check_axes("f", f, "C S N F")
    between, within = f.mean(1).var(0), f.var(1).mean(0)
    total = between + within
    return np.asarray(np.where(total > 0, between / np.where(total > 0, total, 1.0), np.nan))


def pooled_score(log_density: Float[np.ndarray, "C S N"]) -> PooledScore:
    r"""Log scores of chains together and of each alone.

    .. math:: \frac1N \sum_n \log \frac1{CS} \sum_{c, s} p(y_n \mid z_{cs})

    By Jensen's inequality the pooled score is at least the mean of the single ones.

    Args:
        log_density: Log density of the targets given each draw.

    Raises:
        ShapeError: If it is not ``[C, S, N]``.

    Example:
        >>> halves = np.log(np.array([[[0.2, 0.6]], [[0.6, 0.2]]]))  # each chain knows one row
        >>> score = pooled_score(halves)
        >>> round(score.pooled, 3), round(score.gain, 3)
        (-0.916, 0.144)
    """
    values = check_axes("log_density", log_density, "C S N")
    each = _log_mean(values).mean(-1)  # [C]
    together = _log_mean(values.reshape(1, -1, values.shape[-1])).mean()
    return PooledScore(pooled=float(together), each=tuple(float(score) for score in each))


def _log_mean(values: Float[np.ndarray, "C S N"]) -> Float[np.ndarray, "C N"]:
    most = values.max(1, keepdims=True)
    most = np.where(np.isfinite(most), most, 0.0)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(values - most).mean(1)) + most[:, 0])
