"""The results of ``liberty_or_depth.py`` and ``liberty_or_depth_svi.py`` in one picture.

    python tutorials/experiments/liberty_or_depth_figure.py tutorials/experiments/results

reads ``liberty_or_depth_{100,guides,bimodal}.json`` in the folder and writes
``liberty_or_depth.png`` beside them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

COLOURS = ("#0072B2", "#D55E00", "#009E73")  # Okabe & Ito


def rows_of(folder: Path, name: str) -> list[dict[str, Any]]:
    """The rows of one file."""
    rows: list[dict[str, Any]] = json.loads((folder / f"liberty_or_depth_{name}.json").read_text())[
        "rows"
    ]
    return rows


def draw_kl(ax: Any, rows: list[dict[str, Any]]) -> None:
    """KL of every chain, with a bar up to where it was before the bias was subtracted."""
    for which, colour, shift in (("as_drawn", COLOURS[1], -0.1), ("relabelled", COLOURS[0], 0.1)):
        label: str | None = which.replace("_", " ")
        for row in rows:
            kl = row[which]["kl"]
            if row["activation"] != "relu" or "refused" in kl:
                continue
            at = row["depth"] + shift + np.linspace(-0.05, 0.05, len(kl["value"]))
            ax.errorbar(at, kl["value"], [0 * at, kl["bias"]], fmt="o", ms=4, color=colour, lw=1)
            ax.plot([], [], "o", color=colour, label=label)
            label = None
    ax.set(title="KL(full || diagonal) of ReLU chains", xlabel="hidden layers", ylabel="nats")
    ax.set_ylim(bottom=0)
    ax.legend(loc="lower center")


def draw_guides(ax: Any, rows: list[dict[str, Any]]) -> None:
    """What a full covariance gains in ELBO."""
    for depth, colour in zip((1, 2, 4), COLOURS, strict=True):
        mine = [row for row in rows if row["depth"] == depth]
        gains = [row["full"]["elbo"] - row["mean-field"]["elbo"] for row in mine]
        errors = [
            np.hypot(row["full"]["elbo_error"], row["mean-field"]["elbo_error"]) for row in mine
        ]
        sizes = [row["num_weights"] for row in mine]
        ax.errorbar(sizes, gains, errors, fmt="o", color=colour, label=f"{depth} hidden")
    ax.axhline(0, color="#6B6B6B", lw=0.8)
    ax.set(title="full against mean-field", xlabel="weights", ylabel="gain in ELBO, nats")
    ax.set_xscale("log")
    ax.legend(loc="lower left")


def draw_peaks(ax: Any, rows: list[dict[str, Any]]) -> None:
    """Distance to the two peaks against width, of networks with two hidden layers."""
    for way, colour in zip(("constructed", "VI", "distance"), COLOURS, strict=True):
        mine = [row for row in rows if row["depth"] == 2]
        points = [(row["width"], row[way]["w1"]) for row in mine]
        ax.plot(*zip(*points, strict=True), "o", color=colour, label=way)
    ax.set(title="distance to two peaks", xlabel="units a layer", ylabel="W1", ylim=(0, 1.1))
    ax.set_xscale("log", base=2)
    ax.legend(loc=(0.02, 0.55))


def main() -> None:
    """Read three files, write one picture."""
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    folder = Path(sys.argv[1])
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.4), dpi=110, layout="constrained")
    drawn = (("100", draw_kl), ("guides", draw_guides), ("bimodal", draw_peaks))
    for ax, (name, draw) in zip(panels, drawn, strict=True):
        draw(ax, rows_of(folder, name))
    figure.savefig(folder / "liberty_or_depth.png")


if __name__ == "__main__":
    main()
