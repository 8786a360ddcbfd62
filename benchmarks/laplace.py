"""Laplace's approximation: what linearising gains, and what it costs after the point estimate.

``uci``: on each split a point estimate by Adam, then the mode near it and the full precision there;
held-out log scores of both points, of the linearised network and of draws of weights; of each split
also the noise that Adam's point learned, and its farthest held-out residual in units of that noise.
``cost``: 10-50-1 tanh on 1,000 rows with Gaussian noise of fixed scale; CPU
seconds of the fit and of 1,000 predictive draws at 1,000 rows, in interleaved rounds, from the mode
and from Adam's last point, which is polished to the mode; beside it laplace-torch at the mode where
it is installed, exact moments in its case, and the largest relative difference between the two
precisions. ``warm``: full and low-rank covariances on diabetes by ``SVI``, and NUTS' warm-up, each
from its own start and from a posterior that is quick to have; CPU seconds include that one.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import pyro_bnn as bnn
from benchmarks import _settings, _tables
from benchmarks._posteriors import DIABETES
from benchmarks._settings import Settings

ROUNDS, SPLITS, ROWS = 5, 5, 1_000
SETS = ("boston", "concrete", "energy", "wine-red", "yacht")
NOISE = 0.25
HIDDEN = (50,)
STEPS, FEW = 10_000, 4_000  # of a fit from its own start, and of one from a posterior
NEWTON_STEPS = 400  # of natural gradients
Row = dict[str, Any]


def log_score(posterior: Any, rows: Any) -> float:
    """Mean log density of held-out rows, in the standardised units of y."""
    return float(posterior.predict(rows.x, 1_000).log_prob(rows.y).mean())


def at_its_centre(posterior: Any, model: Any, rows: Any) -> Any:
    """The point in the middle of a Gaussian, the maximum a posteriori estimate of Laplace's."""
    still = bnn.SVI(bnn.guides.AutoDelta, num_steps=1, learning_rate=1e-12, compile=False)
    return still.run(model, rows, init=posterior, progress=False)


def noise_and_farthest(point: Any, rows: Any) -> tuple[float, float]:
    """The noise that a point estimate learned, and the farthest residual in units of it."""
    prediction = point.predict(rows.x, 1)
    scale = float(prediction.variances.mean().sqrt())
    residual = (rows.y.reshape(-1) - prediction.mean.reshape(-1)).abs().max()
    return scale, float(residual) / scale


def gain(more: Sequence[float], less: Sequence[float]) -> tuple[float, float]:
    """Mean difference of scores over splits, and its standard error, 0 for one split."""
    differences = np.subtract(more, less)
    error = differences.std(ddof=1) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
    return float(differences.mean()), float(error)


def uci_rows(settings: Settings) -> Iterator[Row]:
    """A row a data set."""
    names, steps, splits = (("energy",), 1_000, 1) if settings.quick else (SETS, 3_000, SPLITS)
    for name in names:
        found: dict[str, list[float]] = {
            key: [] for key in ("adam", "mode", "linearised", "weights", "noise", "farthest")
        }
        for number in range(splits):
            split = bnn.data.load(f"uci/{name}", split=number)
            hidden = (3,) if settings.quick else HIDDEN
            model = bnn.models.MLP(split.train.x.shape[1], hidden=hidden)
            svi = bnn.SVI(bnn.guides.AutoDelta, num_steps=steps, compile=False)
            point = svi.run(model, split.train, seed=number, progress=False)
            found["adam"].append(log_score(point, split.test))
            noise, farthest = noise_and_farthest(point, split.test)
            found["noise"].append(noise)
            found["farthest"].append(farthest)
            start = point
            for predictive in ("linearised", "weights"):
                engine = bnn.Laplace(predictive=predictive)
                start = engine.run(model, split.train, init=start, progress=False)
                found[predictive].append(log_score(start, split.test))
            mode = at_its_centre(start, model, split.train)
            found["mode"].append(log_score(mode, split.test))
        row: Row = {"part": "uci", "case": f"uci/{name}", "contender": "Laplace", "splits": splits}
        row["of_splits"] = found
        row["means"] = {key: float(np.mean(values)) for key, values in found.items()}
        row["gains"] = {
            f"{more}, {less}": gain(found[more], found[less])
            for more, less in itertools.combinations(("linearised", "weights", "mode", "adam"), 2)
        }
        yield row


def point_of(
    num_rows: int, steps: int, hidden: tuple[int, ...]
) -> tuple[Any, Any, torch.Tensor, torch.Tensor]:
    """A network, its point estimate, and its rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 10, generator=generator)
    y = x[:, 0].sin() + x[:, 1] * x[:, 2] + NOISE * torch.randn(num_rows, generator=generator)
    likelihood, prior = bnn.likelihoods.Normal(NOISE), bnn.priors.Normal(1.0)
    model = bnn.models.MLP(10, hidden=hidden, activation="tanh", likelihood=likelihood, prior=prior)
    svi = bnn.SVI(bnn.guides.AutoDelta, num_steps=steps, compile=False)
    return model, svi.run(model, (x, y), progress=False), x, y


def cost_rows(settings: Settings) -> Iterator[Row]:
    """A row a contender."""
    num_rows, steps = (200, 500) if settings.quick else (ROWS, 3_000)
    hidden = (3,) if settings.quick else HIDDEN
    model, point, x, y = point_of(num_rows, steps, hidden)
    own: Any = bnn.Laplace().run(model, (x, y), init=point, progress=False)

    def from_start(init: Any) -> None:
        posterior = bnn.Laplace().run(model, (x, y), init=init, progress=False)
        assert bool(posterior.predict(x, 1_000).sd.isfinite().all())

    contenders: dict[str, Any] = {
        "pyro_bnn": lambda: from_start(own),
        f"pyro_bnn, from {steps:,} steps of Adam": lambda: from_start(point),
    }
    for run in contenders.values():
        run()
    gap = None
    if importlib.util.find_spec("laplace") is not None:
        theirs = laplace_torch(own, x, y)
        contenders["laplace-torch"] = theirs
        precision = theirs().posterior_precision.double()
        exact = own.guide.get_posterior().precision_matrix.detach().double()
        gap = float((precision - exact).abs().max() / exact.abs().max())
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(settings.rounds):
        for name, run in contenders.items():
            start = time.process_time()
            run()
            taken[name].append(time.process_time() - start)
    for name, seconds in taken.items():
        yield {
            "part": "cost",
            "case": f"10-{hidden[0]}-1, {num_rows:,} rows",
            "contender": name,
            "seconds": float(np.median(seconds)),
            "low": min(seconds),
            "high": max(seconds),
            "gap": gap if name == "laplace-torch" else None,
        }


def warm_rows(settings: Settings) -> Iterator[Row]:
    """A row a way to a posterior of diabetes: what it took in all, and its ELBO."""
    steps, few = (50, 20) if settings.quick else (STEPS, FEW)
    train = tuple(map(torch.from_numpy, DIABETES.arrays()))
    model = bnn.models.MLP(train[0].shape[1], hidden=(3,) if settings.quick else HIDDEN)
    chains: dict[str, Any] = {"num_chains": 2, "warmup_steps": 20} if settings.quick else {}
    normal, full = bnn.guides.AutoNormal, bnn.guides.AutoMultivariateNormal
    low_rank = bnn.guides.AutoLowRankMultivariateNormal

    def fit(engine: Any, init: Any = None) -> Any:
        return engine.run(model, train, init=init, progress=False)

    von_steps = 20 if settings.quick else NEWTON_STEPS
    rates: dict[str, Any] = dict.fromkeys(("learning_rate", "precision_learning_rate"), 0.5)
    von = bnn.VON(
        covariance="full", num_steps=von_steps, schedule="power", descent_steps=0, **rates
    )
    starts: dict[str, tuple[Any, Any]] = {  # the engine that a start is of, and from which
        "": (None, (normal, full, low_rank)),
        "AutoNormal, then ": (bnn.SVI(normal, num_steps=few), (full, low_rank)),
        "Laplace, then ": (bnn.Laplace(num_steps=few // 2), (full, low_rank)),
        "VON, then ": (von, (full,)),
    }
    fit(bnn.SVI(normal, num_steps=steps))  # compiles
    for begun, (engine, guides) in starts.items():
        start = time.process_time()
        init: Any = None if engine is None else fit(engine)
        before = time.process_time() - start
        row: Row = {"part": "warm", "case": "diabetes"}
        if engine is von:
            elbo, error = init.elbo(train, 1_000)
            row["contender"] = f"VON, full covariance, {von_steps:,} steps"
            yield {**row, "seconds": before, "elbo": elbo, "elbo_error": error}
        for guide in guides:
            start = time.process_time()
            svi = bnn.SVI(guide, num_steps=few if begun else steps)
            posterior = fit(svi, init)
            seconds = before + time.process_time() - start
            elbo, error = posterior.elbo(train, 1_000)
            row["contender"] = f"{begun}{guide.__name__}, {svi.num_steps:,} steps"
            yield {**row, "seconds": seconds, "elbo": elbo, "elbo_error": error}
        start = time.process_time()
        fit(bnn.NUTS(num_samples=1, **chains), init)
        yield {
            "part": "warm",
            "case": "diabetes",
            "contender": f"{begun}NUTS, its warm-up",
            "seconds": before + time.process_time() - start,
            "elbo": None,
            "elbo_error": None,
        }


def laplace_torch(own: Any, x: torch.Tensor, y: torch.Tensor) -> Any:
    """The fit and the predictive of laplace-torch, at the same weights."""
    from laplace import Laplace  # type: ignore[import-not-found]
    from torch.utils.data import DataLoader, TensorDataset

    width = own.program.sites[0].shape[0]
    values = own.program.constrain(own.guide.centre())
    net = nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 1))
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), values.values(), strict=True):
            parameter.copy_(value)
    loader = DataLoader(TensorDataset(x, y.unsqueeze(-1)), batch_size=len(x))

    def run() -> Any:
        la = Laplace(
            net,
            "regression",
            subset_of_weights="all",
            hessian_structure="full",
            sigma_noise=NOISE,
            prior_precision=1.0,
        )
        la.fit(loader)
        la(x)
        return la

    return run


PARTS = {"uci": uci_rows, "cost": cost_rows, "warm": warm_rows}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``laplace.json``."""
    settings = _settings.parse("laplace", __doc__, argv, rounds=ROUNDS, parts=tuple(PARTS))
    path = None if settings.out is None else settings.out / "laplace.json"
    kept = [] if path is None or not path.exists() else json.loads(path.read_text())["rows"]
    rows = []
    for part, make in PARTS.items():
        if part not in settings.parts:
            rows += [row for row in kept if row["part"] == part]
            continue
        for row in make(settings):
            print(row, flush=True)
            rows.append(row)
    found = _settings.result("laplace", settings, rows)
    print(_tables.laplace(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
