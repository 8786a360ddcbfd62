"""Epochs and seconds to a given ELBO: natural gradients against Bayes by Backprop.

One network a data set, one Gaussian of independent weights (SLANG's has correlations), minibatches
of one size, several seeds. The target is an ELBO a little below that of a long run of SVI with
Adam; a run has reached it at the first step from which on its ELBO, averaged over an epoch, stays
above. Learning rates are the engines' defaults but where a line says otherwise; every run has the
same number of epochs, over which its rate falls.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import pyro_bnn as bnn
from benchmarks import _settings
from benchmarks._settings import Settings
from pyro_bnn.errors import DivergenceError

ROUNDS = 5  # seeds
EPOCHS, QUICK_EPOCHS, LONG = 200, 2, 5  # LONG times as many for the run that sets the target
BATCH, HIDDEN = 32, (50,)
MARGIN = 0.05  # nats a row below it
NOISE_SD = {"uci/yacht": 0.1}  # of the standardised target; classes have none
DATA = ("breast-cancer", "uci/yacht")


class Contender(NamedTuple):
    """One engine.

    Attributes:
        name: For the table.
        make: The engine of a number of steps.
    """

    name: str
    make: Callable[..., Any]


def _svi(**options: Any) -> Callable[..., Any]:
    return functools.partial(bnn.SVI, bnn.guides.AutoNormal, compile=False, **options)


CONTENDERS = (
    Contender("SVI, Adam", _svi()),
    Contender(
        "SVI, SGD with momentum",
        _svi(
            optimizer=functools.partial(torch.optim.SGD, momentum=0.9),
            learning_rate=1e-5,
            clip_norm=1e4,
        ),
    ),
    Contender("VOGN", bnn.VOGN),
    Contender("VON, Gauss-Newton", bnn.VON),
    Contender("Vadam", bnn.Vadam),
    Contender("IVON", bnn.IVON),
    Contender("SLANG", bnn.SLANG),
)


def network(name: str, num_inputs: int) -> bnn.models.MLP:
    """The model of a data set."""
    noise = NOISE_SD.get(name)
    likelihood = (
        bnn.likelihoods.Bernoulli() if noise is None else bnn.likelihoods.Normal(scale=noise)
    )
    return bnn.models.MLP(num_inputs, hidden=HIDDEN, likelihood=likelihood)


def reached(losses: NDArray[np.float64], target: float, per_epoch: int) -> int | None:
    """The first step from which on the ELBO, averaged over an epoch, stays above a target.

    Args:
        losses: Minus the ELBO of each step.
        target: ELBO in nats.
        per_epoch: Steps of an epoch.

    Returns:
        Number of steps done by then; None where the run ends below.
    """
    smoothed = np.convolve(-losses, np.full(per_epoch, 1 / per_epoch), "valid")
    below = np.flatnonzero(smoothed < target)
    first = 0 if len(below) == 0 else int(below[-1]) + 1
    return None if first == len(smoothed) else first + per_epoch


def target_of(train: bnn.Dataset, name: str, num_steps: int) -> float:
    """ELBO that a long run of SVI reaches, less the margin."""
    engine = CONTENDERS[0].make(num_steps=LONG * num_steps, batch_size=BATCH)
    posterior = engine.run(network(name, train.x.shape[1]), train, progress=False)
    return float(posterior.elbo(train)[0]) - MARGIN * len(train.x)


def measure(settings: Settings) -> list[dict[str, Any]]:
    """A row a data set and contender: epochs and seconds of each seed, and the last ELBO."""
    rows: list[dict[str, Any]] = []
    epochs = QUICK_EPOCHS if settings.quick else EPOCHS
    for name in DATA:
        train = bnn.data.load(name, split=0).train
        per_epoch = math.ceil(len(train.x) / BATCH)
        num_steps = epochs * per_epoch
        target = target_of(train, name, num_steps)
        for contender in CONTENDERS:
            engine = contender.make(num_steps=num_steps, batch_size=BATCH)
            row = _row(engine, train, name, target, per_epoch, settings.rounds)
            rows.append({"data": name, "contender": contender.name, "target": target, **row})
            print(f"  {name}, {contender.name}: {row}", flush=True)
    return rows


def _row(
    engine: Any, train: bnn.Dataset, name: str, target: float, per_epoch: int, seeds: int
) -> Mapping[str, Any]:
    found: dict[str, list[float | None]] = {"epochs": [], "seconds": [], "elbo": []}
    for seed in range(seeds):
        try:
            posterior = engine.run(
                network(name, train.x.shape[1]), train, seed=seed, progress=False
            )
        except DivergenceError:
            for values in found.values():
                values.append(None)
            continue
        steps = reached(posterior.losses, target, per_epoch)
        share = None if steps is None else steps / len(posterior.losses)
        found["epochs"].append(None if steps is None else steps / per_epoch)
        found["seconds"].append(None if share is None else share * posterior.wall_time)
        found["elbo"].append(float(posterior.elbo(train)[0]))
    return found


def table(found: Mapping[str, Any]) -> str:
    """A line a row: medians over the seeds, a seed that did not get there counted as the worst."""
    lines = [f"{'data':14} {'engine':24} {'epochs':>8} {'seconds':>8} {'ELBO':>10}"]
    for row in found["rows"]:
        cells = [_median(row["epochs"], 1), _median(row["seconds"], 1)]
        cells = [f"{'-' if math.isinf(value) else f'{value:.1f}':>8}" for value in cells]
        last = _median(row["elbo"], -1)
        lines.append(f"{row['data']:14} {row['contender']:24} {' '.join(cells)} {last:10.1f}")
    return "\n".join(lines)


def _median(values: Sequence[float | None], sign: int) -> float:
    return float(np.median([sign * math.inf if value is None else value for value in values]))


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``natural.json``."""
    settings = _settings.parse("natural", __doc__, argv, rounds=ROUNDS)
    found = _settings.result("natural", settings, measure(settings), batch=BATCH, hidden=HIDDEN)
    print(table(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
    return found


if __name__ == "__main__":
    main()
