"""Ensembles and subspaces: what members cost, how ensembles score, what a few directions gain.

Ten members, 10-50-1, 128 rows a step, beside one fit of the same options: CPU seconds, in turns.
Deep ensembles of five on the cheap UCI sets, scores in the units of the data. NUTS in five
principal directions on boston beside the maximum a posteriori estimate, and its time beside that of
NUTS over all weights.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import torch

import pyro_bnn as bnn
from benchmarks import _settings, _tables
from benchmarks._settings import Settings

Row: TypeAlias = dict[str, Any]

ROUNDS = 3
NUM_SPLITS = 5
NUM_ROWS, NUM_INPUTS, BATCH = 1_000, 10, 128
BANDS: Mapping[str, tuple[float, float]] = {  # of RMSE, of sound fits of this network
    "uci/boston": (2.8, 3.7),
    "uci/concrete": (4.8, 6.3),
    "uci/energy": (0.5, 1.4),
    "uci/wine-red": (0.61, 0.67),
    "uci/yacht": (0.6, 1.6),
}


def network(num_inputs: int) -> Any:
    """One hidden layer of 50 units, its noise learned."""
    return bnn.models.MLP(num_inputs, hidden=(50,))


def timed(fit: Callable[[], Any]) -> tuple[Any, float]:
    """A fit and its CPU seconds."""
    start = time.process_time()
    found = fit()
    return found, time.process_time() - start


def cost_rows(settings: Settings) -> Iterator[Row]:
    """Ten members beside one, in turns; the first turn, which compiles, is not counted."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(NUM_ROWS, NUM_INPUTS, generator=generator)
    y = x[:, 0].sin() + 0.1 * torch.randn(NUM_ROWS, generator=generator)
    steps = 20 if settings.quick else 10_000
    options: dict[str, Any] = {"num_steps": steps, "batch_size": BATCH}
    engines: dict[str, Any] = {
        "SVI(AutoDelta)": bnn.SVI(bnn.guides.AutoDelta, **options),
        "Ensemble(num_members=1)": bnn.Ensemble(num_members=1, **options),
        "Ensemble(num_members=10)": bnn.Ensemble(num_members=10, **options),
    }
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for turn in range(settings.rounds + 1):
        for name, engine in engines.items():
            fit = functools.partial(engine.run, network(NUM_INPUTS), (x, y), progress=False)
            _, took = timed(fit)
            if turn:
                seconds[name].append(took)
    one = statistics.median(seconds["SVI(AutoDelta)"])
    for name, every in seconds.items():
        middle = statistics.median(every)
        yield {
            "part": "cost",
            "contender": name,
            "seconds": middle,
            "low": min(every),
            "high": max(every),
            "ratio": middle / one,
        }


def scores(posterior: Any, split: Any) -> tuple[float, float]:
    """RMSE and mean log score of the test rows, in the units of the data."""
    prediction = posterior.predict(split.test.x)
    scale = float(split.test.target.scale)
    mean = prediction.mean.squeeze(-1)
    rmse = scale * float((mean - split.test.y).square().mean().sqrt())
    return rmse, float(prediction.log_prob(split.test.y).mean()) - math.log(scale)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean over splits and its standard error."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    return statistics.fmean(values), spread / math.sqrt(len(values))


def uci_rows(settings: Settings) -> Iterator[Row]:
    """Deep ensembles of five, and their first members alone, over splits."""
    sets = list(BANDS)[:1] if settings.quick else list(BANDS)
    options: dict[str, Any] = {"num_steps": 20 if settings.quick else 5_000}
    engine = bnn.Ensemble(num_members=5, **options)
    for data in sets:
        found = []
        for k in range(1 if settings.quick else NUM_SPLITS):
            split = bnn.data.load(data, split=k)
            model = network(split.train.x.shape[1])
            found.append(scores(engine.run(model, split.train, progress=False), split))
        rmse, log_score = (mean_and_error(values) for values in zip(*found, strict=True))
        yield {
            "part": "uci",
            "case": data,
            "contender": "Ensemble",
            "splits": len(found),
            "rmse": rmse[0],
            "rmse_se": rmse[1],
            "log_score": log_score[0],
            "log_score_se": log_score[1],
            "band": list(BANDS[data]),
        }


def subspace_rows(settings: Settings) -> Iterator[Row]:
    """NUTS in five directions on boston beside a point and NUTS over all weights."""
    quick: dict[str, Any] = {"num_chains": 2, "warmup_steps": 3, "num_samples": 4}
    nuts = bnn.NUTS(**(quick if settings.quick else {}))
    steps: dict[str, Any] = {"num_steps": 20} if settings.quick else {}
    engines: dict[str, Any] = {
        "AutoDelta": bnn.SVI(bnn.guides.AutoDelta, **steps),
        "SWAG": bnn.SWAG(**steps),
        "Subspace(NUTS, rank=5)": bnn.Subspace(nuts, rank=5, around=bnn.SWAG(**steps)),
        "NUTS": nuts,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
    for k in range(1 if settings.quick else NUM_SPLITS):
        split = bnn.data.load("uci/boston", split=k)
        for name, engine in engines.items():
            if name == "NUTS" and k:
                continue  # its time is that of the first split
            fit = functools.partial(
                engine.run, network(split.train.x.shape[1]), split.train, progress=False
            )
            posterior, took = timed(fit)
            found[name].append((took, scores(posterior, split)[1]))
            print(name, k, found[name][-1], flush=True)
    point = [log_score for _, log_score in found["AutoDelta"]]
    for name, values in found.items():
        seconds, log_scores = zip(*values, strict=True)
        gains = [a - b for a, b in zip(log_scores, point, strict=False)]
        gain, error = mean_and_error(gains)
        yield {
            "part": "subspace",
            "contender": name,
            "splits": len(values),
            "seconds": statistics.median(seconds),
            "log_score": statistics.fmean(log_scores),
            "gain": gain,
            "gain_se": error,
            "share": statistics.median(seconds) / found["NUTS"][0][0],
        }


PARTS = {"cost": cost_rows, "uci": uci_rows, "subspace": subspace_rows}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``ensembles.json``."""
    settings = _settings.parse("ensembles", __doc__, argv, rounds=ROUNDS, parts=tuple(PARTS))
    path = None if settings.out is None else settings.out / "ensembles.json"
    kept = [] if path is None or not path.exists() else json.loads(path.read_text())["rows"]
    rows: list[Row] = []
    for part, make in PARTS.items():
        if part not in settings.parts:
            rows += [row for row in kept if row["part"] == part]
            continue
        for row in make(settings):
            print(row, flush=True)
            rows.append(row)
    found = _settings.result("ensembles", settings, rows)
    print(_tables.ensembles(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
