"""Paired comparison of methods on the same points, and the ranking that admits ties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.max_t import (
    FAMILY_WISE_ERROR,
    MAX_GROUPS,
    balanced,
    centred_sums,
    p_values,
    resampled,
)
from pyro_bnn.diagnostics.shapes import check_axes, check_rows
from pyro_bnn.errors import DataError

MIN_POINTS = 6  # of five points all in favour a sign test has p = 2 / 2^5 > 0.05
UNSEEN_POINTS = 3.0  # the 95 % bound on the expected number, in N points, of what N did not show


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
    """

    mean: float
    standard_error: float
    points_error: float
    draws_error: float
    total: float
    total_standard_error: float


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
        infinite difference.

    Raises:
        ShapeError: If the shapes differ.

    References:
        Vehtari, Gelman & Gabry, "Practical Bayesian model evaluation using leave-one-out
        cross-validation and WAIC", Stat. Comput. 2017, arXiv:1507.04544, section 5.2.

    Example:
        >>> difference = paired_difference(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 1.0]))
        >>> difference.mean, round(difference.standard_error, 4)
        (1.0, 0.5774)
    """
    a = check_axes("a", a, "N")
    b = check_rows("b", b, len(a), of="a")
    differences = paired(a, b)  # [N]
    with np.errstate(invalid="ignore"):  # both have impossible points: NaN
        mean = float(differences.mean())
    of_points = _standard_error(differences)
    of_draws = float(np.hypot(*monte_carlo)) if differences.any() else 0.0  # equal: the same draws
    error = float(np.hypot(of_points, of_draws))
    return PairedDifference(
        mean=mean,
        standard_error=error,
        points_error=of_points,
        draws_error=of_draws,
        total=mean * len(a),
        total_standard_error=error * len(a),
    )


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """One method's place in a ranking by mean score.

    Attributes:
        name: The method.
        rank: 1 for every method that is not behind another, else its place in the list.
        score: Mean score a point.
        standard_error: Standard error of that mean over points and draws (not of the difference).
        draws_error: The part of it of other posterior draws.
        difference: Paired difference to the best; mean <= 0. Its error is of this pair alone.
        p_value: Family-wise p-value of "no method is better": over all pairs, corrected for their
            number and for the choice of the best; 1 where nothing can be tested.
    """

    name: str
    rank: int
    score: float
    standard_error: float
    draws_error: float
    difference: PairedDifference
    p_value: float

    @property
    def is_behind(self) -> bool:
        """Whether another method is better, at a family-wise error of 5 %."""
        return self.p_value <= FAMILY_WISE_ERROR


def check_scores(name: str, scores: Float[np.ndarray, " N"]) -> None:
    """Check that the scores of a method are numbers.

    Raises:
        DataError: If one is NaN.
    """
    if np.isnan(scores).any():
        raise DataError(
            f"the scores of {name!r} hold {int(np.isnan(scores).sum())} NaN of {len(scores)}: its "
            "log-likelihood is undefined there; check the fit before comparing"
        )


def rank(
    scores: Mapping[str, Float[np.ndarray, " N"]],
    monte_carlo: Mapping[str, float] | None = None,
    degrees_of_freedom: float = np.inf,
) -> list[Ranked]:
    r"""Ranks methods by mean score, best first; those that are not shown to be behind are tied.

    A method is behind if some other is better by a balanced step-down max-t test over all pairs
    (:mod:`pyro_bnn.diagnostics.max_t`). If some methods are as good as the best, it is made to call
    any of them behind in 5 % of cases at most, however many methods there are and although the best
    is picked by the same scores. It resamples the points: 20 of them do not show all of a long
    tail, and up to 7 % were counted (400 reports, ``benchmarks/verdict_rates``). With d the
    differences j - k over N points,

    .. math:: t_{jk} = \frac{1}{\mathrm{se}}
        \Bigl(\bar d - \frac{3}{N - 1} \max_n \bigl|d_n - \bar d\bigr|\Bigr)

    The second term is there for points that N did not show. A method that fails on few points
    looks better than it is where none of these came up, and its spread too small; no resampling of
    the same points sees that. What happened in none of N points may happen in 3 of another N (a
    95 % bound), and counts as much against j as the point farthest from the mean: where methods
    differ at two points of 20, both for j, two others could as well be against it.

    Points are independent here, and the test is of these posteriors: other splits and fits are
    not in the error. Fewer than 6 points resolve nothing; an impossible point (``-inf``) does.

    Args:
        scores: Score of every point ``[N]`` by method, higher is better, the same points for all.
        monte_carlo: Monte Carlo standard error of the mean score by method; None for exact scores.
        degrees_of_freedom: Of the variance behind these errors, one for all methods, where it is
            an estimate from a few fits; infinite where it is known.

    Returns:
        One entry a method, by mean score.

    Raises:
        DataError: If there is no method, or a score is NaN.
        ShapeError: If the methods have different numbers of points.

    References:
        Romano & Wolf, "Stepwise Multiple Testing as Formalized Data Snooping", Econometrica 73,
        2005; Hansen, Lunde & Nason, "The Model Confidence Set", Econometrica 79, 2011 (the set that
        is not behind); Hanley & Lippman-Hand, "If Nothing Goes Wrong, Is Everything All Right?",
        JAMA 249, 1983 (the rule of three).

    Example:
        >>> places = rank({"a": np.zeros(8), "b": np.array([1.0, 1.2, 1.1, 1.3] * 2)})
        >>> [(place.name, place.rank, place.is_behind) for place in places]
        [('b', 1, False), ('a', 2, True)]
    """
    if not scores:
        raise DataError("no scores to rank: give at least one method")
    for name, score in scores.items():
        check_scores(name, score)
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
    p = _p_values(
        [scores[name] for name in names],
        np.array([errors[name] for name in names]),
        degrees_of_freedom,
    )
    return [
        Ranked(
            name=name,
            rank=1 if p[place - 1] > FAMILY_WISE_ERROR else place,
            score=means[name],
            standard_error=float(np.hypot(_standard_error(scores[name]), errors[name])),
            draws_error=errors[name],
            difference=differences[name],
            p_value=float(p[place - 1]),
        )
        for place, name in enumerate(names, start=1)
    ]


def _p_values(
    scores: Sequence[Float[np.ndarray, " N"]],
    draws_errors: Float[np.ndarray, " K"],
    degrees_of_freedom: float,
) -> Float[np.ndarray, " K"]:
    """Family-wise p-value ``[K]`` of "no method is better than this one"."""
    num_methods, num_points = len(scores), len(scores[0])
    t = np.full((num_methods, num_methods), -np.inf)
    pairs = list(combinations(range(num_methods), 2))
    sums = np.zeros((min(num_points, MAX_GROUPS), len(pairs)))  # [G, P]
    is_tested = np.zeros(len(pairs), dtype=bool)
    for pair, (j, k) in enumerate(pairs):
        d = paired(scores[j], scores[k])  # [N]
        if not np.isfinite(d).all():
            with np.errstate(invalid="ignore"):  # both have impossible points: NaN
                t[j, k], t[k, j] = d.mean(), -d.mean()
        elif num_points >= MIN_POINTS and d.any():
            is_tested[pair] = True
            sums[:, pair] = centred_sums(d)
            error = np.hypot(_standard_error(d), np.hypot(draws_errors[j], draws_errors[k]))
            unseen = UNSEEN_POINTS / (num_points - 1) * np.abs(d - d.mean()).max()
            with np.errstate(divide="ignore"):  # the same difference at every point
                t[j, k] = (d.mean() - unseen) / error
                t[k, j] = (-d.mean() - unseen) / error
    equal = resampled(sums, num_points, draws_errors, degrees_of_freedom)  # [B, P]
    equal[:, ~is_tested] = 0.0
    return p_values(*balanced(np.where(np.isnan(t), -np.inf, t), equal))


def paired(a: Float[np.ndarray, " N"], b: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """Differences a - b of the same points or runs ``[N]``; 0 where both are infinite alike.

    Example:
        >>> paired(np.array([1.0, -np.inf]), np.array([0.5, -np.inf]))
        array([0.5, 0. ])
    """
    with np.errstate(invalid="ignore"):  # -inf - -inf: both exclude the point equally
        return np.where(a == b, 0.0, a - b)


def _standard_error(score: Float[np.ndarray, " N"]) -> float:
    if len(score) < 2 or not np.isfinite(score).all():
        return float("nan")
    return float(np.std(score, ddof=1) / np.sqrt(len(score)))
