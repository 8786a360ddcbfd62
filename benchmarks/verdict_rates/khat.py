"""How often k-hat says that draws cannot be reweighted: where that is so, and where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import stats

from benchmarks.verdict_rates._rate import Rate
from pyro_bnn.diagnostics.khat import khat, khat_threshold

SEED = 22
DRAWS = (100, 400, 1_000)


class Setting(NamedTuple):
    """A Gaussian q of independent entries with one sd, where the posterior has sd 1.

    Attributes:
        size: Number of entries.
        sd: Of every entry of q.
        is_far: Whether the tail index of the ratios, 1 - sd^2, is above the limit, or nearly 1 of
            many entries.
        has_other_mode: Whether half the posterior is a mode 20 sds away that q lacks.
    """

    size: int
    sd: float
    is_far: bool
    has_other_mode: bool = False


SETTINGS = (
    Setting(1, 1.0, is_far=False),
    Setting(1, 0.9, is_far=False),
    Setting(1, 0.4, is_far=True),
    Setting(10, 0.5, is_far=True),
    Setting(200, 0.8, is_far=True),
    Setting(1, 0.9, is_far=True, has_other_mode=True),
)


def rows(quick: bool = False) -> Iterator[Rate]:
    """The share of sets of draws whose k-hat is at its limit or above."""
    rng = np.random.default_rng(SEED)
    num_runs = 3 if quick else 400
    for setting in SETTINGS:
        for num_draws in DRAWS:
            limit = khat_threshold(num_draws)
            yield Rate(
                verdict="khat",
                measures="shape of the tail of the ratios of posterior to guide, at its draws",
                threshold=f"{limit:.2f}, the limit for {num_draws:,} draws",
                setting=_words(setting) + f", {num_draws:,} draws",
                is_true=setting.is_far,
                given=sum(_khat(setting, num_draws, rng) >= limit for _ in range(num_runs)),
                simulated=num_runs,
                seed=SEED,
            )


def _khat(setting: Setting, num_draws: int, rng: np.random.Generator) -> float:
    z = setting.sd * rng.normal(size=(num_draws, setting.size))
    log_p = stats.norm.logpdf(z).sum(1)
    if setting.has_other_mode:
        log_p = np.logaddexp(log_p, stats.norm.logpdf(z, 20.0).sum(1)) + np.log(0.5)
    return khat(log_p, stats.norm.logpdf(z, 0.0, setting.sd).sum(1))


def _words(setting: Setting) -> str:
    entries = "1 entry" if setting.size == 1 else f"{setting.size} independent entries"
    shape = "the posterior itself" if setting.sd == 1 else f"{setting.sd:g} times the right sds"
    missing = ", and half the posterior in a mode that q lacks" if setting.has_other_mode else ""
    return f"Gaussian of {entries}, {shape}{missing}"
