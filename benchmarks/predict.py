"""Prediction with 1,000 draws of 10-50-1 at 1,000 rows, against ``pyro.infer.Predictive``.

Every contender returns the predictive mean of 1,000 draws. This package, Pyro and NumPyro draw y
too; bayesian-torch and TyXe stop at the network's output. Pyro's ``Predictive(parallel=True)``
raises on networks with matrix weights, so its sequential loop is timed.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import pyro
import torch

import pyro_bnn as bnn
from benchmarks import _numpyro, _peers, _plots, _settings, _tables
from benchmarks._contenders import mlp, own_store
from benchmarks._networks import PyroMLP
from benchmarks._problem import Problem
from benchmarks._settings import Settings
from benchmarks._timing import Call, spreads

NUM_DRAWS = 1_000
ROWS = 1_000
ROUNDS = 9
BASE = "Pyro, Predictive, sequential"

Named = tuple[str, Call]


def contenders(problem: Problem, num_draws: int, device: str) -> Iterator[Named]:
    """This package and Pyro, on the same draws' distribution: a guide after a few steps."""
    x, y = problem.data(device)
    model = mlp(problem).to(device)
    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=100, compile=False)
    posterior = engine.run(model, (x, y), progress=False)
    plain = PyroMLP(problem, device)
    predictive = pyro.infer.Predictive(plain, posterior_samples=posterior.sample(num_draws))

    def ours() -> None:
        posterior.predict(x, num_draws).mean.cpu()  # which waits for the device

    def stock() -> None:
        predictive(x)["y"].mean(0).cpu()

    yield "pyro_bnn, posterior.predict", ours
    yield BASE, stock


def peers(problem: Problem, num_draws: int) -> Iterator[Named]:
    """The peers that are installed."""
    if _peers.installed("numpyro"):
        yield "NumPyro, jit of Predictive", numpyro(problem, num_draws)
    x, _ = problem.data()
    if _peers.installed("bayesian-torch"):
        net, _ = _peers.bayesian_torch_net(problem)

        @torch.no_grad()
        def loop() -> None:
            torch.stack([net(x) for _ in range(num_draws)]).mean(0)

        yield "bayesian-torch, loop, no y", loop
    if _peers.installed("tyxe"):
        with own_store() as scope:
            model, svi = _peers.tyxe_svi(problem)
            svi.step((x,), problem.data()[1].unsqueeze(-1))

        def tyxe() -> None:
            with scope():
                model.predict(x, num_predictions=num_draws, aggregate=False).mean(0)

        yield "TyXe, model.predict, no y", tyxe


def numpyro(problem: Problem, num_draws: int) -> Call:
    """All draws in one compiled, batched call, the draws of the guide included."""
    jax = importlib.import_module("jax")
    svi, x, y = _numpyro.make_svi(problem)
    state = svi.init(jax.random.PRNGKey(0), x, y)
    params = svi.get_params(state)
    library = importlib.import_module("numpyro.infer")
    predictive = library.Predictive(
        svi.model, guide=svi.guide, params=params, num_samples=num_draws, parallel=True
    )
    mean = jax.jit(lambda key, x: predictive(key, x)["y"].mean(0))
    key = jax.random.PRNGKey(1)
    return lambda: mean(key, x).block_until_ready()


def measure(settings: Settings) -> list[dict[str, Any]]:
    """A row a contender, this package's first."""
    num_rows, num_draws = (16, 8) if settings.quick else (ROWS, NUM_DRAWS)
    problem = Problem(10, (50,), batch=num_rows, num_data=num_rows)
    calls = dict(contenders(problem, num_draws, settings.device))
    if settings.device == "cpu" and not settings.quick:
        calls |= dict(peers(problem, num_draws))
    found = spreads(calls, rounds=settings.rounds)
    return [
        {"contender": name, "seconds": t.median, "low": t.low, "high": t.high}
        for name, t in found.items()
    ]


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``predict.json`` and ``predict.png``."""
    settings = _settings.parse("predict", __doc__, argv, rounds=ROUNDS, devices=True)
    rows = measure(settings)
    num_rows, num_draws = (16, 8) if settings.quick else (ROWS, NUM_DRAWS)
    found = _settings.result(
        "predict",
        settings,
        rows,
        net=Problem(10, (50,), ROWS).net,
        draws=num_draws,
        rows_of_x=num_rows,
        base=BASE,
    )
    print(_tables.predict(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _plots.predict(found, settings.out / f"{_settings.stem(found)}.png")
        _tables.update(settings.out)
    return found


if __name__ == "__main__":
    main()
