r"""Is an objective still improving at the end of its run?

A stochastic objective is a trend plus correlated noise, and a learning rate that falls to zero
makes every trace flat at its end, converged or not. So time is counted in accumulated learning
rate, and the trend is told apart from the drop that a falling learning rate brings by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes, check_rows
from pyro_bnn.errors import DataError

WINDOW = 0.25  # share of the accumulated learning rate that the window holds
NUM_BLOCKS = 24
MIN_BLOCK = 4  # steps a block: fewer do not smooth


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Trend of an objective over the last part of its run.

    Attributes:
        gain: Improvement over the window by the trend, in the units of the objective (nats); > 0
            for a loss that falls.
        standard_error: Its standard error, autocorrelation included.
        num_steps: Steps in the window.
    """

    gain: float
    standard_error: float
    num_steps: int


def objective_trend(
    losses: Float[np.ndarray, " T"], learning_rates: Float[np.ndarray, " T"] | None = None
) -> Trend | None:
    r"""Improvement of a loss over the last quarter of the accumulated learning rate.

    .. math:: \bar\ell_b = a + c\, \bar\tau_b + d\, \bar\eta_b + \varepsilon_b, \qquad
        \tau_t = \sum_{s \le t} \eta_s, \qquad
        \text{gain} = -c\, (\tau_T - \tau_{\text{start}})

    fitted by least squares to the means of 24 blocks of equal length (the smoothing). The term in
    the learning rate eta takes up the drop of the stationary excess loss, about proportional to
    eta, which comes with any schedule and does not mean that more steps would help; it is left out
    where eta is constant. The errors are widened by the lag-one autocorrelation rho of the
    residuals, by sqrt((1 + rho) / (1 - rho)).

    Args:
        losses: Loss of every step ``[T]`` (a negative ELBO estimate, in nats).
        learning_rates: Learning rate of every step ``[T]``, > 0 in the last steps but one, any
            unit; None if it was constant.

    Returns:
        The trend, or None if the window has fewer than 4 steps a block.

    Raises:
        ShapeError: If the shapes differ.
        DataError: If a loss is not finite, or no learning rate is positive.

    References:
        Dhaka et al., "Robust, Accurate Stochastic Optimization for Variational Inference",
        NeurIPS 2020, arXiv:2009.00666, for the use of stationarity; the regression is ours.

    Example:
        >>> trend = objective_trend(100.0 - 0.01 * np.arange(4_000))
        >>> round(trend.gain, 6), trend.num_steps
        (9.83, 984)
    """
    losses = check_axes("losses", losses, "T")
    rates = np.ones(len(losses)) if learning_rates is None else learning_rates
    rates = check_rows("learning_rates", rates, len(losses), of="losses").astype(float)
    if not np.isfinite(losses).all():
        raise DataError(f"{int((~np.isfinite(losses)).sum())} of {len(losses)} losses not finite")
    if not (rates >= 0).all() or rates.sum() == 0:
        raise DataError("learning_rates must be at least 0, and not all 0")
    elapsed = rates.cumsum() / rates.sum()  # tau [T], ends at 1
    start = int(np.searchsorted(elapsed, 1 - WINDOW, side="right"))
    size = (len(losses) - start) // NUM_BLOCKS
    if size < MIN_BLOCK:
        return None
    num_steps = size * NUM_BLOCKS
    blocks = _block_means(np.stack([losses, elapsed, rates], axis=1)[-num_steps:])  # [B, 3]
    regressors = [np.ones(NUM_BLOCKS), blocks[:, 1] - blocks[:, 1].mean()]
    if np.ptp(blocks[:, 2]) > 1e-6 * blocks[:, 2].max():
        regressors.append(blocks[:, 2] / blocks[:, 2].max())
    design = np.stack(regressors, axis=1)  # [B, 2 or 3]
    inverse = np.linalg.inv(design.T @ design)
    coefficients = inverse @ design.T @ blocks[:, 0]
    residuals = blocks[:, 0] - design @ coefficients
    variance = residuals @ residuals / (NUM_BLOCKS - design.shape[1])
    widened = variance * inverse[1, 1] * _inflation(residuals)
    length = elapsed[-1] - elapsed[-num_steps]
    return Trend(
        gain=float(-coefficients[1] * length),
        standard_error=float(np.sqrt(widened) * length),
        num_steps=num_steps,
    )


def _block_means(columns: Float[np.ndarray, "T K"]) -> Float[np.ndarray, "B K"]:
    return np.asarray(columns.reshape(NUM_BLOCKS, -1, columns.shape[1]).mean(1))


def _inflation(residuals: Float[np.ndarray, " B"]) -> float:
    """Variance inflation (1 + rho)/(1 - rho) by the lag-one autocorrelation rho of residuals."""
    power = residuals @ residuals
    rho = residuals[1:] @ residuals[:-1] / power if power > 0 else 0.0
    rho = min(max(rho, 0.0), 0.9)
    return float((1 + rho) / (1 - rho))
