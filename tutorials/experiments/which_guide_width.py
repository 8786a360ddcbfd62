"""What does the width of a network do to three factorised guides? 64-W-10 on 8 x 8 digits.

Independent Gaussians (``AutoNormal``), the k-tied Normal of rank 2 (Swiatkowski et al., ICML 2020,
arXiv:2002.02655) and the radial posterior (Farquhar et al., AISTATS 2020, arXiv:1907.00865), each
from the same MAP fit, for widths 50 to 1200 on several splits. For each fit: test error, held-out
log score, ELBO, and the share of the sd matrix of the first layer that ranks 1 to 3 explain. The
noise of gradients is compared at ONE q, the MAP network with all sds equal, so that the families
differ in shape and parameters alone; and where each fit ended.

    python tutorials/experiments/which_guide_width.py --out FOLDER

writes ``which_guide_width.json``, after every fit, and ``which_guide_width.png``. A run that was
stopped goes on with ``--resume``. No setting is chosen by a test score.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import pyro_bnn as bnn

NAME = "which_guide_width"
GUIDES: dict[str, Any] = {
    "AutoNormal": bnn.guides.AutoNormal,
    "AutoKTiedNormal": bnn.guides.AutoKTiedNormal,
    "AutoRadial": bnn.guides.AutoRadial,
}
STYLES = {
    "AutoNormal": ("#0072B2", "o"),
    "AutoKTiedNormal": ("#D55E00", "s"),
    "AutoRadial": ("#009E73", "^"),
}  # Okabe & Ito
LEFT_OVER = {
    "share_of_means": ("means", "#6B6B6B"),
    "share_of_shuffled_sds": ("sds at random places", "#CC79A7"),
    "share_of_sds": ("sds", "#0072B2"),
}
BLOCKS = 8  # of gradient draws, for standard errors
CHUNK = 16  # gradients at once


def options() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON and PNG files")
    parser.add_argument("--widths", type=int, nargs="+", default=[50, 100, 200, 400, 800, 1200])
    parser.add_argument("--splits", type=int, default=2, help="data splits, each with its own seed")
    parser.add_argument("--map-steps", type=int, default=200)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-2, help="Adam's, cosine decay")
    parser.add_argument("--init-scale", type=float, default=0.02, help="initial sd of every weight")
    parser.add_argument(
        "--shared-scales", type=float, nargs="+", default=[0.02, 0.1], help="sds of the one q"
    )
    parser.add_argument("--gradients", type=int, default=64, help="draws of the gradient")
    parser.add_argument("--num-samples", type=int, default=100, help="draws of a prediction")
    parser.add_argument("--resume", action="store_true", help="keep the rows that are there")
    return parser.parse_args()


def classifier(width: int) -> bnn.models.MLP:
    """A network 64-W-10 of ReLU units under the default prior, of fan-in scale."""
    return bnn.models.MLP(64, hidden=(width,), likelihood=bnn.likelihoods.Categorical(10))


def gradients(
    posterior: Any, guide: Any, train: bnn.Dataset, num_rows: int, count: int
) -> dict[str, Tensor]:
    """Draws ``[S, ...]`` of the gradient of minus the ELBO per datum, by guide parameter.

    The rows are the first ones in all draws, so that what varies is the noise of q alone.
    """
    program, num_data = posterior.program, len(train)
    program.prepare(guide)
    batch = program.batch(train.x[:num_rows], train.y[:num_rows])
    params = {f"guide.{name}": value.detach() for name, value in guide.named_parameters()}

    def loss(values: Mapping[str, Tensor], noise: Tensor) -> Tensor:
        terms = program.elbo(guide, values, noise, batch)
        objective: Tensor = terms.expected_log_likelihood - terms.kl
        return -objective / num_data

    noise = guide.draw_noise(count, torch.Generator().manual_seed(0)).unsqueeze(1)  # [S, 1, M]
    grad = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0), chunk_size=CHUNK)
    return {name: value.detach() for name, value in grad(params, noise).items()}


def noise_of_gradients(draws: Mapping[str, Tensor]) -> dict[str, float]:
    """Variance of the gradient by the means, summed over them; signal to noise by the sds.

    The second is the median over parameters of (E g)^2 / Var g, each without the bias of an
    estimate from S draws: it does not depend on the units in which a parameter is held. Errors are
    from blocks.
    """
    means = draws["guide.loc"].double()
    scales = torch.cat([g.flatten(1) for name, g in draws.items() if name != "guide.loc"], 1)
    return {
        "variance_by_means": float(means.var(0).sum()),
        "variance_by_means_se": block_error(means, lambda g: g.var(0).sum()),
        "signal_to_noise_of_sds": float(signal_to_noise(scales.double())),
        "signal_to_noise_of_sds_se": block_error(scales.double(), signal_to_noise),
        "num_scale_parameters": scales.shape[1],
    }


def signal_to_noise(draws: Tensor) -> Tensor:
    """Median over parameters of (E g)^2 / Var g, of draws ``[S, P]``.

    A mean would be of the inputs that are 0 in all rows, where only the KL's gradient is left.
    """
    variance = draws.var(0)
    signal = draws.mean(0).square() - variance / len(draws)
    return (signal / variance.clamp(min=1e-30)).median()


def block_error(draws: Tensor, value: Any) -> float:
    """Standard error of a value of draws, from its values on blocks of them."""
    found = torch.stack([value(block) for block in draws.chunk(BLOCKS)])
    return float(found.std() / BLOCKS**0.5)


def at_one_q(given: argparse.Namespace, fit: Any, train: bnn.Dataset) -> list[dict[str, Any]]:
    """The noise of gradients of every guide at the MAP network, all sds equal."""
    rows = []
    for scale in given.shared_scales:
        for name, make in GUIDES.items():
            guide = make(fit.model, init_scale=scale)
            guide.setup(train.x[:1])
            guide.move_to(fit.guide.centre())
            draws = gradients(fit, guide, train, given.batch_size, given.gradients)
            rows.append({"guide": name, "sd": scale, **noise_of_gradients(draws)})
    return rows


def shares(matrix: Tensor) -> list[float]:
    """Shares of a matrix that its best approximations of rank 1, 2 and 3 explain."""
    squared = torch.linalg.svdvals(matrix.double()).square()
    return [float(v) for v in (squared.cumsum(0) / squared.sum())[:3]]


def first_matrices(posterior: Any) -> tuple[Tensor, Tensor]:
    """Means and sds ``[W, 64]`` of the first layer's weights."""
    site = posterior.program.sites[0]
    loc, scale = posterior.guide.marginals()
    means, sds = (v.detach()[site.start : site.stop] for v in (loc, scale))
    return means.reshape(site.shape), sds.reshape(site.shape)


def fitted(
    given: argparse.Namespace, name: str, start: Any, split: bnn.Split, seed: int
) -> dict[str, Any]:
    """One fit and its scores."""
    begun = time.process_time()
    posterior: Any = bnn.SVI(
        functools.partial(GUIDES[name], init_scale=given.init_scale),
        num_steps=given.steps,
        learning_rate=given.learning_rate,
        batch_size=given.batch_size,
        compile=False,
    ).run(start.model, split.train, init=start, seed=seed, progress=False)
    seconds = time.process_time() - begun
    means, sds = first_matrices(posterior)
    elbo, elbo_error = posterior.elbo(split.train, 100)
    draws = gradients(posterior, posterior.guide, split.train, given.batch_size, given.gradients)
    return {
        "guide": name,
        "num_parameters": posterior.num_parameters,
        "fit_cpu_seconds": seconds,
        "elbo": elbo,
        "elbo_se": elbo_error,
        **test_scores(posterior, split.test, given.num_samples),
        "sd_first_layer": {"median": float(sds.median()), "mean": float(sds.mean())},
        "share_of_sds": shares(sds),
        "share_of_shuffled_sds": shares(shuffled(sds)),
        "share_of_means": shares(means),
        "at_the_fit": noise_of_gradients(draws),
    }


def shuffled(matrix: Tensor) -> Tensor:
    """The same entries at random places: what a share is without any structure."""
    order = torch.randperm(matrix.numel(), generator=torch.Generator().manual_seed(0))
    return matrix.flatten()[order].reshape(matrix.shape)


def test_scores(posterior: Any, test: bnn.Dataset, num_samples: int) -> dict[str, Any]:
    """Test error in percent and mean log score in nats, each with its error over images."""
    prediction = posterior.predict(test.x, num_samples)
    wrong = 100.0 * (prediction.probs.argmax(-1) != test.y).double()
    log_prob = prediction.log_prob(test.y).double()
    root = len(test) ** 0.5
    return {
        "error_percent": float(wrong.mean()),
        "error_percent_se": float(wrong.std() / root),
        "log_score": float(log_prob.mean()),
        "log_score_se": float(log_prob.std() / root),
    }


def draw(rows: list[dict[str, Any]], gradient_rows: list[dict[str, Any]], path: Path) -> None:
    """Means over splits, with their standard errors, over the width."""
    figure, panels = plt.subplots(2, 3, figsize=(11, 6.2), layout="constrained")
    for name, (colour, marker) in STYLES.items():
        own = [row for row in rows if row["guide"] == name]
        given: dict[str, Any] = {"color": colour, "marker": marker, "label": name, "capsize": 3}
        for ax, key in zip(panels[0], ("error_percent", "log_score", "elbo"), strict=True):
            plot(ax, own, lambda row, key=key: row[key], given)
        scales = sorted({row["sd"] for row in gradient_rows})
        for scale, style in zip(scales, ("-", "--", ":"), strict=False):
            at = [row for row in gradient_rows if row["guide"] == name and row["sd"] == scale]
            drawn = {**given, "ls": style, "label": f"{name}, sd {scale:g}"}
            plot(panels[1, 0], at, lambda row: row["variance_by_means"], drawn)
            plot(panels[1, 1], at, lambda row: row["signal_to_noise_of_sds"], drawn)
    own = [row for row in rows if row["guide"] == "AutoNormal"]
    for key, (label, colour) in LEFT_OVER.items():
        for rank, style in ((1, "-"), (2, "--")):
            name = f"{label}, rank {rank}"
            drawn = {"color": colour, "ls": style, "marker": ".", "label": name, "capsize": 3}
            plot(panels[1, 2], own, lambda row, k=key, r=rank: 1 - row[k][r - 1], drawn)
    labels = (
        "test error (%)",
        "held-out log score (nats an image)",
        "ELBO (nats)",
        "gradient by the means: variance",
        "gradient by the sds: signal to noise",
        "share left over by a rank",
    )
    for ax, label in zip(panels.flat, labels, strict=True):
        ax.set(xscale="log", xlabel="width", ylabel=label)
        widths = sorted({row["width"] for row in rows})
        ax.set_xticks(widths, [str(width) for width in widths], fontsize=8)
        ax.minorticks_off()
        ax.spines[["top", "right"]].set_visible(False)
    for ax in panels[1]:
        ax.set_yscale("log")
    for ax in (panels[0, 0], panels[1, 2]):
        ax.legend(fontsize=7, frameon=False)
    panels[1, 0].legend(fontsize=6.5, frameon=False, loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def plot(ax: Any, rows: list[dict[str, Any]], value: Any, given: Mapping[str, Any]) -> None:
    """One line: means over splits with standard errors, by width."""
    widths = sorted({row["width"] for row in rows})
    values = [torch.tensor([value(r) for r in rows if r["width"] == width]) for width in widths]
    errors = [float(v.std() / len(v) ** 0.5) if len(v) > 1 else 0.0 for v in values]
    ax.errorbar(widths, [float(v.mean()) for v in values], errors, lw=1.3, ms=4, **given)


def main() -> None:
    """Fit, and write the JSON file after each width of a split; the figure at the end."""
    given = options()
    torch.set_num_threads(1)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"{NAME}.json"
    settings = {k: v for k, v in vars(given).items() if k not in ("out", "resume")}
    result: dict[str, Any] = {
        "command": f"python tutorials/experiments/{NAME}.py --out tutorials/experiments/results",
        "settings": settings,
        "network": "64-W-10, ReLU, fan-in prior",
        "data": "digits, 8 x 8, splits 0, 1, ...",
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "cpu_seconds": 0.0,
        "fits": [],
        "at_one_q": [],
    }
    if given.resume and path.exists():
        result = json.loads(path.read_text())
        if result["settings"] != settings:
            raise SystemExit(f"{path} is of other settings: {result['settings']}")
    done = {(row["split"], row["width"]) for row in result["fits"]}
    for seed in range(given.splits):
        split = bnn.data.load("digits", split=seed)
        for width in given.widths:
            if (seed, width) in done:
                continue
            begun, where = time.process_time(), {"split": seed, "width": width}
            svi = bnn.SVI(
                bnn.guides.AutoDelta,
                num_steps=given.map_steps,
                learning_rate=given.learning_rate,
                batch_size=given.batch_size,
                compile=False,
            )
            start: Any = svi.run(classifier(width), split.train, seed=seed, progress=False)
            rows = [fitted(given, name, start, split, seed) for name in GUIDES]
            result["fits"] += [where | row for row in rows]
            result["at_one_q"] += [where | row for row in at_one_q(given, start, split.train)]
            result["cpu_seconds"] += time.process_time() - begun
            path.write_text(json.dumps(result, indent=1) + "\n")
            shown = {row["guide"]: (row["error_percent"], row["log_score"]) for row in rows}
            print(f"{result['cpu_seconds']:.0f} s", where, shown, flush=True)  # noqa: T201  # a command
    draw(result["fits"], result["at_one_q"], path.with_suffix(".png"))


if __name__ == "__main__":
    main()
