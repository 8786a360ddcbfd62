"""The results of ``liberty_or_depth.py`` and ``liberty_or_depth_svi.py`` in one picture.

    python tutorials/experiments/liberty_or_depth_figure.py tutorials/experiments/results

reads ``liberty_or_depth_{100,guides,bimodal}.json`` in the folder and writes
``liberty_or_depth.png`` beside them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6B6B6B"  # Okabe & Ito
DEPTH_STYLES = {1: (BLUE, "o"), 2: (ORANGE, "s"), 4: (GREEN, "^")}


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of one file."""
    found = json.loads((folder / f"liberty_or_depth_{name}.json").read_text())
    rows: list[dict[str, Any]] = found["rows"]
    return rows


def around(at: float, values: list[float], width: float = 0.1) -> np.ndarray:
    """Places for the points of one depth, beside each other."""
    return at + np.linspace(-width, width, len(values))


def shade_doubtful(ax: Any, rows: list[dict[str, Any]]) -> None:
    """Stripes where the sampler's own diagnostics are poor: R-hat and draws of f, divergences."""
    for row in rows:
        few, apart = min(row["smallest_ess_within"]) < 100, max(row["rhat_within"]) > 1.05
        if few or apart or row["divergent_share"] > 0.001:
            ax.axvspan(row["depth"] - 0.3, row["depth"] + 0.3, color=GREY, alpha=0.2, lw=0)
    ax.set_xticks(sorted({row["depth"] for row in rows}))


def draw_kl(ax: Any, rows: list[dict[str, Any]]) -> None:
    """KL of every chain of relabelled draws, and of draws without correlations, relabelled."""
    for row in rows:
        kl, floors = row["relabelled"]["kl"], row["relabelled"]["floors"]
        at = row["depth"]
        if "refused" not in kl:
            ax.plot(around(at, kl["value"]), kl["value"], "o", ms=4, color=BLUE)
        for name, colour, marker in (("diagonal", ORANGE, "s"), ("prior", GREY, "_")):
            floor = floors[name]["kl"]
            if "refused" not in floor:
                ax.plot(around(at, floor["value"]), floor["value"], marker, ms=4, color=colour)
    for marker, colour, label in (
        ("o", BLUE, "chains, bias subtracted"),
        ("s", ORANGE, "no correlations, their moments"),
        ("_", GREY, "no correlations, the prior"),
    ):
        ax.plot([], [], marker, color=colour, label=label)
    ax.set(title="KL(full || diagonal), units relabelled", xlabel="hidden layers", ylabel="nats")
    ax.set_ylim(bottom=0)


def draw_distance(ax: Any, rows: list[dict[str, Any]]) -> None:
    """The difference of Wasserstein distances over the spread, and its floor."""
    for row in rows:
        of_row = row["relabelled"]
        for found, colour, marker in (
            (of_row["distance"], BLUE, "o"),
            (of_row["floors"]["diagonal"]["distance"], ORANGE, "s"),
        ):
            if "refused" not in found:
                share = np.array(found["value"]) / np.array(found["spread"])
                ax.plot(around(row["depth"], list(share)), share, marker, ms=4, color=colour)
    ax.plot([], [], "o", color=BLUE, label="chains")
    ax.plot([], [], "s", color=ORANGE, label="no correlations, their moments")
    ax.axhline(0, color=GREY, lw=0.8)
    ax.set(title="W(diagonal) - W(full)", xlabel="hidden layers", ylabel="of the spread")


def draw_scores(ax: Any, rows: list[dict[str, Any]]) -> None:
    """Held-out scores of each chain and of both Gaussians."""
    styles = {"chain": ("black", "D"), "full": (BLUE, "o"), "diagonal": (ORANGE, "s")}
    for name, (colour, marker) in styles.items():
        for row in rows:
            values = row["relabelled"]["function"][f"score_{name}"]
            ax.plot(around(row["depth"], values), values, marker, ms=4, color=colour)
        label = name if name == "chain" else f"{name} Gaussian"
        ax.plot([], [], marker, color=colour, label=label)
    ax.set(title="held-out log score", xlabel="hidden layers", ylabel="nats a point")


def draw_guides(ax: Any, rows: list[dict[str, Any]]) -> None:
    """What a full covariance gains in ELBO over mean-field, seed by seed."""
    for depth, (colour, marker) in DEPTH_STYLES.items():
        mine = [row for row in rows if row["depth"] == depth]
        pairs = [(row["full"], row["mean-field"]) for row in mine]
        gains = [full["elbo"] - alone["elbo"] for full, alone in pairs]
        errors = [np.hypot(full["elbo_error"], alone["elbo_error"]) for full, alone in pairs]
        sizes = [row["num_weights"] * (0.93 + 0.07 * row["seed"]) for row in mine]
        label = f"{depth} hidden layer{'s' if depth > 1 else ''}"
        ax.errorbar(sizes, gains, errors, fmt=marker, ms=4, color=colour, label=label)
    ax.axhline(0, color=GREY, lw=0.8)
    ax.set(title="full against mean-field guide", xlabel="weights", ylabel="gain in ELBO, nats")
    sizes_on_axis(ax)


def draw_sizes(ax: Any, rows: list[dict[str, Any]]) -> None:
    """Held-out scores of mean-field guides, seed by seed."""
    for depth, (colour, marker) in DEPTH_STYLES.items():
        mine = [row for row in rows if row["depth"] == depth]
        sizes = [row["num_weights"] * (0.93 + 0.07 * row["seed"]) for row in mine]
        scores = [row["mean-field"]["log_score"] for row in mine]
        ax.plot(sizes, scores, marker, ms=4, color=colour, label=f"{depth} hidden")
    ax.set(title="mean-field guide", xlabel="weights", ylabel="held-out score, nats a point")
    sizes_on_axis(ax)


def sizes_on_axis(ax: Any) -> None:
    """A log axis with the sizes of the networks on it."""
    ax.set_xscale("log")
    ax.set_xticks([50, 200, 450], ["50", "200", "450"])
    ax.minorticks_off()


def draw_peaks(ax: Any, rows: list[dict[str, Any]]) -> None:
    """Distance to the two peaks against width, of networks with two hidden layers."""
    steepest = max(way.get("steep", 0) for row in rows for way in row["ways"])
    for name, colour, marker, label in (
        ("constructed", BLUE, "o", f"constructed, slope {steepest:g}"),
        ("VI", ORANGE, "s", "VI"),
        ("distance", GREEN, "^", "least distance"),
    ):
        points = [
            (row["width"] * (0.93 + 0.07 * row["seed"]), way["w1"])
            for row in rows
            for way in row["ways"]
            if row["depth"] == 2 and way["way"] == name and way.get("steep", steepest) == steepest
        ]
        ax.plot(*zip(*points, strict=True), marker, ms=4, color=colour, label=label)
    ax.set(title="distance to two peaks", xlabel="units a layer", ylabel="W1")
    ax.set_xscale("log", base=2)
    ax.set_xticks([2, 8, 32], ["2", "8", "32"])
    ax.set_ylim(bottom=0)


def main() -> None:
    """Read three files, write one picture."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder = Path(sys.argv[1])
    chains = [row for row in rows_of(folder, "100") if row["activation"] == "relu"]
    guides, peaks = rows_of(folder, "guides"), rows_of(folder, "bimodal")
    figure, panels = plt.subplots(2, 3, figsize=(11.5, 8), dpi=110, layout="constrained")
    drawn: list[tuple[Callable[[Any, list[dict[str, Any]]], None], list[dict[str, Any]]]] = [
        (draw_kl, chains),
        (draw_distance, chains),
        (draw_scores, chains),
        (draw_guides, guides),
        (draw_sizes, guides),
        (draw_peaks, peaks),
    ]
    for ax, (draw, rows) in zip(panels.flat, drawn, strict=True):
        draw(ax, rows)
        if rows is chains:
            shade_doubtful(ax, rows)
        ax.spines[["top", "right"]].set_visible(False)
        # below the panel, where no point can be
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False, fontsize=8)
    figure.savefig(folder / "liberty_or_depth.png")


if __name__ == "__main__":
    main()
