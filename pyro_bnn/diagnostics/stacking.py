r"""Stacking: weights of predictive distributions that score best on rows that none has seen.

.. math:: \max_{w \ge 0, \, \sum_k w_k = 1} \; \sum_n \log \sum_k w_k \, p_k(y_n \mid y_{-n})

The objective is concave. With :math:`m_n = \sum_k w_k p_{nk}` its slope in w_k is
:math:`N g_k, \; g_k = \frac1N \sum_n p_{nk} / m_n`, and no weights are better than w by more than
:math:`N \log \max_k g_k` nats: by Jensen, as :math:`\sum_n \log (m^*_n / m_n)
\le N \log \sum_k w^*_k g_k`. The bound says when to stop.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import logsumexp

from pyro_bnn.diagnostics.shapes import check_axes
from pyro_bnn.errors import DataError

TOLERANCE = 1e-6  # nats, summed over all rows
EM_STEPS = 2_000
POLISHES = 20


def stacking_weights(log_densities: Float[np.ndarray, "N K"]) -> Float[np.ndarray, " K"]:
    """Weights ``[K]`` that score best, within a millionth of a nat of the optimum.

    Equal densities get equal weights. EM starts from equal weights; SLSQP goes on where
    EM is slow.

    Args:
        log_densities: Log density of each row under each distribution, which has not seen it
            ``[N, K]``.

    Raises:
        DataError: If a value is NaN or +inf, or a row is impossible under all.
        ShapeError: If it is not ``[N, K]``.

    References:
        Yao, Vehtari, Simpson & Gelman, "Using Stacking to Average Bayesian Predictive
        Distributions", Bayesian Analysis 13, 2018, arXiv:1704.02030.

    Example:
        >>> log_densities = np.log([[0.9, 0.1], [0.1, 0.9], [0.9, 0.1]])
        >>> stacking_weights(log_densities).round(3)
        array([0.708, 0.292])
    """
    values = check_axes("log_densities", log_densities, "N K")
    if np.isnan(values).any() or (values == np.inf).any():
        raise DataError("a log density is NaN or +inf, and stacking needs all of them finite")
    best = values.max(1)
    if np.isneginf(best).any():
        raise DataError(
            f"{int(np.isneginf(best).sum())} of {len(values)} rows are impossible under every "
            "distribution: no weights of these give them a density"
        )
    p = np.exp(values - best[:, None])  # [N, K]
    w = np.full(p.shape[1], 1 / p.shape[1])
    for _ in range(EM_STEPS):
        g = slopes(p, w)
        if _gap(p, w) <= TOLERANCE:
            return w
        w = w * g
        w /= w.sum()
    for _ in range(POLISHES):
        weights = minimize(
            lambda w: -np.log(np.maximum(p @ w, 1e-300)).mean(),
            w,
            jac=lambda w: -slopes(p, w),
            method="SLSQP",
            bounds=[(0, 1)] * len(w),
            constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": np.ones_like},
            options={"ftol": 1e-15, "maxiter": 1_000},
        ).x
        weights = np.maximum(weights, 0) / np.maximum(weights, 0).sum()
        if np.log(np.maximum(p @ weights, 1e-300)).sum() > np.log(p @ w).sum():
            w = weights
        if _gap(p, w) <= TOLERANCE:
            break
        mixed = w * slopes(p, w) + 1e-12  # so that a weight of 0 can grow again
        w = mixed / mixed.sum()
    return w


def stacked_score(
    log_densities: Float[np.ndarray, "N K"], weights: Float[np.ndarray, " K"]
) -> float:
    """Mean log density a row, in nats, under distributions of these weights.

    Args:
        log_densities: Log density of each row under each distribution ``[N, K]``.
        weights: Their weights ``[K]``.
    """
    with np.errstate(divide="ignore"):  # log of a weight 0
        return float(logsumexp(log_densities + np.log(weights), axis=1).mean())


def slopes(p: Float[np.ndarray, "N K"], weights: Float[np.ndarray, " K"]) -> np.ndarray:
    """The mean over rows of each density over that of the mixture ``[K]``; 1 for what has weight.

    Args:
        p: Densities of rows, up to a factor a row.
        weights: Weights of the distributions.
    """
    return np.asarray((p / np.maximum(p @ weights, 1e-300)[:, None]).mean(0))


def _gap(p: Float[np.ndarray, "N K"], weights: Float[np.ndarray, " K"]) -> float:
    """Upper bound of the nats that the best weights gain over these."""
    return float(len(p) * np.log(slopes(p, weights).max()))
