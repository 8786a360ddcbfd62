"""Leave-one-out scores by Pareto-smoothed importance sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import logsumexp

from pyro_bnn.arviz_io.statistics import _variables, ess, khat_limit, psis
from pyro_bnn.errors import DataError, ShapeError, SiteError

if TYPE_CHECKING:
    from xarray import DataTree


@dataclass(frozen=True, eq=False)
class LooResult:
    """A leave-one-out estimate of the expected log predictive density of the N data.

    Attributes:
        elpd: Sum over the data of the log predictive density of each given the others, in nats.
        se: Standard error of ``elpd`` over data, ``sqrt(N var(pointwise))``; NaN for one datum.
        p: Effective number of parameters: the log density of the data under the posterior that has
            seen them, less ``elpd``.
        khat: Tail index of each datum's weights ``[N]``.
        num_bad: How many k-hat are not at most ``min(1 - 1 / log10(S), 0.7)``, the limit for S
            draws; where it is not 0, ``elpd`` is not to be trusted.
        pointwise: The terms of ``elpd`` ``[N]``.
    """

    elpd: float
    se: float
    p: float
    khat: Float[NDArray[np.float64], " N"]
    num_bad: int
    pointwise: Float[NDArray[np.float64], " N"]


def loo(tree: DataTree) -> LooResult:
    r"""PSIS leave-one-out score of the exact posterior from draws of that posterior.

    .. math:: \mathrm{elpd} = \sum_n \log \sum_s w_{ns} \, p(y_n \mid z_s), \qquad
        w_{ns} \propto 1 / p(y_n \mid z_s)

    with each datum's weights smoothed by :func:`psis`. The lengths of the tails allow for the
    autocorrelation of each likelihood, where ``arviz.loo`` takes that of the variables in
    ``posterior``; for chains that mix the two differ by less than their Monte Carlo error.

    Args:
        tree: Has ``log_likelihood`` with one variable, or one called ``y``, ``[C, S, N]``.

    Returns:
        The score and its checks. With fewer than 30 draws (MAP has one) every k-hat is infinite.

    Raises:
        DataError: If the draws are those of an approximation (``sample_stats`` has ``log_q``), or
            a log likelihood is not finite.
        SiteError: If there is no log likelihood, or it is not clear which is meant.

    References:
        Vehtari, Gelman & Gabry, "Practical Bayesian model evaluation using leave-one-out
        cross-validation and WAIC", Statistics and Computing 2017, arXiv:1507.04544.
    """
    if "log_q" in _variables(tree, "sample_stats"):
        raise DataError(
            "sample_stats has log_q, so the draws are those of an approximation and not of the "
            "posterior: use loo_approximate(tree)"
        )
    return loo_of_draws(_log_likelihood(tree))


def loo_of_draws(log_likelihood: Float[NDArray[np.float64], "C S N"]) -> LooResult:
    """The same of log likelihoods of draws of the exact posterior ``[C, S, N]``; see :func:`loo`.

    Args:
        log_likelihood: Of each datum given each draw of each chain, finite.
    """
    draws = np.asarray(log_likelihood, dtype=np.float64)
    num_draws = draws.shape[0] * draws.shape[1]
    efficiency = ess(np.exp(draws - draws.max((0, 1))), kind="mean") / num_draws  # [N]
    efficiency = np.where(efficiency > 0, efficiency, 1.0)  # NaN with fewer than four draws
    flat = draws.reshape(num_draws, -1)  # [C S, N]
    log_weights = np.full(num_draws, -np.log(num_draws))
    return _loo(flat, -flat, efficiency, log_weights)


def loo_approximate(tree: DataTree) -> LooResult:
    r"""PSIS leave-one-out score of the exact posterior from draws of an approximation q.

    .. math:: w_{ns} \propto \frac{p(z_s, y)}{q(z_s)} \, \frac{1}{p(y_n \mid z_s)}

    It scores the exact posterior whatever q is, and says nothing of the predictions of q itself. So
    it is refused where q is too far from the posterior for its draws to be reweighted.

    Args:
        tree: As for :func:`loo`, and ``sample_stats`` with ``log_p`` (full-data log joint) and
            ``log_q`` ``[C, S]`` in the same coordinates, each up to a constant.

    Returns:
        The score and its checks; ``p`` is that of the exact posterior, with reweighted draws.

    Raises:
        DataError: If the k-hat of ``log_p - log_q`` is at :func:`khat_limit` or above, or a value
            is not finite.
        SiteError: If ``log_p``, ``log_q`` or the log likelihood is missing.
        ShapeError: If they have different numbers of chains or draws.

    References:
        Magnusson, Andersen, Jonasson & Vehtari, "Bayesian leave-one-out cross-validation for large
        data", ICML 2019, arXiv:1904.10679.
    """
    draws = _log_likelihood(tree)  # [C, S, N]
    stats = _variables(tree, "sample_stats")
    if "log_p" not in stats or "log_q" not in stats:
        raise SiteError(
            f"sample_stats must have log_p and log_q, it has {sorted(stats) or 'nothing'}"
        )
    log_p, log_q = (np.asarray(stats[name], dtype=np.float64) for name in ("log_p", "log_q"))
    with np.errstate(invalid="ignore"):  # -inf less -inf is a NaN that psis refuses
        log_ratios = log_p - log_q  # [C, S]
    if log_ratios.shape != draws.shape[:2]:
        raise ShapeError(
            f"log_p and log_q are {log_ratios.shape}, chains and draws of the log likelihood are "
            f"{draws.shape[:2]}: they must be of the same draws"
        )
    log_weights, khat = psis(log_ratios.reshape(-1))
    limit = khat_limit(max(log_weights.size, 2))
    if khat >= limit:
        raise DataError(
            f"the k-hat of the approximation is {khat:.2f}, not below {limit:.2f} (for "
            f"{log_weights.size:,} draws): its draws cannot be reweighted to the posterior; judge "
            "it by held-out scores"
        )
    log_likelihood = draws.reshape(log_weights.size, -1)  # [C S, N]
    ratios = log_ratios.reshape(-1, 1) - log_likelihood
    return _loo(log_likelihood, ratios, np.ones(ratios.shape[1]), log_weights)


def _log_likelihood(tree: DataTree) -> NDArray[np.float64]:
    """The pointwise log likelihood [C, S, N]; further axes count as data."""
    found = _variables(tree, "log_likelihood")
    if "y" not in found and len(found) != 1:
        raise SiteError(
            f"log_likelihood must have 'y' or one variable only, it has {sorted(found) or 'none'}"
        )
    chosen = found["y"] if "y" in found else next(iter(found.values()))
    array = np.asarray(chosen.transpose("chain", "draw", ...), dtype=np.float64)
    if not np.isfinite(array).all():
        raise DataError(
            f"log_likelihood must be finite, {int((~np.isfinite(array)).sum())} of {array.size} "
            "values are not"
        )
    return array.reshape(*array.shape[:2], -1)


def _loo(
    log_likelihood: NDArray[np.float64],
    log_ratios: NDArray[np.float64],
    efficiency: NDArray[np.float64],
    log_weights: NDArray[np.float64],
) -> LooResult:
    """Score N data from the log ratios [S, N] of their leave-one-out posteriors to the draws.

    ``log_weights`` [S] are those of the draws under the posterior given all data.
    """
    num_draws, num_data = log_likelihood.shape
    smoothed, khat = np.empty((num_data, num_draws)), np.empty(num_data)
    for n in range(num_data):
        smoothed[n], khat[n] = psis(log_ratios[:, n], relative_efficiency=float(efficiency[n]))
    pointwise = logsumexp(smoothed + log_likelihood.T, axis=1)
    elpd = float(pointwise.sum())
    lppd = float(logsumexp(log_weights[:, None] + log_likelihood, axis=0).sum())
    good = khat_limit(max(num_draws, 2))
    return LooResult(
        elpd=elpd,
        se=float(np.sqrt(num_data * pointwise.var(ddof=1))) if num_data > 1 else float("nan"),
        p=lppd - elpd,
        khat=khat,
        num_bad=int((khat > good).sum()),
        pointwise=pointwise,
    )
