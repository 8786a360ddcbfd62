"""Samplers past NUTS: effective samples a second and a gradient, and what a bias does to spreads.

NUTS, HMC of tuned length, MAMS and MCLMC of this package, and NumPyro's NUTS with a device a chain
and vectorised where it is installed; each in a fresh process with empty compile caches, compiling
and warm-up included. Bulk ESS is the smallest over the points. "Var f" is the mean over points of
the variance of the output over that of HMC in the same round, with its standard error over chains:
for an unbiased sampler 1.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _settings
from benchmarks._peers import installed
from benchmarks._posteriors import DIABETES, MOONS, Array
from benchmarks._sampling import Options
from benchmarks._settings import Settings
from benchmarks.nuts import Entry, Row, run

CASES = {
    "moons": Options(target=MOONS.name, chains=16, warmup=200, draws=2_000),
    "diabetes": Options(target=DIABETES.name, chains=4, warmup=300, draws=1_000),
}
QUICK = Options(target=MOONS.name, chains=2, warmup=10, draws=16, depth=3)
OURS = ("HMC", "NUTS", "MAMS", "MCLMC")  # HMC first: variances are over its
ROUNDS = 1


def entries(case: Options) -> list[Entry]:
    """Everyone who runs a case."""
    found = [Entry(n, "pyro_bnn" if n == "NUTS" else f"pyro_bnn {n}", case) for n in OURS]
    if installed("numpyro"):
        found += [
            Entry(f"NumPyro NUTS, {method}", "numpyro", replace(case, method=method))
            for method in ("parallel", "vectorized")
        ]
    return found


def variance_ratio(f: Array, reference: Array) -> tuple[float, float]:
    """Mean over points of Var f over that of a reference, and its standard error over chains.

    Args:
        f: Draws of the output ``[C, S, M, 1]``.
        reference: Those of an unbiased sampler.
    """
    means = [values.mean((0, 1)) for values in (f, reference)]
    own, other = (
        ((values - mean) ** 2).mean(1)[..., 0]  # [C, M]
        for values, mean in zip((f, reference), means, strict=True)
    )
    ratio = (own.mean(0) / other.mean(0)).mean()
    errors = [
        (v / v.mean(0)).mean(1).std(ddof=1) / np.sqrt(len(v)) if len(v) > 1 else np.nan
        for v in (own, other)
    ]
    return float(ratio), float(ratio * math.hypot(*errors))


def rows_of(case: Options, settings: Settings) -> list[Row]:
    """A row an entry and round."""
    rows: list[Row] = []
    for turn in range(settings.rounds):
        reference: Array | None = None
        for entry in entries(case):
            with tempfile.TemporaryDirectory() as cache:
                row, f = run(entry, settings.threads, turn, Path(cache))
            reference = f if reference is None else reference
            ratio, error = variance_ratio(f, reference)
            gradients = row["steps"] * f.shape[0] * f.shape[1]
            rows.append(
                {
                    "contender": entry.contender,
                    "target": case.target,
                    "chains": case.chains,
                    "draws": case.draws,
                    "round": turn,
                    **row,
                    "ess_per_gradient": row["ess"] / gradients,
                    "variance_ratio": ratio,
                    "variance_ratio_se": error,
                }
            )
            print(line(rows[-1]), flush=True)
    return rows


def line(row: Row) -> str:
    """A row in words."""
    return (
        f"{row['target']}, {row['chains']} x {row['draws']:,}: {row['contender']}: "
        f"{row['seconds']:.1f} s, ESS {row['ess']:,.0f} ({row['ess_per_second']:,.0f}/s, "
        f"{row['ess_per_gradient']:.4f} a gradient), R-hat {row['rhat']:.4f}, Var f "
        f"{row['variance_ratio']:.3f} +- {row['variance_ratio_se']:.3f}"
    )


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``samplers.json``."""
    settings = _settings.parse("samplers", __doc__, argv, rounds=ROUNDS, parts=tuple(CASES))
    cases = [QUICK] if settings.quick else [CASES[name] for name in settings.parts]
    rows = [row for case in cases for row in rows_of(case, settings)]
    found = _settings.result("samplers", settings, rows)
    if settings.out is not None:
        _settings.write(found, settings.out)
    return found


if __name__ == "__main__":
    main()
