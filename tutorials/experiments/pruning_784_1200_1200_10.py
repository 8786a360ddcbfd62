"""How many weights of a mean-field network does MNIST need? 784-1200-1200-10, 2.4 million weights.

Bayes by Backprop (Blundell et al., ICML 2015, arXiv:1505.05424) on the 60,000 training images, then
the test error with 0, 50, 75, 95 and 98 % of the weights removed, those of the smallest
signal-to-noise ratio |mean| / sd first. Writes settings, versions and the table as JSON.

    PYRO_BNN_DATA=... python tutorials/experiments/pruning_784_1200_1200_10.py --out FILE.json

No setting is chosen by a test score. A run that was stopped goes on with ``--resume``.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pyro_bnn as bnn

SIZES = (784, 1200, 1200, 10)
REMOVED = (0.0, 0.5, 0.75, 0.95, 0.98)
BLUNDELL = (1.24, 1.24, 1.24, 1.29, 1.39)  # test error in % (Blundell et al. 2015)


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="Adam's, cosine decay")
    parser.add_argument("--prior", choices=("normal", "scale-mixture"), default="normal")
    parser.add_argument(
        "--prior-scale", type=float, help="sd of the normal prior; default 1/sqrt(inputs), 1 bias"
    )
    parser.add_argument("--mixing", type=float, default=0.5, help="share of the wide component")
    parser.add_argument("--scale1", type=float, default=math.exp(-2), help="its sd")
    parser.add_argument("--scale2", type=float, default=math.exp(-7), help="the narrow one's sd")
    parser.add_argument("--init-scale", type=float, default=0.01, help="initial sd of every weight")
    parser.add_argument("--num-samples", type=int, default=100, help="draws of a prediction")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoint", type=Path, help="folder for the state of the run")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--progress", action="store_true")
    return parser.parse_args()


def make_prior(given: argparse.Namespace) -> Any:
    """The prior over every weight and bias."""
    if given.prior == "scale-mixture":
        return bnn.priors.ScaleMixture(given.mixing, given.scale1, given.scale2)
    if given.prior_scale is None:
        return bnn.priors.Normal()
    return bnn.priors.Normal(given.prior_scale)


def start(seed: int) -> dict[str, Tensor]:
    """Means of the same size under any prior: weights of sd 1/sqrt(inputs), biases of 0."""
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for layer, (num_in, num_out) in enumerate(itertools.pairwise(SIZES)):
        noise = torch.randn(num_out, num_in, generator=generator)
        values[f"layers.{layer}.weight"] = noise / math.sqrt(num_in)
        values[f"layers.{layer}.bias"] = torch.zeros(num_out)
    return values


def fit(given: argparse.Namespace, train: bnn.Dataset) -> bnn.Posterior:
    """Mean-field VI of the whole network."""
    model = bnn.models.MLP(
        SIZES[0],
        hidden=SIZES[1:-1],
        prior=make_prior(given),
        likelihood=bnn.likelihoods.Categorical(SIZES[-1]),
    )
    svi = bnn.SVI(
        functools.partial(bnn.guides.AutoNormal, init_scale=given.init_scale),
        num_steps=given.steps,
        learning_rate=given.learning_rate,
        batch_size=given.batch_size,
        loc_warmup=given.steps // 10,
    )
    return svi.run(
        model,
        train,
        init=start(given.seed),
        seed=given.seed,
        progress=given.progress,
        checkpoint=given.checkpoint,
        resume=given.resume,
    )


def scores(posterior: bnn.Posterior, test: bnn.Dataset, num_samples: int) -> tuple[Tensor, Tensor]:
    """Whether each test image is misread, and its log score, nats; both ``[N]``.

    Draws are streamed: no more than a gibibyte of them and of what they predict is held.
    """
    prediction = posterior.predict(test.x, num_samples)
    return prediction.probs.argmax(-1) != test.y, prediction.log_prob(test.y)


def table(given: argparse.Namespace, posterior: bnn.Posterior, test: bnn.Dataset) -> list[Any]:
    """A row for each share of removed weights; changes are of the same images and draws."""
    rows: list[Any] = []
    whole = None
    for fraction, published in zip(REMOVED, BLUNDELL, strict=True):
        begun = time.perf_counter()
        pruned = bnn.diagnostics.prune(posterior, fraction)
        wrong, log_prob = scores(pruned, test, given.num_samples)
        whole = wrong if whole is None else whole
        difference = 100 * (wrong.double() - whole.double())  # points, of the same images
        rows.append(
            {
                "removed": fraction,
                "weights_left": posterior.num_parameters // 2 - pruned.num_removed,
                "error_percent": 100 * float(wrong.double().mean()),
                "error_change_points": float(difference.mean()),
                "error_change_se": float(difference.std() / len(wrong) ** 0.5),
                "misread_after_only": int((wrong & ~whole).sum()),
                "misread_before_only": int((whole & ~wrong).sum()),
                "log_score": float(log_prob.double().mean()),
                "blundell_2015_error_percent": published,
                "seconds": time.perf_counter() - begun,
            }
        )
        print(json.dumps(rows[-1]), flush=True)  # noqa: T201  # a command
    return rows


def spread(posterior: bnn.Posterior) -> dict[str, Any]:
    """Quantiles over all weights of the signal-to-noise ratio."""
    by_site = bnn.diagnostics.signal_to_noise(posterior).values()
    ratio = torch.cat([values.flatten() for values in by_site]).sort().values
    return {f"{q:.0%}": float(ratio[int(q * (len(ratio) - 1))]) for q in (*REMOVED, 1.0)}


def main() -> None:
    """Fit, prune, and write the JSON file."""
    given = options()
    torch.set_num_threads(given.threads)
    split = bnn.data.load("mnist")
    posterior = fit(given, split.train)
    losses = posterior.losses
    result = {
        "network": "-".join(map(str, SIZES)),
        "num_weights": posterior.num_parameters // 2,  # a mean and an sd each
        "settings": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(given).items()
            if name not in ("out", "checkpoint", "resume", "progress")
        }
        | {"start": "means N(0, 1/inputs), biases 0", "svi": posterior.options},
        "data": "MNIST, 60,000 training and 10,000 test images, pixels by one mean and sd",
        "test_prediction": f"mean of the class probabilities over {given.num_samples} draws",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "cores": os.cpu_count(),
        "fit_seconds": posterior.wall_time,
        "negative_elbo_first_last_100_steps": [
            float(losses[:100].mean()),
            float(losses[-100:].mean()),
        ],
        "signal_to_noise_quantiles": spread(posterior),
        "rows": table(given, posterior, split.test),
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
