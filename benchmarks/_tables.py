"""Tables of the README, made from the JSON so that the two cannot differ."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._settings import RESULTS

README = Path(__file__).parent / "README.md"
Result = Mapping[str, Any]


def update(folder: Path) -> None:
    """Fill the README's tables anew, where the results are those that it shows."""
    if folder.resolve() == RESULTS.resolve():
        README.write_text(filled(README.read_text(), folder))


def filled(text: str, folder: Path) -> str:
    """The text with what stands between ``<!-- table: name -->`` and ``<!-- end -->`` made anew."""

    def table(match: re.Match[str]) -> str:
        return f"<!-- table: {match[1]} -->\n{made(match[1], folder)}\n<!-- end -->"

    return re.sub(r"<!-- table: ([a-z-]+) -->\n.*?<!-- end -->", table, text, flags=re.DOTALL)


def made(name: str, folder: Path) -> str:
    """One table; ``goals`` is made from several results, the others from ``<name>.json``."""
    needed = GOALS if name == "goals" else (name,)
    paths = {part: folder / f"{part}.json" for part in needed}
    if missing := [part for part, path in paths.items() if not path.exists()]:
        return f"Not measured yet: {', '.join(missing)}."
    found = {part: json.loads(path.read_text()) for part, path in paths.items()}
    if name == "goals":
        return goals(**found)
    return f"{provenance(found[name])}\n\n{TABLES[found[name]['benchmark']](found[name])}"


def provenance(found: Result) -> str:
    """Machine, threads, versions, date and command in one sentence."""
    machine = found["machine"]
    where = machine["gpu"] if found["device"] == "cuda" else machine["cpu"]
    have = [f"{name} {v}" for name, v in found["versions"].items() if v != "not installed"]
    lack = [name for name, v in found["versions"].items() if v == "not installed"]
    missing = f"; not installed: {', '.join(lack)}" if lack else ""
    return (
        f"{where}, {machine['cores']} cores, {found['threads']} threads, Python "
        f"{machine['python']}, {', '.join(have)}{missing}; {found['date']}, `{found['command']}`."
    )


def svi(found: Result) -> str:
    """A row a contender, a column a network: time of a step, ratio to the deterministic one."""
    rows = found["rows"]
    cases = list(dict.fromkeys((r["net"], r["batch"]) for r in rows))
    names = list(dict.fromkeys(r["contender"] for r in rows))
    cells = {(r["contender"], r["net"], r["batch"]): r for r in rows}

    def cell(name: str, case: tuple[str, int]) -> str:
        row = cells.get((name, *case))
        if row is None:
            return "-"
        text = f"{duration(row['seconds'])}, {row['ratio']:.2f}"
        return f"{text} ({row['ratio'] / row['copies']:.2f} a copy)" if row["copies"] > 1 else text

    head = ["a step, ratio", *(f"{net}, batch {batch:,}" for net, batch in cases)]
    return markdown(head, [[name, *(cell(name, case) for case in cases)] for name in names])


def cold(found: Result) -> str:
    """A row a contender: its process, its fit, and both over Pyro's."""
    base = next(r for r in found["rows"] if r["contender"] == found["base"])
    head = [f"{found['steps']:,} steps from cold", "whole process", "over Pyro's"]
    head += ["the fit in it", "over Pyro's", "-ELBO at its end, nats"]
    return markdown(
        head,
        [
            [
                r["contender"],
                duration(r["process_seconds"]),
                f"{r['process_seconds'] / base['process_seconds']:.2f}",
                duration(r["fit_seconds"]),
                f"{r['fit_seconds'] / base['fit_seconds']:.2f}",
                f"{r['loss']:.0f}" if "loss" in r else "",
            ]
            for r in found["rows"]
        ],
    )


def predict(found: Result) -> str:
    """A row a contender: one prediction, and how many times as long as ours it takes."""
    base = found["rows"][0]["seconds"]
    return markdown(
        ["contender", "one prediction", "quartiles", "over this package's"],
        [
            [
                r["contender"],
                duration(r["seconds"]),
                f"{duration(r['low'])} to {duration(r['high'])}",
                f"{r['seconds'] / base:.1f}",
            ]
            for r in found["rows"]
        ],
    )


def scaling(found: Result) -> str:
    """A row a curve: the smallest and largest case, the fitted exponent and the counted one."""
    return markdown(
        ["over", "contender", "smallest", "largest", "fitted over", "exponent", "counted"],
        [
            [
                r["over"],
                r["contender"],
                f"{duration(r['seconds'][0])} at {r['sizes'][0]:,}",
                f"{duration(r['seconds'][-1])} at {r['sizes'][-1]:,}",
                f"{r['fitted'][0]:,} to {r['fitted'][-1]:,}",
                f"{r['exponent']:.2f} ± {r['standard_error']:.2f}",
                str(r["counted"]),
            ]
            for r in found["rows"]
        ],
    )


TABLES: Mapping[str, Callable[[Result], str]] = {
    "svi": svi,
    "cold": cold,
    "predict": predict,
    "scaling": scaling,
}


GOALS = ("svi", "cold", "predict")


def goals(svi: Result, cold: Result, predict: Result) -> str:
    """The figures to reach beside the figures reached."""

    def line(what: str, value: float, bound: float, *, least: bool = False) -> list[str]:
        reached = value >= bound if least else value <= bound
        goal = f"{'at least' if least else 'at most'} {bound:g}"
        return [what, f"{value:.2f}", goal, "yes" if reached else "**no**"]

    lines = []
    for prefix, bound in (
        ("pyro_bnn, AutoNormal", 1.3),
        ("pyro_bnn, low rank 10", 2.0),
        ("pyro_bnn, rank-1 mixture of 4", 2.0),
    ):
        for r in (r for r in svi["rows"] if r["contender"] == prefix):
            each = " for each of the copies of its batch" if r["copies"] > 1 else ""
            what = f"{prefix}{each} over the deterministic step, {r['net']}, batch {r['batch']:,}"
            lines.append(line(what, r["ratio"] / r["copies"], bound))
    fits = {r["contender"]: r for r in cold["rows"]}
    mine, pyro = fits["pyro_bnn"], fits[cold["base"]]
    for key, what in (("process_seconds", "whole process"), ("fit_seconds", "fit without imports")):
        text = f"{cold['steps']:,} steps of 10-50-1 from cold over Pyro's, {what}"
        lines.append(line(text, mine[key] / pyro[key], 0.5))
    calls = {r["contender"]: r["seconds"] for r in predict["rows"]}
    speed = calls[predict["base"]] / predict["rows"][0]["seconds"]
    text = "Pyro's Predictive over this package, 1,000 draws at 1,000 rows"
    lines.append(line(text, speed, 20, least=True))
    return markdown(["what", "measured", "goal", "reached"], lines)


def duration(seconds: float) -> str:
    """Three significant figures in a fitting unit.

    Example:
        >>> duration(0.000123), duration(0.25), duration(12.3)
        ('0.123 ms', '250 ms', '12.3 s')
    """
    if seconds >= 1:
        return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
    milliseconds = seconds * 1e3
    if milliseconds < 0.1:
        return f"{seconds * 1e6:.3g} µs"
    return f"{milliseconds:.3g} ms" if milliseconds < 999.5 else "1.00 s"


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    every = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in every)
