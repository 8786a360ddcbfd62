"""Is a rank-1 network worth more than its deterministic net, and than an ensemble of its cost?

Residual networks of depth 8 and width 8 on parts of MNIST, Fashion-MNIST and CIFAR-10 (decoded from
JPEG: its figures compare with nothing published), after Dusenberry et al., "Efficient and Scalable
Bayesian Neural Nets with Rank-1 Factors", ICML 2020, arXiv:2005.07186. Every step of every method
sees as many new images; a rank-1 network of K = 4 makes four passes over them. A line of
``results/rank1.jsonl`` is one fit, and a run goes on where the last one stopped.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import _jsonl, _rank1_page
from benchmarks._jsonl import Row

SIZES = {"mnist": (10_000, 2_000), "fashion": (3_000, 615), "cifar": (10_000, 2_000)}
K = 4
BATCH = 64
DEPTH, WIDTH = 8, 8
DRAWS = 16  # of every method that has any number; a multiple of K
KEYS = ("data", "method", "seed", "epochs", "train_rows", "test_rows", "corrupted_rows")
PATH = Path(__file__).parent / "results" / "rank1.jsonl"
PAGE = Path(__file__).parent / "RANK1.md"
SEVERITIES = (1, 3, 5)
CONDITIONS = 8 * len(SEVERITIES)
GROUPS = 50  # of images at most, whose means are kept for paired errors
WARMUP = 0.8  # share of the steps over which the KL comes in


@dataclass(frozen=True)
class Contender:
    """A row of the page.

    Attributes:
        engine: Of the number of steps.
        rank1: Whether the network is one of rank-1 factors.
        model: Options of that network.
        passes: Passes over a batch a step.
        table: Which table it stands in.
    """

    engine: Callable[[int], Any]
    rank1: bool = False
    model: Callable[[], dict[str, Any]] = dict
    passes: float = 1.0
    table: str = "methods"


def _svi(guide: Any, steps: int, kl: bool = True, **options: Any) -> Any:
    import functools

    import pyro_bnn as bnn

    warmup: dict[str, Any] = {"kl_warmup": int(WARMUP * steps)} if kl else {}
    made = functools.partial(guide, **options) if options else guide
    return bnn.SVI(made, num_steps=steps, batch_size=BATCH, **warmup)


def _guide(name: str, kl: bool = True, **options: Any) -> Callable[[int], Any]:
    def engine(steps: int) -> Any:
        import pyro_bnn as bnn

        return _svi(getattr(bnn.guides, name), steps, kl, **options)

    return engine


def _engine(name: str, share: float = 1.0, **options: Any) -> Callable[[int], Any]:
    def engine(steps: int) -> Any:
        import pyro_bnn as bnn

        made = getattr(bnn, name)
        return made(num_steps=max(1, int(share * steps)), batch_size=BATCH, **options)

    return engine


def _swag(steps: int) -> Any:
    """Adam for three quarters of the steps, then SGD for the others, of which it takes iterates."""
    import pyro_bnn as bnn

    count = 20
    thin = max(1, steps // (4 * count))
    return bnn.SWAG(
        num_steps=max(0, steps - count * thin), num_iterates=count, thin=thin, batch_size=BATCH
    )


def _prior(name: str, loc: float, scale: float) -> Callable[[], dict[str, Any]]:
    def options() -> dict[str, Any]:
        import pyro_bnn as bnn

        return {"prior": getattr(bnn.priors, name)(loc=loc, scale=scale)}

    return options


def _on(side: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"on": side}


def _rank1(**options: Any) -> Callable[[int], Any]:
    return _guide("AutoRank1Mixture", num_components=K, init_scale=1e-3, **options)


WIDE = _prior("Normal", 1.0, 1.0)  # in which a factor around -1 costs 2 nats
CAUCHY = _prior("Cauchy", 1.0, 0.1)
METHODS = {
    "deterministic": Contender(_guide("AutoDelta", kl=False)),
    "deterministic, rank-1 net, K = 1": Contender(
        _guide("BatchEnsemble", kl=False, num_components=1), rank1=True
    ),
    "MC dropout": Contender(_engine("MCDropout")),
    "mean field": Contender(_guide("AutoNormal", init_scale=1e-3)),
    "low rank 2": Contender(_guide("AutoLowRankMultivariateNormal", rank=2, init_scale=1e-3)),
    "rank-1 Gaussian": Contender(_rank1(), rank1=True, passes=K),
    "rank-1 Gaussian, random signs": Contender(
        _rank1(start="random_sign"), rank1=True, model=WIDE, passes=K
    ),
    "rank-1 Cauchy": Contender(_rank1(family="cauchy"), rank1=True, model=CAUCHY, passes=K),
    "BatchEnsemble": Contender(
        _guide("BatchEnsemble", kl=False, num_components=K), rank1=True, passes=K
    ),
    "BatchEnsemble, random signs": Contender(
        _guide("BatchEnsemble", kl=False, num_components=K, start="random_sign"),
        rank1=True,
        model=WIDE,
        passes=K,
    ),
    "ensemble, equal epochs": Contender(_engine("Ensemble", num_members=K), passes=K),
    "ensemble, equal passes": Contender(_engine("Ensemble", 1 / K, num_members=K)),
    "SWAG": Contender(_swag),
    "rank-1 Gaussian, mixture, shared biases": Contender(
        _rank1(objective="mixture", separate_biases=False),
        rank1=True,
        passes=K,
        table="objectives",
    ),
    "rank-1 Gaussian, average, shared biases": Contender(
        _rank1(separate_biases=False), rank1=True, passes=K, table="objectives"
    ),
    "rank-1 Gaussian, log-mixture": Contender(
        _rank1(objective="log_mixture_averaged_kl"), rank1=True, passes=K, table="objectives"
    ),
    "rank-1 Gaussian, on inputs": Contender(
        _rank1(), rank1=True, model=_on("inputs"), passes=K, table="objectives"
    ),
    "rank-1 Gaussian, on outputs": Contender(
        _rank1(), rank1=True, model=_on("outputs"), passes=K, table="objectives"
    ),
}


def load(data: str, train_rows: int, test_rows: int) -> Any:
    """The first rows of a data set, images in one standardisation of all pixels."""
    import pyro_bnn as bnn

    if data != "cifar":
        name = {"mnist": "mnist-images", "fashion": "fashion-mnist-images"}[data]
        split = bnn.data.load(name)
    else:
        split = _cifar()
    train = split.train.rows(range(min(train_rows, len(split.train))))
    test = split.test.rows(range(min(test_rows, len(split.test))))
    return bnn.Split(train, test, "classification", name if data != "cifar" else "cifar-10, JPEG")


def _cifar() -> Any:
    import numpy as np
    import torch

    import pyro_bnn as bnn
    from pyro_bnn.data.standardise import Standardiser

    folder = os.environ.get("PYRO_BNN_DATA", "")
    with np.load(Path(folder, "cifar10", "cifar10_jpeg_subset.npz")) as file:
        parts = {k: (file[f"x_{k}"], file[f"y_{k}"]) for k in ("train", "test")}
    x = {k: torch.as_tensor(v[0]).permute(0, 3, 1, 2).double() for k, v in parts.items()}
    units = Standardiser.fit(x["train"])
    made = {
        k: bnn.Dataset(
            units.transform(x[k]).float(), torch.as_tensor(parts[k][1].astype(np.int64)), units,
            class_names=[str(c) for c in range(10)],
        )
        for k in parts
    }  # fmt: skip
    return bnn.Split(made["train"], made["test"], "classification", "cifar-10, JPEG")


def by_group(scores: Any) -> list[float]:
    """Means over groups of images, at most as many as there are images."""
    import numpy as np

    parts = np.array_split(scores, min(GROUPS, len(scores)))
    return [round(float(part.mean()), 6) for part in parts]


def fit(task: Row) -> Row:
    """One fit: scores of test rows, as they are and corrupted, whole and by groups of images."""
    import numpy as np
    import torch

    import pyro_bnn as bnn
    from pyro_bnn.diagnostics.trust.calibration_error import equal_mass_ece, equal_mass_floor
    from pyro_bnn.report.beyond.images import corrupted
    from pyro_bnn.report.beyond.scored import score_rows

    begun = time.process_time()
    torch.set_num_threads(1)
    contender = METHODS[task["method"]]
    split = load(task["data"], task["train_rows"], task["test_rows"])
    steps = max(1, task["epochs"] * len(split.train) // BATCH)
    shape = tuple(split.train.x.shape[1:])
    torch.manual_seed(task["seed"])
    network = bnn.models.Rank1ResNet if contender.rank1 else bnn.models.ResNet
    model = network(shape, 10, depth=DEPTH, width=WIDTH, **contender.model())
    start = time.process_time()
    posterior = contender.engine(steps).run(model, split.train, seed=task["seed"], progress=False)
    seconds = time.process_time() - start
    draws = min(DRAWS, posterior.num_stored_draws or DRAWS)
    y = split.test.y.numpy()

    def numbers(scored: Any, labels: Any) -> dict[str, float]:
        return {
            "log_score": float(scored.log_score.mean()),
            "accuracy": float((scored.probs.argmax(1) == labels).mean()),
            "ece": equal_mass_ece(scored.probs, labels),
            "floor": equal_mass_floor(scored.probs),
        }

    def under_corruption() -> Row:
        each, every = [], []
        labels = y[: task["corrupted_rows"]]
        for condition in corrupted(split, SEVERITIES, num_rows=len(labels)):
            scored = score_rows(
                posterior, condition.x, split.test.y[: len(labels)], draws, task["seed"]
            )
            each.append(numbers(scored, labels))
            every.append(scored.log_score)
        means = {f"c_{key}": float(np.mean([one[key] for one in each])) for key in each[0]}
        return means | {"c_groups": by_group(np.mean(every, 0))}

    clean = score_rows(posterior, split.test.x, split.test.y, draws, task["seed"])
    found: Row = {
        **numbers(clean, y),
        "groups": by_group(clean.log_score),
        "seconds": seconds,
        "steps": steps,
        "passes": contender.passes * steps,
        "draws": draws,
    }
    if task["corrupted_rows"]:
        found |= under_corruption()
    return found | {"other_seconds": time.process_time() - begun - seconds}


def tasks(given: argparse.Namespace) -> Iterator[Row]:
    """All fits, seed by seed."""
    for seed in range(given.seeds):
        for data in given.data:
            train, test = SIZES[data]
            for method in given.methods:
                yield {
                    "data": data,
                    "method": method,
                    "seed": seed,
                    "epochs": given.epochs,
                    "train_rows": min(train, given.train),
                    "test_rows": min(test, given.test),
                    "corrupted_rows": min(test, given.test, given.corrupted),
                }


def expected_seconds(task: Row, rows: Sequence[Row]) -> float | None:
    """By fits of the same method: a fit in proportion to its steps, the rest to the images."""
    steps = max(1, task["epochs"] * task["train_rows"] // BATCH)
    return max(
        (
            row["seconds"] * steps / row["steps"]
            + row["other_seconds"] * _images(task) / _images(row)
            for row in rows
            if row["method"] == task["method"] and "error" not in row
        ),
        default=None,
    )


def _images(row: Row) -> int:
    """How many images are predicted."""
    return int(row["test_rows"] + CONDITIONS * row["corrupted_rows"])


def main(argv: Sequence[str] | None = None) -> None:
    """Fit what is missing in the time given, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rank1", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120, help="time for all fits (120)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="fits at a time")
    parser.add_argument("--longest", type=float, default=1_200, help="seconds of a fit (1,200)")
    parser.add_argument("--seeds", type=int, default=3, help="fits of each method (3)")
    parser.add_argument("--epochs", type=int, default=4, help="passes over the images (4)")
    parser.add_argument("--train", type=int, default=10_000, help="training images, at most")
    parser.add_argument("--test", type=int, default=2_000, help="test images, at most (2,000)")
    parser.add_argument("--corrupted", type=int, default=100, help="of them corrupted (100)")
    parser.add_argument("--data", nargs="+", choices=tuple(SIZES), default=("mnist", "cifar"))
    parser.add_argument("--methods", nargs="+", choices=tuple(METHODS), default=tuple(METHODS))
    parser.add_argument("--lines", type=Path, default=PATH, help="file of the fits")
    parser.add_argument("--page", type=Path, default=PAGE, help="file of the tables")
    given = parser.parse_args(argv)
    for line in _jsonl.fits(
        tasks(given), fit, given.lines, keys=KEYS, jobs=given.jobs, minutes=given.minutes,
        seconds=expected_seconds, longest=given.longest,
    ):  # fmt: skip
        print(line[:300], flush=True)
    tables = {name: contender.table for name, contender in METHODS.items()}
    given.page.write_text(_rank1_page.page(_jsonl.read(given.lines), tables))
    print(f"wrote {given.page}")


if __name__ == "__main__":
    main()
