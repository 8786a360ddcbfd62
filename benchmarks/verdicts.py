"""How often verdicts of the report are given where they are false, and where they are true.

Every subject has a module in ``benchmarks/verdict_rates`` whose ``rows`` simulate reports and count
verdicts, by the package's own rules. The page ``benchmarks/verdict_rates/README.md`` is made from
what was counted.

    python -m benchmarks.verdicts                    # all of them, an hour or so
    python -m benchmarks.verdicts coverage ranking   # these, and the others as they were counted
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import json
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.special import betaincinv

from benchmarks import _tables, verdict_rates
from benchmarks.verdict_rates._rate import Rate

FOLDER = Path(verdict_rates.__file__).parent
SUBJECTS = [m.name for m in pkgutil.iter_modules([str(FOLDER)]) if not m.name.startswith("_")]
CONFIDENCE = 0.95
WITHOUT_RATE = {
    "ancestors": "draws of all islands that descend from fewer than 50 draws of the prior: a count "
    "of particles. The weight of a mode is then known to a seventh of itself or worse",
    "below zero": "one 95 % interval or more that reaches below zero, though no target is "
    "negative. By the predictions themselves, that none is has a chance of at most 1 %",
    "divergences": "one divergent draw or more: a count, without chance. Above 0.1 % of draws it "
    "is a defect of Reference. That it means a part of the posterior that is missed is not certain",
    "energy": "E-BFMI of a chain below 0.3: one of the defects that Reference counts together",
    "ess": "a bulk or tail ESS below 400: one of the defects that Reference counts together",
    "evidence spread": "a standard error of the log evidence over islands above 0.5 nats: its own "
    "size. Of 4 islands it is itself known to two fifths",
    "members": "R-hat over the members of an ensemble above 1.01: the number of Reference, whose "
    "rates are those of chains in one mode",
    "noise by mean": "a difference of coverages outside what 99 % of data sets of the posterior "
    "give, as of Coverage. A test counts at most one false report in twenty",
    "one map": "members of an ensemble whose functions have less than 1 / N of the variance of y, "
    "the share of a single parameter: a size, without chance, as the members are all there are",
    "rhat": "R-hat above 1.01: one of the defects that Reference counts together",
    "saturated trees": "more than 1 % of trees as large as allowed: a count, without chance",
    "short chains": "fewer than 8 draws a chain: a count, without chance",
    "stacked": "a posterior of stack_chains: what it is, without chance",
    "slow moves": "a correlation above 0.2 at more than a tenth of the temperatures: a count",
    "unchecked": "fewer than 96 steps in the last quarter of the accumulated learning rate, or no "
    "trace: a count, without chance",
}
"""Verdicts that have no rate of their own, and why."""
NOTES = {
    "sampler bias": "On these Gaussians it misses no run whose variances are more than 10 % off, "
    "and is given from about 8 % on: for these steps the energy errors give an upper bound. "
    "Posteriors that are not Gaussian were not counted.",
    "trend": "A fall of 1 nat over the window is found in 9 of 10 runs where the noise of a step "
    "is at most about 0.04 sqrt(T) nats, of T steps at a constant rate, and 0.01 sqrt(T) with a "
    "cosine. One-particle ELBOs of 10-50-1 on diabetes have noise of 21 nats: 10,000 steps with a "
    "cosine show a fall of 15 nats, and none of 1 or 5. So the report says beside each fit what "
    "could not be seen, and compares fits of one guide by their ELBOs, whose errors are below a "
    "nat.",
}
"""What the rates of a verdict come to."""

Counted = dict[str, list[dict[str, Any]]]


def count(subjects: Iterable[str], *, quick: bool = False) -> Counted:
    """Simulate these subjects; rows of their rates by subject."""
    found: Counted = {}
    for subject in subjects:
        module = importlib.import_module(f"{verdict_rates.__name__}.{subject}")
        found[subject] = []
        for rate in module.rows(quick=quick):
            found[subject].append(dataclasses.asdict(rate))
            print(f"{rate.verdict}: {share(rate)} in {rate.setting}", flush=True)
    return found


def share(rate: Rate) -> str:
    """The share of simulated reports that had the verdict, with its 95 % interval.

    That of Clopper and Pearson.
    """
    given, others, tail = rate.given, rate.simulated - rate.given, (1 - CONFIDENCE) / 2
    low = betaincinv(given, others + 1, tail) if given else 0.0
    high = betaincinv(given + 1, others, 1 - tail) if others else 1.0
    return (
        f"{100 * rate.given / rate.simulated:.1f} % ({100 * low:.1f} to {100 * high:.1f} %) "
        f"of {rate.simulated:,}"
    )


def page(counted: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Every verdict in Markdown: what it measures, its threshold, its false alarms, its power."""
    rates = [Rate(**row) for subject in SUBJECTS for row in counted.get(subject, [])]
    parts = [INTRODUCTION]
    for verdict, group in itertools.groupby(
        sorted(rates, key=lambda rate: rate.verdict), key=lambda rate: rate.verdict
    ):
        of_verdict = list(group)
        parts.append(f"## {verdict.upper() if len(verdict) == 3 else verdict.capitalize()}")
        by_rule: dict[tuple[str, str], list[Rate]] = {}
        for rate in of_verdict:
            by_rule.setdefault((rate.measures, rate.threshold), []).append(rate)
        for (measures, threshold), cases in by_rule.items():
            parts.append(f"Measures {measures}. Speaks {threshold}.")
            lines = [
                [
                    rate.setting,
                    "" if rate.is_true else share(rate),
                    share(rate) if rate.is_true else "",
                    f"{rate.seed}",
                ]
                for rate in cases
            ]
            parts.append(_tables.markdown(["case", "false alarms", "found", "seed"], lines))
        if note := NOTES.get(verdict):
            parts.append(note)
    parts.append("## Without a rate of their own")
    reasons = [[kind, why] for kind, why in WITHOUT_RATE.items()]
    parts.append(_tables.markdown(["verdict", "where it speaks, and why it has none"], reasons))
    missing = [subject for subject in SUBJECTS if not counted.get(subject)]
    if missing:
        parts.append(f"Not counted yet: {', '.join(missing)}.")
    return "\n\n".join(parts) + "\n"


INTRODUCTION = """# Verdicts: false alarms and power

What each verdict of the report measures, where it speaks, how often it is given in simulated cases
in which it is false, and how often in those in which it is true, with the 95 % interval of Clopper
and Pearson. Made by `python -m benchmarks.verdicts`, which simulates by the package's own rules; a
test holds this page to `rates.json`. The last table has the verdicts that have no simulation."""


def main(argv: Sequence[str] | None = None) -> Counted:
    """Count, print, and write ``rates.json`` and the page made from it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.verdicts", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("subjects", nargs="*", help=f"of {', '.join(SUBJECTS)}; all of them")
    parser.add_argument(
        "--quick", action="store_true", help="a smoke test; nothing is written without --out"
    )
    parser.add_argument("--out", type=Path, help="folder of the page (benchmarks/verdict_rates)")
    options = parser.parse_args(argv)
    if unknown := set(options.subjects) - set(SUBJECTS):
        parser.error(f"{', '.join(sorted(unknown))}: the subjects are {', '.join(SUBJECTS)}")
    counted = count(options.subjects or SUBJECTS, quick=options.quick)
    folder = options.out or (None if options.quick else FOLDER)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "rates.json"
        before: Counted = json.loads(path.read_text()) if path.exists() else {}
        counted = {**before, **counted}
        path.write_text(json.dumps(counted, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        (folder / "README.md").write_text(page(counted))
        print(f"wrote {path}")
    return counted


if __name__ == "__main__":
    main()
