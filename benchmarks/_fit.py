"""One whole fit by one library in this process, for ``benchmarks.cold``: prints seconds and loss.

``python -m benchmarks._fit LIBRARY STEPS THREADS``. Libraries are imported before the clock starts,
and a process imports nothing of another one.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks._problem import LEARNING_RATE, Problem

PROBLEM = Problem(10, (50,), batch=1_000, num_data=1_000)
LAST = 100  # losses averaged at the end
Fit = Callable[[int], Sequence[float]]


def pyro_bnn(compile: Any = "auto") -> Fit:  # noqa: A002  # the name of the engine's option
    """``SVI(AutoNormal).run`` from Pyro's start, with Pyro's constant step size and no warm-up."""
    bnn = importlib.import_module("pyro_bnn")
    contenders = importlib.import_module("benchmarks._contenders")
    x, y = PROBLEM.data()

    def fit(steps: int) -> Sequence[float]:
        guide = contenders.started(bnn.guides.AutoNormal)
        engine = bnn.SVI(
            guide,
            num_steps=steps,
            learning_rate=LEARNING_RATE,
            schedule="constant",
            loc_warmup=0,
            estimator="weight_sampling",
            compile=compile,
        )
        losses: Sequence[float] = engine.run(contenders.mlp(PROBLEM), (x, y), progress=False).losses
        return losses

    return fit


def stock_pyro() -> Fit:
    """``pyro.infer.SVI`` with Pyro's AutoNormal."""
    pyro, networks = (importlib.import_module(n) for n in ("pyro", "benchmarks._networks"))
    autoguide = importlib.import_module("pyro.infer.autoguide")
    x, y = PROBLEM.data()

    def fit(steps: int) -> Sequence[float]:
        model = networks.PyroMLP(PROBLEM)
        guide, adam = autoguide.AutoNormal(model), pyro.optim.Adam({"lr": LEARNING_RATE})
        svi = pyro.infer.SVI(model, guide, adam, pyro.infer.Trace_ELBO())
        return [svi.step(x, y) for _ in range(steps)]

    return fit


def numpyro() -> Fit:
    """``svi.run`` of NumPyro without a progress bar, which is its fastest way."""
    jax = importlib.import_module("jax")
    make = importlib.import_module("benchmarks._numpyro").make_svi

    def fit(steps: int) -> Sequence[float]:
        svi, x, y = make(PROBLEM)
        found = svi.run(jax.random.PRNGKey(0), steps, x, y, progress_bar=False)
        losses: Sequence[float] = found.losses.tolist()
        return losses

    return fit


def tyxe() -> Fit:
    """The loop that ``VariationalBNN.fit`` runs."""
    make = importlib.import_module("benchmarks._peers").tyxe_svi
    x, y = PROBLEM.data()

    def fit(steps: int) -> Sequence[float]:
        svi = make(PROBLEM)[1]
        return [svi.step((x,), y.unsqueeze(-1)) for _ in range(steps)]

    return fit


def deterministic() -> Fit:
    """The network without a posterior, eager, with fused Adam; its losses are squared errors."""
    torch = importlib.import_module("torch")
    x, y = PROBLEM.data()

    def fit(steps: int) -> Sequence[float]:
        layers = [torch.nn.Linear(10, 50), torch.nn.ReLU(), torch.nn.Linear(50, 1)]
        net = torch.nn.Sequential(*layers)
        optimizer = torch.optim.Adam(net.parameters(), lr=LEARNING_RATE, fused=True)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(x), y.unsqueeze(-1))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    return fit


FITS: Mapping[str, Callable[[], Fit]] = {
    "pyro_bnn": pyro_bnn,
    "pyro_bnn-compiled": lambda: pyro_bnn(compile=True),
    "pyro": stock_pyro,
    "numpyro": numpyro,
    "tyxe": tyxe,
    "deterministic": deterministic,
}


def main(argv: Sequence[str]) -> None:
    """Fit and print one line of JSON."""
    from benchmarks._settings import set_threads

    name, steps, threads = argv
    fit = FITS[name]()
    set_threads(int(threads))
    start = time.perf_counter()
    losses = fit(int(steps))
    seconds = time.perf_counter() - start
    last = losses[-LAST:]
    found = {"fit_seconds": seconds, "loss": float(sum(last)) / len(last)}
    if name == "deterministic":  # its loss is a squared error, no bound on the evidence
        del found["loss"]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
