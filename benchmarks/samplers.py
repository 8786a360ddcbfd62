"""Samplers past NUTS: effective samples a second and a gradient, and what a bias does to spreads.

``moons``: NUTS, HMC of found length, MAMS and MCLMC of this package, and where they are installed
BlackJAX's MCLMC and NumPyro's NUTS with a device a chain and vectorised; each in a fresh process
with empty compile caches, compiling and warm-up included. Bulk ESS is the smallest over the points.
"Var f" is the mean over points of the variance of the output over that of HMC in the same round,
with its standard error over chains: for an unbiased sampler 1.

``diabetes``: the time of four chains to an answer, R-hat at most 1.01 and a bulk ESS of 400 at
every held-out row. A first run tells how many draws that takes, a second one of so many is timed,
likewise in a fresh process with empty caches.

``concrete``, ``energy``, ``yacht``: MILE beside the ensemble of the same trained members and beside
NUTS: log scores of held-out rows, over splits, and CPU seconds.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

import pyro_bnn as bnn
from benchmarks import _plots, _settings, _tables
from benchmarks._peers import installed
from benchmarks._posteriors import DIABETES, MOONS, TARGETS, Array
from benchmarks._sampling import Options
from benchmarks._settings import Settings
from benchmarks.ensembles import mean_and_error, network, scores, timed
from benchmarks.nuts import Entry, Row, run
from pyro_bnn.diagnostics import function_convergence, rhat_within
from pyro_bnn.diagnostics.energy_error import mean_energy_variance
from pyro_bnn.infer.mcmc import members, mile

MOONS_CASE = Options(target=MOONS.name, chains=16, warmup=200, draws=2_000)
DIABETES_CASE = Options(target=DIABETES.name, chains=4, warmup=300, draws=1_000)
QUICK: Mapping[str, Any] = {"chains": 2, "warmup": 10, "draws": 16, "depth": 3}
MEMORY = 16  # steps of MCLMC's, where it is given
OURS = ("HMC", "NUTS", "MAMS", "MCLMC")  # HMC first: variances are over its
ROUNDS = 1
RHAT, ESS = 1.01, 400  # of an answer
EVERY = 20  # draws: an answer is looked for after so many
MOST_DRAWS = 16_000
UCI = ("concrete", "energy", "yacht")
NUM_SPLITS = 5
MEMBERS = "the members alone"
NUTS_DRAWS: Mapping[str, Any] = {"warmup_steps": 200, "num_samples": 250}


def entries(case: Options) -> list[Entry]:
    """Everyone who runs a case."""
    found = [Entry(n, "pyro_bnn" if n == "NUTS" else f"pyro_bnn {n}", case) for n in OURS]
    given = replace(case, steps=MEMORY)
    found.append(Entry(f"MCLMC, num_steps={MEMORY}", "pyro_bnn MCLMC", given))
    if installed("numpyro"):
        found += [
            Entry(f"NumPyro NUTS, {method}", "numpyro", replace(case, method=method))
            for method in ("parallel", "vectorized")
        ]
    if installed("blackjax"):
        found.append(Entry("BlackJAX MCLMC", "blackjax", case))
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


def moons_rows(settings: Settings) -> Iterator[Row]:
    """A row an entry and round: 2,000 draws of each of 16 chains."""
    case = replace(MOONS_CASE, **QUICK) if settings.quick else MOONS_CASE
    for turn in range(settings.rounds):
        reference: Array | None = None
        for entry in entries(case):
            with tempfile.TemporaryDirectory() as cache:
                row, f = run(entry, settings.threads, turn, Path(cache))
            reference = f if reference is None else reference
            ratio, error = variance_ratio(f, reference)
            yield {
                **of_entry(entry, turn, row),
                "variance_ratio": ratio,
                "variance_ratio_se": error,
            }


def diabetes_rows(settings: Settings) -> Iterator[Row]:
    """A row an entry and round: time of four chains to an answer."""
    case = replace(DIABETES_CASE, **QUICK) if settings.quick else DIABETES_CASE
    for turn in range(settings.rounds):
        for entry in entries(case):
            with tempfile.TemporaryDirectory() as cache:
                row, enough = to_an_answer(entry, settings, turn, Path(cache))
            yield {**of_entry(enough, turn, row), "is_answer": is_answer(row["rhat"], row["ess"])}


def to_an_answer(entry: Entry, settings: Settings, turn: int, cache: Path) -> tuple[Row, Entry]:
    """A run of as many draws as an answer takes, or of the most, and its entry."""
    most = entry
    while True:
        row, f = run(most, settings.threads, turn, cache / "first")
        needed = draws_needed(f)
        if needed is not None or settings.quick or 2 * most.options.draws > MOST_DRAWS:
            break
        most = with_draws(most, 2 * most.options.draws)
    if needed is None:
        return row, most
    while True:  # of another number of draws some libraries draw others
        enough = with_draws(entry, needed)
        row, _ = run(enough, settings.threads, turn, cache / f"of-{needed}")
        if is_answer(row["rhat"], row["ess"]) or settings.quick:
            return row, enough
        needed += needed // 5


def with_draws(entry: Entry, draws: int) -> Entry:
    """An entry with another number of draws a chain."""
    return replace(entry, options=replace(entry.options, draws=draws))


def is_answer(rhat: float, ess: float) -> bool:
    """Whether a function has converged, as the comparison counts it."""
    return rhat <= RHAT and ess >= ESS


def draws_needed(f: Array) -> int | None:
    """Least number of draws a chain, in steps, after which f ``[C, S, M, 1]`` is an answer.

    None where all of them are not: looking at every part of a long run would take an hour.
    """

    def answers(draws: int) -> bool:
        found = function_convergence(f[:, :draws])
        return is_answer(found.worst_rhat, found.smallest_ess)

    if not answers(f.shape[1]):
        return None
    return next(filter(answers, range(EVERY, f.shape[1], EVERY)), f.shape[1])


def of_entry(entry: Entry, turn: int, row: Row) -> Row:
    """What every row of a sampler has."""
    options = entry.options
    gradients = None if row["steps"] is None else row["steps"] * options.chains * options.draws
    return {
        "contender": entry.contender,
        "target": options.target,
        "chains": options.chains,
        "warmup": options.warmup,
        "draws": options.draws,
        "round": turn,
        **row,
        "ess_per_gradient": None if gradients is None else row["ess"] / gradients,
    }


def uci_rows(settings: Settings, name: str) -> Iterator[Row]:
    """A row a method, of means over the splits of a UCI set, on each of which all run in turn."""
    found: dict[str, list[Row]] = {}
    for k in range(1 if settings.quick else NUM_SPLITS):
        for method, row in of_split(f"uci/{name}", k, quick=settings.quick):
            print(name, k, method, row, flush=True)
            found.setdefault(method, []).append(row)
    points = [row["log_score"] for row in found[MEMBERS]]
    for method, splits in found.items():
        gains = [row["log_score"] - own for row, own in zip(splits, points, strict=True)]
        score, gain = (
            mean_and_error(values) for values in ([r["log_score"] for r in splits], gains)
        )
        yield {
            "case": f"uci/{name}",
            "contender": method,
            "splits": len(splits),
            "seconds": statistics.median(row["seconds"] for row in splits),
            "rmse": statistics.fmean(row["rmse"] for row in splits),
            "log_score": score[0],
            "log_score_se": score[1],
            "gain": gain[0],
            "gain_se": gain[1],
            "all_log_scores": [row["log_score"] for row in splits],
            **{
                key: statistics.median(row[key] for row in splits)
                for key in ("rhat", "rhat_within", "energy_variance")
                if key in splits[0]
            },
        }


def of_split(case: str, k: int, *, quick: bool) -> Iterator[tuple[str, Row]]:
    """MILE's members as they were trained, MILE, and NUTS, on one split."""
    few: dict[str, Any] = {"warmup_steps": 3, "num_samples": 9} if quick else {}
    split = bnn.data.load(case, split=k)

    def fit(engine: Any) -> tuple[Any, float]:
        model = network(split.train.x.shape[1])
        return timed(lambda: engine.run(model, split.train, seed=k, progress=False))

    trained: list[tuple[torch.Tensor, float]] = []

    def train(*args: Any, **options: Any) -> torch.Tensor:
        trained.append(timed(lambda: members.train(*args, **options)))
        return trained[-1][0]

    with mock.patch.object(mile, "train", train):
        sampled, seconds = fit(bnn.MILE(**few))
    ((points, of_members),) = trained
    alone = bnn.posterior.DrawsPosterior(sampled.program, points[:, None], sampled.provenance)
    yield MEMBERS, scored(alone, split, of_members)
    yield "MILE", scored(sampled, split, seconds)
    reference, seconds = fit(bnn.NUTS(**(few or NUTS_DRAWS)))
    yield "NUTS", scored(reference, split, seconds)


def scored(posterior: Any, split: Any, seconds: float) -> Row:
    """Scores of the held-out rows of a posterior, and how its chains have converged there."""
    rmse, log_score = scores(posterior, split)
    row = {"seconds": seconds, "rmse": rmse, "log_score": log_score}
    if "energy_variance" in (stats := posterior.sample_stats):
        row["energy_variance"] = mean_energy_variance(stats["energy_variance"], stats["diverging"])
    if (draws := posterior.num_stored_draws) > posterior.num_chains:
        f = np.asarray(posterior.function_draws(split.test.x, draws, group_by_chain=True))
        row["rhat"], row["rhat_within"] = function_convergence(f).worst_rhat, rhat_within(f)
    return row


PARTS: Mapping[str, Callable[[Settings], Iterator[Row]]] = {
    "moons": moons_rows,
    "diabetes": diabetes_rows,
    **{name: functools.partial(uci_rows, name=name) for name in UCI},
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``samplers.json``; parts that are not run keep their rows."""
    settings = _settings.parse("samplers", __doc__, argv, rounds=ROUNDS, parts=tuple(PARTS))
    path = None if settings.out is None else settings.out / "samplers.json"
    kept = [] if path is None or not path.exists() else json.loads(path.read_text())["rows"]
    rows: list[Row] = []
    for part, make in PARTS.items():
        if part not in settings.parts:
            rows += [row for row in kept if row["part"] == part]
            continue
        for row in make(settings):
            rows.append({"part": part, **row})
            print(rows[-1], flush=True)
    nets = {name: target.net for name, target in TARGETS.items()}
    found = _settings.result("samplers", settings, rows, nets=nets)
    print(_tables.samplers(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _plots.samplers(found, settings.out / "samplers.png")
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
