"""How often a fit is said to be still rising, and not converged beside another of its family.

Traces are a straight fall in the accumulated learning rate, the excess loss that a learning rate
brings, and noise as that of one-particle ELBOs: of ``make report`` it is independent from step to
step, right-skewed (2.2) with a kurtosis of 11, and of standard deviation 20 nats.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from jaxtyping import Float

from benchmarks.verdict_rates._rate import Rate
from pyro_bnn.diagnostics.trend import objective_trend
from pyro_bnn.posterior.doubling import MIN_GAIN, STANDARD_ERRORS
from pyro_bnn.report.verdicts.containment import MIN_ELBO_GAP, is_below

SEED = 21
SHAPE = 0.8  # of Gamma noise: skewness 2.24, kurtosis 10.5
WINDOW = 0.25  # share of the accumulated learning rate over which the fall is counted
EXCESS = 10.0  # nats at the largest learning rate
SLOW, CORRELATION = 0.05, 0.98  # sd of a slow part of the noise, over the noise; its correlation
SCHEDULES = ("constant", "cosine")
STEPS = (500, 2_000, 10_000)
NOISES = (0.3, 2.0, 20.0)
FALLS = (0.0, 1.0, 5.0, 20.0)


def rows(quick: bool = False) -> Iterator[Rate]:
    """Traces by schedule, length, noise and fall; then pairs of fits and many equal ones."""
    rng = np.random.default_rng(SEED)
    num_runs = 2 if quick else 400
    for schedule, num_steps, noise, fall in product(SCHEDULES, STEPS, NOISES, FALLS):
        rates = _rates(schedule, num_steps)
        given = sum(_is_rising(rates, noise, fall, rng) for _ in range(num_runs))
        yield Rate(
            verdict="trend",
            measures="gain of the objective over the last quarter of the accumulated learning rate",
            threshold=f"{STANDARD_ERRORS:g} standard errors and {MIN_GAIN:g} nats",
            setting=f"{schedule} rate, {num_steps:,} steps, noise of a step {noise:g} nats, "
            f"{f'fall of {fall:g} nats' if fall else 'no fall'} over the window",
            is_true=fall > 0,
            given=given,
            simulated=num_runs,
            seed=SEED,
        )
    for num_fits, gap in ((2, 0.0), (5, 0.0), (16, 0.0), (2, 5.0), (16, 5.0)):
        given = sum(_found_below(num_fits, gap, rng) for _ in range(num_runs))
        yield Rate(
            verdict="containment",
            measures="ELBO below that of another fit of the same family",
            threshold=f"{MIN_ELBO_GAP:g} nat and 5 % false alarms over all pairs",
            setting=f"{num_fits} fits of one guide, ELBOs with an error of 0.75 nats, "
            + (f"one {gap:g} nats below the others" if gap else "all equal"),
            is_true=gap > 0,
            given=given,
            simulated=num_runs,
            seed=SEED,
        )


def _is_rising(
    rates: Float[np.ndarray, " T"], noise: float, fall: float, rng: np.random.Generator
) -> bool:
    elapsed = rates.cumsum() / rates.sum()
    shape = np.sqrt(SHAPE) * (rng.gamma(SHAPE, size=rates.size) / SHAPE - 1)  # sd 1
    losses = noise * (shape + SLOW * _autoregression(rates.size, rng))
    losses += EXCESS * rates - fall * elapsed / WINDOW
    trend = objective_trend(losses, rates)
    return trend is not None and trend.is_rising


def _found_below(num_fits: int, gap: float, rng: np.random.Generator) -> bool:
    """Whether any fit is called unconverged where all are equal, or the one that is below."""
    elbos = 0.75 * rng.normal(size=num_fits)
    elbos[0] -= gap
    num_pairs = num_fits * (num_fits - 1)
    below = [
        any(is_below(elbos[i], 0.75, elbos[j], 0.75, num_pairs) for j in range(num_fits) if j != i)
        for i in range(num_fits)
    ]
    return below[0] if gap else any(below)


def _rates(schedule: str, num_steps: int) -> Float[np.ndarray, " T"]:
    if schedule == "constant":
        return np.ones(num_steps)
    return np.asarray(0.5 * (1 + np.cos(np.pi * np.arange(num_steps) / num_steps)))


def _autoregression(num_steps: int, rng: np.random.Generator) -> Float[np.ndarray, " T"]:
    from scipy import signal

    innovations = np.sqrt(1 - CORRELATION**2) * rng.normal(size=num_steps)
    innovations[0] = rng.normal()
    return np.asarray(signal.lfilter([1.0], [1.0, -CORRELATION], innovations))
