"""How often the ranking calls a method behind: of equal methods, and of methods that are.

Equal methods have the same expected score exactly, and scores of the kinds that log scores have:
differences with long tails to one side, as a narrow predictive has few large losses; rows that
nearly all agree; scores whose error is of posterior draws. Methods that are behind stand among
equal ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from jaxtyping import Float
from scipy.optimize import brentq

from benchmarks.verdict_rates._rate import Rate
from pyro_bnn.diagnostics.max_t import FAMILY_WISE_ERROR
from pyro_bnn.diagnostics.ranking import rank
from pyro_bnn.report.splits.statistics import behind_over_splits

Scores = Float[np.ndarray, "N K"]
ByRows = Callable[[np.random.Generator, int, int], Scores]
ByRuns = Callable[[np.random.Generator, int, int], Float[np.ndarray, "J K"]]

SEED = 0
SD_OF_DRAWS = 0.05
TEST_SHARE = 0.1
NUM_ROWS = 200  # of the data set that is split
NUM_TEST_ROWS = {2: (20, 44, 200, 2_000), 7: (20, 44, 200, 2_000), 20: (20, 200)}  # K: N


def normal(rng: np.random.Generator, num_rows: int, num_methods: int) -> Scores:
    """Independent normal scores."""
    return rng.standard_normal((num_rows, num_methods))


def student(rng: np.random.Generator, num_rows: int, num_methods: int) -> Scores:
    """Independent scores with heavy tails on both sides: t with 3 degrees of freedom."""
    return np.asarray(rng.standard_t(3, (num_rows, num_methods)))


def chi_square(rng: np.random.Generator, num_rows: int, num_methods: int) -> Scores:
    """Long tails of every second method to the left, of the others to the right: skewness 2.8."""
    return np.asarray(_signs(num_methods) * (rng.chisquare(1, (num_rows, num_methods)) - 1))


def log_normal(rng: np.random.Generator, num_rows: int, num_methods: int) -> Scores:
    """One method of constant scores, all others with a long left tail: skewness -6.2."""
    scores = np.asarray(np.exp(0.5) - rng.lognormal(0, 1, (num_rows, num_methods)))
    scores[:, 0] = 0.0
    return scores


def predictives(rng: np.random.Generator, num_rows: int, num_methods: int) -> Scores:
    """Log scores of Gaussian predictives, every second too narrow and the others too wide."""
    return _of_predictives(rng, rng.standard_normal(num_rows), 1.0, num_methods)


def heavy_predictives(rng: np.random.Generator, num_rows: int, num_methods: int) -> Scores:
    """The same where y has t with 5 degrees of freedom: no finite skewness of the log scores."""
    return _of_predictives(rng, rng.standard_t(5, num_rows), 5 / 3, num_methods)


def sparse(rng: np.random.Generator, num_rows: int, num_methods: int) -> Scores:
    """Methods that differ in 3 rows of 100, by 1 up or down."""
    signs = rng.choice([-1.0, 1.0], (num_rows, num_methods))
    return np.asarray(signs * (rng.random((num_rows, num_methods)) < 0.03))


def of_draws(rng: np.random.Generator, num_rows: int, num_methods: int) -> Scores:
    """One posterior, a few draws of each method: all rows of a method move together."""
    shifts = SD_OF_DRAWS * rng.standard_normal(num_methods)
    return 0.02 * rng.standard_normal((num_rows, num_methods)) + shifts


def _signs(num_methods: int) -> Float[np.ndarray, " K"]:
    return np.where(np.arange(num_methods) % 2, 1.0, -1.0)


def beside_a_failure(rng: np.random.Generator, num_rows: int, num_methods: int) -> Scores:
    """Normal scores; the last method loses 100 nats in one row besides."""
    scores = rng.standard_normal((num_rows, num_methods))
    scores[rng.integers(num_rows), -1] -= 100
    return scores


def _of_predictives(
    rng: np.random.Generator, y: Float[np.ndarray, " N"], variance: float, num_methods: int
) -> Scores:
    """Log densities under N(m, w), m of each method independent with sd 0.2 sd(y)."""
    total = 1.04 * variance  # of y - m

    def expected(w: float) -> float:
        return -0.5 * math.log(w) - 0.5 * total / w

    narrow = 0.6 * variance
    wide = brentq(lambda w: expected(w) - expected(narrow), total, 20 * total)
    w = np.where(_signs(num_methods) < 0, narrow, wide)
    m = 0.2 * np.sqrt(variance) * rng.standard_normal((len(y), num_methods))
    return np.asarray(-0.5 * np.log(2 * np.pi * w) - 0.5 * (y[:, None] - m) ** 2 / w)


def is_behind(scores: Scores, draws_error: float = 0.0) -> list[bool]:
    """Whether each method is called behind on the page of one split."""
    names = [str(k) for k in range(scores.shape[1])]
    places = rank(dict(zip(names, scores.T, strict=True)), dict.fromkeys(names, draws_error))
    behind = {place.name: place.is_behind for place in places}
    return [behind[name] for name in names]


def random_splits(rng: np.random.Generator, num_splits: int, num_methods: int) -> Scores:
    """Mean log scores ``[J, K]`` of least squares on K pairs of features of equal use, J splits.

    Training rows of splits overlap as those of any data set do; by symmetry no method is better.
    """
    size = 2 * num_methods
    x = rng.standard_normal((NUM_ROWS, num_methods, 2))
    y = x.sum((1, 2)) / np.sqrt(size) + rng.standard_normal(NUM_ROWS)
    num_test = round(TEST_SHARE * NUM_ROWS)
    found = np.empty((num_splits, num_methods))
    for split in range(num_splits):
        order = rng.permutation(NUM_ROWS)
        test, train = order[:num_test], order[num_test:]
        design = x[train].transpose(1, 0, 2)  # [K, N, 2]
        gram = design.transpose(0, 2, 1) @ design
        weights = np.linalg.solve(gram, (design.transpose(0, 2, 1) @ y[train])[..., None])
        residual = y[train] - (design @ weights)[..., 0]  # [K, N]
        variance = (residual**2).mean(1)
        error = y[test] - (x[test].transpose(1, 0, 2) @ weights)[..., 0]  # [K, n_test]
        found[split] = (-0.5 * error**2 / variance[:, None]).mean(1) - 0.5 * np.log(variance)
    return found


def correlated_splits(rng: np.random.Generator, num_splits: int, num_methods: int) -> Scores:
    """Normal scores with the correlation of splits that Nadeau and Bengio's correction takes."""
    shared = np.sqrt(TEST_SHARE) * rng.standard_normal(num_methods)
    own = np.sqrt(1 - TEST_SHARE) * rng.standard_normal((num_splits, num_methods))
    return np.asarray(shared + own)


def groups_of_splits(rng: np.random.Generator, num_splits: int, num_methods: int) -> Scores:
    """The same of methods in three groups, alike within each, with spreads of 1, 3 and 9."""
    parts = correlated_splits(rng, num_splits, num_methods + 3)
    group = np.arange(num_methods) % 3
    return np.asarray(3.0**group * (parts[:, group] + 0.2 * parts[:, 3:]))


def is_behind_over_splits(scores: Float[np.ndarray, "J K"]) -> list[bool]:
    """Whether each method is called behind on the page of several splits."""
    by_split = [list(method[:, None]) for method in scores.T]
    p = behind_over_splits(by_split, TEST_SHARE / (1 - TEST_SHARE))
    return [bool(value <= FAMILY_WISE_ERROR) for value in p]


EQUAL: tuple[ByRows, ...] = (
    normal, student, chi_square, log_normal, predictives, heavy_predictives, sparse, of_draws,
)  # fmt: skip
EQUAL_OVER_SPLITS: tuple[ByRuns, ...] = (correlated_splits, random_splits, groups_of_splits)
GAPS = (3.0, 4.0, 5.0, 6.0)  # in standard errors of the paired difference to one of the others


def rows(quick: bool = False) -> Iterator[Rate]:
    """False alarms among equal methods, and power, over K and N."""
    for make in EQUAL:
        for num_methods in (2,) if quick else (2, 7, 20):
            for num_rows in (20,) if quick else NUM_TEST_ROWS[num_methods]:
                yield false_alarms(make, num_methods, num_rows, 5 if quick else 0)
    for num_methods in (3,) if quick else (4, 10, 20):
        for num_rows in (20,) if quick else (20, 44, 200):
            yield false_alarms_beside_others(num_methods, num_rows, 5 if quick else 0)
    for num_methods in (2,) if quick else (2, 7, 20):
        for num_rows in (44,) if quick else NUM_TEST_ROWS[num_methods]:
            for gap in (6.0,) if quick else GAPS:
                yield power(num_methods, num_rows, gap, 5 if quick else 0)
    for num_methods in (3,) if quick else (3, 7, 20):
        for num_rows in (44,) if quick else (20, 44, 200):
            simulated = 5 if quick else 0
            yield power(num_methods, num_rows, 6.0, simulated, beside_a_failure)
    for make_runs in EQUAL_OVER_SPLITS:
        for num_methods in (2,) if quick else (2, 7, 20):
            for num_splits in (4,) if quick else (3, 4, 5, 10, 20):
                yield false_alarms_over_splits(
                    make_runs, num_methods, num_splits, 5 if quick else 0
                )
    for num_methods in (2,) if quick else (2, 7, 20):
        for num_splits in (4,) if quick else (4, 10, 20):
            for gap in (6.0,) if quick else GAPS:
                yield power_over_splits(num_methods, num_splits, gap, 5 if quick else 0)


def false_alarms(make: ByRows, num_methods: int, num_rows: int, simulated: int = 0) -> Rate:
    """Reports on equal methods that call any behind; ``simulated`` 0 for as many as is usual."""
    simulated = simulated or _usual(num_methods, num_rows)
    rng = np.random.default_rng(SEED)
    error = SD_OF_DRAWS if make is of_draws else 0.0
    given = sum(any(is_behind(make(rng, num_rows, num_methods), error)) for _ in range(simulated))
    setting = f"{num_methods} equal methods, {num_rows} rows, {_words(make)}"
    return _rate(setting, given, simulated)


def false_alarms_beside_others(num_methods: int, num_rows: int, simulated: int = 0) -> Rate:
    """Reports that call one of several best methods behind, where the other half is behind."""
    simulated = simulated or _usual(num_methods, num_rows)
    rng = np.random.default_rng(SEED)
    num_best = (num_methods + 1) // 2
    gap = 5 * np.sqrt(2 / num_rows) * (np.arange(num_methods) >= num_best)
    given = sum(
        any(is_behind(normal(rng, num_rows, num_methods) - gap)[:num_best])
        for _ in range(simulated)
    )
    setting = (
        f"{num_methods} methods, {num_best} equal and best, the others behind by 5 standard "
        f"errors, {num_rows} rows, normal"
    )
    return _rate(setting, given, simulated)


def power(
    num_methods: int, num_rows: int, gap: float, simulated: int = 0, make: ByRows = normal
) -> Rate:
    """Reports that call the one method behind which is, among equal ones."""
    simulated = simulated or 300
    rng = np.random.default_rng(SEED)
    shift = gap * np.sqrt(2 / num_rows) * (np.arange(num_methods) == 0)
    given = sum(is_behind(make(rng, num_rows, num_methods) - shift)[0] for _ in range(simulated))
    setting = (
        f"{num_methods} methods, one behind by {gap:g} standard errors of a paired difference, "
        f"{num_rows} rows, {_words(make)}"
    )
    return _rate(setting, given, simulated, is_true=True)


def false_alarms_over_splits(
    make: ByRuns, num_methods: int, num_splits: int, simulated: int = 0
) -> Rate:
    """Reports over splits of equal methods that call any behind."""
    simulated = simulated or _usual(num_methods, 10 * num_splits)
    rng = np.random.default_rng(SEED)
    given = sum(
        any(is_behind_over_splits(make(rng, num_splits, num_methods))) for _ in range(simulated)
    )
    setting = f"{num_methods} equal methods, {num_splits} splits, {_words(make)}"
    return _rate(setting, given, simulated, over_splits=True)


def power_over_splits(num_methods: int, num_splits: int, gap: float, simulated: int = 0) -> Rate:
    """Reports over splits that call the one method behind which is, among equal ones."""
    simulated = simulated or 300
    rng = np.random.default_rng(SEED)
    error = np.sqrt(2 * ((1 - TEST_SHARE) / num_splits + TEST_SHARE))
    shift = gap * error * (np.arange(num_methods) == 0)
    given = sum(
        is_behind_over_splits(correlated_splits(rng, num_splits, num_methods) - shift)[0]
        for _ in range(simulated)
    )
    setting = (
        f"{num_methods} methods, one behind by {gap:g} standard errors of a paired difference, "
        f"{num_splits} splits"
    )
    return _rate(setting, given, simulated, is_true=True, over_splits=True)


def _usual(num_methods: int, num_rows: int) -> int:
    return 1_000 if num_methods < 20 and num_methods * num_rows <= 1_000 else 400


def _words(make: ByRows | ByRuns) -> str:
    return make.__name__.replace("_", " ")


def _rate(
    setting: str,
    given: int,
    simulated: int,
    *,
    is_true: bool = False,
    over_splits: bool = False,
) -> Rate:
    return Rate(
        verdict="behind, over splits" if over_splits else "behind",
        measures="family-wise p-value, step-down max-t over all pairs of methods",
        threshold=f"p at most {FAMILY_WISE_ERROR:g}",
        setting=setting,
        is_true=is_true,
        given=given,
        simulated=simulated,
        seed=SEED,
    )
