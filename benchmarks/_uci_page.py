"""``UCI.md`` out of the lines of fits: tables, paired errors, published rows, an answer."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import scipy.stats

from benchmarks import _jsonl, _settings
from benchmarks._tables import markdown
from pyro_bnn.diagnostics.max_t import FAMILY_WISE_ERROR
from pyro_bnn.report.splits.statistics import MIN_SPLITS, behind_over_splits, over_splits

Row: TypeAlias = dict[str, Any]
Fits: TypeAlias = Mapping[str, Mapping[int, Row]]  # of one data set, by method and split

BANDS: Mapping[str, tuple[float, float]] = {  # of RMSE, of sound untuned fits of this network
    "uci/yacht": (0.6, 1.6),
    "uci/boston": (2.8, 3.7),
    "uci/energy": (0.5, 1.4),
    "uci/concrete": (4.8, 6.3),
    "uci/wine-red": (0.61, 0.67),
}
SOURCES = (
    "PBP (se; Hernandez-Lobato & Adams 2015)",
    "MC dropout (sd; Gal & Ghahramani 2016)",
    "MC dropout (se; its code of 2018)",
    "deep ensemble, M = 5 (sd; Lakshminarayanan et al. 2017)",
    "mean field by Pyro's SVI (sd; an independent README)",
)
RMSE: Mapping[str, Sequence[str]] = {
    "uci/yacht": ("1.02 (.05)", "1.11 (.38)", "0.67 (.05)", "1.58 (.48)", "1.32 (.32)"),
    "uci/boston": ("3.01 (.18)", "2.97 (.85)", "2.90 (.18)", "3.28 (1.00)", "3.21 (.86)"),
    "uci/energy": ("1.80 (.05)", "1.66 (.19)", "0.54 (.014)", "2.09 (.29)", "1.12 (.29)"),
    "uci/concrete": ("5.67 (.09)", "5.23 (.53)", "4.83 (.16)", "6.03 (.58)", "5.81 (.54)"),
    "uci/wine-red": (".64 (.01)", ".62 (.04)", ".62 (.01)", ".64 (.04)", ".637 (.035)"),
    "uci/naval": (".01", ".01", ".0007", ".00", ".002"),
    "uci/protein": ("4.73 (.01)", "4.36 (.04)", "4.27 (.02)", "4.71 (.06)", "4.61 (.03)"),
}
LOG_SCORE: Mapping[str, Sequence[str]] = {
    "uci/yacht": ("-1.63 (.02)", "-1.55 (.12)", "-1.25 (.02)", "-1.18 (.21)", "-1.62 (.06)"),
    "uci/boston": ("-2.57 (.09)", "-2.46 (.25)", "-2.40 (.04)", "-2.41 (.25)", "-2.63 (.39)"),
    "uci/energy": ("-2.04 (.02)", "-1.99 (.09)", "-1.21 (.005)", "-1.38 (.22)", "-1.58 (.22)"),
    "uci/concrete": ("-3.16 (.02)", "-3.04 (.09)", "-2.94 (.02)", "-3.06 (.18)", "-3.29 (.18)"),
    "uci/wine-red": ("-.97 (.01)", "-.93 (.06)", "-.93 (.01)", "-.94 (.12)", "-.97 (.06)"),
    "uci/naval": ("3.73 (.01)", "3.80 (.05)", "4.45 (.002)", "5.63 (.05)", "4.38 (.02)"),
    "uci/protein": ("-2.97", "-2.89 (.01)", "-2.87 (.001)", "-2.83 (.02)", "-2.95 (.01)"),
}
ELSEWHERE = (
    "TabPFN v2 and bde (scikit-learn-contrib, a microcanonical ensemble of 10 networks 4x16) print "
    "figures in bde's code for airfoil and bike, which are none of the seven sets, in other units "
    "(standardised; lower is better; NLL / RMSE / seconds on 10 cores): airfoil bde -.913 (.013) / "
    ".122 / 235-246, TabPFN v2 -.934 (.020) / .136 / 9, a deep ensemble .176 / .365 / 20; bike bde "
    "-.732 / .226 / 2,350-2,770, TabPFN v2 -.686 / .210 / 1,245, the ensemble -.455 / .288 / 39. "
    "They cannot be set beside the rows above, and no figure of theirs on the seven sets has been "
    "read in code."
)


def by_set(rows: Sequence[Row]) -> dict[str, dict[str, dict[int, Row]]]:
    """Fits by data set, method and split; those with an error or a NaN are not among them."""
    found: dict[str, dict[str, dict[int, Row]]] = {}
    for row in rows:
        if "error" not in row and not math.isnan(row["log_score"]):
            found.setdefault(row["data"], {}).setdefault(row["method"], {})[row["split"]] = row
    return found


def shared_splits(fits: Fits) -> list[int]:
    """The splits that most fits can be compared on: from the first to the best last one.

    A later end leaves out methods that were not run so far, an earlier one their other splits.
    """
    every = sorted(set().union(*fits.values()))

    def num_fits(end: int) -> int:
        return end * sum(set(every[:end]) <= set(own) for own in fits.values())

    return every[: max(range(1, len(every) + 1), key=num_fits)]


class Compared:
    """Methods of one data set on the same splits.

    Attributes:
        splits: The splits.
        fits: Methods that have them all, the highest mean log score first.
        others: Methods that do not, with their number of splits.
        p: Family-wise p-value by method of "no method is better".
    """

    def __init__(self, fits: Fits) -> None:
        self.splits = shared_splits(fits)
        complete = {m: f for m, f in fits.items() if set(self.splits) <= set(f)}
        self.others = {m: len(f) for m, f in fits.items() if m not in complete}
        order = sorted(complete, key=lambda m: -statistics.fmean(self._of(complete[m])))
        self.fits = {m: [complete[m][k] for k in self.splits] for m in order}
        one = self.fits[order[0]][0]
        self.correction = one["test_rows"] / one["train_rows"]
        scores = [[np.array([v]) for v in self.values(m, "log_score")] for m in order]
        self.p = dict(zip(order, behind_over_splits(scores, self.correction), strict=True))

    def _of(self, fits: Mapping[int, Row]) -> list[float]:
        return [fits[k]["log_score"] for k in self.splits]

    def values(self, method: str, key: str) -> list[float]:
        """A number of each split."""
        return [row[key] for row in self.fits[method]]

    def mean(self, method: str, key: str) -> tuple[float, float]:
        """Mean over splits and its standard error."""
        found = over_splits([np.array([v]) for v in self.values(method, key)])
        return found.mean, found.standard_error

    def to_best(self, method: str) -> tuple[float, float]:
        """Paired difference of log scores to the best method, with the corrected error."""
        best = self.values(next(iter(self.fits)), "log_score")
        pairs = zip(self.values(method, "log_score"), best, strict=True)
        found = over_splits([np.array([a - b]) for a, b in pairs], self.correction)
        return found.mean, found.standard_error

    def may_lose(self, method: str, bounds: int) -> float:
        """How far, nats a row, its mean log score lies below that of the one that scored best.

        An upper bound, one-sided, at a level that holds for so many bounds at once; 0 for the one
        that scored best itself, though another may be better in truth.
        """
        if method == next(iter(self.fits)):
            return 0.0
        mean, error = self.to_best(method)
        t = float(scipy.stats.t.ppf(1 - FAMILY_WISE_ERROR / bounds, len(self.splits) - 1))
        return -mean + t * error

    def is_behind(self, method: str) -> bool:
        """Whether another method is shown to be better."""
        return bool(self.p[method] <= FAMILY_WISE_ERROR)

    def ranks(self) -> dict[str, float]:
        """Mean place by log score within each split, 1 the best."""
        table = np.array([self.values(m, "log_score") for m in self.fits])  # [K, J]
        places = (-table).argsort(0).argsort(0) + 1
        return dict(zip(self.fits, places.mean(1).tolist(), strict=True))


def _pm(pair: tuple[float, float], digits: int = 3) -> str:
    value, error = pair
    text = f"{value:.{digits}f}"
    return text if math.isnan(error) else f"{text} ± {error:.{digits}f}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"


def _nats(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def _gained(fits: Sequence[Row]) -> str:
    """Nats of ELBO that the second half of the steps gained, median; blank where unknown."""
    gains = [row.get("gain") for row in fits]
    found = [gain for gain in gains if gain is not None]
    return f"{statistics.median(found):.1f}" if len(found) == len(gains) else ""


def _table(compared: Compared) -> str:
    head = ["method", "log score, nats", "to the best, paired", "behind", "RMSE"]
    head += ["coverage of 95 %", "width", "last doubling gained", "CPU seconds"]
    digits = 5 if abs(compared.mean(next(iter(compared.fits)), "rmse")[0]) < 0.05 else 3
    lines = []
    for place, name in enumerate(compared.fits):
        gap = "" if not place else _pm(compared.to_best(name))
        p = compared.p[name]
        lines.append(
            [
                name,
                _pm(compared.mean(name, "log_score")),
                gap,
                f"yes, p {_p(p)}" if compared.is_behind(name) else "",
                _pm(compared.mean(name, "rmse"), digits),
                f"{100 * compared.mean(name, 'coverage')[0]:.1f} %",
                f"{compared.mean(name, 'width')[0]:.3g}",
                _gained(compared.fits[name]),
                f"{statistics.median(compared.values(name, 'seconds')):.1f}",
            ]
        )
    return markdown(head, lines)


def _published(data: str) -> str:
    head = ["published", "RMSE", "log score"]
    rows = zip(SOURCES, RMSE[data], LOG_SCORE[data], strict=True)
    return markdown(head, [list(row) for row in rows])


def _bands(name: str, compared: Compared) -> str:
    if name not in BANDS:
        return ""
    low, high = BANDS[name]
    rmse = {m: compared.mean(m, "rmse")[0] for m in compared.fits}
    outside = [f"{m} ({v:.3g})" for m, v in rmse.items() if not low <= v <= high]
    text = f"The band of RMSE of sound untuned fits of this network is {low:g} to {high:g}"
    return f"{text}; outside it: {', '.join(outside)}." if outside else f"{text}; all are inside."


def judged(sets: Mapping[str, Compared]) -> dict[str, Compared]:
    """Those with splits enough to have an error over them."""
    return {name: one for name, one in sets.items() if len(one.splits) >= MIN_SPLITS}


def overall(sets: Mapping[str, Compared]) -> dict[str, dict[str, float]]:
    """Of the methods on every set: the most they may lose, sets they are behind on, ranks, seconds.

    ``may_lose`` is the bound of the worst set, at a level for all sets together. Ranks are among
    these methods' places; ``rank_gap`` is the paired difference of the mean rank to that of the
    first, with its error over sets.
    """
    common = set.intersection(*(set(c.fits) for c in sets.values()))
    ranks = {m: np.array([c.ranks()[m] for c in sets.values()]) for m in common}
    order = sorted(common, key=lambda m: float(ranks[m].mean()))
    found = {}
    for name in order:
        gaps = ranks[name] - ranks[order[0]]
        error = float(gaps.std(ddof=1) / math.sqrt(len(gaps))) if len(gaps) > 1 else math.nan
        seconds = [statistics.median(c.values(name, "seconds")) for c in sets.values()]
        found[name] = {
            "may_lose": max(c.may_lose(name, len(sets)) for c in sets.values()),
            "behind": sum(c.is_behind(name) for c in sets.values()),
            "rank": float(ranks[name].mean()),
            "rank_gap": float(gaps.mean()),
            "rank_gap_se": error,
            "seconds": statistics.fmean(seconds),
        }
    return found


def answer(sets: Mapping[str, Compared], methods: Sequence[str] = ()) -> str:
    """What the paired errors carry, and no more; of all methods those that it cannot speak of."""
    sets = judged(sets)
    if not sets:
        return (
            f"No set has {MIN_SPLITS} splits yet, so that there is no standard error over splits: "
            "no method is said to be behind."
        )
    found, count = overall(sets), len(sets)
    behind = {m: int(v["behind"]) for m, v in found.items() if v["behind"]}
    front: list[str] = []  # cheap ones first, each less to lose than all before it
    for m in sorted(found, key=lambda m: found[m]["seconds"]):
        if all(found[m]["may_lose"] < found[other]["may_lose"] for other in front):
            front.append(m)
    words = [
        f"`{m}` {_nats(found[m]['may_lose'])} nats ({found[m]['seconds']:.0f} s)" for m in front
    ]
    safest = front[-1]
    level = f"{100 * (1 - FAMILY_WISE_ERROR):.0f} %"
    texts = [
        f"**`{safest}` can lose least**, of {len(found)} methods on all {count} sets: on none is "
        f"its mean log score more than {_nats(found[safest]['may_lose'])} nats a row below the "
        f"one that scored best there (paired bound, {level} for all sets together), for "
        f"{found[safest]['seconds']:.0f} CPU seconds a fit."
    ]
    if len(front) > 1:
        texts.append(
            f"**The cheaper, the more can be lost**: {', '.join(words)}. Every other method costs "
            "more than one of these that can lose no more."
        )
    if behind:
        listed = ", ".join(f"`{m}` on {n}" for m, n in sorted(behind.items(), key=lambda i: i[1]))
        texts.append(f"Shown to be behind some other method: {listed}.")
    if missing := [f"`{m}`" for m in methods if m not in found]:
        texts.append(f"Not run on all of them, and perhaps better: {', '.join(missing)}.")
    texts.append(
        "On a set where a method scored best itself it counts as losing nothing, though another "
        "may be better in truth. A large bound is a loss that was seen, or splits that differ so "
        "much that none can be excluded. The log score hardly sees the epistemic part of the "
        "uncertainty where noise dominates."
    )
    return "\n\n".join(texts)


def page(rows: Sequence[Row], methods: Sequence[str] = ()) -> str:
    """The whole page, of all methods that there are."""
    return "\n\n".join(part for part in _parts(rows, methods) if part) + "\n"


def _parts(rows: Sequence[Row], methods: Sequence[str]) -> Iterator[str]:
    sets = {name: Compared(fits) for name, fits in by_set(rows).items()}
    yield "# Which method should I start with? UCI regression, every method at its defaults"
    if not sets:
        yield "No fit has been run yet: `python -m benchmarks.uci`."
        return
    yield answer(sets, methods)
    yield _run_words(rows, sets)
    errors = judged(sets)
    lines = [
        [
            name,
            _nats(v["may_lose"]),
            f"{int(v['behind'])} of {len(errors)}",
            f"{v['rank']:.1f}",
            "" if not v["rank_gap"] else _pm((v["rank_gap"], v["rank_gap_se"]), 1),
            f"{v['seconds']:.1f}",
        ]
        for name, v in (overall(errors) if errors else {}).items()
    ]
    yield f"## Over the {len(errors)} sets with at least {MIN_SPLITS} splits"
    head = [
        "method",
        "may lose, nats",
        "behind on",
        "mean rank",
        "to the first, paired over sets",
        "CPU seconds",
    ]
    yield markdown(head, lines)
    for name, compared in sets.items():
        one = next(iter(compared.fits.values()))[0]
        yield f"## {name}"
        yield (
            f"{len(compared.splits)} splits ({', '.join(map(str, compared.splits))}), "
            f"{one['train_rows']:,} training and {one['test_rows']:,} test rows."
        )
        yield _table(compared)
        if compared.others:
            listed = ", ".join(f"{m} ({n})" for m, n in compared.others.items())
            yield f"With fewer splits, and so not compared: {listed}."
        yield _bands(name, compared)
        yield _published(name)
    yield "## Other published figures"
    yield ELSEWHERE


def _run_words(rows: Sequence[Row], sets: Mapping[str, Compared]) -> str:
    machine = _settings.machine()
    versions = _settings.versions()
    minutes = sum(row.get("seconds", 0.0) for row in rows) / 60
    failed = [row for row in rows if "error" in row]
    words = (
        "One hidden layer of 50 ReLU units (100 for protein), fan-in Gaussian prior, Normal noise "
        "of learned scale; each method with the options of its class and nothing tuned, seed = "
        "number of the split; published splits, inputs and target standardised by the training "
        "rows, scores in the units of the data. Log score: mean log of the predictive density, the "
        "mean over draws (no moment-matched Gaussian). ± is one standard error over splits; that "
        "of differences is paired and carries Nadeau and Bengio's correction for splits that share "
        "rows. A method is behind where a step-down max-t test over all pairs says so, at a "
        f"family-wise error of {100 * FAMILY_WISE_ERROR:.0f} %.\n\n"
        f"What was run: {len(rows) - len(failed)} fits on {len(sets)} of the seven sets, "
        f"{minutes:.0f} CPU minutes of fits in all, one thread each, on a machine with other work "
        f"(so CPU seconds, not wall time): {_jsonl.processors(rows)}; {machine['cores']} cores, "
        f"Python {machine['python']}, torch {versions['torch']}, pyro-ppl {versions['pyro-ppl']}. "
        "`python -m benchmarks.uci --minutes M --jobs J` goes on from `results/uci.jsonl` and "
        "makes this page again; `--sets`, `--methods` and `--splits` choose. Lines without "
        "`gain` are of defaults that took a fixed number of steps, 10,000 of a guide, whether or "
        "not it had converged; [how far such fits end from the best ELBO](ELBO.md)."
    )
    if failed:
        listed = "; ".join(f"{r['method']} on {r['data']}: {r['error'][:120]}" for r in failed[:6])
        words += f"\n\n{len(failed)} fits failed: {listed}."
    return words
