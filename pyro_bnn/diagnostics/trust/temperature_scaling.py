r"""One temperature for all rows, :math:`p_T \propto p^{1/T}`, that calibrates probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import log_softmax, softmax

from pyro_bnn.diagnostics.shapes import check_axes, check_classes
from pyro_bnn.errors import DataError

MOST = 1e6  # of 1 / T
LEAST = float(np.finfo(float).tiny)  # of 1 / T: at 0 a class of probability 0 would count


@dataclass(frozen=True, kw_only=True)
class TemperatureScale:
    """A temperature found on held-out rows, to be used on others.

    Attributes:
        temperature: T; above 1 the probabilities were too sure, below 1 not sure enough.
        nll: Mean negative log likelihood a row before, in nats.
        scaled_nll: The same at the temperature.
        error: Standard error of the temperature over rows, by the sandwich of its gradient.
    """

    temperature: float
    nll: float
    scaled_nll: float
    error: float

    def apply(self, logits: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
        """Probabilities of other rows at this temperature.

        Raises:
            ShapeError: If ``logits`` is not ``[N, C]``.
        """
        return np.asarray(softmax(_logits(logits) / self.temperature, axis=1))


def temperature_scaling(
    logits: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"]
) -> TemperatureScale:
    r"""The temperature with the least negative log likelihood.

    .. math:: \min_T -\frac1N \sum_n \log \mathrm{softmax}(l_n / T)_{y_n}

    It is convex in 1/T, so there is one minimum. Logits that are multiplied by c have a T of c
    times as much. Choose T on rows that are not those of the scores that it is to improve.

    Args:
        logits: Logits ``[N, C]``, or log probabilities, such as the log of the mean over draws;
            a class of ``-inf`` has no weight at any temperature.
        y: Classes ``[N]``, 0..C-1.

    Raises:
        DataError: If no temperature is best: every row is right, and sharper is better without end;
            or rows are no more often right than by chance, and flatter is; or an observed class
            has probability 0, and the likelihood is 0 at every temperature; or y holds anything
            but 0..C-1.
        ShapeError: If the shapes do not fit.

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, arXiv:1706.04599.

    Example:
        >>> y = np.array([0] * 3 + [1])  # right in 3 of 4 rows, log odds of log 3 = 1.0986
        >>> round(temperature_scaling(np.array([[2.1972, 0.0]] * 4), y).temperature, 3)
        2.0
    """
    from scipy import optimize

    logits, y = check_classes("logits", _logits(logits), y)
    y = y.astype(int)
    observed = logits[np.arange(len(y)), y]
    impossible = int((~np.isfinite(observed)).sum())
    if impossible:
        raise DataError(
            f"the observed classes of {impossible} of {len(y)} rows have probability 0: the "
            "likelihood is 0 at every temperature; leave these rows out, or give logits"
        )
    finite = _finite(logits)

    def slope(inverse: float) -> float:
        """Of the negative log likelihood, in 1/T."""
        probs = softmax(inverse * logits, axis=1)
        return float(((probs * finite).sum(1) - observed).mean())

    if slope(LEAST) >= 0:
        raise DataError(
            "the logits say no more of the classes than chance: no finite temperature is best"
        )
    if slope(MOST / max(1.0, float(np.abs(finite).max()))) <= 0:
        raise DataError(
            "the logits are right in every row: the sharper they are the better, and no "
            "temperature is best; use more rows, some of which are wrong"
        )
    high = 1.0
    while slope(high) <= 0:
        high *= 2
    inverse = float(optimize.brentq(slope, LEAST, high, xtol=1e-14, rtol=1e-13))
    return TemperatureScale(
        temperature=1 / inverse,
        nll=_nll(logits, y),
        scaled_nll=_nll(inverse * logits, y),
        error=_error_of_inverse(inverse, logits, observed) / inverse**2,
    )


def _error_of_inverse(
    inverse: float, logits: Float[np.ndarray, "N C"], observed: Float[np.ndarray, " N"]
) -> float:
    """Root mean square of the rows' slopes over the curvature, for N rows."""
    probs = softmax(inverse * logits, axis=1)
    finite = _finite(logits)
    mean = (probs * finite).sum(1)
    curvature = ((probs * finite**2).sum(1) - mean**2).mean()
    return float(np.sqrt(((mean - observed) ** 2).mean() / len(observed)) / curvature)


def _logits(logits: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
    """Logits with 0 as the largest of each row; checked."""
    logits = check_axes("logits", logits, "N C")
    return np.asarray(logits - logits.max(1, keepdims=True))


def _finite(logits: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
    """With 0 for ``-inf``, whose products with its probability of 0 are 0."""
    return np.where(np.isneginf(logits), 0.0, logits)


def _nll(logits: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"]) -> float:
    return -float(log_softmax(logits, axis=1)[np.arange(len(y)), y].mean())
