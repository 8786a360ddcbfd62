"""Verdicts against a reference: mean, spread and shape of the function, on and off the data.

Functions are linear in random features, so that the posterior and its best mean-field
approximation are Gaussians in closed form; the reference is four chains of exact draws, which may
be autocorrelated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.verdict_rates._rate import Rate
from pyro_bnn.diagnostics.probes import probe_rows
from pyro_bnn.report.evaluation.against import AgainstReference, against
from pyro_bnn.report.verdicts.spread_verdicts import (
    FLOORS,
    MEAN_SHIFT_THRESHOLD,
    SD_RATIO_THRESHOLD,
    SD_RATIO_UPPER,
    SHAPE_THRESHOLD,
    is_far,
    is_narrow,
    is_shifted,
    is_wide,
)

RULES: dict[str, tuple[Callable[[AgainstReference], bool], str, str]] = {
    "mean": (
        is_shifted,
        "distance of the mean from that of the reference, in its sds, row by row",
        f"above {MEAN_SHIFT_THRESHOLD} at a tenth of the rows or more, each by 3 standard errors",
    ),
    "sd ratio": (
        is_narrow,
        "epistemic sd over that of the reference, row by row",
        f"below {SD_RATIO_THRESHOLD} at a tenth of the rows or more, each by 3 standard errors",
    ),
    "too wide": (
        is_wide,
        "epistemic sd over that of the reference, row by row",
        f"above {SD_RATIO_UPPER} at a tenth of the rows or more, each by 3 standard errors",
    ),
    "distance": (
        is_far,
        "mean Wasserstein distance to the reference",
        f"above {FLOORS:g} times that between halves of the reference and {SHAPE_THRESHOLD} of "
        "its sds beyond it, where mean and spread have no fault",
    ),
}
NUM_INPUTS = 10


@dataclass(frozen=True)
class Size:
    """Draws of the method and the reference, and rows.

    Attributes:
        draws: Of the method.
        chain: Draws of each of four chains of the reference.
        autocorrelation: Of these from one to the next.
        rows: Test rows.
    """

    draws: int
    chain: int
    autocorrelation: float
    rows: int

    def __str__(self) -> str:
        ess = 4 * self.chain * (1 - self.autocorrelation) / (1 + self.autocorrelation)
        return f"{self.rows} rows, {self.draws} draws, reference 4 x {self.chain} (ESS {ess:.0f})"


SIZES = (
    Size(1_000, 500, 0.0, 44),
    Size(1_000, 500, 0.667, 44),
    Size(1_000, 500, 0.667, 200),
    Size(100, 50, 0.333, 44),
)

Fault = Callable[[np.ndarray], np.ndarray]  # of draws [S, N], centred, in sds of the reference


def _half_and_half(z: np.ndarray) -> np.ndarray:
    return z * np.where(np.arange(z.shape[1]) % 2, 0.3, 1.7)


FAULTS: dict[str, tuple[Fault, set[str]]] = {
    "exact": (lambda z: z, set()),
    "sds x 0.85": (lambda z: 0.85 * z, set()),
    "sds x 1.15": (lambda z: 1.15 * z, set()),
    "mean 0.3 sds off": (lambda z: z + 0.3, set()),
    "sds x 0.8, at the threshold": (lambda z: 0.8 * z, set()),
    "sds x 1.25, at the threshold": (lambda z: 1.25 * z, set()),
    "mean 0.5 sds off, at the threshold": (lambda z: z + 0.5, set()),
    "sds x 0.7": (lambda z: 0.7 * z, {"sd ratio"}),
    "sds x 0.5": (lambda z: 0.5 * z, {"sd ratio"}),
    "sds x 1.5": (lambda z: 1.5 * z, {"too wide"}),
    "half the rows x 0.3, half x 1.7": (_half_and_half, {"sd ratio", "too wide"}),
    "mean 0.75 sds off": (lambda z: z + 0.75, {"mean"}),
    "mean 3 sds off": (lambda z: z + 3, {"mean"}),
    "two modes of the same sd": (np.sign, {"distance"}),
}


def draws(size: Size, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draws of a linear function at rows in units of its sd: method ``[S, N]``, ``[C, T, N]``."""
    x = rng.standard_normal((size.rows, NUM_INPUTS))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    z = rng.standard_normal((4, size.chain, NUM_INPUTS))
    rho = size.autocorrelation
    for t in range(1, size.chain):
        z[:, t] = rho * z[:, t - 1] + np.sqrt(1 - rho**2) * z[:, t]
    return rng.standard_normal((size.draws, NUM_INPUTS)) @ x.T, z @ x.T


def verdicts_on_function(own: np.ndarray, reference: np.ndarray) -> set[str]:
    """Which verdicts the report gives on draws ``[S, N]`` and ``[C, T, N]``."""
    at = against(own[..., None], reference[..., None], where="test rows")
    return {kind for kind, (rule, _, _) in RULES.items() if rule(at)}


def mean_field(num_draws: int, chain: int, rng: np.random.Generator) -> tuple[set[str], set[str]]:
    """Verdicts on the best mean-field posterior of 50 ReLU features of two clusters of inputs.

    Returns:
        Those at 44 rows like the training rows, and those at the probes.
    """
    edges, signs = rng.uniform(-3, 3, 50), rng.choice([-1.0, 1.0], 50)

    def features(x: np.ndarray) -> np.ndarray:
        return np.asarray(np.maximum(signs * (x - edges), 0) / np.sqrt(50))  # [N, 50]

    x, test = (
        (0.2 * rng.standard_normal((n, 1)) + np.where(np.arange(n) % 2, 1.0, -1.0)[:, None])
        for n in (100, 44)
    )
    precision = features(x).T @ features(x) / 0.1**2 + np.eye(50)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    z = rng.standard_normal((4, chain, 50)) @ root.T
    own = rng.standard_normal((num_draws, 50)) / np.sqrt(precision.diagonal())
    return tuple(  # type: ignore[return-value]
        verdicts_on_function(own @ features(at).T, z @ features(at).T)
        for at in (test, probe_rows(x).x)
    )


def _rates(found: list[set[str]], setting: str, true: set[str], kinds: set[str]) -> Iterator[Rate]:
    for kind, (_, measures, threshold) in RULES.items():
        if kind in kinds:
            yield Rate(
                verdict=kind,
                measures=measures,
                threshold=threshold,
                setting=setting,
                is_true=kind in true,
                given=sum(kind in verdicts for verdicts in found),
                simulated=len(found),
                seed=0,
            )


def rows(quick: bool = False) -> Iterator[Rate]:
    """Rates of every case; of the mean-field posterior at rows and at probes.

    Args:
        quick: Whether a handful is simulated.
    """
    count = 2 if quick else 400
    for size in SIZES:
        for name, (fault, true) in FAULTS.items():
            rng = np.random.default_rng(0)
            pairs = (draws(size, rng) for _ in range(count))
            found = [verdicts_on_function(fault(own), reference) for own, reference in pairs]
            yield from _rates(found, f"{size}; {name}", true, set(RULES))
    rng = np.random.default_rng(0)
    at_rows, at_probes = zip(*(mean_field(1_000, 500, rng) for _ in range(count)), strict=True)
    setting = "mean-field of 50 ReLU features, two clusters, at "
    yield from _rates(
        list(at_rows), f"{setting}44 rows like the training rows", {"too wide"}, {"too wide"}
    )
    yield from _rates(list(at_probes), f"{setting}the probes", {"sd ratio"}, {"sd ratio"})
