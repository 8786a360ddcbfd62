"""Epochs and seconds to a given ELBO: natural gradients against Bayes by Backprop.

One network a data set, independent Gaussians over its weights, minibatches of one size. All engines
start at the same Gaussian for a seed, meet the same batches, take one draw a step and keep their
learning rate. After every epoch the ELBO of each is estimated on all training rows, with the same
draws of noise and the KL in closed form, while the clock stands still. The ELBOs to reach lie a
little below that of a long run of SVI with Adam. Learning rates are chosen on a seed of their own,
for each engine and data set out of as many.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

import pyro_bnn as bnn
from benchmarks import _plots, _settings, _tables
from benchmarks._elbo_runs import Trajectory, watch
from benchmarks._settings import Settings

ROUNDS = 5  # seeds of the figures
TUNING_SEED = 100
HIDDEN, INIT_SCALE, NUM_DRAWS = (20,), 0.05, 64
LONG, LONG_RATE = 3, 0.02  # times the epochs, Adam's rate at the start of its decay
UNDECIDED = 10**9  # steps, of runs that are ended from without


class Case(NamedTuple):
    """A data set.

    Attributes:
        data: Its name.
        likelihood: Of the model.
        batch: Rows of a step.
        epochs: How many.
        margins: How far below the long run the ELBOs to reach are, in nats a row, far one first.
    """

    data: str
    likelihood: Callable[[], Any]
    batch: int
    epochs: int
    margins: tuple[float, float]


CASES = (
    Case("breast-cancer", bnn.likelihoods.Bernoulli, 32, 40, (0.25, 0.05)),
    Case("digits", functools.partial(bnn.likelihoods.Categorical, 10), 64, 30, (0.25, 0.1)),
    Case("uci/yacht", functools.partial(bnn.likelihoods.Normal, 0.1), 32, 160, (2.0, 0.5)),
)
QUICK = (CASES[0]._replace(epochs=2),)


class Contender(NamedTuple):
    """One engine.

    Attributes:
        name: For the table.
        make: The engine of options and the number N of rows.
        grid: Options to choose from.
    """

    name: str
    make: Callable[..., Any]
    grid: Sequence[Mapping[str, float]]


def _svi(_num_data: int, optimizer: Any = None, **options: Any) -> bnn.SVI:
    guide = functools.partial(bnn.guides.AutoNormal, init_scale=INIT_SCALE)
    options = {"estimator": "weight_sampling", "schedule": "cosine", **options}
    return bnn.SVI(guide, optimizer=optimizer, loc_warmup=0, compile=False, **options)


def _natural(cls: Any, _num_data: int, **options: Any) -> Any:
    return cls(init_scale=INIT_SCALE, descent_steps=0, **options)


def _ivon(num_data: int, **options: Any) -> bnn.IVON:
    first = INIT_SCALE**-2 / num_data  # but for the prior's
    return bnn.IVON(init_curvature=first, descent_steps=0, **options)


def _rates(means: Sequence[float], precisions: Sequence[float]) -> list[dict[str, float]]:
    return [{"learning_rate": a, "precision_learning_rate": b} for a in means for b in precisions]


MOMENTUM = functools.partial(torch.optim.SGD, momentum=0.9)
CONTENDERS = (
    Contender(
        "Bayes by Backprop, Adam",
        _svi,
        [{"learning_rate": a} for a in (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)],
    ),
    Contender(
        "Bayes by Backprop, SGD",
        functools.partial(_svi, optimizer=MOMENTUM, clip_norm=1e4),
        [{"learning_rate": a} for a in (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3)],
    ),
    Contender(
        "VON, Gauss-Newton",
        functools.partial(_natural, bnn.VON),
        _rates((0.01, 0.03, 0.1), (0.05, 0.2)),
    ),
    Contender(
        "VOGN",
        functools.partial(_natural, bnn.VOGN),
        _rates((0.01, 0.03, 0.1, 0.3, 0.6, 1.0), (0.1,)),
    ),
    Contender(
        "Vadam",
        functools.partial(_natural, bnn.Vadam),
        _rates((0.005, 0.01, 0.02, 0.04, 0.08, 0.16), (0.01,)),
    ),
    Contender("IVON", _ivon, _rates((0.03, 0.1, 0.3), (0.01, 0.05))),
)


def network(case: Case, num_inputs: int) -> bnn.models.MLP:
    """The model of a data set."""
    return bnn.models.MLP(num_inputs, hidden=HIDDEN, likelihood=case.likelihood())


def run(
    case: Case, train: bnn.Dataset, contender: Contender, options: Mapping[str, float], seed: int
) -> Trajectory:
    """A run of an engine, looked at."""
    num_data, num_inputs = train.x.shape
    engine = contender.make(
        num_data, num_steps=UNDECIDED, batch_size=case.batch, schedule="constant", **options
    )
    model = network(case, num_inputs)
    return watch(engine, model, train, epochs=case.epochs, seed=seed, num_draws=NUM_DRAWS)


def best_of(case: Case, train: bnn.Dataset) -> float:
    """ELBO a row that a long run of SVI, with a rate that falls, ends at."""
    num_steps = LONG * case.epochs * math.ceil(len(train.x) / case.batch)
    engine = bnn.SVI(
        functools.partial(bnn.guides.AutoNormal, init_scale=INIT_SCALE),
        num_steps=num_steps,
        learning_rate=LONG_RATE,
        batch_size=case.batch,
        loc_warmup=0,
        estimator="weight_sampling",
        schedule="cosine",
        compile=False,
    )
    posterior = engine.run(network(case, train.x.shape[1]), train, seed=TUNING_SEED, progress=False)
    return posterior.elbo(train)[0] / len(train.x)


def reached(seen: Trajectory, target: float) -> int | None:
    """Number of epochs after which the ELBO is above a target for the first time."""
    there = (epoch for epoch, elbo in enumerate(seen.elbo) if elbo >= target)
    return next(there, None)


def merit(seen: Trajectory, targets: Sequence[float]) -> tuple[float, ...]:
    """What options are chosen by, less is better: epochs to the nearest target, or the end."""
    epochs = [reached(seen, target) for target in targets[::-1]]
    last = math.inf if seen.has_diverged else -seen.elbo[-1]
    return (*(math.inf if epoch is None else epoch for epoch in epochs), last)


def measure(settings: Settings) -> list[dict[str, Any]]:
    """A row a data set and contender: epochs and seconds to the targets, and the ELBO's course."""
    rows: list[dict[str, Any]] = []
    for case in QUICK if settings.quick else CASES:
        train = bnn.data.load(case.data, split=0).train
        best = best_of(case, train)
        targets = [best - margin for margin in case.margins]
        for contender in CONTENDERS:
            tried = {
                place: run(case, train, contender, options, TUNING_SEED)
                for place, options in enumerate(contender.grid[: 1 if settings.quick else None])
            }
            options = contender.grid[min(tried, key=lambda place: merit(tried[place], targets))]
            runs = [run(case, train, contender, options, seed) for seed in range(settings.rounds)]
            rows.append(
                {
                    "data": case.data,
                    "contender": contender.name,
                    "options": dict(options),
                    "best": best,
                    "margins": case.margins,
                    "targets": targets,
                    **summary(runs, targets, math.ceil(len(train.x) / case.batch)),
                }
            )
            print(f"  {table_line(rows[-1])}", flush=True)
    return rows


def summary(runs: Sequence[Trajectory], targets: Sequence[float], per_epoch: int) -> dict[str, Any]:
    """Of each seed epochs and seconds to each target, None where it is not reached."""
    epochs = [[reached(seen, target) for seen in runs] for target in targets]
    return {
        "epochs": epochs,
        "seconds_to": [
            [None if n is None else seen.seconds[n] for n, seen in zip(found, runs, strict=True)]
            for found in epochs
        ],
        "seconds": float(np.median([t for seen in runs for t in seen.step_seconds(per_epoch)])),
        "steps": per_epoch,
        "diverged": sum(seen.has_diverged for seen in runs),
        "elbo": _median_course([seen.elbo for seen in runs]),
    }


def _median_course(elbos: Sequence[Sequence[float]]) -> list[float]:
    """The median over the seeds that were still running, epoch by epoch."""
    longest = max(map(len, elbos))
    return [float(np.median([e[n] for e in elbos if len(e) > n])) for n in range(longest)]


def table_line(row: Mapping[str, Any]) -> str:
    """One row, for who waits."""
    return f"{row['data']}, {row['contender']}, {row['options']}: {row['epochs']}"


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``natural.json`` and ``natural.png``."""
    settings = _settings.parse("natural", __doc__, argv, rounds=ROUNDS)
    found = _settings.result("natural", settings, measure(settings), hidden=HIDDEN)
    print(_tables.natural(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _plots.natural(found, settings.out / "natural.png")
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
