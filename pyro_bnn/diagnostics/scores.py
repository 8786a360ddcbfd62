r"""Proper scores of predictive draws.

.. math:: \mathrm{LS}_n = \log \frac1S \sum_s p(y_n \mid \theta_s)

is the log of the MEAN density over draws, never the mean of the logs (Gneiting & Raftery,
"Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from pyro_bnn.diagnostics.shapes import check_axes, check_classes, check_observed, check_rows


def log_score(log_likelihood: Float[np.ndarray, "S N"]) -> Float[np.ndarray, " N"]:
    r"""Log score of every point under the mixture over draws; higher is better.

    .. math:: \mathrm{LS}_n = \operatorname{logsumexp}_s \log p(y_n \mid \theta_s) - \log S

    Args:
        log_likelihood: ``log p(y_n | theta_s)`` ``[S, N]``, in nats.

    Returns:
        Log scores ``[N]``, in nats; at least the mean over draws of the log-likelihood (Jensen).

    Raises:
        ShapeError: If ``log_likelihood`` is not ``[S, N]``.

    References:
        Gneiting & Raftery, "Strictly Proper Scoring Rules, Prediction, and Estimation", JASA 2007.

    Example:
        >>> log_score(np.log([[0.2, 0.5], [0.4, 0.5]])).round(4)
        array([-1.204 , -0.6931])
    """
    log_likelihood = check_axes("log_likelihood", log_likelihood, "S N")
    largest = log_likelihood.max(0)  # [N]
    largest = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore", over="ignore"):  # -inf of points that are impossible
        density = log_likelihood - largest
        total = np.log(np.exp(density, out=density).sum(0))
    return np.asarray(total + largest - np.log(len(log_likelihood)))


def log_score_error(
    log_likelihood: Float[np.ndarray, "C S N"], *, independent: bool = False
) -> float:
    r"""Monte Carlo standard error of the mean log score over points, from the draws alone.

    .. math:: w_s = \frac1N \sum_n \frac{p(y_n \mid \theta_s)}{\bar p_n}, \qquad
        \bar p_n = \frac1S \sum_s p(y_n \mid \theta_s), \qquad
        \mathrm{se}^2 = \frac{\mathrm{var}_s(w_s)}{\mathrm{ESS}(w)}

    by the delta method: to first order a draw moves the mean score by :math:`(w_s - 1) / S`. ESS is
    the effective sample size of w over chains, and S for independent draws. It misses the bias
    :math:`-\tfrac1{2S} \mathrm{E}_n \mathrm{var}_s(p_{ns} / \bar p_n)`, of second order, and is too
    small where a few draws carry the density of many points.

    Args:
        log_likelihood: ``log p(y_n | theta_s)`` ``[C, S, N]`` in nats, S draws of each of C chains
            in their order.
        independent: Whether the draws are independent, and chains and order mean nothing.

    Returns:
        The error in nats a point; 0 for one draw alone, a point estimate; NaN for chains of fewer
        than four draws. Points whose density is 0 under every draw add nothing.

    Raises:
        ShapeError: If ``log_likelihood`` is not ``[C, S, N]``.

    References:
        Owen, "Monte Carlo theory, methods and examples", 2013, section 2.7 (delta method).
        Vehtari et al., Bayesian Analysis 2021, arXiv:1903.08008, section 4.4 (ESS and its error).

    Example:
        >>> log_score_error(np.log([[[0.2], [0.4], [0.2], [0.4]]]), independent=True).__round__(4)
        0.1925
    """
    log_likelihood = check_axes("log_likelihood", log_likelihood, "C S N")
    C, S, N = log_likelihood.shape
    if C * S == 1:
        return 0.0
    mean = log_score(log_likelihood.reshape(C * S, N))  # [N]
    possible = np.isfinite(mean)
    influence = np.exp(log_likelihood[..., possible] - mean[possible]).sum(-1) / N  # [C, S]
    if independent:
        return float(influence.std(ddof=1) / np.sqrt(C * S))
    from pyro_bnn import arviz_io

    return float(arviz_io.mcse_mean(influence))


def moment_matched_log_score(
    mean: Float[np.ndarray, " N"], sd: Float[np.ndarray, " N"], y: Float[np.ndarray, " N"]
) -> Float[np.ndarray, " N"]:
    r"""Log density of one Normal with the predictive mean and sd: ANOTHER number than `log_score`.

    .. math:: \log \mathcal N(y_n \mid \bar\mu_n, \bar\sigma_n^2), \qquad
        \bar\sigma_n^2 = \mathrm{E}_s \sigma_s^2 + \mathrm{Var}_s \mu_s

    Some papers (deep ensembles among them) report this; it ignores skew and several modes.

    Args:
        mean: Predictive means ``[N]``, in the units of y.
        sd: Predictive standard deviations ``[N]``, > 0.
        y: Observations ``[N]``.

    Returns:
        Log densities ``[N]``, in nats.

    Raises:
        ShapeError: If the shapes differ.

    References:
        Lakshminarayanan et al., "Simple and Scalable Predictive Uncertainty Estimation using Deep
        Ensembles", NeurIPS 2017, arXiv:1612.01474.

    Example:
        >>> moment_matched_log_score(np.zeros(1), np.ones(1), np.zeros(1)).round(4)
        array([-0.9189])
    """
    mean, y = check_observed("mean", mean, "N", y)
    sd = check_rows("sd", sd, len(mean), of="mean")
    return np.asarray(-0.5 * ((y - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi))


def cost_of_wrong_spread(share: Float[np.ndarray, " N"], ratio: float) -> float:
    r"""Expected log score that a wrong epistemic sd costs, of Gaussian predictives with one mean.

    .. math:: \mathrm{KL}(\mathcal N(m, \sigma^2) \,\|\, \mathcal N(m, v \sigma^2))
        = \tfrac12 \Bigl(\frac1v - 1 + \log v\Bigr), \qquad v = 1 + s (r^2 - 1)

    where a share s of the right variance is epistemic and its sd is taken r times as large.

    Args:
        share: Epistemic share of the right predictive variance ``[N]``, 0 to 1.
        ratio: The wrong epistemic sd over the right one, at least 0.

    Returns:
        Nats a row, the mean over rows; infinite where no variance is left.

    Example:
        >>> share = np.array([0.1])
        >>> round(cost_of_wrong_spread(share, 2.0), 4), cost_of_wrong_spread(share, 1.0)
        (0.0158, 0.0)
    """
    variance = 1 + check_axes("share", share, "N") * (ratio**2 - 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = 0.5 * (1 / variance - 1 + np.log(variance))
    return float(np.where(variance > 0, cost, np.inf).mean())


def crps(draws: Float[np.ndarray, "S N"], y: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    r"""Continuous ranked probability score of every point, fair estimator; lower is better.

    .. math:: \mathrm{CRPS}_n = \frac1S \sum_s |y_s - y_n|
        - \frac{1}{2 S (S - 1)} \sum_{s, t} |y_s - y_t|

    The pair sum divides by S (S - 1), so the expectation does not depend on the number of draws
    ("fair"; dividing by S^2 favours many draws). Sorting gives the pair sum in O(S log S) as
    ``2 sum_i (2 i - S - 1) y_(i)``, i = 1..S. With one draw there is no pair: the absolute error.

    Args:
        draws: Predictive draws of y ``[S, N]``.
        y: Observations ``[N]``, in the same units.

    Returns:
        Scores ``[N]``, in the units of y; single points may be slightly below 0.

    Raises:
        ShapeError: If the shapes do not fit.

    References:
        Ferro, "Fair scores for ensemble forecasts", QJRMS 2014.
        Zamo & Naveau, "Estimation of the CRPS with Limited Information", Math. Geosci. 2018.

    Example:
        >>> crps(np.array([[0.0], [1.0], [2.0]]), np.array([1.0]))
        array([0.])
    """
    draws, y = check_observed("draws", draws, "S N", y)
    S = len(draws)
    error = np.abs(draws - y).mean(0)  # [N]
    if S == 1:
        return np.asarray(error)
    weights = 2 * np.arange(1, S + 1) - S - 1
    half_pair_sum = weights @ np.sort(draws, axis=0)  # [N], sum over s < t
    return np.asarray(error - half_pair_sum / (S * (S - 1)))


def rmse(mean: Float[np.ndarray, " N"], y: Float[np.ndarray, " N"]) -> float:
    r"""Root mean squared error of the predictive mean, in the units of y.

    .. math:: \sqrt{\tfrac1N \sum_n (\bar\mu_n - y_n)^2}

    Args:
        mean: Predictive means ``[N]``.
        y: Observations ``[N]``.

    Raises:
        ShapeError: If the shapes differ.

    Example:
        >>> rmse(np.array([0.0, 0.0]), np.array([4.0, 4.0]))
        4.0
    """
    mean, y = check_observed("mean", mean, "N", y)
    return float(np.sqrt(np.mean((mean - y) ** 2)))


def accuracy(probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"]) -> float:
    """Share of points whose most probable class is the observed one.

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.

    Raises:
        DataError: If y holds anything but 0..C-1.
        ShapeError: If the shapes do not fit.

    Example:
        >>> accuracy(np.array([[0.9, 0.1], [0.6, 0.4]]), np.array([0, 1]))
        0.5
    """
    probs, y = check_classes("probs", probs, y)
    return float(np.mean(probs.argmax(1) == y))


def brier(probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    r"""Brier score of every point, summed over classes (0 to 2); lower is better.

    .. math:: \mathrm{BS}_n = \sum_c (\bar p_{nc} - [y_n = c])^2

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.

    Returns:
        Scores ``[N]``; for two classes twice the score of the positive class alone.

    Raises:
        DataError: If y holds anything but 0..C-1.
        ShapeError: If the shapes do not fit.

    References:
        Brier, "Verification of forecasts expressed in terms of probability", MWR 1950.

    Example:
        >>> brier(np.array([[0.5, 0.5]]), np.array([0]))
        array([0.5])
    """
    probs, y = check_classes("probs", probs, y)
    observed = np.arange(probs.shape[1]) == y[:, None]  # [N, C]
    return np.asarray(((probs - observed) ** 2).sum(1))
