"""Pictures of the results, one idea each; ratios and times on logarithmic axes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pyro_bnn.plotting.theme import BAND, DASHES, INK, MARKS, METHODS, MUTED, PAPER, canvas

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Result = Mapping[str, Any]
DPI = 150
OURS = "pyro_bnn"
PEERS = ("NumPyro", "BlackJAX")
MAX_RHAT = 1.05  # of a run whose speed counts; what judges others is held to 1.01


def colour(name: str) -> str:
    """One colour a library, the same in every picture."""
    families = (OURS, "Pyro", "NumPyro", "bayesian-torch", "TyXe")
    for family, shade in zip(families, METHODS, strict=False):
        if name.startswith(family):
            return shade
    return INK


def svi(found: Result, path: Path) -> None:
    """Ratio of each step to the deterministic one, a panel a network."""
    rows = found["rows"]
    cases = list(dict.fromkeys((r["net"], r["batch"]) for r in rows))
    names = list(dict.fromkeys(r["contender"] for r in rows))[::-1]
    rows_of_axes, columns = -(-len(cases) // 2), min(2, len(cases))
    height = 0.8 + (0.4 + 0.27 * len(names)) * rows_of_axes
    shape = (11, height, rows_of_axes, columns)
    with canvas(*shape, sharex=True, sharey=True) as (figure, axes):
        for place, (net, batch) in enumerate(cases):
            ax = axes[place]
            here = [r for r in rows if (r["net"], r["batch"]) == (net, batch)]
            base = here[0]["seconds"]
            dots(ax, names, {r["contender"]: [r[k] / base for k in QUARTILES] for r in here})
            ax.axvline(1, color=MUTED, linewidth=1, zorder=0)
            ax.set_title(f"{net}, batch {batch:,}; 1 is {base * 1e3:.3g} ms")
            if place >= len(cases) - columns:
                ax.set_xlabel("time of a step over the deterministic eager step")
        for ax in axes[len(cases) :]:
            ax.set_visible(False)
        figure.savefig(path, dpi=DPI)


QUARTILES = ("low", "seconds", "high")


def dots(ax: Axes, names: Sequence[str], values: Mapping[str, Sequence[float]]) -> None:
    """Median and quartiles of each name on its line, with the median in figures."""
    for place, name in enumerate(names):
        if name not in values:
            continue
        low, middle, high = values[name]
        ax.plot([low, high], [place, place], color=colour(name), linewidth=2)
        ax.plot(middle, place, "o", color=colour(name), markersize=6)
        ax.annotate(
            f"{middle:.2f}" if middle < 9.95 else f"{middle:.0f}",
            (high, place),
            textcoords="offset points",
            xytext=(7, 0),
            va="center",
            fontsize=9,
            color=INK,
        )
    ax.set_xscale("log")
    logarithmic(ax.xaxis, [v for triple in values.values() for v in triple])
    ax.margins(x=0.12)
    ax.set_yticks(range(len(names)), names, fontsize=9)
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", which="major", color=BAND, linewidth=0.7)
    ax.set_axisbelow(True)


def logarithmic(axis: Any, values: Sequence[float]) -> None:
    """Ticks at 1, 2, 5 times the powers of ten, in plain figures, where the range is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    short = max(values) < 1e3 * min(values)
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if short else (1,)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))


def cold(found: Result, path: Path) -> None:
    """Wall time of each fresh process: the fit, and the imports and exit around it."""
    rows = found["rows"][::-1]
    with canvas(8, 1.1 + 0.42 * len(rows)) as (figure, axes):
        ax = axes[0]
        for place, r in enumerate(rows):
            around = r["process_seconds"] - r["fit_seconds"]
            ax.barh(place, around, color=BAND, height=0.6)
            ax.barh(place, r["fit_seconds"], left=around, color=colour(r["contender"]), height=0.6)
            ax.annotate(
                f"{r['process_seconds']:.1f}",
                (r["process_seconds"], place),
                textcoords="offset points",
                xytext=(5, 0),
                va="center",
                fontsize=9,
            )
        ax.set_yticks(range(len(rows)), [r["contender"] for r in rows])
        ax.tick_params(axis="y", length=0)
        ax.margins(x=0.08)
        ax.set_xlabel("wall time of a fresh process, s (colour: the fit)")
        ax.set_title(f"{found['steps']:,} steps of SVI on {found['net']}, cold caches")
        figure.savefig(path, dpi=DPI)


def predict(found: Result, path: Path) -> None:
    """Time of one prediction by every contender."""
    rows = found["rows"]
    names = [r["contender"] for r in rows][::-1]
    with canvas(8, 1.3 + 0.36 * len(rows)) as (figure, axes):
        ax = axes[0]
        dots(ax, names, {r["contender"]: [1e3 * r[k] for k in QUARTILES] for r in rows})
        ax.set_xlabel("time of one prediction, ms")
        ax.set_title(f"{found['draws']:,} draws of {found['net']} at {found['rows_of_x']:,} rows")
        figure.savefig(path, dpi=DPI)


def nuts(found: Result, path: Path) -> None:
    """Effective samples a second of every entry, a panel a posterior and its chains.

    Dots are medians, lines the range of the rounds; a dot is hollow where R-hat is above 1.05.
    """
    cases = list(dict.fromkeys((r["target"], r["chains"]) for r in found["rows"]))
    counts = [sum((r["target"], r["chains"]) == case for r in found["rows"]) for case in cases]
    shape = (10, 0.9 * len(cases) + 0.34 * sum(counts), len(cases), 1)
    with canvas(*shape, height_ratios=[count + 1 for count in counts]) as (figure, axes):
        for ax, case in zip(axes, cases, strict=True):
            rows = [r for r in found["rows"] if (r["target"], r["chains"]) == case]
            names = [r["contender"] + f", {r['cache']} caches" * bool(r["cache"]) for r in rows]
            values = {
                name: (min(speeds), r["ess_per_second"], max(speeds))
                for name, r in zip(names, rows, strict=True)
                for speeds in [r["all_ess_per_second"]]
            }
            names.reverse()
            dots(ax, names, values)
            apart = [
                (r["ess_per_second"], len(rows) - 1 - place)
                for place, r in enumerate(rows)
                if not r["rhat"] <= MAX_RHAT
            ]
            for dot in apart:
                ax.plot(*dot, "o", color=PAPER, markersize=3)
            target, chains = case
            ax.set_title(f"{target}, {found['nets'][target]}, chains: {chains}")
        axes[-1].set_xlabel("smallest bulk ESS of an output, a second (hollow: R-hat > 1.05)")
        figure.savefig(path, dpi=DPI)


def samplers(found: Result, path: Path) -> None:
    """Effective samples a second of many draws; seconds to an answer."""
    rows = {part: [r for r in found["rows"] if r["part"] == part] for part in ("moons", "diabetes")}
    shown = {"moons": "ess_per_second", "diabetes": "seconds"}
    texts = {
        "moons": ("two moons: 16 chains of 2,000", "smallest bulk ESS of an output, a second"),
        "diabetes": ("diabetes: 4 chains to an answer", "seconds, from empty caches"),
    }
    if not (parts := [part for part, found in rows.items() if found]):
        return
    with canvas(10, 1.1 + 0.34 * max(map(len, rows.values())), 1, len(parts)) as (figure, axes):
        for ax, part in zip(axes, parts, strict=True):
            names = list(dict.fromkeys(r["contender"] for r in rows[part]))[::-1]
            values = {
                name: (min(every), statistics.median(every), max(every))
                for name in names
                for every in [[r[shown[part]] for r in rows[part] if r["contender"] == name]]
            }
            libraries = {n: n if n.startswith(PEERS) else f"{OURS}, {n}" for n in names}
            named = {libraries[name]: triple for name, triple in values.items()}
            dots(ax, list(libraries.values()), named)
            title, label = texts[part]
            ax.set_title(title)
            ax.set_xlabel(label)
        figure.savefig(path, dpi=DPI)


def estimators(found: Result, path: Path) -> None:
    """Variance of the gradient against the rows of a step: a column a network, a row a kind."""
    rows = found["rows"]
    nets = list(dict.fromkeys(r["net"] for r in rows))
    names = list(dict.fromkeys(r["contender"] for r in rows))
    kinds = {"mean_weights": "by the mean weights", "scales": "by the scales"}
    with canvas(10, 8, 2, 2, sharex=True, sharey="row") as (figure, axes):
        for place, (kind, net) in enumerate((k, n) for k in kinds for n in nets):
            ax, here = axes[place], [r for r in rows if r["net"] == net]
            for r in (r for r in here if any(r[kind])):
                own = names.index(r["contender"])
                ax.errorbar(
                    r["batches"],
                    r[kind],
                    yerr=r[f"{kind}_error"],
                    color=METHODS[own],
                    marker=MARKS[own],
                    markersize=5,
                    label=r["contender"],
                )
            ax.set_xscale("log")
            ax.set_yscale("log")
            ax.set_xticks(rows[0]["batches"], [f"{n:,}" for n in rows[0]["batches"]])
            ax.minorticks_off()
            ax.grid(which="major", color=BAND, linewidth=0.7)
            ax.set_axisbelow(True)
            without = [r["contender"] for r in here if not any(r[kind])]
            ax.set_title(f"{net}{''.join(f' ({name}: 0)' for name in without)}, {kinds[kind]}")
            if place >= len(nets):
                ax.set_xlabel("rows B of a step")
            if place % len(nets) == 0:
                ax.set_ylabel("variance of the gradient, summed")
        axes[0].legend(fontsize=9)
        figure.savefig(path, dpi=DPI)


def natural(found: Result, path: Path) -> None:
    """ELBO a row by epochs and by seconds, a column a data set; grey is what to reach."""
    rows = found["rows"]
    names = list(dict.fromkeys(r["data"] for r in rows))
    with canvas(1 + 3.7 * len(names), 6.8, 2, len(names)) as (figure, axes):
        for column, name in enumerate(names):
            here = [r for r in rows if r["data"] == name]
            for line, unit in enumerate(("epochs", "seconds")):
                ax = axes[line * len(names) + column]
                for own, r in enumerate(here):
                    size = r["steps"] * r["seconds"] if unit == "seconds" else 1
                    ax.plot(
                        [n * size for n in range(len(r["elbo"]))],
                        r["elbo"],
                        color=METHODS[own],
                        linestyle=DASHES[own % len(DASHES)],
                        label=r["contender"],
                    )
                for target in here[0]["targets"]:
                    ax.axhline(target, color=MUTED, linewidth=1, zorder=0)
                best, widest = here[0]["best"], max(here[0]["margins"])
                ax.set_ylim(best - 3 * widest, best + widest / 2)
                ax.set_xlabel({"seconds": "seconds of steps, graphs made"}.get(unit, unit))
                ax.set_xlim(left=0)
            axes[column].set_title(name)
        for line in (0, 1):
            axes[line * len(names)].set_ylabel("ELBO, nats a row")
        axes[len(names) + min(1, len(names) - 1)].legend(fontsize=8, loc="lower right")
        figure.savefig(path, dpi=DPI)


class Axis(NamedTuple):
    """Texts of a scaling picture."""

    xlabel: str
    ylabel: str
    title: str


SCALING: Mapping[str, Axis] = {
    "parameters": Axis(
        "weights and biases P",
        "time of a step, ms",
        "A step against the size of the network, batch 128",
    ),
    "rows": Axis(
        "rows N, all in every step", "time of a step, ms", "A step of 10-50-1 against its rows"
    ),
    "draws": Axis("draws S", "time of a prediction, ms", "Prediction of 10-50-1 at 1,000 rows"),
    "width": Axis(
        "units n of each of two hidden layers, with about n² weights",
        "time of a step, ms",
        "A step against the width, by family of posterior, batch 128",
    ),
}


def scaling(found: Result, over: str, path: Path) -> None:
    """Time against size, a line a contender, with the exponent fitted at the large end."""
    xlabel, ylabel, title = SCALING[over]
    rows = [r for r in found["rows"] if r["over"] == over]
    with canvas(8, 5) as (figure, axes):
        ax = axes[0]
        seen: dict[str, int] = {}
        for place, r in enumerate(rows):
            own = place if over == "width" else 0
            shade = METHODS[own] if over == "width" else colour(r["contender"])
            again = seen.setdefault(shade, 0)
            seen[shade] += 1
            milliseconds = [1e3 * t for t in r["seconds"]]
            ax.plot(
                r["sizes"],
                milliseconds,
                color=shade,
                marker=MARKS[place % len(MARKS)],
                markersize=5,
                linestyle=DASHES[again % len(DASHES)] if again else "-",
                label=f"{r['contender']}: exponent {r['exponent']:.2f} ± {r['standard_error']:.2f}",
            )
        ax.set_xscale("log")
        ax.set_yscale("log")
        sizes = sorted({n for r in rows for n in r["sizes"]})
        ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
        ax.minorticks_off()
        logarithmic(ax.yaxis, [1e3 * t for r in rows for t in r["seconds"]])
        ax.grid(which="major", color=BAND, linewidth=0.7)
        ax.set_axisbelow(True)
        ax.set_xlabel(xlabel)
        ax.set_ylabel(ylabel)
        ax.set_title(title)
        ax.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2)
        figure.savefig(path, dpi=DPI)
