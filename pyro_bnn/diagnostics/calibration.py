r"""Calibration of predictive draws: PIT, coverage, reliability, each with the band chance allows.

A forecast is calibrated if observations look like further draws of it (Gneiting, Balabdaoui &
Raftery, "Probabilistic forecasts, calibration and sharpness", JRSS B 2007).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from pyro_bnn.diagnostics.bands import binomial_band, central_band, simultaneous_band
from pyro_bnn.diagnostics.shapes import check_axes, check_classes, check_observed
from pyro_bnn.errors import OptionError, ShapeError

MAX_BINS = 20
POINTS_A_BIN = 8
STEPS_OF_ECDF = 50


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
        Values ``[N]`` in (0, 1); NaN where the observation or a draw is NaN.

    Raises:
        ShapeError: If the shapes do not fit.

    References:
        Czado, Gneiting & Held, "Predictive model assessment for count data", Biometrics 2009.

    Example:
        >>> draws = np.arange(999.0)[:, None]
        >>> pit(draws, np.array([499.5])).round(2)
        array([0.5])
    """
    draws, y = check_observed("draws", draws, "S N", y)
    below = (draws < y).sum(0)  # [N]
    ties = (draws == y).sum(0)
    uniform = np.random.default_rng(seed).uniform(size=y.shape)
    known = ~(np.isnan(y) | np.isnan(draws).any(0))
    return np.where(known, (below + uniform * (ties + 1)) / (len(draws) + 1), np.nan)


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Share of observations inside the central predictive interval.

    Attributes:
        level: Nominal coverage.
        observed: Observed share; NaN if a PIT value is.
        low: Smallest share that chance allows for a calibrated method; NaN where it is not known.
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
        """Whether the observed share does not leave the band; true also where there is none."""
        return not (self.observed < self.low or self.observed > self.high)


def coverage(
    pit: Float[np.ndarray, " N"],
    level: float = 0.95,
    simulated: Float[np.ndarray, " S"] | None = None,
) -> Coverage:
    r"""Coverage of the central interval, with the band that chance allows.

    .. math:: \hat c = \tfrac1N \#\{n : \tfrac{1 - l}2 \le u_n \le \tfrac{1 + l}2\}

    Taken from the PIT, so neither the number of draws nor ties of a discrete y bias it: quantiles
    of S draws by linear interpolation would cover only l (S - 1)/(S + 1).

    The points of a posterior share one draw of its function: an exact posterior leaves the binomial
    band far more often than stated. The band of ``simulated`` is left as often as stated.

    Args:
        pit: PIT values ``[N]`` of `pit`.
        level: Nominal coverage l, in (0, 1).
        simulated: Shares ``[S]`` of data sets drawn from the posterior inside the interval, the
            `covered_share` of `simulated_pit`, which give the band (`central_band`). Without them
            it is the exact binomial one, which takes the points as independent given the forecast.

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
    num_points = len(values)
    if simulated is None:
        low, high = (count / num_points for count in binomial_band(num_points, level))
    else:
        low, high = map(float, central_band(simulated))
    return Coverage(
        level=level,
        observed=float(covered_share(values, level)),
        low=low,
        high=high,
        num_points=num_points,
    )


def covered_share(pit: Float[np.ndarray, "*S N"], level: float = 0.95) -> Float[np.ndarray, "*S"]:
    """Share of PIT values inside the central interval; NaN if one of them is.

    Example:
        >>> float(covered_share(np.array([0.01, 0.5, 0.9, 0.99])))
        0.5
    """
    tail = (1 - level) / 2
    share = ((pit >= tail) & (pit <= 1 - tail)).mean(-1)
    return np.where(np.isnan(pit).any(-1), np.nan, share)


@dataclass(frozen=True, kw_only=True)
class PITHistogram:
    """Counts of PIT values in equal bins, with the band that all bars stay in together.

    Attributes:
        edges: Bin edges ``[B + 1]``.
        counts: Points a bin ``[B]``; those whose PIT value is NaN are in none.
        low: Least height that chance allows a bar ``[B]``; NaN where it is not known.
        high: Largest such height ``[B]``.
    """

    edges: Float[np.ndarray, " B+1"]
    counts: Int[np.ndarray, " B"]
    low: Float[np.ndarray, " B"]
    high: Float[np.ndarray, " B"]

    @property
    def outside(self) -> Bool[np.ndarray, " B"]:
        """Which bars leave the band."""
        return np.asarray((self.counts < self.low) | (self.counts > self.high))


def pit_histogram(
    pit: Float[np.ndarray, " N"], simulated: Float[np.ndarray, "S N"]
) -> PITHistogram:
    """PIT values in 4 to 20 equal bins, of 8 points or more where there are enough.

    The heights of data that are drawn from the posterior itself give the band: a calibrated
    method has all bars in it with probability 99 % at least (`simultaneous_band`).

    Args:
        pit: PIT values ``[N]`` of `pit`.
        simulated: PIT values ``[S, N]`` of data drawn from the posterior, of `simulated_pit`.

    Raises:
        ShapeError: If ``pit`` is not ``[N]``, or ``simulated`` not ``[S, N]``.

    Example:
        >>> simulated = np.random.default_rng(0).uniform(size=(199, 32))
        >>> found = pit_histogram(np.full(32, 0.9), simulated)
        >>> found.counts.tolist(), found.outside.tolist()
        ([0, 0, 0, 32], [True, True, True, True])
    """
    values = _check_simulated(pit, simulated)
    num_bins = int(np.clip(len(values) // POINTS_A_BIN, 4, MAX_BINS))
    of_simulated = _counts(simulated, num_bins)  # [S, B]
    counts = _counts(values, num_bins)
    low, high = simultaneous_band(counts, of_simulated)
    return PITHistogram(edges=np.linspace(0, 1, num_bins + 1), counts=counts, low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class PITDifference:
    """Distribution function of PIT values less that of the uniform, with its simultaneous band.

    Attributes:
        at: Places in (0, 1) ``[B]``.
        difference: Share of the PIT values below each, less the place itself ``[B]``.
        low: Least difference that chance allows ``[B]``; NaN where it is not known.
        high: Largest such difference ``[B]``.
    """

    at: Float[np.ndarray, " B"]
    difference: Float[np.ndarray, " B"]
    low: Float[np.ndarray, " B"]
    high: Float[np.ndarray, " B"]

    @property
    def outside(self) -> Bool[np.ndarray, " B"]:
        """At which places the difference leaves the band."""
        return np.asarray((self.difference < self.low) | (self.difference > self.high))


def pit_difference(
    pit: Float[np.ndarray, " N"], simulated: Float[np.ndarray, "S N"]
) -> PITDifference:
    r"""Empirical distribution function of the PIT values less the uniform one.

    .. math:: \hat F(u) - u, \qquad \hat F(u) = \tfrac1N \#\{n : u_n < u\}

    Above and then below zero the intervals are too narrow, below and then above too wide, on one
    side throughout the predictions are biased. The same differences of data that are drawn from
    the posterior itself give the band: that of a calibrated method stays in it at all places
    together with probability 99 % at least (`simultaneous_band`). Bands for independent rows, such
    as ArviZ has them, would be too narrow: rows share one draw of the function.

    Args:
        pit: PIT values ``[N]`` of `pit`.
        simulated: PIT values ``[S, N]`` of data drawn from the posterior, of `simulated_pit`.

    Returns:
        The differences at 49 places.

    Raises:
        ShapeError: If ``pit`` is not ``[N]``, or ``simulated`` not ``[S, N]``.

    References:
        Säilynoja, Bürkner & Vehtari, "Graphical test for discrete uniformity and its applications
        in goodness-of-fit evaluation and multiple sample comparison", Statistics and Computing
        2022, arXiv:2103.10522 (the figure, with a band for independent values).

    Example:
        >>> simulated = np.random.default_rng(0).uniform(size=(199, 32))
        >>> found = pit_difference(np.full(32, 0.5), simulated)
        >>> found.difference[[0, 24, 25, 48]].round(2)
        array([-0.02, -0.5 ,  0.48,  0.02])
    """
    values = _check_simulated(pit, simulated)
    at = np.arange(1, STEPS_OF_ECDF) / STEPS_OF_ECDF
    of_simulated = _below(simulated) - at  # [S, B]
    difference = _below(values) - at
    low, high = simultaneous_band(difference, of_simulated)
    return PITDifference(at=at, difference=difference, low=low, high=high)


def _below(pit: Float[np.ndarray, "*S N"]) -> Float[np.ndarray, "*S B"]:
    """Share of the values below each inner edge of equal bins; NaN if one of them is."""
    share = _counts(pit, STEPS_OF_ECDF).cumsum(-1)[..., :-1] / pit.shape[-1]
    return np.where(np.isnan(pit).any(-1, keepdims=True), np.nan, share)


def _check_simulated(
    pit: Float[np.ndarray, " N"], simulated: Float[np.ndarray, "S N"]
) -> Float[np.ndarray, " N"]:
    values = check_axes("pit", pit, "N")
    if simulated.ndim != 2 or simulated.shape[1] != len(values):
        raise ShapeError(
            f"simulated must have shape [S, {len(values)}] to match pit, got "
            f"{list(simulated.shape)}"
        )
    return values


def _counts(pit: Float[np.ndarray, "*S N"], num_bins: int) -> Int[np.ndarray, "*S B"]:
    """Values a bin, in each row by itself; NaN is in none."""
    rows = pit.reshape(-1, pit.shape[-1])
    place = rows * num_bins
    np.minimum(place, num_bins - 1, out=place)  # 1 falls into the last
    place[np.isnan(rows)] = num_bins
    which = place.astype(int)
    which += (num_bins + 1) * np.arange(len(rows))[:, None]
    counts = np.bincount(which.ravel(), minlength=(num_bins + 1) * len(rows))
    return counts.reshape(*pit.shape[:-1], num_bins + 1)[..., :-1]


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
    probs: Float[np.ndarray, "N C"],
    y: Int[np.ndarray, " N"],
    num_bins: int = 15,
    simulated: Int[np.ndarray, "S N"] | None = None,
) -> Reliability:
    """Accuracy against confidence (the largest probability) in equal-width bins on [0, 1].

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.
        num_bins: B.
        simulated: Classes ``[S, N]`` drawn from the posterior, each of one draw of the function at
            all rows, whose accuracies give the band (`central_band`). Without them it is the
            binomial one around the diagonal, which takes the rows as independent given the
            forecast: the rows of a posterior share one draw of its function.

    Raises:
        DataError: If y holds anything but 0..C-1.
        ShapeError: If the shapes do not fit.

    References:
        Bröcker & Smith, "Increasing the Reliability of Reliability Diagrams", WAF 2007.

    Example:
        >>> curve = reliability_curve(np.array([[0.8, 0.2]] * 5), np.array([0, 0, 0, 0, 1]))
        >>> int(curve.count.sum()), float(curve.accuracy[11])
        (5, 0.8)
    """
    probs, y = check_classes("probs", probs, y)
    which = _bins_of(probs, num_bins)
    count = np.bincount(which, minlength=num_bins)  # [B]
    (accuracy,) = _accuracies(probs, y[None], num_bins)
    with np.errstate(invalid="ignore"):  # 0 / 0 in an empty bin: NaN, as documented
        confidence = np.bincount(which, probs.max(1), num_bins) / count
    if simulated is None:
        bands = [
            tuple(np.divide(binomial_band(n, p), n)) if n else (np.nan, np.nan)
            for n, p in zip(count.tolist(), np.minimum(confidence, 1.0).tolist(), strict=True)
        ]
        low, high = np.array(bands).T
    else:
        low, high = central_band(_accuracies(probs, simulated, num_bins))
    return Reliability(
        edges=np.linspace(0, 1, num_bins + 1),
        count=count,
        confidence=confidence,
        accuracy=accuracy,
        low=low,
        high=high,
    )


def _bins_of(probs: Float[np.ndarray, "N C"], num_bins: int) -> Int[np.ndarray, " N"]:
    """The bin of each row's confidence; bins are (a, b], so that 1 falls into the last."""
    edges = np.linspace(0, 1, num_bins + 1)
    which = np.searchsorted(edges, probs.max(1), side="left") - 1
    return np.asarray(which.clip(0, num_bins - 1))


def _accuracies(
    probs: Float[np.ndarray, "N C"], simulated: Int[np.ndarray, "S N"], num_bins: int
) -> Float[np.ndarray, "S B"]:
    """Accuracy of each simulated data set in each bin; NaN in bins without points."""
    which, correct = _bins_of(probs, num_bins), simulated == probs.argmax(1)
    with np.errstate(invalid="ignore"):  # 0 / 0 in an empty bin: NaN, as documented
        counts = np.array([np.bincount(which, row, num_bins) for row in correct])
        return counts / np.bincount(which, minlength=num_bins)


def ece(probs: Float[np.ndarray, "N C"], y: Int[np.ndarray, " N"], num_bins: int = 15) -> float:
    r"""Expected calibration error with equal-width bins.

    .. math:: \mathrm{ECE} = \sum_b \tfrac{n_b}{N} |\mathrm{acc}_b - \mathrm{conf}_b|

    The plug-in is biased upwards: a calibrated method has an ECE > 0 at finite N; `simulated_ece`
    says how much.

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        y: Classes ``[N]``, 0..C-1.
        num_bins: Number of bins.

    Raises:
        DataError: If y holds anything but 0..C-1.
        ShapeError: If the shapes do not fit.

    References:
        Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, arXiv:1706.04599.

    Example:
        >>> round(ece(np.array([[0.8, 0.2]] * 4), np.array([0, 0, 0, 0])), 4)
        0.2
    """
    probs, y = check_classes("probs", probs, y)
    return float(simulated_ece(probs, y[None], num_bins)[0])


def simulated_ece(
    probs: Float[np.ndarray, "N C"], simulated: Int[np.ndarray, "S N"], num_bins: int = 15
) -> Float[np.ndarray, " S"]:
    """ECE of each of several sets of classes, such as those that a posterior itself expects.

    Where the classes are drawn from the posterior, each set of one draw of the function at all
    rows, these are the values that its ECE has if it is exact (consistency resampling over what
    rows share).

    Args:
        probs: Predictive class probabilities ``[N, C]``, already averaged over draws.
        simulated: Classes ``[S, N]``, 0..C-1.
        num_bins: Number of bins of the ECE.

    Returns:
        ECE of each set ``[S]``.

    Raises:
        ShapeError: If the shapes do not fit.

    References:
        Widmann, Lindsten & Zachariah, "Calibration tests in multi-class classification", NeurIPS
        2019, arXiv:1910.11385 (consistency resampling).

    Example:
        >>> simulated_ece(np.array([[0.8, 0.2]] * 2), np.array([[0, 0], [0, 1]])).round(2)
        array([0.2, 0.3])
    """
    probs = check_axes("probs", probs, "N C")
    which = _bins_of(probs, num_bins)
    confidence = np.bincount(which, probs.max(1), num_bins)  # times n_b
    count = np.bincount(which, minlength=num_bins)
    accuracy = np.nan_to_num(_accuracies(probs, simulated, num_bins)) * count
    return np.asarray(np.abs(accuracy - confidence).sum(1) / len(probs))


def ece_floor(
    probs: Float[np.ndarray, "N C"], *, num_bins: int = 15, num_repeats: int = 200, seed: int = 0
) -> float:
    """Mean ECE that these probabilities would have if they were exactly right, row by row.

    Labels are drawn from the probabilities themselves, independently of one another; the rows of a
    posterior share one draw of its function, and `simulated_ece` of its draws is larger.

    Args:
        probs: Predictive class probabilities ``[N, C]``.
        num_bins: Number of bins of the ECE.
        num_repeats: Number of simulated label sets.
        seed: Seed of the simulation.

    Raises:
        ShapeError: If ``probs`` is not ``[N, C]``.

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
