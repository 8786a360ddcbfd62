r"""A number of a method with its standard errors, over images and over fits of other seeds.

Every number is a function of rows. On B resamples b of the rows, drawn with replacement, averaged
over fits r = 1..R,

.. math:: \mathrm{se}_\text{images}^2 = \mathrm{var}_b(\theta_b), \qquad
    \mathrm{se}_\text{seeds}^2 = \mathrm{var}_r(\theta_r) / R

The resamples are the same for every method, so that the error of a difference is that of the
differences on each: paired. Rows of two sets, known and unknown ones, are drawn each from its own
set, so that every resample has as many of both. A jackknife is no substitute: of the calibration
error of a calibrated method, which is no smooth function of its rows, it says twice the error. A
single fit has no error over seeds, and a single row none over images.

References:
    Efron & Tibshirani, "An Introduction to the Bootstrap", 1993, sections 6 and 11.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from pyro_bnn.diagnostics.max_t import FAMILY_WISE_ERROR, NUM_SIMULATED, units_of_pairs

RESAMPLES = 100  # the error of an error is 7 % of it
ERRORS = 2.0  # standard errors from which on a difference is told, where there is one

RowNumbers = Int[np.ndarray, " n"]
Statistic = Callable[[RowNumbers], float]


@dataclass(frozen=True)
class Estimate:
    """A number and its errors.

    Attributes:
        value: Mean over fits.
        images_error: Standard error over images.
        seeds_error: Standard error over fits of other seeds; NaN of one fit.
    """

    value: float
    images_error: float
    seeds_error: float = float("nan")

    @property
    def error(self) -> float:
        """Both together; of one fit that over images alone."""
        return math.hypot(self.images_error, 0.0 if self.is_of_one_fit else self.seeds_error)

    @property
    def is_of_one_fit(self) -> bool:
        """Whether nothing is known of other seeds."""
        return math.isnan(self.seeds_error)


@dataclass(frozen=True)
class Resampled:
    """A number of every fit of a method, of all rows and of each resample.

    Attributes:
        whole: Of all rows ``[R]``.
        each: Of each resample ``[R, B]``.
    """

    whole: Float[np.ndarray, " R"]
    each: Float[np.ndarray, "R B"]

    @property
    def estimate(self) -> Estimate:
        """Its mean over fits, with errors."""
        error = _sd(self.each.mean(0))
        return Estimate(float(self.whole.mean()), error, of_seeds(self.whole))

    @np.errstate(invalid="ignore")  # impossible rows of both: NaN
    def minus(self, other: Resampled) -> Estimate:
        """The paired difference to another method; fits are paired where they are as many."""
        if len(self.whole) == len(other.whole):
            seeds = of_seeds(self.whole - other.whole)
        else:
            both = [of_seeds(one.whole) for one in (self, other)]
            seeds = math.hypot(*(0.0 if math.isnan(one) else one for one in both))
        value = float(self.whole.mean() - other.whole.mean())
        return Estimate(value, _sd(self.each.mean(0) - other.each.mean(0)), seeds)


def resampled(statistics: Sequence[Statistic], *num_rows: int) -> Resampled:
    """A number of each fit, of all rows and of resamples of them.

    Args:
        statistics: Of each fit, what gives the number of some rows.
        num_rows: Number of rows of each set; those of the second come after those of the first.
    """
    every, others = np.arange(sum(num_rows)), resamples(*num_rows)
    each = np.full((len(statistics), RESAMPLES), np.nan)
    if min(num_rows) > 1:
        each = np.array([[of(rows) for rows in others] for of in statistics])
    return Resampled(np.array([of(every) for of in statistics]), each)


def told_from(numbers: Sequence[Resampled]) -> Float[np.ndarray, "K K"]:
    r"""From how many paired errors on two methods are told apart, of all pairs at once.

    .. math:: c_{jk} = \max(2, c\, q_{jk}), \qquad
        P\Bigl(\max_{j < k} \frac{|T_{jk}|}{q_{jk}} > c\Bigr) = 0.05, \\
        T_{jk} = \frac{\delta_j - \delta_k + \mathrm{se}_{jk,\text{seeds}}\, t_{jk}}
        {\mathrm{se}_{jk}}, \qquad \delta \sim \mathcal N(0, \mathrm{cov}_b(\theta_b))

    Where all methods are equal, some pair is farther apart in 5 % of data sets, whichever looks
    best. A quantile of the resamples themselves would be the fifth largest of 100. Of R fits the
    error over seeds is an estimate of R - 1 degrees of freedom, so that :math:`t_{jk}` is
    Student's, as in the Behrens-Fisher test: two fits tell next to nothing where they scatter. The
    units :math:`q_{jk}` are those of `max_t`, so that a pair whose fits agree does not pay for one
    whose fits do not.
    """
    pairs = list(itertools.combinations(range(len(numbers)), 2))
    found = np.full((len(numbers),) * 2, ERRORS)
    for (j, k), limit in zip(pairs, _limits(numbers, pairs), strict=True):
        found[j, k] = found[k, j] = limit
    return found


def told_from_constant(numbers: Sequence[Resampled]) -> Float[np.ndarray, " K"]:
    """From how many of its errors on a number is told from a constant, of all methods at once."""
    return _limits(numbers, [(k,) for k in range(len(numbers))])


def _limits(
    numbers: Sequence[Resampled], contrasts: Sequence[tuple[int, ...]]
) -> Float[np.ndarray, " P"]:
    """The limits of methods, or of differences of two, of all of them at once."""
    each = np.stack([one.each.mean(0) for one in numbers])  # [K, B]
    centred = (each - each.mean(1, keepdims=True)) / math.sqrt(max(each.shape[1] - 1, 1))
    ours = [centred[first] - sum(centred[k] for k in rest) for first, *rest in contrasts]
    differences = np.reshape(ours, (len(contrasts), each.shape[1]))  # [P, B]
    rng = np.random.default_rng(0)
    shifts = rng.standard_normal((NUM_SIMULATED, each.shape[1])) @ differences.T  # [S, P]
    squares = (differences**2).sum(1)
    fits = [rng.standard_normal((NUM_SIMULATED, len(one.whole))) for one in numbers]
    for column, contrast in enumerate(contrasts):
        for error, drawn in _parts_over_seeds([(numbers[k], fits[k]) for k in contrast]):
            t = math.sqrt(drawn.shape[1]) * drawn.mean(1) / drawn.std(1, ddof=1)
            shifts[:, column] += error * t
            squares[column] += error**2
    limits = np.full(len(contrasts), ERRORS)
    known = squares > 0  # not of methods that are the same
    if known.any():
        equal = shifts[:, known] / np.sqrt(squares[known])
        units = units_of_pairs(equal)
        limit = np.quantile((np.abs(equal) / units).max(1), 1 - FAMILY_WISE_ERROR)
        limits[known] = np.maximum(ERRORS, limit * units)
    return limits


def _parts_over_seeds(
    parts: list[tuple[Resampled, Float[np.ndarray, "S R"]]],
) -> Iterator[tuple[float, Float[np.ndarray, "S R"]]]:
    """Errors over seeds of a difference, and normal numbers in place of the fits of each.

    As :meth:`Resampled.minus` has them: one where fits are paired, else one of each method.
    """
    if len(parts) == 2 and len(parts[0][0].whole) == len(parts[1][0].whole):
        one, other = parts
        both = Resampled(one[0].whole - other[0].whole, one[0].each)
        parts = [(both, (one[1] - other[1]) / math.sqrt(2))]
    for number, drawn in parts:
        error = of_seeds(number.whole)
        if error > 0:  # not NaN of one fit
            yield error, drawn


def mean_of(numbers: Sequence[Resampled]) -> Resampled:
    """The mean of numbers of the same fits on the same resamples."""
    return Resampled(
        np.mean([one.whole for one in numbers], axis=0),
        np.mean([one.each for one in numbers], axis=0),
    )


@functools.lru_cache(maxsize=4)
def resamples(*num_rows: int) -> list[RowNumbers]:
    """Rows drawn with replacement from each set, in order; the same whenever they are asked for."""
    rng = np.random.default_rng(0)
    ends = np.cumsum(num_rows)
    return [
        np.concatenate(
            [np.sort(rng.integers(e - n, e, n)) for e, n in zip(ends, num_rows, strict=True)]
        )
        for _ in range(RESAMPLES)
    ]


def _sd(values: Float[np.ndarray, " B"]) -> float:
    with np.errstate(invalid="ignore"):  # impossible rows: NaN
        return float(np.std(values, ddof=1))


def of_seeds(values: Float[np.ndarray, " R"]) -> float:
    """Standard error of the mean over fits; NaN of one."""
    if len(values) < 2:
        return float("nan")
    return _sd(values) / math.sqrt(len(values))
