"""How sure are networks between the data of UCI sets? The middle third of a feature left out.

For each feature of a set: the rows of the middle third of its values are the gap, a tenth of the
others is held out beside them, the rest is trained on. Mean-field VI, dropout and a Gaussian of
full covariance against the same network of infinite width, a Gaussian process (Foong et al.,
NeurIPS 2020, arXiv:1909.00719). Writes settings, versions and every split as JSON, and a figure.

    PYRO_BNN_DATA=... python tutorials/experiments/gap_splits.py --out FILE.json

The JSON is written after each split; ``--resume`` goes on from there. No setting is chosen by a
test score: prior size and noise are those of the process's largest evidence on the training rows,
for every method.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pyro_bnn as bnn

SETS = ("uci/yacht", "diabetes", "uci/boston", "uci/concrete", "uci/energy", "uci/wine-red")
GAINS = (0.5, 1.0, 2.0, 4.0)  # prior sd of a weight, times the root of its inputs
NOISES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8)  # sd of y given f, in sds of y
WIDTH, RATE = 50, 0.05  # units of a layer, share of them that dropout drops
PLACES = ("outside", "gap")
METHODS = ("mean-field, 1", "dropout, 1", "full covariance, 1", "mean-field, 2")
COLOURS = ("#D55E00", "#CC79A7", "#0072B2", "#E69F00")  # Okabe & Ito


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON to write; beside it a PNG")
    parser.add_argument("--sets", nargs="+", default=SETS, help="names of pyro_bnn.data.load")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--steps", type=int, default=2_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-2, help="Adam's, cosine decay")
    parser.add_argument("--num-samples", type=int, default=500, help="draws of a prediction")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cpu-seconds", type=float, help="start no split after these; default all")
    parser.add_argument("--resume", action="store_true", help="keep the splits in the JSON")
    return parser.parse_args()


# Splits


def all_rows(name: str) -> tuple[Tensor, Tensor]:
    """Inputs ``[N, I]`` and target ``[N]`` of a set, in float64."""
    parts = (split := bnn.data.load(name)).train, split.test
    x, y = (torch.cat([getattr(part, which) for part in parts]).double() for which in "xy")
    return x, y


def is_in_gap(values: Tensor) -> Tensor:
    """Rows between the two terciles, those that tie with them included ``[N]``."""
    third, ordered = len(values) // 3, values.sort().values
    return (ordered[third] <= values) & (values <= ordered[-third - 1])


def has_gap(values: Tensor) -> bool:
    """Whether rows are left on both sides, and the gap is at most half of all."""
    gap = values[is_in_gap(values)]
    return bool(
        values.min() < gap.min() and gap.max() < values.max() and 2 * len(gap) <= len(values)
    )


def gap_split(x: Tensor, y: Tensor, feature: int, seed: int) -> dict[str, bnn.Dataset]:
    """Rows to train on, held out beside them, and in the gap, in units of the first."""
    inside = is_in_gap(x[:, feature])
    rest = (~inside).nonzero()[:, 0]
    rest = rest[torch.randperm(len(rest), generator=torch.Generator().manual_seed(seed))]
    held_out, train = rest[: len(rest) // 10], rest[len(rest) // 10 :]
    inputs, target = bnn.data.Standardiser.fit(x[train]), bnn.data.Standardiser.fit(y[train])
    rows = {"train": train, "outside": held_out, "gap": inside.nonzero()[:, 0]}
    return {
        place: bnn.Dataset(inputs.transform(x[i]).float(), target.transform(y[i]).float())
        for place, i in rows.items()
    }


def splits(given: argparse.Namespace) -> Iterator[tuple[str, int]]:
    """Sets in turns, a feature at each, so that a run that is stopped has some of all."""
    features = {}
    for name in given.sets:
        columns = all_rows(name)[0].T
        features[name] = [j for j, values in enumerate(columns) if has_gap(values)]
    for turn in range(max(map(len, features.values()))):
        yield from ((name, found[turn]) for name, found in features.items() if turn < len(found))


# Fits


def network(num_inputs: int, depth: int, gain: float, noise: float) -> bnn.models.MLP:
    """ReLU layers of 50 units; weights of prior sd gain / sqrt(inputs), biases of sd 1."""
    prior: dict[str, Any] = {"layers.*.bias": bnn.priors.Normal(1.0)}
    for layer, inputs in enumerate([num_inputs, *depth * [WIDTH]]):
        prior[f"layers.{layer}.weight"] = bnn.priors.Normal(gain / math.sqrt(inputs))
    likelihood = bnn.likelihoods.Normal(scale=noise)
    return bnn.models.MLP(num_inputs, hidden=depth * (WIDTH,), prior=prior, likelihood=likelihood)


def choose(train: bnn.Dataset) -> tuple[float, float]:
    """Gain and noise of the largest evidence of the infinitely wide network of one layer."""
    choices = [(gain, noise) for gain in GAINS for noise in NOISES]

    def evidence(choice: tuple[float, float]) -> float:
        process = bnn.diagnostics.NNGP(network(train.x.shape[1], 1, *choice))
        return process.posterior(train).log_evidence

    return max(choices, key=evidence)


def engine(method: str, given: argparse.Namespace) -> bnn.SVI:
    """The fit of a method."""
    choices: dict[str, tuple[Any, Any]] = {
        "mean-field, 1": (bnn.guides.AutoNormal, "analytic"),
        "mean-field, 2": (bnn.guides.AutoNormal, "local_reparameterization"),
        "dropout, 1": (partial(bnn.guides.AutoDropout, rate=RATE), "weight_sampling"),
        "full covariance, 1": (bnn.guides.AutoMultivariateNormal, "weight_sampling"),
    }
    guide, estimator = choices[method]
    common: Any = {"batch_size": given.batch_size, "estimator": estimator, "compile": False}
    return bnn.SVI(guide, num_steps=given.steps, learning_rate=given.learning_rate, **common)


def scores(posterior: Any, rows: bnn.Dataset, num_samples: int) -> tuple[dict[str, Any], Tensor]:
    """Mean log score in nats, RMSE and sds in sds of y, coverage of 95 %; and the sds ``[N]``."""
    prediction = posterior.predict(rows.x, num_samples)
    low, high = prediction.quantile([0.025, 0.975])[..., 0]
    sd = prediction.sd_epistemic[:, 0].double()
    return {
        "log_score": float(prediction.log_prob(rows.y).double().mean()),
        "rmse": float((prediction.mean[:, 0] - rows.y).square().mean().sqrt()),
        "coverage": float(((low <= rows.y) & (rows.y <= high)).double().mean()),
        "epistemic_sd": float(sd.mean()),
    }, sd


def fit_split(name: str, feature: int, given: argparse.Namespace) -> dict[str, Any]:
    """All methods on one split."""
    begun = time.process_time()
    split = gap_split(*all_rows(name), feature, given.seed)
    train = split["train"]
    gain, noise = choose(train)
    found: dict[str, Any] = {}
    sds: dict[tuple[int, str], Tensor] = {}
    processes = sorted({f"infinite width, {method[-1]}" for method in given.methods})
    for method in (*processes, *given.methods):
        model = network(train.x.shape[1], depth := int(method[-1]), gain, noise)
        if method in processes:
            posterior: Any = bnn.diagnostics.NNGP(model).posterior(train)
        else:
            posterior = engine(method, given).run(model, train, seed=given.seed, progress=False)
        found[method] = {}
        for place in PLACES:
            row, sd = scores(posterior, split[place], given.num_samples)
            reference = sds.setdefault((depth, place), sd)  # the process comes first
            ratio = bnn.diagnostics.overconfidence(sd.square(), reference.square())
            found[method][place] = row | {"overconfidence": float(ratio.median())}
    return {
        "set": name,
        "feature": feature,
        "rows": {place: len(rows) for place, rows in split.items()},
        "gain": gain,
        "noise": noise,
        "methods": found,
        "cpu_seconds": time.process_time() - begun,
    }


# What is written


def lag(row: dict[str, Any], method: str, place: str) -> float:
    """Log score of the process of the same depth less that of a method, nats a row."""
    process = row["methods"][f"infinite width, {method[-1]}"]
    return float(process[place]["log_score"] - row["methods"][method][place]["log_score"])


def summary(rows: list[dict[str, Any]], methods: Sequence[str]) -> list[dict[str, Any]]:
    """By set and method: medians of the ratio, and log scores behind the process's.

    Standard errors are over the features of a set, whose splits share rows.
    """
    table = []
    for name in dict.fromkeys(row["set"] for row in rows):
        of_set = [row for row in rows if row["set"] == name]
        for method in methods:
            line: dict[str, Any] = {"set": name, "method": method, "splits": len(of_set)}
            for place in PLACES:
                cells = [row["methods"][method][place] for row in of_set]
                behind = [lag(row, method, place) for row in of_set]
                line[place] = {
                    "overconfidence_median": median(cell["overconfidence"] for cell in cells),
                    "coverage_mean": mean(cell["coverage"] for cell in cells),
                    "behind_nats": mean(behind),
                    "behind_se": stdev(behind) / len(behind) ** 0.5 if len(behind) > 1 else None,
                }
            table.append(line)
    return table


def draw(rows: list[dict[str, Any]], methods: Sequence[str], path: Path) -> None:
    """A point a split and method: rows beside the training rows against rows in the gap."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for method in methods:
        found = [row["methods"][method] for row in rows]
        style: dict[str, Any] = {"color": COLOURS[METHODS.index(method)], "ms": 4, "alpha": 0.8}
        ratios = ([cell[place]["overconfidence"] for cell in found] for place in PLACES)
        left.loglog(*ratios, "o", base=2, label=f"{method} hidden", **style)
        right.plot(*([lag(row, method, place) for row in rows] for place in PLACES), "o", **style)
    for axis in (left.xaxis, left.yaxis):
        axis.set_major_formatter("{x:g}")
    right.set_xscale("symlog", linthresh=0.1)
    right.set_yscale("symlog", linthresh=0.1)
    titles = ("overconfidence ratio, median of rows", "log score behind infinite width, nats")
    for ax, title in zip((left, right), titles, strict=True):
        ax.axline((1, 1), (2, 2), color="#6B6B6B", lw=1, ls="--")
        ax.set(title=title, xlabel="held out outside the gap", ylabel="in the gap")
        ax.spines[["top", "right"]].set_visible(False)
    named = left.get_legend_handles_labels()
    figure.legend(*named, frameon=False, loc="outside lower center", ncols=4)
    figure.savefig(path, dpi=120)


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """What a split's results depend on."""
    own = {"width": WIDTH, "rate": RATE, "gains": list(GAINS), "noises": list(NOISES)}
    names = ("steps", "batch_size", "learning_rate", "num_samples", "seed")
    given_values = {name: getattr(given, name) for name in names}
    return own | given_values | {"methods": list(given.methods)}


def earlier(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Splits of a run with the same settings that was stopped."""
    if not (given.resume and given.out.exists()):
        return []
    found = json.loads(given.out.read_text())
    if found["settings"] != settings(given):
        raise SystemExit(f"{given.out} has other settings: {found['settings']}")
    rows: list[dict[str, Any]] = found["rows"]
    return rows


def write(given: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """The JSON file and the figure, whole or not at all."""
    arguments = ["FILE.json" if word == str(given.out) else word for word in sys.argv[1:]]
    result = {
        "command": " ".join(["python tutorials/experiments/gap_splits.py", *arguments]),
        "settings": settings(given),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "cpu_seconds": sum(row["cpu_seconds"] for row in rows),
        "summary": summary(rows, given.methods),
        "rows": rows,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    partial_file = given.out.with_suffix(".part")
    partial_file.write_text(json.dumps(result, indent=1) + "\n")
    partial_file.replace(given.out)
    draw(rows, given.methods, given.out.with_suffix(".png"))


def main() -> None:
    """Fit all splits and write after each."""
    given = options()
    torch.set_num_threads(1)
    rows = earlier(given)
    done = {(row["set"], row["feature"]) for row in rows}
    for name, feature in splits(given):
        if given.cpu_seconds is not None and time.process_time() > given.cpu_seconds:
            break
        if (name, feature) in done:
            continue
        rows.append(fit_split(name, feature, given))
        write(given, rows)
        print(name, feature, f"{rows[-1]['cpu_seconds']:.0f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
