"""Tables of the README and the notes, made from the JSON so that they cannot differ from it."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._settings import RESULTS

PAGES = [Path(__file__).parent / name for name in ("README.md", "NOTES.md", "GPU.md")]
DEFAULT_CHAINS = 4  # of NUTS
REACHED = "yes"
Result = Mapping[str, Any]


def update(folder: Path) -> None:
    """Fill the pages' tables anew, where the results are those that they show."""
    if folder.resolve() == RESULTS.resolve():
        for page in PAGES:
            page.write_text(filled(page.read_text(), folder))


def filled(text: str, folder: Path) -> str:
    """The text with what stands between ``<!-- table: name -->`` and ``<!-- end -->`` made anew.

    Of a benchmark with several tables ``name 1 3`` are the first and the third; ``goals missed``
    are those that were not reached.
    """

    def table(match: re.Match[str]) -> str:
        name, part = match[1], match[2]
        marker = f"{name} {part}" if part else name
        return f"<!-- table: {marker} -->\n{made(name, folder, part)}\n<!-- end -->"

    markers = r"<!-- table: ([a-z-]+)(?: ([\d ]+|missed))? -->\n.*?<!-- end -->"
    return re.sub(markers, table, text, flags=re.DOTALL)


def made(name: str, folder: Path, part: str | None = None) -> str:
    """Tables of ``<name>.json``, or of ``goals``, which is made from several results."""
    paths = {own: folder / f"{own}.json" for own in (GOALS if name == "goals" else (name,))}
    found = {own: json.loads(p.read_text()) for own, p in paths.items() if p.exists()}
    missing = [own for own in paths if own not in found]
    texts = [f"Not measured yet: {', '.join(missing)}."] if missing else []
    if found and name == "goals":
        texts.insert(0, goals(found, only_missed=part == "missed"))
    elif found:
        texts.insert(0, _with_provenance(found[name], part))
    return "\n\n".join(texts)


def _with_provenance(found: Result, part: str | None) -> str:
    tables = TABLES[found["benchmark"]](found).split("\n\n")
    if part is not None:
        tables = [tables[int(number) - 1] for number in part.split()]
    return "\n\n".join([provenance(found), *tables])


def provenance(found: Result) -> str:
    """Machine, threads, versions, date and command in one sentence."""
    machine = found["machine"]
    where = machine["cpu"]
    if found["device"] == "cuda":
        where = f"{machine['gpu']} beside {where}"
    have = [f"{name} {v}" for name, v in found["versions"].items() if v != "not installed"]
    lack = [name for name, v in found["versions"].items() if v == "not installed"]
    missing = f"; not installed: {', '.join(lack)}" if lack else ""
    return (
        f"{where}, {machine['cores']} cores, {found['threads']} threads, Python "
        f"{machine['python']}, {', '.join(have)}{missing}; {found['date']}, `{found['command']}`."
    )


def default_fits(found: Result) -> str:
    """A row a problem and state of the caches."""
    head = ["network, rows of a step", "compile caches", "default `SVI`", "deterministic steps"]
    return markdown(
        [*head, "ratio"],
        [
            [
                f"{_rows_of(r)}, {r['steps']:,} steps",
                r["cache"],
                _span(r["seconds"], r["all_seconds"], duration),
                _span(r["base"], r["all_base"], duration),
                _with_range(r["ratio"], r["ratio_range"]),
            ]
            for r in found["rows"]
        ],
    )


def _rows_of(row: Mapping[str, Any]) -> str:
    """Network, and rows of a step."""
    all_rows = row["batch"] == row["num_data"]
    of = "all" if all_rows else f"{row['batch']:,} of"
    return f"{row['net']}, {of} {row['num_data']:,}"


def default_elbo(found: Result) -> str:
    """A row a guide, library and state of the caches."""
    head = ["guide", "library", "compile caches", "final ELBO, nats", "to within 1 nat of it"]
    head += ["to within 1 nat of Pyro's", "all steps"]
    return markdown(
        head,
        [
            [
                r["method"],
                r["contender"],
                r["cache"] or "none",
                f"{r['elbo']:.1f} ± {r['elbo_error']:.1f}"
                if r["elbo_error"]
                else f"{r['elbo']:.1f}",
                *(
                    "not reached" if r[key] is None else _span(r[key], _known(r, key), duration)
                    for key in ("seconds", "to_pyro", "whole")
                ),
            ]
            for r in found["rows"]
        ],
    )


def _known(row: Mapping[str, Any], key: str) -> list[float]:
    return [math.inf if value is None else value for value in row[f"all_{key}"]]


def default_phases(found: Result) -> str:
    """A row a method, compiled and not."""
    steps = found["rows"][0]["steps"]
    tenth = steps // 10
    head = ["guide", "compiled", f"a step of 1 to {tenth:,}", f"of {tenth:,} to {2 * tenth:,}"]
    head += [f"of {steps - tenth:,} to {steps:,}", "last over first", "last over second"]
    return markdown(
        head,
        [
            [
                r["contender"],
                "yes" if r["compiled"] else "no",
                *(duration(r[key]) for key in ("first", "second", "seconds")),
                f"{r['ratio']:.2f}",
                f"{r['ratio_past_setup']:.2f}",
            ]
            for r in found["rows"]
        ],
    )


def default_steps(found: Result) -> str:
    """A row a contender, and last for each guide the sum of what its step consists of."""
    rows = found["rows"]
    lines = [
        [
            r["contender"],
            duration(r["seconds"]),
            f"{duration(r['low'])} to {duration(r['high'])}",
            f"{r['ratio']:.2f}",
        ]
        for r in rows
    ]
    for guide in dict.fromkeys(guide for r in rows for guide in r["part_of"]):
        parts = [r for r in rows if guide in r["part_of"]]
        seconds, ratio = (sum(r[key] for r in parts) for key in ("seconds", "ratio"))
        lines.append([f"the sum of the parts, {guide}", duration(seconds), "", f"{ratio:.2f}"])
    return markdown(["a step", "time", "quartiles", "over the deterministic step"], lines)


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


def devices(found: Result) -> str:
    """A row a case: one step, prediction or run by where, and how much faster the GPU is."""
    seconds: dict[str, dict[str, float]] = {}
    for r in found["rows"]:
        seconds.setdefault(f"{r['case']}: a {r['unit']}", {})[r["contender"]] = r["seconds"]
    places = list(dict.fromkeys(r["contender"] for r in found["rows"]))
    others = [place for place in places if "GPU" in places and place != "GPU"]
    head = ["", *places, *(f"{place} over GPU" for place in others)]
    lines = []
    for title, of in seconds.items():
        times = [duration(of[place]) if place in of else "-" for place in places]
        ratios = [_ratio(of[place] / of["GPU"]) if place in of else "-" for place in others]
        lines.append([title, *times, *ratios])
    return markdown(head, lines)


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


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


def scaling_tables(found: Result) -> str:
    """A row a number of rows: seconds of each stage, and the peak of memory until its end."""
    stages = list(found["rows"][0]["stages"])
    lines = [
        [
            f"{r['rows']:,}",
            f"{r['bytes'] / 1e6:,.1f} MB",
            duration(r["parquet"]),
            *(f"{duration(s['seconds'])}, {s['peak_gb']:.2f} GB" for s in r["stages"].values()),
        ]
        for r in found["rows"]
    ]
    return markdown(["rows", "CSV", "read Parquet", *stages], lines)


def nuts(found: Result) -> str:
    """The ratios to each peer; then a row an entry, with its phases."""
    ratios = [
        [
            _case(r, found["nets"]),
            r["cache"],
            r["peer"],
            _with_range(r["time"], r["time_range"]),
            _with_range(r["speed"], r["speed_range"]),
            *(f"{value:.3f}" for value in r["rhat"]),
        ]
        for r in found["ratios"]
    ]
    head = ["posterior", "caches", "peer", "pyro_bnn's time over the peer's"]
    head += ["pyro_bnn's ESS/s over the peer's", "largest R-hat of ours", "of theirs"]
    first = markdown(head, ratios)
    head = ["posterior", "contender", "caches", "time", "smallest bulk ESS", "smallest tail ESS"]
    head += ["bulk ESS a second", "largest R-hat", "of which", "steps a draw", "diverging"]
    head += ["process start and imports"]
    rows = [
        [
            _case(r, found["nets"]),
            r["contender"],
            r["cache"] or "none",
            _span(r["seconds"], r["all_seconds"], duration),
            f"{r['ess']:,.0f}",
            f"{r['ess_tail']:,.0f}",
            _span(r["ess_per_second"], r["all_ess_per_second"], "{:.3g}".format),
            f"{r['rhat']:.3f}",
            ", ".join(f"{name} {duration(t)}" for name, t in r["phases"].items()) or "not told",
            "not told" if r["steps"] is None else f"{r['steps']:.1f}",
            "not told" if r["divergences"] is None else f"{r['divergences']:,.0f}",
            duration(r["import_seconds"]),
        ]
        for r in found["rows"]
    ]
    return f"{first}\n\n{markdown(head, rows)}"


def _case(row: Mapping[str, Any], nets: Mapping[str, str]) -> str:
    """Posterior, chains, warm-up and draws."""
    chains = f"{row['chains']} chain{'s' * (row['chains'] > 1)}"
    return f"{row['target']}, {nets[row['target']]}, {chains} of {row['warmup']} + {row['draws']:,}"


def _with_range(value: float, ends: Sequence[float]) -> str:
    return _span(value, ends, "{:.2f}".format)


def _span(value: float, values: Sequence[float], form: Callable[[float], str]) -> str:
    """A median and, in brackets, the range; one round has none."""
    low, high = min(values), max(values)
    return f"{form(value)} ({form(low)} to {form(high)})" if low < high else form(value)


def estimators(found: Result) -> str:
    """A row an estimator: variances at the last but one number of rows, and how they fall."""
    base = {r["net"]: r for r in found["rows"] if r["contender"] == "one draw for all rows"}
    batches = found["rows"][0]["batches"]
    place = len(batches) - 2
    head = ["network", "estimator", f"variance by the mean weights, B = {batches[place]}"]
    head += ["over one draw's", "first layer", "second layer", "by the scales, over one draw's"]
    lines = []
    for r in found["rows"]:
        value, error = (r[k][place] for k in ("mean_weights", "mean_weights_error"))
        parts = ("mean_weights", "first_layer", "second_layer", "scales")
        ratios = [f"{r[part][place] / base[r['net']][part][place]:.2g}" for part in parts]
        text = f"{value:.3g} ± {error:.2g}" if value else "0"
        last, first = r["mean_weights"][-1], r["mean_weights"][0]
        fall = f"{last / first:.2g}" if first else "0"
        lines.append([r["net"], r["contender"], text, *ratios, fall])
    return markdown([*head, f"B = {batches[-1]} over B = {batches[0]}"], lines)


def natural(found: Result) -> str:
    """A row a data set and engine: epochs and seconds to each ELBO."""
    head = ["data, nats a row below the long run", "engine", "rates", "a step"]
    head += ["epochs to the far one", "seconds", "epochs to the near one", "seconds"]
    lines = []
    for r in found["rows"]:
        data = f"{r['data']}, {' and '.join(f'{margin:g}' for margin in r['margins'])}"
        rates = ", ".join(f"{value:g}" for value in r["options"].values())
        cells = [data, r["contender"], rates, duration(r["seconds"])]
        for epochs, seconds in zip(r["epochs"], r["seconds_to"], strict=True):
            cells += [_median_of(epochs, "{:.0f}"), _median_of(seconds, "{:.2g}")]
        lines.append(cells)
    return markdown(head, lines)


def _median_of(values: Sequence[float | None], form: str) -> str:
    """Median and range; a seed that did not get there counts as the longest."""
    every = sorted(math.inf if value is None else value for value in values)
    texts = ["-" if math.isinf(value) else form.format(value) for value in every]
    return f"{texts[len(texts) // 2]} ({texts[0]} to {texts[-1]})"


def sgmcmc(found: Result) -> str:
    """Steps beside a deterministic one, then draws beside NUTS."""
    steps = [r for r in found["rows"] if r["part"] == "step"]
    draws = [r for r in found["rows"] if r["part"] != "step"]
    of_steps = markdown(
        ["network, rows of a step", "contender", "a step", "over a deterministic one"],
        [
            [
                r["case"],
                r["contender"],
                f"{duration(r['seconds'])} ({duration(r['low'])} to {duration(r['high'])})",
                f"{r['ratio']:.2f}",
            ]
            for r in steps
        ],
    )
    head = ["data", "method", "seconds", "beside", "its seconds", "distance of f"]
    head += ["between its halves", "ratio", "R-hat, ESS", "its R-hat, ESS", "temperature"]
    of_draws = markdown(
        head,
        [
            [
                r["case"],
                r["contender"],
                f"{r['seconds']:,.0f}",
                r["reference"],
                f"{r['reference_seconds']:,.0f}",
                f"{r['distance']:.4f}",
                f"{r['floor']:.4f}",
                f"{r['ratio']:.2f}",
                f"{r['rhat']:.3f}, {r['ess']:,.0f}",
                f"{r['reference_rhat']:.3f}, {r['reference_ess']:,.0f}",
                f"{r['temperature']:.3f}",
            ]
            for r in draws
        ],
    )
    return f"{of_steps}\n\n{of_draws}"


def ensembles(found: Result) -> str:
    """Members' cost, ensembles' scores, and what five directions gain, one under the other."""
    by_part: dict[str, list[Any]] = {"cost": [], "uci": [], "subspace": []}
    for r in found["rows"]:
        by_part[r["part"]].append(r)
    of_cost = markdown(
        ["10-50-1, 128 rows a step", "CPU seconds (range)", "over one fit"],
        [
            [
                r["contender"],
                f"{r['seconds']:.2f} ({r['low']:.2f} to {r['high']:.2f})",
                f"{r['ratio']:.2f}",
            ]
            for r in by_part["cost"]
        ],
    )
    of_uci = markdown(
        ["data, splits", "RMSE", "band of RMSE", "log score"],
        [
            [
                f"{r['case']}, {r['splits']}",
                f"{r['rmse']:.3f} ± {r['rmse_se']:.3f}",
                f"{r['band'][0]:g} to {r['band'][1]:g}",
                f"{r['log_score']:.3f} ± {r['log_score_se']:.3f}",
            ]
            for r in by_part["uci"]
        ],
    )
    of_subspace = markdown(
        ["boston, 1x50", "splits", "CPU seconds", "over NUTS", "log score", "gain over AutoDelta"],
        [
            [
                r["contender"],
                str(r["splits"]),
                f"{r['seconds']:.1f}",
                f"{r['share']:.3f}",
                f"{r['log_score']:.3f}",
                f"{r['gain']:.3f} ± {r['gain_se']:.3f}" if r["splits"] > 1 else f"{r['gain']:.3f}",
            ]
            for r in by_part["subspace"]
        ],
    )
    return f"{of_cost}\n\n{of_uci}\n\n{of_subspace}"


def heads(found: Result) -> str:
    """Seconds and memory of fits of heads, and how far probabilities differ."""

    def cells(row: Mapping[str, Any]) -> list[str]:
        if "failed" in row:
            return [row["failed"], "", "", ""]
        gap = row.get("gap")
        return [
            duration(row["seconds"]),
            duration(row["cpu"]),
            f"{row['peak_bytes'] / 2**30:.2f} GiB",
            "" if gap is None else f"{gap:.2g}",
        ]

    return markdown(
        [
            "head",
            "contender",
            "fit",
            "CPU time of it",
            "most memory of the process",
            "probit probabilities, largest difference",
        ],
        [[row["case"], row["contender"], *cells(row)] for row in found["rows"]],
    )


def laplace(found: Result) -> str:
    """Log scores beside those of a point estimate, then seconds."""

    def gain(row: Mapping[str, Any], which: str) -> str:
        value, error = row["gains"][which]
        return f"{value:+.3f} ± {error:.3f}"

    scores = markdown(
        [
            "data",
            "splits",
            "log score, Adam's point",
            "log score, mode",
            "linearised, gain on the mode",
            "on Adam's point",
            "on weights",
        ],
        [
            [
                r["case"],
                f"{r['splits']}",
                f"{r['means']['adam']:.3f}",
                f"{r['means']['mode']:.3f}",
                gain(r, "linearised, mode"),
                gain(r, "linearised, adam"),
                gain(r, "linearised, weights"),
            ]
            for r in found["rows"]
            if r["part"] == "uci"
        ],
    )
    costs = markdown(
        [
            "network",
            "contender",
            "CPU time of fit and predictive",
            "precision, largest relative difference",
        ],
        [
            [
                r["case"],
                r["contender"],
                f"{duration(r['seconds'])} ({duration(r['low'])} to {duration(r['high'])})",
                "" if r["gap"] is None else f"{r['gap']:.1g}",
            ]
            for r in found["rows"]
            if r["part"] == "cost"
        ],
    )
    warm = markdown(
        ["way to a posterior of diabetes", "CPU seconds in all", "ELBO"],
        [
            [
                r["contender"],
                f"{r['seconds']:.1f}",
                "" if r["elbo"] is None else f"{r['elbo']:.1f} ± {r['elbo_error']:.1f}",
            ]
            for r in found["rows"]
            if r["part"] == "warm"
        ],
    )
    return f"{scores}\n\n{costs}\n\n{warm}"


def posteriordb(found: Result) -> str:
    """Agreement with the reference, a row a posterior; speed beside the peers; a row an entry."""
    return "\n\n".join((_agreement(found), _beside(found), _entries(found)))


OURS = "pyro_bnn"


def _agreement(found: Result) -> str:
    """Ours and the best of NumPyro's, from filled caches, and Pyro's shorter chain."""
    head = ["posterior", "parameters"]
    for name in ("pyro_bnn", "NumPyro", "Pyro"):
        head += [f"{name}, z of means", "of sds", "R-hat"]
    lines = []
    for name, rows in _by_posterior(found).items():
        line = [name, f"{next(iter(rows.values()))['parameters']}"]
        for row in (rows.get((OURS, "filled")), _peer(rows, "filled"), rows.get(("Pyro", ""))):
            keys = {"z_mean": "{:.1f}", "z_sd": "{:.1f}", "rhat": "{:.3f}"}
            line += ["" if row is None else form.format(row[key]) for key, form in keys.items()]
        lines.append(line)
    return markdown(head, lines)


def _beside(found: Result) -> str:
    """Time and ESS a second of this package over those of its peers."""
    head = ["posterior", "caches", "pyro_bnn", "NumPyro", "time over NumPyro's"]
    head += ["ESS/s over NumPyro's", "time over Pyro's, scaled", "ESS/s over Pyro's, scaled"]
    lines = []
    for name, rows in _by_posterior(found).items():
        for cache in ("empty", "filled"):
            mine, peer = rows.get((OURS, cache)), _peer(rows, cache)
            if mine is None and peer is None:
                continue
            line = [
                name,
                cache,
                *("" if r is None else duration(r["seconds"]) for r in (mine, peer)),
            ]
            for other in (peer, rows.get(("Pyro", ""))):
                line += [
                    "" if mine is None or other is None else f"{mine[key] / other[key]:.2g}"
                    for key in ("seconds", "ess_per_second")
                ]
            lines.append(line)
    return markdown(head, lines)


def _entries(found: Result) -> str:
    head = [
        "posterior",
        "contender",
        "caches",
        "chains, warm-up, draws",
        "threads",
        "time",
        "of which",
    ]
    head += ["smallest bulk ESS", "bulk ESS a second", "largest R-hat", "worst z: mean", "sd"]
    head += ["gradients a draw", "diverging"]
    lines = [
        [
            r["name"],
            r["contender"],
            r["cache"] or "none",
            f"{r['chains']} x ({r['warmup']:,} + {r['draws']:,})",
            f"{r['threads']}",
            _span(r["seconds"], r["all_seconds"], duration),
            ", ".join(
                f"{phase} {duration(t)}"
                for phase, t in {"imports": r["import_seconds"], **r["phases"]}.items()
            ),
            f"{r['ess']:,.0f}",
            _span(r["ess_per_second"], r["all_ess_per_second"], "{:.3g}".format),
            f"{r['rhat']:.3f}",
            f"{r['z_mean']:.1f} ({r['worst'][0]})",
            f"{r['z_sd']:.1f} ({r['worst'][1]})",
            "not told" if r["steps"] is None else f"{r['steps']:.1f}",
            f"{r['divergences']:,.0f}",
        ]
        for r in found["rows"]
    ]
    return markdown(head, lines)


def _by_posterior(found: Result) -> dict[str, dict[tuple[str, str], Mapping[str, Any]]]:
    """Rows by posterior, then by contender and state of the caches."""
    names = dict.fromkeys(row["name"] for row in found["rows"])
    return {
        name: {(r["contender"], r["cache"]): r for r in found["rows"] if r["name"] == name}
        for name in names
    }


def _peer(
    rows: Mapping[tuple[str, str], Mapping[str, Any]], cache: str
) -> Mapping[str, Any] | None:
    """NumPyro's quicker way to run chains, with caches of one state."""
    ways = [r for (name, state), r in rows.items() if name.startswith("NumPyro") and state == cache]
    return min(ways, key=lambda row: float(row["seconds"]), default=None)


def samplers(found: Result) -> str:
    """Effective samples of many draws; time to an answer; MILE beside its members and NUTS."""
    tables = {"moons": _sampled, "diabetes": _answered, "uci": _members}
    parts = _parts(found)
    return "\n\n".join(table(parts[name]) for name, table in tables.items() if parts[name])


def _parts(found: Result) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of the two posteriors, and of all UCI sets."""
    rows = found["rows"]
    parts = {part: [r for r in rows if r["part"] == part] for part in ("moons", "diabetes")}
    return {**parts, "uci": [r for r in rows if r["part"] not in parts]}


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> float:
    """Of the rounds."""
    return float(statistics.median(row[key] for row in rows))


def _rounds(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of each contender."""
    names = dict.fromkeys(row["contender"] for row in rows)
    return {name: [row for row in rows if row["contender"] == name] for name in names}


def _of_numpyro(rows: Sequence[Mapping[str, Any]], key: str, best: Callable[..., float]) -> float:
    """A figure of NumPyro's best way of running its chains; NaN where it is not installed."""
    named = {n: v for n, v in _rounds(rows).items() if n.startswith("NumPyro")}
    return best((_median(values, key) for values in named.values()), default=math.nan)


def _phases(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {duration(t)}" for name, t in row["phases"].items()) or "not told"


def _sampled(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["two moons, 2-20-20-1", "time", "of which", "smallest bulk ESS", "bulk ESS a second"]
    head += ["over NumPyro's best", "gradients a draw", "ESS a gradient", "largest R-hat", "Var f"]
    best = _of_numpyro(rows, "ess_per_second", max)
    lines = [
        [
            f"{name}, {r[0]['chains']} x {r[0]['draws']:,}",
            duration(_median(r, "seconds")),
            _phases(r[0]),
            f"{_median(r, 'ess'):,.0f}",
            f"{_median(r, 'ess_per_second'):,.0f}",
            f"{_median(r, 'ess_per_second') / best:.2f}",
            f"{_median(r, 'steps'):.1f}",
            f"{_median(r, 'ess_per_gradient'):.4f}",
            f"{max(row['rhat'] for row in r):.4f}",
            f"{r[0]['variance_ratio']:.3f} ± {r[0]['variance_ratio_se']:.3f}",
        ]
        for name, r in _rounds(rows).items()
    ]
    return markdown(head, lines)


def _answered(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["diabetes, 10-50-1, 4 chains", "time to an answer", "over NumPyro's best", "of which"]
    head += ["draws a chain", "smallest bulk ESS", "largest R-hat", "gradients a draw"]
    best = _of_numpyro(rows, "seconds", min)
    lines = [
        [
            name,
            duration(_median(r, "seconds")) + " (none)" * (not all(row["is_answer"] for row in r)),
            f"{_median(r, 'seconds') / best:.2f}",
            _phases(r[0]),
            f"{_median(r, 'draws'):,.0f}",
            f"{_median(r, 'ess'):,.0f}",
            f"{max(row['rhat'] for row in r):.4f}",
            f"{_median(r, 'steps'):.1f}",
        ]
        for name, r in _rounds(rows).items()
    ]
    return markdown(head, lines)


def _members(rows: Sequence[Mapping[str, Any]]) -> str:
    head = ["set", "method", "log score", "less that of the members", "RMSE"]
    head += ["R-hat over chains", "within", "E of a step", "CPU seconds a split"]
    lines = [
        [
            f"{r['case']}, {r['splits']} splits",
            r["contender"],
            f"{r['log_score']:.3f} ± {r['log_score_se']:.3f}",
            f"{r['gain']:+.3f} ± {r['gain_se']:.3f}",
            f"{r['rmse']:.3f}",
            *(f"{r[key]:.2f}" if key in r else "" for key in ("rhat", "rhat_within")),
            f"{r['energy_variance']:.1g}" if "energy_variance" in r else "",
            f"{r['seconds']:,.0f}",
        ]
        for r in rows
    ]
    return markdown(head, lines)


TABLES: Mapping[str, Callable[[Result], str]] = {
    "default-fits": default_fits,
    "default-wide": default_fits,
    "default-elbo": default_elbo,
    "default-phases": default_phases,
    "default-steps": default_steps,
    "svi": svi,
    "cold": cold,
    "predict": predict,
    "devices": devices,
    "scaling": scaling,
    "scaling-tables": scaling_tables,
    "nuts": nuts,
    "estimators": estimators,
    "natural": natural,
    "sgmcmc": sgmcmc,
    "ensembles": ensembles,
    "laplace": laplace,
    "heads": heads,
    "samplers": samplers,
    "posteriordb": posteriordb,
}


def goals(found: Mapping[str, Result], *, only_missed: bool = False) -> str:
    """The figures to reach beside the figures reached, of what has been measured."""
    lines = [line for name, result in found.items() for line in GOALS[name](result)]
    lines = [line for line in lines if not only_missed or line[-1] != REACHED]
    return markdown(["what", "measured", "goal", "reached"], lines)


def default_fits_goals(found: Result) -> Iterator[list[str]]:
    """A default fit over as many deterministic steps."""
    for r in found["rows"]:
        text = f"default `SVI` over {r['steps']:,} deterministic steps, {_rows_of(r)}"
        bound = 3 if r["cache"] == "empty" else 1.5
        yield goal(f"{text}, caches {r['cache']}", r["ratio"], bound)


def default_phases_goals(found: Result) -> Iterator[list[str]]:
    """A late step over an early one."""
    for r in found["rows"]:
        how = "compiled" if r["compiled"] else "not compiled"
        worst = max(r["ratio"], r["ratio_past_setup"])
        yield goal(
            f"a step at the end of a fit over one at its start, {r['contender']}, {how}", worst, 1.2
        )


def svi_goals(found: Result) -> Iterator[list[str]]:
    """A step over the deterministic one; a wide network's of low rank moves 12 numbers a weight."""
    for prefix, bound in (
        ("pyro_bnn, AutoNormal", 1.3),
        ("pyro_bnn, low rank 10", 2.0),
        ("pyro_bnn, rank-1 mixture of 4", 2.0),
    ):
        for r in (r for r in found["rows"] if r["contender"] == prefix):
            each = " for each of the copies of its batch" if r["copies"] > 1 else ""
            what = f"{prefix}{each} over the deterministic step, {r['net']}, batch {r['batch']:,}"
            is_wide = "low rank" in prefix and r["net"] == "784-400-400-1"
            yield goal(what, r["ratio"] / r["copies"], 5.0 if is_wide else bound)


def cold_goals(found: Result) -> Iterator[list[str]]:
    """A whole fit over Pyro's."""
    fits = {r["contender"]: r for r in found["rows"]}
    mine, pyro = fits["pyro_bnn"], fits[found["base"]]
    for key, what in (("process_seconds", "whole process"), ("fit_seconds", "fit without imports")):
        text = f"{found['steps']:,} steps of 10-50-1 from cold over Pyro's, {what}"
        yield goal(text, mine[key] / pyro[key], 0.5)


def nuts_goals(found: Result) -> Iterator[list[str]]:
    """With few chains this package's time over NumPyro's, with many its ESS/s over each peer's."""
    for r in found["ratios"]:
        caches = f", caches {r['cache']}"
        if r["library"] == "numpyro" and r["chains"] == DEFAULT_CHAINS:
            text = f"NUTS, time over NumPyro's, {_case(r, found['nets'])}{caches}"
            yield goal(text, r["time"], 1 if r["cache"] == "empty" else 0.6)
        elif r["library"] == "pyro" or r["chains"] > DEFAULT_CHAINS:
            name, bounds = ("Pyro", {"empty": 30, "filled": 30})
            if r["library"] == "numpyro":
                name, bounds = "NumPyro", {"empty": 3, "filled": 5}
            text = f"NUTS, ESS/s over {name}, {_case(r, found['nets'])}{caches}"
            yield goal(text, r["speed"], bounds[r["cache"]], least=True)


def samplers_goals(found: Result) -> Iterator[list[str]]:
    """Samplers past NUTS over NumPyro's best NUTS, and MILE over its members."""
    parts = _parts(found)
    if rows := parts["moons"]:
        speeds = {name: _median(r, "ess_per_second") for name, r in _rounds(rows).items()}
        best, case = _of_numpyro(rows, "ess_per_second", max), "two moons, 16 chains of 200 + 2,000"
        yield goal(f"HMC, ESS/s over NumPyro's NUTS, {case}", speeds["HMC"] / best, 2.5, least=True)
        ratio = speeds["HMC"] / speeds["NUTS"]
        yield goal(f"HMC, ESS/s over our NUTS, {case}", ratio, 1.5, least=True)
        ratio = speeds["MCLMC"] / best
        yield goal(f"MCLMC, ESS/s over NumPyro's NUTS, {case}", ratio, 4, least=True)
        off = max(abs(r["variance_ratio"] - 1) for r in rows if r["contender"] == "MCLMC")
        yield goal(f"MCLMC, Var f over HMC's, less 1, {case}", off, 0.05)
    if rows := parts["diabetes"]:
        ratio = _median(_rounds(rows)["HMC"], "seconds") / _of_numpyro(rows, "seconds", min)
        yield goal("HMC, time to an answer over NumPyro's NUTS, diabetes, 4 chains", ratio, 0.5)
    for r in (r for r in parts["uci"] if r["contender"] == "MILE"):
        yield goal(f"MILE, log score less its members', {r['case']}", r["gain"], 0, least=True)


GOALS: Mapping[str, Callable[[Result], Iterator[list[str]]]] = {
    "default-fits": default_fits_goals,
    "default-wide": default_fits_goals,
    "default-phases": default_phases_goals,
    "svi": svi_goals,
    "cold": cold_goals,
    "nuts": nuts_goals,
    "samplers": samplers_goals,
}


def goal(what: str, value: float, bound: float, *, least: bool = False) -> list[str]:
    """A line of the table of goals: what is measured, how much, and whether that is enough."""
    reached = value >= bound if least else value <= bound
    wanted = f"{'at least' if least else 'at most'} {bound:g}"
    return [what, f"{value:.2f}", wanted, REACHED if reached else "**no**"]


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
