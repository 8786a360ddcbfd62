r"""What chance allows a statistic of held-out rows: bands of simulated data, binomial bands.

Rows share one draw of the function, so a count over rows varies more than a binomial one: draws
:math:`y^{(s)} \sim p(y \mid f_s)` of all rows at once are data sets that the posterior itself
expects. If it is exact, the observations and these draws are exchangeable, and the rank of a
statistic of the observations among those of the draws is uniform at any number of draws S (Besag &
Clifford, "Generalized Monte Carlo significance tests", Biometrika 1989). Draws of a Markov chain
are so only as far as they are independent.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from pyro_bnn.diagnostics.shapes import check_axes, check_observed, check_rows

BAND_PROBABILITY = 0.99  # a calibrated method leaves the band by chance once in a hundred tests
NUMBERS_AT_ONCE = 1 << 22


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


def simulated_pit(
    draws: Float[np.ndarray, "S N"], y: Float[np.ndarray, " N"], *, seed: int = 0
) -> Float[np.ndarray, "S N"]:
    r"""PIT values that each predictive draw has among all others and the observations.

    .. math:: u^{(s)}_n = \frac{r^{(s)}_n + v (t^{(s)}_n + 1)}{S + 1}

    with the ranks r and ties t of :math:`y^{(s)}_n` among the S - 1 other draws and
    :math:`y_n`: what `pit` would say if draw s had been observed.

    Args:
        draws: Predictive draws of y ``[S, N]``, each of one draw of the function at all rows.
        y: Observations ``[N]``.
        seed: Seed of the randomisation within ranks.

    Returns:
        Values ``[S, N]`` in [0, 1], single precision.

    Raises:
        ShapeError: If the shapes do not fit.

    Example:
        >>> draws = np.array([[0.0], [2.0], [3.0]])
        >>> (4 * simulated_pit(draws, np.array([1.0]))).astype(int)[:, 0]
        array([0, 2, 3])
    """
    draws, y = check_observed("draws", draws, "S N", y)
    S, N = draws.shape
    rng = np.random.default_rng((seed, 1))  # apart from the stream of `pit`
    found = np.empty((S, N), np.float32)
    at_once = max(1, NUMBERS_AT_ONCE // (S + 1))
    for start in range(0, N, at_once):
        rows = slice(start, start + at_once)
        pool = np.concatenate([draws[:, rows], y[None, rows]])  # [S + 1, n]
        order = pool.argsort(0)
        first, last = _ties(np.take_along_axis(pool, order, 0))
        values = first + rng.random(pool.shape) * (last - first + 1)
        np.put_along_axis(pool, order, values / (S + 1), 0)
        found[:, rows] = pool[:-1]
    return found


def _ties(ordered: Float[np.ndarray, "T N"]) -> tuple[np.ndarray, np.ndarray]:
    """First and last place ``[T, N]`` of the equal values that each value stands among."""
    places = np.arange(len(ordered))[:, None]
    differs = ordered[1:] != ordered[:-1]
    ends = np.ones_like(ordered[:1], dtype=bool)
    first = np.where(np.concatenate([ends, differs]), places, 0)
    last = np.where(np.concatenate([differs, ends]), places, len(ordered))
    return (
        np.maximum.accumulate(first, axis=0),
        np.minimum.accumulate(last[::-1], axis=0)[::-1],
    )


def central_band(
    simulated: Float[np.ndarray, "S ..."], band_probability: float = BAND_PROBABILITY
) -> tuple[Float[np.ndarray, ...], Float[np.ndarray, ...]]:
    r"""Ends of the band that an exchangeable statistic leaves with probability 1 - beta at most.

    .. math:: \bigl[T_{(k)},\, T_{(S + 1 - k)}\bigr], \qquad
        k = \bigl\lfloor (S + 1) \tfrac{1 - \beta}2 \bigr\rfloor

    Each end is passed with probability k / (S + 1) at most, exactly that where there are no ties.

    Args:
        simulated: The statistic of each simulated data set ``[S, ...]``.
        band_probability: beta.

    Returns:
        Low and high ``[...]``; NaN where k = 0: 99 % take 199 simulated data sets.

    Example:
        >>> low, high = central_band(np.arange(399.0))
        >>> float(low), float(high)
        (1.0, 397.0)
    """
    if not gives_band(len(simulated), band_probability):
        unknown = np.full(simulated.shape[1:], np.nan)
        return unknown, unknown
    k = _in_tail(len(simulated), (1 - band_probability) / 2)
    ordered = np.sort(simulated, axis=0)
    return ordered[k - 1], ordered[-k]


def gives_band(num_simulated: int, band_probability: float = BAND_PROBABILITY) -> bool:
    """Whether `central_band` of so many data sets is known.

    Example:
        >>> gives_band(198), gives_band(199)
        (False, True)
    """
    return _in_tail(num_simulated, (1 - band_probability) / 2) > 0


def upper_limit(
    simulated: Float[np.ndarray, " S"], band_probability: float = BAND_PROBABILITY
) -> float:
    """What an exchangeable statistic exceeds with probability 1 - beta at most; NaN if S < 99.

    Args:
        simulated: The statistic of each simulated data set ``[S]``.
        band_probability: beta.

    Example:
        >>> upper_limit(np.arange(99.0))
        98.0
    """
    k = _in_tail(len(simulated), 1 - band_probability)
    return float(np.sort(simulated)[-k]) if k else float("nan")


def simultaneous_band(
    observed: Float[np.ndarray, " B"],
    simulated: Float[np.ndarray, "S B"],
    band_probability: float = BAND_PROBABILITY,
) -> tuple[Float[np.ndarray, " B"], Float[np.ndarray, " B"]]:
    r"""A band that all of several statistics stay in together with probability beta at least.

    .. math:: m_b \pm c\, s_b, \qquad
        c = z_{(S + 1 - k)}, \quad z^{(s)} = \max_b \frac{|T^{(s)}_b - m_b|}{s_b},
        \quad k = \lfloor (S + 1)(1 - \beta) \rfloor

    with means m and standard deviations s over the simulated data and the observed, so that these
    are exchangeable.

    Args:
        observed: The statistics of the observations ``[B]``.
        simulated: Those of each simulated data set ``[S, B]``.
        band_probability: beta.

    Returns:
        Low and high ``[B]``; NaN where k = 0: 99 % take 99 simulated data sets.

    Raises:
        ShapeError: If the shapes do not fit.

    References:
        Myllymäki, Mrkvička, Grabarnik, Seijo & Hahn, "Global envelope tests for spatial processes",
        JRSS B 2017, doi:10.1111/rssb.12172 (the studentised envelope).

    Example:
        >>> simulated = np.random.default_rng(0).normal(size=(999, 2))
        >>> low, high = simultaneous_band(np.zeros(2), simulated)
        >>> inside = ((simulated >= low) & (simulated <= high)).all(1)
        >>> int((~inside).sum())
        9
    """
    simulated = check_axes("simulated", simulated, "S B")
    observed = check_rows("observed", observed, simulated.shape[1], of="simulated")
    pool = np.concatenate([simulated, observed[None]])  # [S + 1, B]
    mean, sd = pool.mean(0), pool.std(0)
    away = np.abs(simulated - mean)
    largest = np.divide(away, sd, out=np.zeros_like(away), where=sd > 0).max(1)  # [S]
    room = upper_limit(largest, band_probability) * sd
    return mean - room, mean + room


def _in_tail(num_simulated: int, probability: float) -> int:
    """How many of S + 1 exchangeable values have this probability at most."""
    return int((num_simulated + 1) * probability + 1e-9)  # 200 * (1 - 0.99) / 2 is below 1
