r"""Pareto k-hat: whether draws of an approximation can be reweighted to the posterior around them.

.. math:: r_s = \frac{p(\theta_s, D)}{q(\theta_s)}, \qquad \theta_s \sim q

It sees the ratios at draws of q only. So it is blind to modes that q lacks: in one of two separate
modes q may be exact, with k-hat 0. Copies of a mode, by swapped units or flipped signs, add a
constant to log p - log q and change nothing.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes, check_rows
from pyro_bnn.errors import DataError, ShapeError

MIN_DRAWS = 25  # the tail of fewer draws has under 5 points: no generalised Pareto fit


def khat(log_p: Float[np.ndarray, " S"], log_q: Float[np.ndarray, " S"]) -> float:
    r"""Shape k of the generalised Pareto tail of the importance ratios ``log_p - log_q``.

    Below `khat_threshold` importance sampling can correct the approximation where it has draws;
    above, it cannot, and the approximation has another shape than the posterior around it in at
    least one direction. One number for the JOINT posterior of all weights: it grows with their
    number, and directions that do not touch the function count in full, so a large value does not
    by itself say that predictions are bad, and a small one not that no mode is missed. True ratios
    have a finite mean, the evidence, so their k is at most 1: estimates above 1 come of draws too
    few to see the tail, and order nothing; the worse of two approximations may have the smaller.

    Args:
        log_p: Unnormalised log joint of every draw ``[S]``.
        log_q: Log density of the approximation ``[S]``, in the same coordinates.

    Returns:
        k-hat; compare with `khat_threshold`, and see `khat_error`.

    Raises:
        ShapeError: If the shapes differ or there are fewer than 25 draws.
        DataError: If a ratio is NaN or plus infinity.

    References:
        Yao, Vehtari, Simpson & Gelman, "Yes, but Did It Work?: Evaluating Variational Inference",
        ICML 2018, arXiv:1802.02538.
        Vehtari, Simpson, Gelman, Yao & Gabry, "Pareto Smoothed Importance Sampling", JMLR 2024,
        arXiv:1507.02646.

    Example:
        >>> z = np.random.default_rng(0).standard_normal(4_000)
        >>> khat(-0.5 * z**2, -0.5 * z**2 + 0.1 * z) < 0.5
        True
    """
    from pyro_bnn import arviz_io

    log_p = check_axes("log_p", log_p, "S")
    log_q = check_rows("log_q", log_q, len(log_p), of="log_p")
    if len(log_p) < MIN_DRAWS:
        raise ShapeError(f"k-hat needs at least {MIN_DRAWS} draws, got {len(log_p)}")
    with np.errstate(invalid="ignore"):
        log_ratios = log_p - log_q
    bad = int(np.isnan(log_ratios).sum() + np.isposinf(log_ratios).sum())
    if bad:
        raise DataError(
            f"{bad} of {len(log_p)} importance ratios log_p - log_q are NaN or +inf: "
            "log_q must be finite at draws of q; check the guide's log_prob"
        )
    return float(arviz_io.psis(log_ratios)[1])


def khat_error(shape: float, num_draws: int) -> float:
    r"""Standard error of a k-hat over sets of draws.

    .. math:: \frac{M}{M + 10} \, \frac{1 + \max(\hat k, 0)}{\sqrt M}, \qquad
        M = \min(S / 5, 3 \sqrt S)

    the asymptotic error of the shape of a generalised Pareto distribution from the M draws of its
    tail, shrunk as the estimate is, towards 0.5 with the weight of ten draws. It is within a fifth
    of the standard deviation over sets of 100 to 4,000 draws where k is above 0; below, the
    deviation is up to twice as large.

    Args:
        shape: k-hat.
        num_draws: S, the independent draws behind it.

    References:
        Smith, "Estimating Tails of Probability Distributions", Annals of Statistics 1987.
        Vehtari et al., "Pareto Smoothed Importance Sampling", JMLR 2024, arXiv:1507.02646, for M
        and the weight of ten draws.

    Example:
        >>> round(khat_error(0.7, 1_000), 2), round(khat_error(4.0, 400), 1)
        (0.16, 0.6)
    """
    tail = min(num_draws / 5, 3 * math.sqrt(num_draws))
    return tail / (tail + 10) * (1 + max(shape, 0.0)) / math.sqrt(tail)


def khat_threshold(num_draws: int) -> float:
    r"""Largest k-hat at which ``num_draws`` draws suffice.

    .. math:: \min\!\left(1 - \frac1{\log_{10} S},\; 0.7\right)

    Args:
        num_draws: S, > 10.

    References:
        Vehtari et al., "Pareto Smoothed Importance Sampling", JMLR 2024, arXiv:1507.02646.

    Example:
        >>> khat_threshold(1_000_000), round(khat_threshold(100), 2)
        (0.7, 0.5)
    """
    from pyro_bnn import arviz_io

    return arviz_io.khat_limit(num_draws)
