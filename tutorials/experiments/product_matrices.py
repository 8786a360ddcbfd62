"""Are the covariances of product matrices those of the posterior? NUTS beside mean-field fits.

Deep linear networks on 7 x 7 images of Fashion-MNIST: the covariance of the entries of the product
M = W_L ... W_1 (Farquhar, Smith & Gal, "Liberty or Depth", NeurIPS 2020, arXiv:2002.03704) under
the posterior of each network, from NUTS, and under mean-field fits of it, exactly. M does not
depend on how hidden units are turned, which leaves the weights themselves without one mode. The
log scores of both are of images that neither has seen.

    PYRO_BNN_DATA=... python tutorials/experiments/product_matrices.py --out FILE.json

Writes the JSON file after each depth, and the figure beside it at the end. With ``--resume`` depths
that the file has already are left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import pyro_bnn as bnn

SIDE = 7
CLASSES = 10


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--resume", action="store_true", help="keep what the file has already")
    parser.add_argument("--depths", type=int, nargs="+", default=(1, 2, 3, 5), help="layers")
    parser.add_argument("--rows", type=int, default=1_000, help="training images, at most 3000")
    parser.add_argument("--width", type=int, default=16, help="units of every hidden layer")
    parser.add_argument(
        "--steps", type=int, nargs="+", default=(3_000, 20_000), help="of SVI, each a fit of a seed"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--chains", type=int, default=8)
    parser.add_argument("--warmup", type=int, default=80, help="draws of a chain")
    parser.add_argument("--draws", type=int, default=250, help="of a chain, after its warm-up")
    parser.add_argument("--max-tree-depth", type=int, default=7)
    return parser.parse_args()


def images(rows: int) -> tuple[bnn.Dataset, bnn.Dataset]:
    """Images to train on and 615 others, blocks of 4 x 4 pixels averaged, in units of the first."""
    path = Path(os.environ["PYRO_BNN_DATA"]) / "fashion_mnist" / "train_first3615.npz"
    arrays = np.load(path)
    x = torch.tensor(arrays["x"], dtype=torch.float64)
    x = x.unflatten(1, (SIDE, 4)).unflatten(3, (SIDE, 4)).mean((2, 4)).flatten(1)
    x = (x - x[:rows].mean()) / x[:rows].std()
    y = torch.tensor(arrays["y"], dtype=torch.int64)
    return bnn.Dataset(x[:rows], y[:rows]), bnn.Dataset(x[3_000:], y[3_000:])


def network(depth: int, width: int) -> bnn.models.DeepLinear:
    """A deep linear network of ``depth`` layers for images of ten classes."""
    return bnn.models.DeepLinear(
        SIDE**2,
        hidden=(width,) * (depth - 1),
        likelihood=bnn.likelihoods.Categorical(CLASSES),
    ).double()


def variational(steps: int, model: Any, train: bnn.Dataset, seed: int) -> Any:
    """A mean-field fit; a third of the steps warms up the KL."""
    svi = bnn.SVI(
        bnn.guides.AutoNormal,
        num_steps=steps,
        learning_rate=0.01,
        batch_size=200,
        kl_warmup=steps // 3,
        estimator="local_reparameterization",
        compile="auto",
    )
    return svi.run(model, train, seed=seed, progress=False)


def distances() -> Tensor:
    """Between pixels, ``[I, I]``."""
    pixel = torch.arange(SIDE**2)
    place = torch.stack([pixel // SIDE, pixel % SIDE], -1).double()
    return torch.cdist(place, place)


def summary(moments: Any) -> dict[str, Any]:
    """Correlations by kind of pair: sizes, and means by distance of the pixels in one class."""
    size = (CLASSES, SIDE**2)
    correlation = moments.correlation.unflatten(0, size).unflatten(2, size)  # [a, b, c, d]
    one_class = correlation.diagonal(dim1=0, dim2=2)  # [b, d, a]
    one_pixel = correlation.diagonal(dim1=1, dim2=3)  # [a, c, b]
    apart, other = distances(), ~torch.eye(CLASSES, dtype=torch.bool)
    bins = {str(r): (apart >= r) & (apart < r + 1) for r in range(1, SIDE)}
    neither = correlation.permute(0, 2, 1, 3)[other][:, apart > 0]
    return {
        "one class, by distance": {r: float(one_class[pairs].mean()) for r, pairs in bins.items()},
        "one class, mean size": float(one_class[apart > 0].abs().mean()),
        "one pixel, mean size": float(one_pixel[other].abs().mean()),
        "neither, mean size": float(neither.abs().mean()),
    }


def of_pairs(moments: Any) -> dict[str, Tensor]:
    """Correlations of the pairs of one class, of one pixel and of neither, in a fixed order."""
    size = (CLASSES, SIDE**2)
    correlation = moments.correlation.unflatten(0, size).unflatten(2, size)
    one_class = correlation.diagonal(dim1=0, dim2=2)[distances() > 0]
    other = ~torch.eye(CLASSES, dtype=torch.bool)
    return {
        "one class": one_class.flatten(),
        "one pixel": correlation.diagonal(dim1=1, dim2=3)[other].flatten(),
        "neither": correlation.permute(0, 2, 1, 3)[other][:, distances() > 0].flatten(),
    }


def pattern(one: dict[str, Tensor], two: dict[str, Tensor]) -> dict[str, float | None]:
    """Pearson correlation of two sets of correlations over pairs; None where one is constant."""
    return {
        name: float(torch.corrcoef(torch.stack([one[name], two[name]]))[0, 1])
        if one[name].std() > 0
        else None
        for name in ("one class", "one pixel")
    }


def mean_product(one: dict[str, Tensor], two: dict[str, Tensor]) -> dict[str, float]:
    """Mean product of two sets of correlations over pairs.

    Of independent draws its expectation has nothing of their noise; a set with itself gives the
    mean square.
    """
    return {name: float((one[name] * two[name]).mean()) for name in one}


def reference(
    given: argparse.Namespace, depth: int, train: bnn.Dataset, test: bnn.Dataset
) -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
    """Summary of NUTS draws of M, correlations of pairs, and log scores of other images ``[N]``.

    Standard errors are over chains.
    """
    nuts = bnn.NUTS(
        num_chains=given.chains,
        warmup_steps=given.warmup,
        num_samples=given.draws,
        max_tree_depth=given.max_tree_depth,
        compile="auto",
    )
    model = network(depth, given.width)
    begun = time.process_time()
    fit = nuts.run(model, train, seed=0, progress=False)
    total = given.chains * given.draws
    products = model.product_matrix(fit.sample(total, group_by_chain=True))  # [C, S/C, 10, I]
    f = fit.function_draws(train.x[:200], total, group_by_chain=True)
    of_f = bnn.diagnostics.function_convergence(f.numpy())
    of_m = bnn.diagnostics.function_convergence(products.numpy())
    log_scores = fit.predict(test.x, total).log_prob(test.y)
    halves = [
        of_pairs(bnn.diagnostics.matrix_moments(half.flatten(0, 1))) for half in products.chunk(2)
    ]
    by_chain = [
        list(summary(bnn.diagnostics.matrix_moments(chain))["one class, by distance"].values())
        for chain in products
    ]
    moments = bnn.diagnostics.matrix_moments(products.flatten(0, 1))
    found = summary(moments) | {
        "by distance, standard error over chains": (
            torch.tensor(by_chain).std(0) / len(by_chain) ** 0.5
        ).tolist(),
        "pattern, one half of the chains with the other": pattern(*halves),
        "mean square of correlations, by halves of the chains": mean_product(*halves),
        "R-hat of f, worst and median": [of_f.worst_rhat, of_f.median_rhat],
        "smallest ESS of f": of_f.smallest_ess,
        "R-hat of M, worst and median": [of_m.worst_rhat, of_m.median_rhat],
        "smallest ESS of M": of_m.smallest_ess,
        "mean sd of M": float(moments.matrix.diagonal().sqrt().mean()),
        "log score": float(log_scores.mean()),
        "leapfrog steps a draw": float(fit.sample_stats["n_steps"].mean()),
        "divergences": int(fit.sample_stats["diverging"].sum()),
        "cpu_seconds": time.process_time() - begun,
    }
    return found, of_pairs(moments), log_scores


def compared(
    given: argparse.Namespace, depth: int, train: bnn.Dataset, test: bnn.Dataset
) -> dict[str, Any]:
    """NUTS and mean-field fits of one deep linear network; errors of log scores are paired."""
    nuts, pairs, of_nuts = reference(given, depth, train, test)
    fits = []
    for steps, seed in itertools.product(given.steps, range(given.seeds)):
        begun = time.process_time()
        fit = variational(steps, network(depth, given.width), train, seed)
        moments = bnn.diagnostics.product_moments(fit)
        log_scores = fit.predict(test.x, given.chains * given.draws).log_prob(test.y)
        behind = of_nuts - log_scores
        fits.append(
            summary(moments)
            | {
                "steps": steps,
                "seed": seed,
                "pattern, with NUTS": pattern(of_pairs(moments), pairs),
                "mean square of correlations": mean_product(*2 * [of_pairs(moments)]),
                "mean sd of M": float(moments.matrix.diagonal().sqrt().mean()),
                "negative ELBO": float(np.mean(fit.losses[-500:])),
                "log score": float(log_scores.mean()),
                "log score behind NUTS": float(behind.mean()),
                "its standard error": float(behind.std() / len(behind) ** 0.5),
                "cpu_seconds": time.process_time() - begun,
            }
        )
    return {"NUTS": nuts, "mean-field": fits}


def draw(result: dict[str, Any], path: Path) -> None:
    """Mean correlation of two weights of one class over the distance of their pixels."""
    import matplotlib.pyplot as plt

    longest = max(result["settings"]["steps"])
    figure, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
    colours = ("#000000", "#0072B2", "#D55E00", "#009E73")  # Okabe & Ito
    for (depth, found), colour in zip(result["depths"].items(), colours, strict=False):
        nuts = found["NUTS"]
        means = nuts["one class, by distance"]
        xs = [int(distance) for distance in means]
        error = nuts["by distance, standard error over chains"]
        style: dict[str, Any] = {"color": colour, "marker": "o", "ms": 4, "capsize": 2}
        label = f"NUTS, {depth} layer{'s' if depth != '1' else ''}"
        ax.errorbar(xs, list(means.values()), error, label=label, **style)
        for fit in found["mean-field"]:
            if fit["steps"] < longest or depth == "1":  # exactly 0 with one layer
                continue
            label = f"mean-field, {depth} layers" if fit["seed"] == 0 else ""
            values = list(fit["one class, by distance"].values())
            ax.plot(xs, values, color=colour, ls="--", lw=1, marker="s", ms=3, label=label)
    ax.axhline(0, color="#6B6B6B", lw=0.8)
    ax.set(xlabel="distance of the pixels, rounded down", ylabel="mean correlation of two weights")
    ax.legend(frameon=False, fontsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def save(result: dict[str, Any], path: Path) -> None:
    """Write the JSON file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")


def main() -> None:
    """Compare at every depth, and write the files."""
    given = options()
    torch.set_num_threads(1)
    train, test = images(given.rows)
    words = ["FILE.json" if word == str(given.out) else word for word in sys.argv[1:]]
    words = [word for word in words if word != "--resume"]
    result: dict[str, Any] = {
        "data": f"Fashion-MNIST, first {given.rows} training images, {SIDE} x {SIDE} pixels",
        "command": shlex.join(["python", "tutorials/experiments/product_matrices.py", *words]),
        "settings": {k: v for k, v in vars(given).items() if k not in ("out", "resume")}
        | {"prior": "fan-in", "learning rate": 0.01, "batch size": 200}
        | {"estimator": "local reparameterisation"},
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "depths": {},
    }
    if given.resume and given.out.exists():
        result["depths"] = json.loads(given.out.read_text())["depths"]
    for depth in given.depths:
        if str(depth) not in result["depths"]:
            result["depths"][str(depth)] = compared(given, depth, train, test)
        save(result, given.out)
    draw(result, given.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
