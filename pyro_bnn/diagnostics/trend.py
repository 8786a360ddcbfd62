r"""Is an objective still improving at the end of its run?

A stochastic objective is a trend plus correlated noise, and a learning rate that falls to zero
makes every trace flat at its end, converged or not. So time is counted in accumulated learning
rate, and the trend is separated from the drop that a falling learning rate causes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes, check_rows
from pyro_bnn.errors import DataError
from pyro_bnn.posterior.doubling import MIN_GAIN, STANDARD_ERRORS

WINDOW = 0.25  # share of the accumulated learning rate that the window holds
NUM_BLOCKS = 24
MIN_BLOCK = 4  # steps a block: fewer do not smooth
MIN_STEPS = NUM_BLOCKS * MIN_BLOCK  # in the window
POWER = 0.9  # chance that a gain of `detectable` is found
CONFIDENCE = 0.95  # of an upper bound of the gain


@dataclass(frozen=True, kw_only=True)
class Trend:
    """Trend of an objective over the last part of its run.

    Attributes:
        gain: Improvement over the window by the trend, in the units of the objective (nats); > 0
            for a loss that falls.
        standard_error: Its standard error, autocorrelation included.
        largest: Upper 95 % bound of the gain, at most the upper bound of the whole fall of the
            loss: where the learning rate falls, it causes a part of that fall.
        num_steps: Steps in the window.
        num_free: Degrees of freedom of the error.
    """

    gain: float
    standard_error: float
    largest: float
    num_steps: int
    num_free: int

    @property
    def is_rising(self) -> bool:
        """Whether the objective still rose: by half a nat or more, and by over 2 errors."""
        return self.gain >= MIN_GAIN and self.gain > STANDARD_ERRORS * self.standard_error

    @property
    def detectable(self) -> float:
        """Gain that would have been found in 9 of 10 runs with so much noise, nats."""
        power_margin = _quantile(POWER, self.num_free) * self.standard_error
        return max(MIN_GAIN, STANDARD_ERRORS * self.standard_error) + power_margin

    @property
    def noticeable(self) -> float:
        """Gain above which a rise would have been noticed: the larger of two bounds, nats."""
        return max(self.largest, self.detectable)


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

    A gain is seen against the noise of single steps, of standard deviation s: over the last quarter
    of T steps its error is about 7 s / sqrt(T) nats with a constant rate and, because a trend and a
    falling rate look much alike, 22 s / sqrt(T) with a cosine. So 1 nat is found in 9 of 10 runs
    where s is at most about 0.04 sqrt(T), or 0.01 sqrt(T), nats; one-particle ELBOs of networks
    have an s of 10 to 20. `Trend.detectable` is a gain that would have been noticed,
    `Trend.largest` an upper bound of the gain that there may have been.

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
    blocks = np.stack([losses, elapsed, rates], axis=1)[-num_steps:]  # [T', 3]
    blocks = blocks.reshape(NUM_BLOCKS, size, 3).mean(1)  # [B, 3]
    regressors = [np.ones(NUM_BLOCKS), blocks[:, 1] - blocks[:, 1].mean()]
    if np.ptp(blocks[:, 2]) > 1e-6 * blocks[:, 2].max():
        regressors.append(blocks[:, 2] / blocks[:, 2].max())
    design = np.stack(regressors, axis=1)  # [B, 2 or 3]
    length = elapsed[-1] - elapsed[-num_steps]
    gain, error = (float(value * length) for value in _fall(design, blocks[:, 0]))
    num_free = NUM_BLOCKS - design.shape[1]
    largest = gain + _quantile(CONFIDENCE, num_free) * error
    if design.shape[1] > 2:
        level = (1 + CONFIDENCE) / 2  # for each of two bounds: the lower one is taken
        largest = gain + _quantile(level, num_free) * error
        whole_fall, whole_error = (value * length for value in _fall(design[:, :2], blocks[:, 0]))
        bound = whole_fall + _quantile(level, NUM_BLOCKS - 2) * whole_error
        largest = min(largest, float(bound))
        gain = min(gain, largest)  # the trend can exceed the whole of a curved fall
    return Trend(
        gain=gain, standard_error=error, largest=largest, num_steps=num_steps, num_free=num_free
    )


def _fall(design: Float[np.ndarray, "B K"], losses: Float[np.ndarray, " B"]) -> tuple[float, float]:
    """Fall of losses for each unit of the second regressor, and its standard error."""
    inverse = np.linalg.inv(design.T @ design)
    coefficients = inverse @ design.T @ losses
    residuals = losses - design @ coefficients
    variance = residuals @ residuals / (len(design) - design.shape[1])
    return -float(coefficients[1]), float(np.sqrt(variance * inverse[1, 1] * _inflation(residuals)))


def _quantile(probability: float, num_free: int) -> float:
    from scipy import special

    return float(special.stdtrit(num_free, probability))


def _inflation(residuals: Float[np.ndarray, " B"]) -> float:
    """Variance inflation (1 + rho)/(1 - rho) by the lag-one autocorrelation rho of residuals."""
    power = residuals @ residuals
    rho = residuals[1:] @ residuals[:-1] / power if power > 0 else 0.0
    rho = min(max(rho, 0.0), 0.9)
    return float((1 + rho) / (1 - rho))
