"""Paired comparison of methods on the same points, and the ranking that admits ties."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes, check_rows
from pyro_bnn.errors import DataError

TIED_STANDARD_ERRORS = 2.0


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """Difference of two methods on the same points.

    Attributes:
        mean: Mean difference a point.
        standard_error: Its standard error, of points and draws together; NaN for a single point.
        points_error: The part of it of other points.
        draws_error: The part of it of other posterior draws of both methods.
        total: Sum over the points.
        total_standard_error: Standard error of the sum.
        tied: Whether the difference is under 2 standard errors (or not resolved by one point).
    """

    mean: float
    standard_error: float
    points_error: float
    draws_error: float
    total: float
    total_standard_error: float
    tied: bool


def paired_difference(
    a: Float[np.ndarray, " N"],
    b: Float[np.ndarray, " N"],
    *,
    monte_carlo: tuple[float, float] = (0.0, 0.0),
) -> PairedDifference:
    r"""Difference a - b over the same points, with the standard error of paired differences.

    .. math:: \bar d = \tfrac1N \sum_n d_n, \quad d_n = a_n - b_n, \qquad
        \mathrm{se}^2 = \frac{1}{N (N - 1)} \sum_n (d_n - \bar d)^2
        + \mathrm{mc}_a^2 + \mathrm{mc}_b^2

    Pairing removes the spread that easy and hard points give to both methods alike. The error is
    that of another draw of the test set and of other posterior draws, not of another split or fit.
    It is an upper bound on that: draws of two methods are independent, or alike under a shared
    seed, and where draws move every point by itself, the first term has seen it already.

    Args:
        a: Scores ``[N]`` of one method.
        b: Scores ``[N]`` of the other, on the same points in the same order.
        monte_carlo: Monte Carlo standard errors of the mean of a and of b, from `log_score_error`;
            0 where there are no draws.

    Returns:
        Mean and sum of the differences with their standard errors; ``-inf`` scores make an
        infinite difference that is never tied.

    Raises:
        ShapeError: If the shapes differ.

    References:
        Vehtari, Gelman & Gabry, "Practical Bayesian model evaluation using leave-one-out
        cross-validation and WAIC", Stat. Comput. 2017, arXiv:1507.04544, section 5.2.

    Example:
        >>> difference = paired_difference(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 1.0]))
        >>> difference.mean, round(difference.standard_error, 4), difference.tied
        (1.0, 0.5774, True)
    """
    a = check_axes("a", a, "N")
    b = check_rows("b", b, len(a), of="a")
    with np.errstate(invalid="ignore"):  # -inf - -inf: both exclude the point equally
        differences = np.where(a == b, 0.0, a - b)  # [N]
    mean = float(differences.mean())
    of_points = _standard_error(differences)
    of_draws = float(np.hypot(*monte_carlo)) if differences.any() else 0.0  # equal: the same draws
    error = float(np.hypot(of_points, of_draws))
    resolved = not np.isfinite(mean) or abs(mean) >= TIED_STANDARD_ERRORS * error
    return PairedDifference(
        mean=mean,
        standard_error=error,
        points_error=of_points,
        draws_error=of_draws,
        total=mean * len(a),
        total_standard_error=error * len(a),
        tied=mean == 0.0 or not resolved,
    )


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One method's place in a ranking by mean score.

    Attributes:
        name: The method.
        rank: 1 for the best; methods tied with the best share rank 1.
        score: Mean score a point.
        standard_error: Standard error of that mean over points and draws (not of the difference).
        draws_error: The part of it of other posterior draws.
        difference: Paired difference to the best; mean <= 0.
    """

    name: str
    rank: int
    score: float
    standard_error: float
    draws_error: float
    difference: PairedDifference


def rank(
    scores: Mapping[str, Float[np.ndarray, " N"]], monte_carlo: Mapping[str, float] | None = None
) -> list[Ranked]:
    """Ranks methods by mean score, best first; a difference under 2 standard errors is a tie.

    Everything tied with the best has rank 1, so a rank of 1 means "not shown to be worse than the
    best"; the others are numbered by their place in the list.

    Args:
        scores: Score of every point ``[N]`` by method, higher is better, the same points for all.
        monte_carlo: Monte Carlo standard error of the mean score by method; None for exact scores.

    Returns:
        One entry a method, by mean score.

    Raises:
        DataError: If there is no method, or a score is NaN.
        ShapeError: If the methods have different numbers of points.

    Example:
        >>> places = rank({"a": np.array([0.0, 0.1, 0.0]), "b": np.array([1.0, 1.2, 1.1])})
        >>> [(place.name, place.rank, place.difference.tied) for place in places]
        [('b', 1, True), ('a', 2, False)]
    """
    if not scores:
        raise DataError("no scores to rank: give at least one method")
    for name, score in scores.items():
        if np.isnan(score).any():
            raise DataError(
                f"the scores of {name!r} hold {int(np.isnan(score).sum())} NaN of {len(score)}: "
                "its log-likelihood is undefined there; check the fit before comparing"
            )
    errors = dict.fromkeys(scores, 0.0) | dict(monte_carlo or {})
    means = {name: float(np.mean(score)) for name, score in scores.items()}
    names = sorted(scores, key=lambda name: -means[name])
    best = names[0]
    differences = {
        name: paired_difference(
            scores[name], scores[best], monte_carlo=(errors[name], errors[best])
        )
        for name in names
    }
    return [
        Ranked(
            name=name,
            rank=1 if differences[name].tied else place,
            score=means[name],
            standard_error=float(np.hypot(_standard_error(scores[name]), errors[name])),
            draws_error=errors[name],
            difference=differences[name],
        )
        for place, name in enumerate(names, start=1)
    ]


def _standard_error(score: Float[np.ndarray, " N"]) -> float:
    if len(score) < 2 or not np.isfinite(score).all():
        return float("nan")
    return float(np.std(score, ddof=1) / np.sqrt(len(score)))
