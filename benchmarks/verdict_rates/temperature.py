"""How often draws are said to be too hot or too cold.

The configurational temperature of a Gaussian in P directions is T times a chi-square over P: here
four chains of it, a draw alike to the one before, about T and about other means.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from jaxtyping import Float

from benchmarks.verdict_rates._rate import Rate
from pyro_bnn.infer.sgmcmc.temperature import MOST_OFF, STANDARD_ERRORS, temperature_of
from pyro_bnn.plotting.numbers import percent

SEED = 31
CHAINS, CORRELATION = 4, 0.8
DIRECTIONS, DRAWS, MEANS = (10, 600), (50, 1_000), (1.0, 1.05, 1.2)


def rows(quick: bool = False) -> Iterator[Rate]:
    """By number of directions, draws and the mean that they have."""
    rng = np.random.default_rng(SEED)
    num_runs = 2 if quick else 400
    for num_directions, num_draws, mean in product(DIRECTIONS, DRAWS, MEANS):
        given = sum(
            temperature_of(mean * _temperatures(num_directions, num_draws, rng)).is_off
            for _ in range(num_runs)
        )
        yield Rate(
            verdict="temperature",
            measures="kinetic or configurational temperature over that which was asked for",
            threshold=f"{percent(MOST_OFF, 0)} and {STANDARD_ERRORS:g} standard errors",
            setting=f"{num_directions} directions, {CHAINS} chains of {num_draws:,} draws of "
            f"correlation {CORRELATION:g}, temperature {mean:g} for 1",
            is_true=abs(mean - 1) > MOST_OFF,
            given=given,
            simulated=num_runs,
            seed=SEED,
        )


def _temperatures(
    num_directions: int, num_draws: int, rng: np.random.Generator
) -> Float[np.ndarray, "C S"]:
    """Correlated numbers with the mean and the sd of a chi-square over its degrees of freedom."""
    fresh = rng.chisquare(num_directions, (CHAINS, num_draws)) / num_directions - 1
    values = fresh.copy()
    for s in range(1, num_draws):
        values[:, s] = CORRELATION * values[:, s - 1] + np.sqrt(1 - CORRELATION**2) * fresh[:, s]
    return 1 + values
