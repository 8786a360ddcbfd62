"""How far do default fits end from the best ELBO that is known?

The best one known of a data set and a guide is the highest of runs of 200,000 steps, from several
starts, with outputs of layers drawn, or weights in batches. A default fit, and one of 10,000 steps
of all rows under one cosine, as the default was before fits ended by themselves, stand beside it. A
line of ``results/best_elbo.jsonl`` is one fit, and a run goes on where the last one stopped.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import _jsonl, _settings
from benchmarks._jsonl import Row

KEYS = ("data", "guide", "run", "seed")
PATH = _settings.RESULTS / "best_elbo.jsonl"
PAGE = Path(__file__).parent / "ELBO.md"
SETS = (
    "diabetes", "uci/boston", "uci/concrete", "uci/energy", "uci/yacht", "uci/wine-red",
    "uci/naval", "uci/protein", "breast-cancer", "digits", "groups", "funnel",
)  # fmt: skip
GUIDES = (
    "auto-normal", "auto-low-rank", "auto-multivariate", "auto-matrix", "auto-k-tied",
    "auto-mixture", "rank-1", "half-cauchy",
)  # fmt: skip
LONG = 200_000
RUNS: dict[str, dict[str, Any]] = {
    "default": {},
    "as before": {
        "num_steps": 10_000,
        "schedule": "cosine",
        "batch_size": 1 << 40,
        "estimator": "weight_sampling",
    },
    "long": {"num_steps": LONG, "schedule": "cosine"},
    "long, weights drawn": {
        "num_steps": LONG,
        "schedule": "cosine",
        "batch_size": 256,
        "estimator": "weight_sampling",
    },
}
STARTS = {"default": (0,), "as before": (0,), "long": (1, 2), "long, weights drawn": (3, 4)}
DRAWS = 4_000
MOST_WEIGHTS = 700  # of a full covariance
TOLERANCE, ERRORS = 1.0, 2.0  # nats, or standard errors, within which an ELBO is the best one


def fit(task: Row) -> Row:
    """One fit, as a line has it."""
    import torch

    import pyro_bnn as bnn

    torch.set_num_threads(1)
    train = _rows(task["data"])
    model = _model(task["data"], task["guide"], train)
    engine = bnn.SVI(_guide(task["guide"]), **RUNS[task["run"]])
    start = time.process_time()
    posterior = engine.run(model, train, seed=task["seed"], progress=False)
    seconds = time.process_time() - start
    elbo, error = posterior.elbo(train, DRAWS, seed=1)
    told = posterior.doubling
    return {
        "elbo": elbo,
        "error": error,
        "seconds": seconds,
        "steps": len(posterior.losses),
        "gain": None if told is None else told.gain,
        "gain_error": None if told is None else told.error,
        "rows": len(train),
        "weights": posterior.program.num_latents,
    }


def _rows(data: str) -> Any:
    import torch

    import pyro_bnn as bnn

    if data not in ("groups", "funnel"):
        split = bnn.data.load(data, split=0)
        return split.train
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(300, 4, generator=generator)
    scales = torch.tensor([1.0, 0.3, 0.03, 0.0]) if data == "groups" else torch.full((4,), 0.1)
    f = torch.tanh(x * 2) @ scales + (torch.sin(x[:, 0]) if data == "groups" else 0.0)
    y = f + 0.2 * torch.randn(300, generator=generator)
    return bnn.data.from_arrays(x, y, test_fraction=0.1, seed=0).train


def _model(data: str, guide: str, train: Any) -> Any:
    import pyro_bnn as bnn

    num_classes = train.num_classes
    is_images = data == "digits"
    width = train.x.shape[1]
    likelihood: Any = bnn.likelihoods.Normal()
    outputs = 1
    if num_classes is not None:
        likelihood = (
            bnn.likelihoods.Bernoulli()
            if num_classes == 2
            else bnn.likelihoods.Categorical(num_classes)
        )
    hidden = (10,) if is_images else (50,)
    if guide == "rank-1":
        return bnn.models.Rank1MLP(width, outputs, hidden=hidden, likelihood=likelihood)
    is_hierarchy = guide == "half-cauchy" or data in ("groups", "funnel")
    prior = bnn.priors.HalfCauchyScale() if is_hierarchy else bnn.priors.Normal()
    return bnn.models.MLP(width, outputs, hidden=hidden, prior=prior, likelihood=likelihood)


def _guide(name: str) -> Callable[..., Any]:
    from pyro_bnn import guides

    found: dict[str, Callable[..., Any]] = {
        "auto-normal": guides.AutoNormal,
        "half-cauchy": guides.AutoNormal,
        "auto-low-rank": guides.AutoLowRankMultivariateNormal,
        "auto-multivariate": guides.AutoMultivariateNormal,
        "auto-matrix": guides.AutoMatrixNormal,
        "auto-k-tied": guides.AutoKTiedNormal,
        "auto-mixture": functools.partial(guides.AutoNormalMixture, num_components=3),
        "rank-1": guides.AutoRank1Mixture,
    }
    return found[name]


def tasks(sets: Sequence[str], names: Sequence[str]) -> Iterator[Row]:
    """All fits: of each guide first the defaults and a long run, then the other long runs."""
    for place in (0, 1):
        for guide in names:
            for run, seeds in STARTS.items():
                for data in sets if place < len(seeds) else ():
                    yield {"data": data, "guide": guide, "run": run, "seed": seeds[place]}


def best(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, Any]]:
    """The highest ELBO of each pair of set and guide, and the run that has it."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        pair = row["data"], row["guide"]
        if "elbo" in row and row["elbo"] > found.get(pair, {"elbo": float("-inf")})["elbo"]:
            kept = ("elbo", "error", "run", "seed", "steps", "seconds")
            found[pair] = {key: row[key] for key in kept}
    for pair, one in found.items():
        own = [r for r in rows if (r["data"], r["guide"]) == pair and "elbo" in r]
        long = sorted(r["elbo"] for r in own if r["run"].startswith("long"))
        one["long_runs"] = len(long)
        one["spread_of_long_runs"] = long[-1] - long[0] if len(long) > 1 else None
    return found


def page(rows: Sequence[Row]) -> str:
    """The tables."""
    highest, lines = best(rows), list[str]()
    within = told = 0
    ratios = []
    for data in SETS:
        for guide in GUIDES:
            own = {r["run"]: r for r in rows if (r["data"], r["guide"]) == (data, guide)}
            one, default = highest.get((data, guide)), own.get("default")
            if one is None or default is None or "elbo" not in default or not one["long_runs"]:
                continue
            gap = one["elbo"] - default["elbo"]
            error = (one["error"] ** 2 + default["error"] ** 2) ** 0.5
            is_within = gap <= max(TOLERANCE, ERRORS * error)
            told, within = told + 1, within + is_within
            before = own.get("as before", {})
            cells = [data, guide, f"{default['elbo']:.1f} ± {default['error']:.1f}"]
            cells += [f"{before['elbo']:.1f}" if "elbo" in before else ""]
            cells += [f"{one['elbo']:.1f}", f"{gap:.1f}", "yes" if is_within else "no"]
            spread = one["spread_of_long_runs"]
            cells += ["" if spread is None else f"{spread:.1f} ({one['long_runs']})"]
            gain = default["gain"]
            cells += [f"{gain:.1f} ± {default['gain_error']:.1f}", f"{default['steps']:,}"]
            cells += [f"{default['seconds']:.1f}"]
            if "seconds" in before:
                ratios.append(default["seconds"] / before["seconds"])
                cells[-1] += f" ({before['seconds']:.1f})"
            lines.append(f"| {' | '.join(cells)} |")
    ratio = f"{statistics.median(ratios):.1f}" if ratios else "?"
    head = (
        "# How far default fits end from the best ELBO that is known\n\n"
        f"Of {told} pairs of a data set and a guide, {within} default fits end within "
        f"{TOLERANCE:g} nat or {ERRORS:g} errors of the best of runs of {LONG:,} steps. A default "
        f"fit takes {ratio} times the CPU seconds of 10,000 steps of all rows (median).\n\n"
        "Long runs of one guide from other starts end tens of nats apart on sets with little "
        "noise: their optima are local, and the best of several starts is a matter of chance. "
        'The column "spread" is the range of the long runs, with their number.\n\n'
        "Made by `python -m benchmarks.best_elbo --minutes M`; one thread a fit, "
        f"{_jsonl.processors([r for r in rows if 'cpu' in r]) if rows else ''}.\n\n"
    )
    columns = (
        "| set | guide | default | as before | best known | short by | within | spread | last "
        "doubling gained | steps | CPU seconds (before) |\n"
        f"|{' --- |' * 11}\n"
    )
    return head + columns + "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> None:
    """Fit what is missing in the time given, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.best_elbo", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="time for all fits (60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="fits at a time")
    parser.add_argument("--longest", type=float, default=900, help="seconds of a fit (900)")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=SETS)
    parser.add_argument("--guides", nargs="+", choices=GUIDES, default=GUIDES)
    parser.add_argument("--lines", type=Path, default=PATH, help="file of the fits")
    parser.add_argument("--page", type=Path, default=PAGE, help="file of the tables")
    given = parser.parse_args(argv)
    for line in _jsonl.fits(
        tasks(given.sets, given.guides), fit, given.lines, keys=KEYS, jobs=given.jobs,
        minutes=given.minutes, seconds=lambda task, rows: None, longest=given.longest,  # noqa: ARG005
    ):  # fmt: skip
        print(line, flush=True)
    rows = _jsonl.read(given.lines)
    given.page.write_text(page(rows))
    print(f"wrote {given.page}")
    if given.lines == PATH:
        command = f"python -m benchmarks.best_elbo --minutes {given.minutes:g} --jobs {given.jobs}"
        settings = _settings.Settings(1, 1, "cpu", quick=False, out=None, command=command)
        kept = [
            {"contender": guide, "data": data, **one}
            for (data, guide), one in sorted(best(rows).items())
        ]
        _settings.write(_settings.result("best_elbo", settings, kept), _settings.RESULTS)


if __name__ == "__main__":
    main()
