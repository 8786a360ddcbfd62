"""Which method to start with, by the UCI regression benchmark: every method at its defaults.

The seven sets of the protocol with their published splits, one hidden layer of 50 ReLU units (100
for protein), the noise learned. Nothing is tuned, on no set. A line of ``results/uci.jsonl`` is one
fit; a run goes on where the last one stopped, and ``UCI.md`` is made from the lines.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import _jsonl, _uci_page
from benchmarks._jsonl import Row

SETS = {  # training rows, about
    "uci/yacht": 277,
    "uci/boston": 455,
    "uci/energy": 691,
    "uci/concrete": 927,
    "uci/wine-red": 1_439,
    "uci/naval": 10_741,
    "uci/protein": 41_157,
}
CHEAP = ("uci/yacht", "uci/boston", "uci/energy", "uci/concrete", "uci/wine-red")
METHODS = (
    "auto-delta", "auto-normal", "auto-low-rank-multivariate-normal", "auto-multivariate-normal",
    "auto-matrix-normal", "auto-k-tied-normal", "auto-radial", "auto-normal-mixture", "auto-flow",
    "auto-dropout", "mc-dropout", "auto-rank1-mixture", "batch-ensemble", "ensemble", "swag",
    "laplace", "subspace", "von", "vogn", "vadam", "ivon", "slang", "baoab", "sgld", "sghmc",
    "sgnht", "psgld", "mclmc", "mams", "hmc", "mile", "nuts",
)  # fmt: skip
KEYS = ("data", "split", "method")
LEVEL = 0.95
HIDDEN = {"uci/protein": "100"}
PATH = Path(__file__).parent / "results" / "uci.jsonl"
PAGE = Path(__file__).parent / "UCI.md"


def fit(task: Row) -> Row:
    """One method on one split: its scores in the units of the data, and its processor seconds."""
    import torch

    import pyro_bnn as bnn
    from pyro_bnn.cli import networks
    from pyro_bnn.cli.methods import find_methods, make_engines
    from pyro_bnn.cli.options import NetworkOptions

    torch.set_num_threads(1)
    split = bnn.data.load(task["data"], split=task["split"])
    if task.get("max_rows"):
        split = split.first(task["max_rows"])
    ((name, method),) = find_methods(task["method"]).items()
    choice = NetworkOptions(hidden=HIDDEN.get(task["data"], "50"))
    models = networks.build_models(networks.make_networks({name: method}, split, choice))
    engine = make_engines({name: method}, task.get("options", {}))[name]
    start = time.process_time()
    posterior = engine.run(models[name], split.train, seed=task["split"], progress=False)
    seconds = time.process_time() - start
    prediction = posterior.predict(split.test.x)
    y, scale = split.test.y, float(split.test.target.scale)
    error = prediction.mean.squeeze(-1) - y
    told = getattr(posterior, "doubling", None)
    low, high = prediction.quantile([(1 - LEVEL) / 2, (1 + LEVEL) / 2]).squeeze(-1)
    return {
        "rmse": scale * float(error.square().mean().sqrt()),
        "log_score": float(prediction.log_prob(y).mean()) - math.log(scale),
        "coverage": float(((low <= y) & (y <= high)).double().mean()),
        "width": scale * float((high - low).mean()),
        "seconds": seconds,
        "gain": None if told is None else told.gain,
        "train_rows": len(split.train),
        "test_rows": len(split.test),
    }


def tasks(sets: Sequence[str], methods: Sequence[str], splits: int) -> Iterator[Row]:
    """All fits, split by split: a run that is stopped has as many splits of every method."""
    for split in range(splits):
        for data in sets:
            for method in methods:
                if data != "uci/protein" or split < 5:
                    yield {"data": data, "split": split, "method": method}


def expected_seconds(task: Row, rows: Sequence[Row]) -> float | None:
    """By the slowest fit of the same method, in proportion to the rows if on a smaller set."""
    found = [r for r in rows if r["method"] == task["method"] and "seconds" in r]
    same = [r["seconds"] for r in found if r["data"] == task["data"]]
    if same:
        return max(same)
    sizes = [r["seconds"] * max(1.0, SETS[task["data"]] / r["train_rows"]) for r in found]
    return min(sizes, default=None)


def main(argv: Sequence[str] | None = None) -> None:
    """Fit what is missing in the time given, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.uci", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="time for all fits (60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="fits at a time")
    parser.add_argument("--longest", type=float, default=300, help="seconds of a fit (300)")
    parser.add_argument("--splits", type=int, default=20, help="of each set, at most (20)")
    parser.add_argument("--sets", nargs="+", choices=tuple(SETS), default=tuple(SETS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--lines", type=Path, default=PATH, help="file of the fits")
    parser.add_argument("--page", type=Path, default=PAGE, help="file of the tables")
    given = parser.parse_args(argv)
    every = tasks(given.sets, given.methods, given.splits)
    for line in _jsonl.fits(
        every, fit, given.lines, keys=KEYS, jobs=given.jobs, minutes=given.minutes,
        seconds=expected_seconds, longest=given.longest,
    ):  # fmt: skip
        print(line, flush=True)
    given.page.write_text(_uci_page.page(_jsonl.read(given.lines), METHODS))
    print(f"wrote {given.page}")


if __name__ == "__main__":
    main()
