"""Is one mode of a deep network closer to a diagonal Gaussian? Depth 1 to 10 on two moons, NUTS.

Farquhar, Smith & Gal, "Liberty or Depth", NeurIPS 2020, arXiv:2002.03704, ask it of networks of one
size. Here, of every chain by itself: KL(full || diagonal) less the bias of few draws, Wasserstein
distances to both Gaussians, and what both do to the function.

    python tutorials/experiments/liberty_or_depth.py 100 --out FILE.json
    python tutorials/experiments/liberty_or_depth.py 1000 --out FILE.json

Results are saved network by network; a run that was stopped goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import optimize, special
from sklearn.datasets import make_moons
from torch import Tensor, nn

import pyro_bnn as bnn
from pyro_bnn.diagnostics import mean_field_distance, mean_field_kl, w1
from pyro_bnn.diagnostics.mean_field_error import thinned
from pyro_bnn.errors import DataError
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
DISTANCE_DRAWS = 400  # of every chain, 50 points a cloud


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("size", type=int, choices=WIDTHS, help="about how many weights")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write or go on with")
    parser.add_argument("--activations", nargs="+", choices=ACTIVATIONS, default=[*ACTIVATIONS])
    parser.add_argument("--depths", nargs="+", type=int, default=[1, 2, 3, 4, 6, 10])
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--warmup", type=int, default=150)
    parser.add_argument("--draws", type=int, default=1_000, help="of each chain")
    parser.add_argument("--max-tree-depth", type=int, default=6)
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
        compile=True,
    )
    return nuts.run(model, train, seed=given.seed, progress=False)


def relabelled(chain: np.ndarray, sizes: list[int]) -> np.ndarray:
    """The same functions ``[S, P]`` with hidden units in the order that fits a typical draw best.

    A chain that went through copies of a mode, which differ by a permutation of units, is brought
    back to one of them. Units are compared by all their weights, in sds of the prior, one layer
    after another; the typical draw is at first the last one, then the mean.
    """
    scale = [np.append(np.full(size, size**0.5), 1.0) for size in sizes[:-1]]  # 1 for the bias
    layers = [each * s for each, s in zip(unpacked(chain, sizes), scale, strict=True)]
    typical = [each[-1] for each in layers]
    for sweep in range(4):
        for i, units in enumerate(sizes[1:-1]):
            draws = np.concatenate([layers[i], layers[i + 1][..., :units].swapaxes(1, 2)], -1)
            one = np.concatenate([typical[i], typical[i + 1][:, :units].T], -1)
            if sweep == 0:  # the units that they lead to are not in order yet
                one, draws = one[:, : -sizes[i + 2]], draws[..., : -sizes[i + 2]]
            match = np.einsum("ui,svi->suv", one, draws)  # [S, units, units]
            order = np.stack([optimize.linear_sum_assignment(-each)[1] for each in match])
            layers[i] = np.take_along_axis(layers[i], order[:, :, None], 1)
            into = layers[i + 1]
            moved = np.take_along_axis(into[..., :units], order[:, None, :], 2)
            layers[i + 1] = np.concatenate([moved, into[..., units:]], -1)
        typical = [each.mean(0) for each in layers]
    return packed([each / s for each, s in zip(layers, scale, strict=True)])


def unpacked(chain: np.ndarray, sizes: list[int]) -> list[np.ndarray]:
    """Weights and, as the last column, biases of each layer ``[S, O, I + 1]``."""
    layers, start = [], 0
    for num_in, num_out in itertools.pairwise(sizes):
        between = start + num_in * num_out
        weight = chain[:, start:between].reshape(-1, num_out, num_in)
        start = between + num_out
        layers.append(np.concatenate([weight, chain[:, between:start, None]], -1))
    return layers


def packed(layers: list[np.ndarray]) -> np.ndarray:
    """The flat vector of each draw ``[S, P]``."""
    pairs = [(each[..., :-1].reshape(len(each), -1), each[..., -1]) for each in layers]
    return np.concatenate([part for pair in pairs for part in pair], -1)


def kl_of(draws: np.ndarray) -> dict[str, Any]:
    """KL(full || diagonal) of each chain ``[C]``, in nats; why not, where it is refused."""
    try:
        kl = mean_field_kl(draws)
    except DataError as error:
        return {"refused": str(error)}
    names = ("value", "plug_in", "bias", "standard_error", "halves", "effective_draws", "every")
    return {name: getattr(kl, name).tolist() for name in names} | {"doubtful": kl.doubtful}


def distance_of(draws: np.ndarray) -> dict[str, Any]:
    """Wasserstein distances of each chain ``[C]``, from as many draws of it at every depth."""
    chains = [thinned(chain)[0] for chain in draws]
    shortest = min(len(chain) for chain in chains)
    if shortest < DISTANCE_DRAWS:
        return {"refused": f"{shortest} draws are left of a chain, {DISTANCE_DRAWS} are needed"}
    rows = [np.linspace(0, len(chain) - 1, DISTANCE_DRAWS).round() for chain in chains]
    kept = np.stack([chain[row.astype(int)] for chain, row in zip(chains, rows, strict=True)])
    found = mean_field_distance(kept)
    if found.num_points != DISTANCE_DRAWS // 8:
        return {"refused": f"clouds of {found.num_points} points are left"}  # thinned once more
    names = ("value", "standard_error", "to_diagonal", "to_full", "floor", "null", "spread")
    return {name: getattr(found, name).tolist() for name in names} | {
        "num_points": found.num_points
    }


def function_error(posterior: DrawsPosterior, draws: np.ndarray, test: bnn.Dataset) -> Any:
    """What each Gaussian does to the logits and the held-out score of one chain, ``[C]`` each.

    The distance is W1 between marginal draws of a logit in sds of the chain's, averaged over
    points; the floor is that between its first and second half.
    """
    rows = []
    for chain, z in enumerate(draws):
        rng = np.random.default_rng(chain)
        centred = z - z.mean(0)
        noise = rng.standard_normal((len(z), len(z)))
        clouds = {
            "chain": z,
            "diagonal": z.mean(0) + z.std(0) * rng.standard_normal(z.shape),
            "full": z.mean(0) + noise @ centred / math.sqrt(len(z)),  # also where P > S
        }
        f = {name: logits(posterior, cloud, test.x) for name, cloud in clouds.items()}
        sd, half = f["chain"].std(0), len(z) // 2
        row = {"floor": w1(f["chain"][:half], f["chain"][half:]) / sd}
        row |= {name: w1(f[name], f["chain"]) / sd for name in ("diagonal", "full")}
        scores = {f"score_{name}": log_score(each, test.y) for name, each in f.items()}
        rows.append({name: float(each.mean()) for name, each in row.items()} | scores)
    return {name: [row[name] for row in rows] for name in rows[0]}


def logits(posterior: DrawsPosterior, z: np.ndarray, x: Tensor) -> np.ndarray:
    """Draws of f ``[S, N]`` at weights z ``[S, P]``."""
    with torch.no_grad():
        f = posterior.program.function(torch.as_tensor(z).to(x.dtype), x)
    return np.asarray(f[..., 0].double())


def log_score(f: np.ndarray, y: Tensor) -> float:
    """Mean over points of the log of the mean probability of y, in nats."""
    sign = 2 * y.double().numpy() - 1
    return float((special.logsumexp(-np.logaddexp(0, -sign * f), axis=0) - np.log(len(f))).mean())


def learned(draws: np.ndarray, sizes: list[int]) -> list[float]:
    """KL of the diagonal Gaussian of each chain from the prior ``[C]``, in nats.

    A mode that the data moved little is nearly the prior, whose weights are independent.
    """
    per_sd = [
        np.append(np.full(i, i**0.5), 1.0) * np.ones((1, o, 1))
        for i, o in itertools.pairwise(sizes)
    ]
    scaled = draws * packed(per_sd)  # [C, S, P]
    variance = scaled.var(1)
    nats = 0.5 * (variance + scaled.mean(1) ** 2 - 1 - np.log(variance)).sum(-1)
    return [float(each) for each in nats]


def convergence(posterior: DrawsPosterior, draws: np.ndarray, test: bnn.Dataset) -> dict[str, Any]:
    """What the sampler says of itself, of the logits at 100 points and of the weights.

    An R-hat of single weights over chains near 1 tells that chains are not of one mode each: all of
    them went through the copies that a permutation of hidden units makes.
    """
    f = np.stack([logits(posterior, chain, test.x[:100])[..., None] for chain in draws])
    over = bnn.diagnostics.function_convergence(f)
    within = [bnn.diagnostics.function_convergence(chain[None]) for chain in f]
    weights = bnn.diagnostics.function_convergence(draws[..., None])
    stats = posterior.sample_stats
    longest = stats["tree_depth"].max()
    return {
        "rhat_over_chains": over.worst_rhat,
        "rhat_within": [each.worst_rhat for each in within],
        "smallest_ess_within": [each.smallest_ess for each in within],
        "median_rhat_of_weights": weights.median_rhat,
        "divergent_share": float(stats["diverging"].mean()),
        "longest_trees_share": float((stats["tree_depth"] == longest).mean()),
        "tree_depth_max": int(longest),
        "steps": float(stats["n_steps"].mean()),
    }


def measured(
    posterior: DrawsPosterior, draws: np.ndarray, sizes: list[int], test: bnn.Dataset
) -> dict[str, Any]:
    """All measures of draws ``[C, S, P]``."""
    every = max(1, draws.shape[1] // 500)
    return {
        "kl": kl_of(draws),
        "distance": distance_of(draws),
        "function": function_error(posterior, draws[:, ::every], test),
        "learned": learned(draws, sizes),
    }


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
    ordered = np.stack([relabelled(chain, sizes) for chain in draws])
    return {
        "activation": activation,
        "depth": depth,
        "width": width,
        "num_weights": draws.shape[2],
        "as_drawn": measured(posterior, draws, sizes, test),
        "relabelled": measured(posterior, ordered, sizes, test),
        **convergence(posterior, draws, test),
        "cpu_seconds": time.process_time() - begun,
    }


def main() -> None:
    """Work through the networks that are not in the file yet, one activation after another."""
    given = options()
    torch.set_num_threads(1)
    data = moons()
    skipped = ("out", "activations", "depths")
    settings = {name: value for name, value in vars(given).items() if name not in skipped}
    settings |= {"prior": "Gaussian of fan-in scale", "rows": len(data[0]), "noise": NOISE}
    result: dict[str, Any] = {"settings": settings, "rows": []}
    if given.out.exists():
        result = json.loads(given.out.read_text())
        if result["settings"] != settings:
            raise SystemExit(f"{given.out} is of other settings: {result['settings']}")
    result["command"] = f"python tutorials/experiments/liberty_or_depth.py {given.size}"
    result["versions"] = {"torch": torch.__version__, "python": platform.python_version()}
    done = {(row["activation"], row["depth"]) for row in result["rows"]}
    for activation in given.activations:
        for depth in given.depths:
            if (activation, depth) in done:
                continue
            result["rows"].append(row_of(given, activation, depth, data))
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(result, indent=1) + "\n")
            print(activation, depth, f"{result['rows'][-1]['cpu_seconds']:.0f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
