r"""Calibration of predictive draws: PIT, coverage, reliability, each with the band chance allows.

A forecast is calibrated if observations look like further draws of it (Gneiting, Balabdaoui &
Raftery, "Probabilistic forecasts, calibration and sharpness", JRSS B 2007).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from pyro_bnn.diagnostics.shapes import check_axes, check_rows
from pyro_bnn.errors import OptionError

BAND_PROBABILITY = 0.99  # a calibrated method leaves the band by chance once in a hundred tests


def pit(
    draws: Float[np.ndarray, "S N"], y: Float[np.ndarray, " N"], *, seed: int = 0
) -> Float[np.ndarray, " N"]:
    r"""Probability integral transform of every observation, randomised within ranks.

    .. math:: u_n = \frac{r_n + v_n (t_n + 1)}{S + 1}, \qquad r_n = \#\{y_s < y_n\},\;
        t_n = \#\{y_s = y_n\},\; v_n \sim \mathcal U(0, 1)

    Exactly uniform for a calibrated forecast at any number of draws, for continuous and for
    discrete y (which has ties).

    Args:
        draws: Predictive draws of y ``[S, N]``.
        y: Observations ``[N]``.
        seed: Seed of the randomisation within ranks.

    Returns:
        Values ``[N]`` in (0, 1).

    Raises:
        ShapeError: If the shapes do not fit.

    References:
        Czado, Gneiting & Held, "Predictive model assessment for count data", Biometrics 2009.

    Example:
        >>> draws = np.arange(999.0)[:, None]
        >>> pit(draws, np.array([499.5])).round(2)
        array([0.5])
    """
    draws = check_axes("draws", draws, "S N")
    y = check_rows("y", y, draws.shape[1], of="draws")
    below = (draws < y).sum(0)  # [N]
    ties = (draws == y).sum(0)
    uniform = np.random.default_rng(seed).uniform(size=y.shape)
    return np.asarray((below + uniform * (ties + 1)) / (len(draws) + 1))


def binomial_band(
    num_trials: int, probability: float, band_probability: float = BAND_PROBABILITY
) -> tuple[int, int]:
    r"""Smallest and largest count of successes that chance allows, from the exact binomial law.

    .. math:: \Pr(X < a) \le \tfrac{1 - \beta}2, \qquad \Pr(X > b) \le \tfrac{1 - \beta}2,
        \qquad X \sim \mathrm{Binomial}(n, p)

    Args:
        num_trials: n.
        probability: p, in [0, 1].
        band_probability: beta; the band holds at least this much probability.

    Returns:
        a and b; counts from a to b, both included, are what chance allows.

    Example:
        >>> binomial_band(100, 0.95)
        (89, 100)
    """
    from scipy import stats

    tail = (1 - band_probability) / 2
    low, high = stats.binom.ppf([tail, 1 - tail], num_trials, probability)
    return max(int(low), 0), int(high)  # ppf gives -1 for p = 0


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Share of observations inside the central predictive interval.

    Attributes:
        level: Nominal coverage.
        observed: Observed share.
        low: Smallest share that chance allows for a calibrated method.
        high: Largest such share.
        num_points: Number of observations.
    """

    level: float
    observed: float
    low: float
    high: float
    num_points: int

    @property
    def consistent(self) -> bool:
        """Whether the observed share lies in the band."""
        return self.low <= self.observed <= self.high


def coverage(pit: Float[np.ndarray, " N"], level: float = 0.95) -> Coverage:
    r"""Coverage of the central interval, with its exact binomial band.

    .. math:: \hat c = \tfrac1N \#\{n : \tfrac{1 - l}2 \le u_n \le \tfrac{1 + l}2\}

    Taken from the PIT, so neither the number of draws nor ties of a discrete y bias it: quantiles
    of S draws by linear interpolation would cover only l (S - 1)/(S + 1). The band takes the
    points as independent given the forecast.

    Args:
        pit: PIT values ``[N]`` of `pit`.
        level: Nominal coverage l, in (0, 1).

    Raises:
        ShapeError: If ``pit`` is not ``[N]``.
        OptionError: If ``level`` is not in (0, 1).

    Example:
        >>> result = coverage((np.arange(1000) + 0.5) / 1000)
        >>> result.observed, result.low, result.high, result.consistent
        (0.95, 0.931, 0.967, True)
    """
    values = check_axes("pit", pit, "N")
    if not 0 < level < 1:
        raise OptionError(f"level must lie between 0 and 1 (0.95 for 95 %), got {level}")
    tail = (1 - level) / 2
    low, high = binomial_band(len(values), level)
    return Coverage(
        level=level,
        observed=float(np.mean((values >= tail) & (values <= 1 - tail))),
        low=low / len(values),
        high=high / len(values),
        num_points=len(values),
    )


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Accuracy against confidence in equal-width bins; bins without points hold NaN.

    Attributes:
        edges: Bin edges ``[B + 1]``.
        count: Points a bin ``[B]``.
        confidence: Mean confidence a bin ``[B]``.
        accuracy: Observed accuracy a bin ``[B]``.
        low: Smallest accuracy that chance allows at that confidence ``[B]``.
        high: Largest such accuracy ``[B]``.
    """

    edges: Float[np.ndarray, " B+1"]
    count: Int[np.ndarray, " B"]
    confidence: Float[np.ndarray, " B"]
    accuracy: Float[np.ndarray, " B"]
    low: Float[np.ndarray, " B"]
    high: Float[np.ndarray, " B"]


def reliability_curve(
    probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"], num_bins: int = 15
) -> Reliability:
    """Accuracy against confidence (the largest probability) in equal-width bins on [0, 1].

    The band around the diagonal is the binomial one of a calibrated method at each bin's count.

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.
        num_bins: B.

    Raises:
        ShapeError: If the shapes do not fit.

    References:
        Bröcker & Smith, "Increasing the Reliability of Reliability Diagrams", WAF 2007.

    Example:
        >>> curve = reliability_curve(np.array([[0.8, 0.2]] * 5), np.array([0, 0, 0, 0, 1]))
        >>> int(curve.count.sum()), float(curve.accuracy[11])
        (5, 0.8)
    """
    probs = check_axes("probs", probs, "N C")
    y = check_rows("y", y, len(probs), of="probs")
    edges = np.linspace(0, 1, num_bins + 1)
    confidence = probs.max(1)  # [N]
    # bins are (a, b], so a confidence of exactly 1 falls into the last
    which = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, num_bins - 1)
    count = np.bincount(which, minlength=num_bins)  # [B]
    with np.errstate(invalid="ignore"):  # 0 / 0 in an empty bin: NaN, as documented
        mean_confidence = np.bincount(which, confidence, num_bins) / count
        accuracy = np.bincount(which, probs.argmax(1) == y, num_bins) / count
    bands = [
        tuple(np.divide(binomial_band(n, p), n)) if n else (np.nan, np.nan)
        for n, p in zip(count.tolist(), np.minimum(mean_confidence, 1.0).tolist(), strict=True)
    ]
    low, high = np.array(bands).T
    return Reliability(
        edges=edges,
        count=count,
        confidence=mean_confidence,
        accuracy=accuracy,
        low=low,
        high=high,
    )


def ece(probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"], num_bins: int = 15) -> float:
    r"""Expected calibration error with equal-width bins.

    .. math:: \mathrm{ECE} = \sum_b \tfrac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|

    The plug-in is biased upwards: a calibrated method has an ECE > 0 at finite N; `ece_floor`
    says how much.

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.
        num_bins: Number of bins.

    Raises:
        ShapeError: If the shapes do not fit.

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, arXiv:1706.04599.

    Example:
        >>> round(ece(np.array([[0.8, 0.2]] * 4), np.array([0, 0, 0, 0])), 4)
        0.2
    """
    curve = reliability_curve(probs, y, num_bins)
    gap = np.abs(curve.accuracy - curve.confidence)
    return float(np.nansum(curve.count * gap) / curve.count.sum())


def ece_floor(
    probs: Float[np.ndarray, "N C"], *, num_bins: int = 15, num_repeats: int = 200, seed: int = 0
) -> float:
    """Mean ECE that these probabilities would have if they were exactly right.

    Labels are drawn from the probabilities themselves, so what is left is the plug-in bias.

    Args:
        probs: Predictive class probabilities ``[N, C]``.
        num_bins: Number of bins of the ECE.
        num_repeats: Number of simulated label sets.
        seed: Seed of the simulation.

    Raises:
        ShapeError: If ``probs`` is not ``[N, C]``.

    References:
        Widmann, Lindsten & Zachariah, "Calibration tests in multi-class classification", NeurIPS
        2019, arXiv:1910.11385 (consistency resampling).

    Example:
        >>> ece_floor(np.array([[1.0, 0.0]] * 10))
        0.0
    """
    probs = check_axes("probs", probs, "N C")
    cumulative = probs.cumsum(1)  # [N, C]
    rng = np.random.default_rng(seed)
    errors = []
    for _ in range(num_repeats):
        uniform = rng.uniform(size=(len(probs), 1)) * cumulative[:, -1:]
        errors.append(ece(probs, (uniform > cumulative).sum(1), num_bins))
    return float(np.mean(errors))
