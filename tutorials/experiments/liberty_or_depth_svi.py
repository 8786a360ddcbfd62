"""Do deeper or larger networks need covariances less? ELBO, held-out score and ECE of three guides.

``guides`` fits a mean-field, a low-rank and a full-covariance Gaussian to two moons, over depth and
size, each from the same mean-field fit, with several seeds; each fit goes on once more from its
end, which tells whether it had converged. ``bimodal`` asks what mean-field networks can and what
VI does: Gaussians over the weights are fitted to a predictive with two peaks, by its Wasserstein
distance, and by the ELBO of data whose posterior has these two peaks.

    python tutorials/experiments/liberty_or_depth_svi.py guides --out FILE.json
    python tutorials/experiments/liberty_or_depth_svi.py bimodal --out FILE.json

Farquhar, Smith & Gal, "Liberty or Depth", NeurIPS 2020, arXiv:2002.03704: "the bigger your model,
the easier it is to be approximately Bayesian", and two hidden layers are enough for any predictive.
Results are saved fit by fit; a run that was stopped goes on with those that are missing.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from liberty_or_depth import moons
from scipy import special
from torch import Tensor

import pyro_bnn as bnn
from pyro_bnn.diagnostics import ece, ece_floor, w1

# hidden units a layer by depth and about how many weights
WIDTHS = {
    1: {50: 12, 200: 50, 450: 112},
    2: {50: 5, 200: 12, 450: 19},
    4: {50: 3, 200: 7, 450: 11},
}
GUIDES: dict[str, Any] = {
    "mean-field": bnn.guides.AutoNormal,
    "low rank": functools.partial(bnn.guides.AutoLowRankMultivariateNormal, rank=10),
    "full": bnn.guides.AutoMultivariateNormal,
}
PEAK, PEAK_SD, NOISE = 1.0, 0.1, 0.3
STEEPS = (3.0, 10.0, 30.0)
TIGHT = 0.03  # what the noise of the weights that matter adds to f, about
BIMODAL_WIDTHS = (2, 8, 32)
NUM_DRAWS = 4_000  # of an ELBO, and of a predictive that is judged
RATE = 0.02  # of Adam
LOW_RANK_RATE = 0.005  # every weight has ten noisy entries


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("part", choices=("guides", "bimodal"))
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write or go on with")
    parser.add_argument("--steps", type=int, default=2_400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", nargs="+", type=int, default=[50, 200, 450], help="guides only")
    return parser.parse_args()


# Three guides over depth and size


def guide_rows(given: argparse.Namespace, done: set[Any]) -> Iterator[dict[str, Any]]:
    """A row for each network, seed and guide."""
    train, test = moons()
    for seed in range(given.seeds):
        for depth, widths in WIDTHS.items():
            for size, width in widths.items():
                if size in given.sizes and (depth, size, seed) not in done:
                    yield of_network(given, train, test, (depth, size, width, seed))


def of_network(
    given: argparse.Namespace,
    train: bnn.Dataset,
    test: bnn.Dataset,
    which: tuple[int, int, int, int],
) -> dict[str, Any]:
    """Scores of the three guides of one network, all from a mean-field fit of half of the steps.

    Each goes on for half of the steps from that fit, and for as many from where it then is.
    """
    begun = time.process_time()
    depth, size, width, seed = which
    likelihood = bnn.likelihoods.Bernoulli()
    model = bnn.models.MLP(2, hidden=(width,) * depth, likelihood=likelihood)
    start = fitted(GUIDES["mean-field"], model, train, given.steps // 2, seed)
    row: dict[str, Any] = {"depth": depth, "size": size, "seed": seed, "width": width}
    row["num_weights"] = start.program.num_latents
    for name, guide in GUIDES.items():
        rate = LOW_RANK_RATE if name == "low rank" else RATE
        half = fitted(guide, model, train, given.steps // 2, seed + 1_000, start, rate)
        fit = fitted(guide, model, train, given.steps // 2, seed + 2_000, half, rate)
        row[name] = scores(fit, train, test) | {"elbo_at_half": half.elbo(train, NUM_DRAWS, 1)[0]}
    return row | {"cpu_seconds": time.process_time() - begun}


def fitted(
    guide: Any,
    model: Any,
    data: bnn.Dataset,
    steps: int,
    seed: int,
    start: bnn.Posterior | None = None,
    rate: float = RATE,
) -> bnn.Posterior:
    """A fit of all rows at once, with a step size that decays to 0."""
    svi = bnn.SVI(guide, num_steps=steps, learning_rate=rate, compile=False)
    return svi.run(model, data, init=start, seed=seed, progress=False)


def scores(fit: bnn.Posterior, train: bnn.Dataset, test: bnn.Dataset) -> dict[str, float]:
    """ELBO on the training rows; log score and ECE of the others."""
    elbo, error = fit.elbo(train, NUM_DRAWS, seed=1)
    prediction = fit.predict(test.x, 1_000, seed=1)
    probs = prediction.probs.double().numpy()
    return {
        "elbo": elbo,
        "elbo_error": error,
        "log_score": float(prediction.log_prob(test.y).double().mean()),
        "ece": ece(probs, test.y.numpy()),
        "ece_floor": ece_floor(probs, num_repeats=50),
    }


# A predictive with two peaks


class Squared(bnn.likelihoods.Likelihood):
    """y is the square of f, and noise: the sign of the function is not identified."""

    def distribution(self, f: Tensor) -> Any:
        """Normal around ``f ** 2`` ``[N]``."""
        return dist.Normal(f[..., 0] ** 2, NOISE)


def two_peaks(num: int) -> np.ndarray:
    """As many quantiles of N(-1, 0.1) and N(1, 0.1) in equal parts; the peaks are 20 sds apart."""
    level = (np.arange(num) + 0.5) / num
    low, high = special.ndtri(np.clip(2 * level, 0, 1)), special.ndtri(np.clip(2 * level - 1, 0, 1))
    return np.asarray(np.where(level < 0.5, -PEAK + PEAK_SD * low, PEAK + PEAK_SD * high))


def rows_of_square(seed: int) -> bnn.Dataset:
    """Ten rows of y, all around 1: f is near 1 or near -1."""
    generator = torch.Generator().manual_seed(seed)
    y = PEAK**2 + NOISE * torch.randn(10, generator=generator)
    return bnn.Dataset(torch.linspace(-1, 1, 10)[:, None], y)


def bimodal_rows(given: argparse.Namespace, done: set[Any]) -> Iterator[dict[str, Any]]:
    """A row for each network and seed."""
    for seed in range(given.seeds):
        for depth in (2, 1):
            for width in BIMODAL_WIDTHS:
                if (depth, width, seed) not in done and (depth, width) != (1, 2):
                    yield of_two_peaks(given, depth, width, seed)


def of_two_peaks(given: argparse.Namespace, depth: int, width: int, seed: int) -> dict[str, Any]:
    """How near the two peaks a mean-field network can be, and what the ELBO makes of it."""
    begun = time.process_time()
    data = rows_of_square(seed)
    model = bnn.models.MLP(1, hidden=(width,) * depth, likelihood=Squared())
    program = bnn.Program(model, data.x, data.y)
    guide = fit_distance(model, program, data.x, given.steps, seed)
    ways: list[dict[str, Any]] = [
        {"way": "VI"} | judged(fitted(bnn.guides.AutoNormal, model, data, given.steps, seed), data),
        {"way": "distance"} | judged(held(guide, model, data), data),
    ]
    for steep in STEEPS if depth == 2 else ():
        made = held(constructed(model, data.x, width, steep), model, data)
        moved = fitted(bnn.guides.AutoNormal, model, data, given.steps, seed, made)
        ways += [
            {"way": "constructed", "steep": steep} | judged(made, data),
            {"way": "VI from there", "steep": steep} | judged(moved, data),
        ]
    return {
        "depth": depth,
        "width": width,
        "seed": seed,
        "num_weights": program.num_latents,
        "ways": ways,
        "cpu_seconds": time.process_time() - begun,
    }


def held(guide: bnn.guides.AutoNormal, model: Any, data: bnn.Dataset) -> bnn.Posterior:
    """The posterior of a guide as it is: one step, too short to move it."""
    svi = bnn.SVI(guide, num_steps=1, learning_rate=1e-12, loc_warmup=0, compile=False)
    return svi.run(model, data, progress=False)


def constructed(model: Any, x: Tensor, width: int, steep: float) -> bnn.guides.AutoNormal:
    """Two peaks from one random bias: u = relu(b), then a steep step from -1 to 1 at its median.

    The step is relu(k (u - m) + 1) - relu(k (u - m) - 1) - 1 with m = 2/k, made by two units of the
    second layer and the output's bias, whose sd is that of a peak. Units that take no part have
    weights of the prior into them and next to none out of them.
    """
    guide = bnn.guides.AutoNormal(model)
    guide.setup(x)
    shapes = [(width, 1), (width,), (width, width), (width,), (1, width), (1,)]
    loc = [torch.zeros(shape) for shape in shapes]
    sd = [torch.full(shape, shape[-1] ** -0.5 if len(shape) == 2 else 1.0) for shape in shapes]
    median = 2 / steep
    loc[1][0], sd[0][0] = median, TIGHT
    sd[2][:2] = TIGHT * width**-0.5
    loc[2][:2, 0], sd[2][:2, 0] = steep, TIGHT
    loc[3][:2], sd[3][:2] = torch.tensor([1.0, -1.0]) - steep * median, TIGHT
    sd[4][:] = TIGHT * width**-0.5
    loc[4][0, :2], sd[4][0, :2] = torch.tensor([PEAK, -PEAK]), TIGHT / steep
    loc[5][0], sd[5][0] = -PEAK, PEAK_SD
    guide.loc = torch.nn.Parameter(torch.cat([each.flatten() for each in loc]))
    guide.set_sds(torch.cat([each.flatten() for each in sd]))
    return guide


def fit_distance(
    model: Any, program: bnn.Program, x: Tensor, steps: int, seed: int
) -> bnn.guides.AutoNormal:
    """A mean-field Gaussian of small Wasserstein distance between f at x and the two peaks."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        guide = bnn.guides.AutoNormal(model, init_scale=0.3)
        guide.setup(x)
        guide.loc = torch.nn.Parameter(torch.randn_like(guide.loc) * 0.7)
        optimizer = torch.optim.Adam(guide.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        target = torch.as_tensor(two_peaks(256)).float()[:, None]
        for _ in range(steps):
            z = guide.transport(torch.randn(256, program.num_latents))
            f = program.function(z, x[::3])[..., 0].sort(0).values  # [S, N]
            optimizer.zero_grad()
            (f - target).abs().mean().backward()
            optimizer.step()
            schedule.step()
    return guide


def judged(fit: bnn.Posterior, data: bnn.Dataset) -> dict[str, float]:
    """Distance of f to the two peaks, mean over inputs; how often f > 0; the ELBO."""
    f = fit.function_draws(data.x, NUM_DRAWS, seed=2)[..., 0].double().numpy()  # [S, N]
    target = np.broadcast_to(two_peaks(NUM_DRAWS)[:, None], f.shape)
    elbo, error = fit.elbo(data, NUM_DRAWS, seed=2)
    return {
        "w1": float(w1(f, target).mean()),
        "positive": float((f > 0).mean()),
        "elbo": elbo,
        "elbo_error": error,
    }


def saved(given: argparse.Namespace) -> dict[str, Any]:
    """The results so far, of the same settings."""
    settings = {"part": given.part, "steps": given.steps, "learning_rates": [RATE, LOW_RANK_RATE]}
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    if not given.out.exists():
        return {"settings": settings, "versions": versions, "rows": []}
    result: dict[str, Any] = json.loads(given.out.read_text())
    if result["settings"] != settings:
        raise SystemExit(f"{given.out} is of other settings: {result['settings']}")
    return result


def main() -> None:
    """Work through the networks that are not in the file yet."""
    given = options()
    torch.set_num_threads(1)
    words = [given.out.name if word == str(given.out) else word for word in sys.argv[1:]]
    command = shlex.join(["python", "tutorials/experiments/liberty_or_depth_svi.py", *words])
    names = {"guides": ("depth", "size", "seed"), "bimodal": ("depth", "width", "seed")}[given.part]
    result = saved(given)
    done: set[Any] = {tuple(row[name] for name in names) for row in result["rows"]}
    rows = {"guides": guide_rows, "bimodal": bimodal_rows}[given.part]
    for row in rows(given, done):
        result["rows"].append(row | {"command": command})
        given.out.parent.mkdir(parents=True, exist_ok=True)
        partial_file = given.out.with_suffix(".part")
        partial_file.write_text(json.dumps(result, indent=1) + "\n")
        partial_file.replace(given.out)
        print(*(row[name] for name in names), f"{row['cpu_seconds']:.0f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
