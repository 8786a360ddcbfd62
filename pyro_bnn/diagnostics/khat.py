r"""Pareto k-hat: how far an approximation is from the exact posterior, seen by its own draws.

.. math:: r_s = \frac{p(\theta_s, D)}{q(\theta_s)}, \qquad \theta_s \sim q
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes, check_rows
from pyro_bnn.errors import DataError, ShapeError

KHAT_THRESHOLD = 0.7
MIN_DRAWS = 25  # the tail of fewer draws has under 5 points: no generalised Pareto fit


def khat(log_p: Float[np.ndarray, " S"], log_q: Float[np.ndarray, " S"]) -> float:
    r"""Shape k of the generalised Pareto tail of the importance ratios ``log_p - log_q``.

    Below 0.7 importance sampling can correct the approximation; above, it cannot, and the
    approximation is far from the posterior in at least one direction. One number for the whole
    JOINT posterior: it grows with the number of parameters, and symmetric modes or directions
    that do not touch the function count in full, so a large value does not by itself say that
    predictions are bad.

    Args:
        log_p: Unnormalised log joint of every draw ``[S]``.
        log_q: Log density of the approximation ``[S]``, in the same coordinates.

    Returns:
        k-hat; compare with `khat_threshold`.

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
    return min(1 - 1 / math.log10(num_draws), KHAT_THRESHOLD)
