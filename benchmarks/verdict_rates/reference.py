"""How often chains are refused as a reference: good ones, and ones with a known fault.

The chains are those of a linear function of 10 independent Gaussian weights at 44 rows, as many as
``make report`` holds out, whose weights move as first-order autoregressions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from benchmarks.verdict_rates._rate import Rate
from pyro_bnn.diagnostics.convergence import ChainChecks, ebfmi, function_convergence

SEED = 20
NUM_CHAINS, NUM_ROWS, NUM_WEIGHTS = 4, 44, 10


class Setting(NamedTuple):
    """Chains of one kind.

    Attributes:
        words: What they are.
        num_draws: Draws of a chain.
        correlation: Of neighbouring weights.
        shift: Of the first chain's weights, in posterior sds.
        slow_energy: Autocorrelation of the energies.
        divergent: Share of divergent draws.
        is_bad: Whether they should be refused.
    """

    words: str
    num_draws: int
    correlation: float
    shift: float = 0.0
    slow_energy: float = 0.0
    divergent: float = 0.0
    is_bad: bool = True


SETTINGS = (
    Setting("independent draws", 300, 0.0, is_bad=False),
    Setting("good chains, autocorrelation 0.1", 300, 0.1, is_bad=False),
    Setting("good chains, autocorrelation 0.2", 300, 0.2, is_bad=False),
    Setting("good chains, autocorrelation 0.2", 1_000, 0.2, is_bad=False),
    Setting("good chains, autocorrelation 0.5", 1_000, 0.5, is_bad=False),
    Setting("one chain 0.25 sds off", 300, 0.0, shift=0.25),
    Setting("one chain 0.5 sds off", 300, 0.0, shift=0.5),
    Setting("one chain 0.25 sds off", 1_000, 0.2, shift=0.25),
    Setting("chains of autocorrelation 0.8, worth about 300 draws", 1_000, 0.8),
    Setting("energies of autocorrelation 0.9 (E-BFMI 0.2)", 300, 0.0, slow_energy=0.9),
    Setting("0.5 % of draws divergent", 300, 0.0, divergent=0.005),
)


def rows(quick: bool = False) -> Iterator[Rate]:
    """The share of runs of each kind that may judge nobody."""
    rng = np.random.default_rng(SEED)
    num_runs = 1 if quick else 200
    for setting in SETTINGS:
        refused = sum(not _checks(setting, rng).can_judge for _ in range(num_runs))
        yield Rate(
            verdict="reference",
            measures="R-hat, bulk and tail ESS of f at every row; E-BFMI; divergent draws",
            threshold="R-hat above 1.01, an ESS below 400, E-BFMI below 0.3, above 0.1 % divergent",
            setting=f"{NUM_CHAINS} chains of {setting.num_draws:,} draws, {NUM_ROWS} rows: "
            f"{setting.words}",
            is_true=setting.is_bad,
            given=refused,
            simulated=num_runs,
            seed=SEED,
        )


def _checks(setting: Setting, rng: np.random.Generator) -> ChainChecks:
    weights = _autoregression(setting.num_draws, NUM_WEIGHTS, setting.correlation, rng)
    x = rng.normal(size=(NUM_ROWS, NUM_WEIGHTS)) / np.sqrt(NUM_WEIGHTS)
    direction = np.sign(rng.normal(size=NUM_WEIGHTS))
    weights[0] += setting.shift * direction
    energy = _autoregression(setting.num_draws, 1, setting.slow_energy, rng)[..., 0]
    return ChainChecks(
        num_chains=NUM_CHAINS,
        quantities={"f": function_convergence((weights @ x.T)[..., None])},
        divergent=float((rng.random((NUM_CHAINS, setting.num_draws)) < setting.divergent).mean()),
        saturated=0.0,
        ebfmi=float(ebfmi(energy).min()),
    )


def _autoregression(
    num_draws: int, size: int, correlation: float, rng: np.random.Generator
) -> Float[np.ndarray, "C S M"]:
    """Stationary chains of unit variance."""
    values = rng.normal(size=(NUM_CHAINS, num_draws, size))
    for step in range(1, num_draws):
        values[:, step] *= np.sqrt(1 - correlation**2)
        values[:, step] += correlation * values[:, step - 1]
    return values
