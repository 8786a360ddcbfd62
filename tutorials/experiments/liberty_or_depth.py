"""Is one mode of a deep network closer to a diagonal Gaussian? Depth 1 to 10 on two moons, NUTS.

Farquhar, Smith & Gal, "Liberty or Depth", NeurIPS 2020, arXiv:2002.03704, ask it of networks of one
size. Here, of every chain by itself: KL(full || diagonal) less the bias of few draws, Wasserstein
distances to both Gaussians, and what both do to the function. Measured of the draws as they came
and of the same draws aligned (``alignment.py``), where each measure stands beside its floor: the
same of aligned draws of Gaussians without correlations.

    python tutorials/experiments/liberty_or_depth.py 100 --out FILE.json
    python tutorials/experiments/liberty_or_depth.py 1000 --chains 2 --out FILE.json

Results are saved network by network; a run that was stopped goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from alignment import relabelled, rotated
from liberty_or_depth_measures import convergence, floors, measured
from sklearn.datasets import make_moons
from torch import nn

import pyro_bnn as bnn
from pyro_bnn.posterior import DrawsPosterior

# hidden units a layer that make about as many weights at every depth, with two inputs, one logit
WIDTHS = {
    100: {1: 25, 2: 8, 3: 6, 4: 5, 5: 4, 6: 4, 8: 3, 10: 3},
    1_000: {1: 250, 2: 29, 3: 21, 4: 17, 5: 15, 6: 13, 8: 11, 10: 10},
}
ACTIVATIONS: dict[str, Any] = {
    "relu": "relu",
    "leaky_relu(0.1)": nn.LeakyReLU(0.1),
    "leaky_relu(0.5)": nn.LeakyReLU(0.5),
    "linear": "identity",
}
NOISE = 0.2  # of the moons


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("size", type=int, choices=WIDTHS, help="about how many weights")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write or go on with")
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=[*ACTIVATIONS])
    parser.add_argument("--depths", nargs="+", type=int, default=[1, 2, 3, 4, 6, 10])
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=500)
    parser.add_argument("--draws", type=int, default=4_000, help="of each chain")
    parser.add_argument("--max-tree-depth", type=int, default=8)
    parser.add_argument("--target-accept", type=float, default=0.9)
    parser.add_argument(
        "--distance-draws",
        type=int,
        default=1_000,
        help="of each chain, an eighth of them in a cloud of the Wasserstein distances",
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def moons() -> tuple[bnn.Dataset, bnn.Dataset]:
    """200 training and 1,000 held-out points on two half circles, standardised by the former."""
    (x, y), (new_x, new_y) = (make_moons(n, noise=NOISE, random_state=n) for n in (200, 1_000))
    loc, scale = x.mean(0), x.std(0)
    train, test = (((each - loc) / scale, to) for each, to in ((x, y), (new_x, new_y)))
    return bnn.Dataset(*train), bnn.Dataset(*test)


def sample(
    given: argparse.Namespace, activation: str, depth: int, train: bnn.Dataset
) -> DrawsPosterior:
    """Draws of NUTS, every chain from its own draw of the prior."""
    model = bnn.models.MLP(
        2,
        hidden=(WIDTHS[given.size][depth],) * depth,
        activation=ACTIVATIONS[activation],
        likelihood=bnn.likelihoods.Bernoulli(),
    )
    nuts = bnn.NUTS(
        num_chains=given.chains,
        warmup_steps=given.warmup,
        num_samples=given.draws,
        max_tree_depth=given.max_tree_depth,
        target_accept=given.target_accept,
        compile=True,
    )
    return nuts.run(model, train, seed=given.seed, progress=False)


def row_of(
    given: argparse.Namespace, activation: str, depth: int, data: tuple[bnn.Dataset, bnn.Dataset]
) -> dict[str, Any]:
    """All that is measured of one network."""
    begun = time.process_time()
    train, test = data
    posterior = sample(given, activation, depth, train)
    draws = posterior.stored.double().numpy()
    width = WIDTHS[given.size][depth]
    sizes = [2, *(width,) * depth, 1]
    row = {
        "activation": activation,
        "depth": depth,
        "width": width,
        "num_weights": draws.shape[2],
        "sampling_cpu_seconds": time.process_time() - begun,
        **convergence(posterior, draws, test),
        "as_drawn": measured(posterior, draws, sizes, test, given.distance_draws),
    }
    ways = {"relabelled": relabelled} | ({"rotated": rotated} if activation == "linear" else {})
    for name, align in ways.items():
        ordered = np.stack([align(chain, sizes) for chain in draws])
        row[name] = measured(posterior, ordered, sizes, test, given.distance_draws)
        row[name]["floors"] = floors(align, ordered, sizes, given.distance_draws)
    return row | {"command": command(given), "cpu_seconds": time.process_time() - begun}


def command(given: argparse.Namespace) -> str:
    """What was typed, without the folders of this machine."""
    words = [given.out.name if word == str(given.out) else word for word in sys.argv[1:]]
    return shlex.join(["python", "tutorials/experiments/liberty_or_depth.py", *words])


def main() -> None:
    """Work through the networks that are not in the file yet, one activation after another."""
    given = options()
    torch.set_num_threads(1)
    data = moons()
    skipped = ("out", "activations", "depths")
    settings = {name: value for name, value in vars(given).items() if name not in skipped}
    settings |= {"prior": "Gaussian of fan-in scale", "rows": len(data[0]), "noise": NOISE}
    for activation in given.activations:
        for depth in given.depths:
            rows = saved(given.out, settings)["rows"]
            if any((row["activation"], row["depth"]) == (activation, depth) for row in rows):
                continue
            row = row_of(given, activation, depth, data)
            result = saved(given.out, settings)  # another run may have added to it
            result["rows"].append(row)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            partial_file = given.out.with_suffix(f".{activation}.part")
            partial_file.write_text(json.dumps(result, indent=1) + "\n")
            partial_file.replace(given.out)
            print(activation, depth, f"{row['cpu_seconds']:.0f} s", flush=True)  # noqa: T201


def saved(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The results so far, of the same settings."""
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if not path.exists():
        return {"settings": settings, "versions": versions, "rows": []}
    result: dict[str, Any] = json.loads(path.read_text())
    if result["settings"] != settings:
        raise SystemExit(f"{path} is of other settings: {result['settings']}")
    return result


if __name__ == "__main__":
    main()
