"""``RANK1.md`` out of the lines of fits: paired over images and seeds, nothing below its error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from scipy import stats

from benchmarks import _jsonl, _settings
from benchmarks._tables import markdown

Row: TypeAlias = dict[str, Any]
Case: TypeAlias = tuple[str, int, int, int, int]  # data, epochs, images: training, test, corrupted
Fits: TypeAlias = Mapping[str, Mapping[int, Row]]  # by method and seed
BASES = ("deterministic, rank-1 net, K = 1", "deterministic")
RANK1 = ("rank-1 Gaussian", "rank-1 Cauchy")
LEVEL = 0.05


def cases(rows: Sequence[Row]) -> dict[Case, dict[str, dict[int, Row]]]:
    """Fits by case, method and seed, without those that failed."""
    found: dict[Case, dict[str, dict[int, Row]]] = {}
    for row in rows:
        if "error" not in row and not math.isnan(row["log_score"]):
            images = row["train_rows"], row["test_rows"], row["corrupted_rows"]
            case = (row["data"], row["epochs"], *images)
            found.setdefault(case, {}).setdefault(row["method"], {})[row["seed"]] = row
    return found


class Estimate(NamedTuple):
    """A mean over seeds, of a number or of its paired difference to another method.

    Attributes:
        mean: The mean.
        error: Its standard error over images and seeds together.
        free: Degrees of freedom of the error: those over seeds, the fewest of its parts.
        each: The value of each seed, or of each data set.
    """

    mean: float
    error: float
    free: int
    each: Sequence[float]

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"

    @property
    def p_value(self) -> float:
        """Of no difference, two-sided, by Student's t; Welch's degrees of freedom would be liberal.

        They come near those of the images where three seeds happen to agree.
        """
        return float(2 * stats.t.sf(self.num_errors, self.free))

    @property
    def num_errors(self) -> float:
        """How many errors it is from 0; none where it is 0."""
        if self.mean == 0:
            return 0.0
        return abs(self.mean) / self.error if self.error else math.inf


def estimate(
    a: Mapping[int, Row], b: Mapping[int, Row] | None, groups: str, value: str
) -> Estimate:
    """A number of a method, or its paired difference to that of another.

    Args:
        a: Fits by seed.
        b: Fits of the other method; None for the number itself.
        groups: Key of its means over groups of images.
        value: Key of its mean.
    """
    seeds = sorted(a if b is None else set(a) & set(b))
    rows = [np.array(a[s][groups]) - (0.0 if b is None else np.array(b[s][groups])) for s in seeds]
    each = [a[s][value] - (0.0 if b is None else b[s][value]) for s in seeds]
    by_group = np.mean(rows, axis=0)
    images = by_group.var(ddof=1) / len(by_group)
    of_seeds = np.var(each, ddof=1) / len(each) if len(each) > 1 else 0.0
    free = (len(each) if len(each) > 1 else len(by_group)) - 1
    return Estimate(float(np.mean(each)), math.sqrt(images + of_seeds), free, each)


def over_data(estimates: Sequence[Estimate]) -> Estimate:
    """The mean over data sets, whose seeds have nothing to do with each other."""
    means = [each.mean for each in estimates]
    error = math.sqrt(sum(each.error**2 for each in estimates)) / len(estimates)
    return Estimate(float(np.mean(means)), error, min(each.free for each in estimates), means)


def paired(a: str, b: str, fits: Fits) -> Estimate | None:
    """Log score of a less that of b, over images and seeds; None below two seeds of both."""
    if len(set(fits.get(a, ())) & set(fits.get(b, ()))) < 2:
        return None  # one seed has no error over seeds
    return estimate(fits[a], fits[b], "groups", "log_score")


def verdict(a: str, b: str, found: Estimate, of: str) -> str:
    """Whether a beats b, by Student's t."""
    is_told = found.p_value <= LEVEL
    says = ("beats" if found.mean > 0 else "is behind") if is_told else "cannot be told from"
    return (
        f"- **{a} {says} {b}**: {found.mean:+.3f} ± {found.error:.3f} nats an image "
        f"({found.num_errors:.1f} errors, {len(found.each)} {of}, p = {found.p_value:.2g})."
    )


def _verdicts(found: Mapping[Case, Fits]) -> Iterator[str]:
    """What is said of the mean over data sets, then of each."""
    pairs = [(a, b) for a in RANK1 for b in BASES]
    pairs += [("rank-1 Cauchy", "rank-1 Gaussian")]
    pairs += [(a, f"ensemble, equal {cost}") for a in RANK1 for cost in ("passes", "epochs")]
    cases_of = {data: [case for case in found if case[0] == data] for data, *_ in found}
    largest = {data: found[max(own, key=_size)] for data, own in cases_of.items()}
    each = {pair: [paired(*pair, fits) for fits in largest.values()] for pair in pairs}
    full = {pair: over_data([e for e in of if e]) for pair, of in each.items() if all(of)}
    if len(largest) > 1 and full:
        yield f"Mean over {', '.join(largest)}:"
        yield "\n".join(verdict(*pair, mean, "data sets") for pair, mean in full.items())
    for case, fits in found.items():
        estimates = {pair: paired(*pair, fits) for pair in pairs}
        said = [verdict(*pair, own, "seeds") for pair, own in estimates.items() if own]
        yield f"{_case_words(case)}{':' if said else ': no verdicts before a second seed.'}"
        yield "\n".join(said)


def page(rows: Sequence[Row], tables: Mapping[str, str]) -> str:
    """The whole page."""
    return "\n\n".join(part for part in _parts(rows, tables) if part) + "\n"


def _parts(rows: Sequence[Row], tables: Mapping[str, str]) -> Iterator[str]:
    yield "# Is a rank-1 network worth more than its deterministic net, or an ensemble of its cost?"
    found = cases(rows)
    if not found:
        yield "No fit has been run yet: `python -m benchmarks.rank1`."
        return
    yield from _verdicts(found)
    yield _run_words(rows)
    for case, fits in found.items():
        yield f"## {_case_words(case)}"
        for table, title in (("methods", "Methods"), ("objectives", "Objectives and priors")):
            own = {m: f for m, f in fits.items() if tables.get(m) == table}
            if own:
                base = next((b for b in BASES if b in fits), next(iter(fits)))
                yield f"### {title}"
                yield _table(own, fits[base], base)
    missing = [m for m in tables if all(m not in fits for fits in found.values())]
    if missing:
        yield f"Not run yet: {', '.join(missing)}."
    failed = [row for row in rows if "error" in row]
    if failed:
        listed = "; ".join(f"{r['method']} on {r['data']}: {r['error'][:160]}" for r in failed[:8])
        yield f"{len(failed)} fits failed: {listed}."


def _size(case: Case) -> tuple[int, ...]:
    _, epochs, train, test, corrupted = case
    return train, epochs, test, corrupted


def _case_words(case: Case) -> str:
    data, epochs, train, test, corrupted = case
    text = f"{data}, {train:,} training images, {epochs} epochs, {test:,} test images"
    return f"{text}, {corrupted:,} of them corrupted" if corrupted else text


def _table(fits: Fits, base: Mapping[int, Row], base_name: str) -> str:
    head = ["method", "seeds", "log score, nats", f"to {base_name}, paired", "accuracy", "ECE"]
    head += ["floor", "corrupted log score", "paired", "accuracy", "ECE", "floor"]
    head += ["CPU seconds", "passes"]

    def mean(own: Mapping[int, Row], key: str) -> float:
        return float(np.mean([row[key] for row in own.values()]))

    order = sorted(fits, key=lambda m: -mean(fits[m], "log_score"))
    lines = []
    for name in order:
        own = fits[name]
        line = [name, str(len(own)), str(estimate(own, None, "groups", "log_score"))]
        same = own is base
        line.append("" if same else str(estimate(own, base, "groups", "log_score")))
        line += [f"{100 * mean(own, 'accuracy'):.1f} %"]
        line += [f"{mean(own, key):.3f}" for key in ("ece", "floor")]
        if all("c_groups" in row for row in (*own.values(), *base.values())):
            line.append(str(estimate(own, None, "c_groups", "c_log_score")))
            pair = estimate(own, base, "c_groups", "c_log_score")
            line.append("" if same else str(pair))
            line.append(f"{100 * mean(own, 'c_accuracy'):.1f} %")
            line += [f"{mean(own, key):.3f}" for key in ("c_ece", "c_floor")]
        else:
            line += [""] * 5
        line += [f"{mean(own, 'seconds'):.0f}", f"{mean(own, 'passes'):,.0f}"]
        lines.append(line)
    return markdown(head, lines)


def _listed_by_seed(done: Sequence[Row]) -> str:
    """CPU minutes of the fits of each seed, and of corrupting and predicting."""
    seconds: dict[int, float] = {}
    for row in done:
        own = row["seconds"] + row["other_seconds"]
        seconds[row["seed"]] = seconds.get(row["seed"], 0.0) + own
    return " + ".join(f"{seconds[seed] / 60:.0f}" for seed in sorted(seconds))


def _run_words(rows: Sequence[Row]) -> str:
    done = [row for row in rows if "error" not in row]
    one, machine, versions = done[0], _settings.machine(), _settings.versions()
    fits, rest = (sum(row[key] for row in done) / 60 for key in ("seconds", "other_seconds"))
    return (
        "Residual network of depth 8 and width 8, group normalisation, Adam at 0.01 with a cosine, "
        "64 new images a step for every method, KL brought in over 80 % of the steps, sds from "
        "0.001 (at 0.03 the draws of Cauchy factors keep a network from learning: 28 % of MNIST "
        "right in as many steps), means of factors around "
        "+1 with sd 0.1 or at random signs (under the wider prior N(1, 1)), "
        f"{one['draws']} draws. ± is one standard error over images and seeds together, of "
        f"differences paired. A verdict takes p of at most {LEVEL:g} by Student's t with the "
        "degrees of freedom of the seeds (one less than their number; with three seeds it takes "
        "4.3 errors), as an error over so few is a poor estimate; so does that of the mean over "
        "data sets, which has more and is given those of one. p is of each pair alone. "
        "ECE has equal-mass bins and stands beside its floor. Corrupted: mean over eight kinds and "
        "severities 1, 3, 5 of the first test images, the same noise for all.\n\n"
        f"What was run: {len(done)} fits, {fits:.1f} CPU minutes of fits and {rest:.1f} of "
        f"corrupting and predicting, together {_listed_by_seed(done)} by seed, one thread each, "
        "on a machine with other work, at times little and at times much: "
        f"{_jsonl.processors(rows)}; "
        f"{machine['cores']} cores, Python {machine['python']}, torch {versions['torch']}, "
        f"pyro-ppl {versions['pyro-ppl']}. "
        "`python -m benchmarks.rank1 --minutes M --jobs J` goes on from `results/rank1.jsonl`, "
        "with `--data fashion` on Fashion-MNIST. No "
        "figure compares with published ones: the images are parts, CIFAR-10's were decoded from "
        "JPEG, and the networks are small."
    )
