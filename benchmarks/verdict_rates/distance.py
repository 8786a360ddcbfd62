"""How often 'pyro-bnn predict' calls a new row far from the training rows, like them or not.

Each simulation has training rows of its own, standardised as the package does it, and one new row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from benchmarks.verdict_rates._rate import Rate
from pyro_bnn.data import Standardiser
from pyro_bnn.diagnostics.novelty import LEVEL, Novelty

SEED = 23

Rows = Callable[[np.random.Generator, int], Float[np.ndarray, "N I"]]


class Setting(NamedTuple):
    """Training rows and a new row.

    Attributes:
        words: What both are.
        num_rows: Of training.
        training: Draws rows.
        new: Draws new rows; None for one more of the training rows' population.
    """

    words: str
    num_rows: int
    training: Rows
    new: Rows | None = None


def gaussian(num_inputs: int) -> Rows:
    """Independent standard normal inputs."""
    return lambda rng, num_rows: rng.normal(size=(num_rows, num_inputs))


def shifted(num_inputs: int, sds: float) -> Rows:
    """The same, the first input some sds off."""
    return lambda rng, num_rows: gaussian(num_inputs)(rng, num_rows) + sds * np.eye(num_inputs)[0]


def heavy(rng: np.random.Generator, num_rows: int) -> Float[np.ndarray, "N 5"]:
    """Five inputs without a variance: Student's t of 2 degrees of freedom."""
    return rng.standard_t(2, size=(num_rows, 5))


def rounded(rng: np.random.Generator, num_rows: int) -> Float[np.ndarray, "N 1"]:
    """One input with many equal values."""
    return gaussian(1)(rng, num_rows).round(1)


def two_clusters(rng: np.random.Generator, num_rows: int) -> Float[np.ndarray, "N 1"]:
    """One input from -1.6 to -0.8 or from 0.8 to 1.6."""
    return rng.choice([-1.0, 1.0], (num_rows, 1)) * rng.uniform(0.8, 1.6, (num_rows, 1))


def gap(rng: np.random.Generator, num_rows: int) -> Float[np.ndarray, "N 1"]:
    """Between the clusters."""
    return rng.uniform(-0.6, 0.6, (num_rows, 1))


def beyond(rng: np.random.Generator, num_rows: int) -> Float[np.ndarray, "N 1"]:
    """Half a cluster's width and more beyond its end."""
    return rng.choice([-1.0, 1.0], (num_rows, 1)) * rng.uniform(2.0, 3.0, (num_rows, 1))


SETTINGS = (
    Setting("19 normal rows, I = 5; one more", 19, gaussian(5)),
    Setting("40 normal rows, I = 5; one more", 40, gaussian(5)),
    Setting("400 normal rows, I = 5; one more", 400, gaussian(5)),
    Setting("400 normal rows, I = 50; one more", 400, gaussian(50)),
    Setting("40 rows of Student's t, 2 degrees of freedom, I = 5; one more", 40, heavy),
    Setting("40 normal rows rounded to tenths, I = 1; one more", 40, rounded),
    Setting("40 rows in two clusters, I = 1; one more", 40, two_clusters),
    Setting("40 rows in two clusters, I = 1; in the gap", 40, two_clusters, gap),
    Setting("40 rows in two clusters, I = 1; beyond both", 40, two_clusters, beyond),
    *(
        Setting(
            f"400 normal rows, I = {num_inputs}; the first input {sds:g} sds off",
            400,
            gaussian(num_inputs),
            shifted(num_inputs, sds),
        )
        for num_inputs in (1, 5, 50)
        for sds in (3.0, 5.0, 10.0)
    ),
)


def rows(quick: bool = False) -> Iterator[Rate]:
    """The share of new rows that are called far."""
    rng = np.random.default_rng(SEED)
    num_runs = 3 if quick else 2_000
    for setting in SETTINGS:
        yield Rate(
            verdict="new rows",
            measures="share of rows, the new one among them, that are as far from all others",
            threshold=f"where this conformal p-value is at most {LEVEL:g}",
            setting=setting.words,
            is_true=setting.new is not None,
            given=sum(_is_far(setting, rng) for _ in range(num_runs)),
            simulated=num_runs,
            seed=SEED,
        )


def _is_far(setting: Setting, rng: np.random.Generator) -> bool:
    x = torch.as_tensor(setting.training(rng, setting.num_rows))
    new = torch.as_tensor((setting.new or setting.training)(rng, 1))
    units = Standardiser.fit(x)
    novelty = Novelty(units.transform(x).numpy())
    distance = novelty.distance(units.transform(new).numpy())
    return bool(novelty.p_value(distance)[0] <= LEVEL)
