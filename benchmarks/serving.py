"""One row, and one image, on one core: ``posterior.predict`` beside the programs of ``export``.

Milliseconds of CPU time, the median over calls, and how many times as long as the program of
torch.export each takes. ONNX Runtime is measured where it is installed; so is an estimator's row.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pyro_bnn as bnn

CALLS = 100
BASE = "torch.export"

Call = Callable[[], object]


def posteriors(*, quick: bool) -> Iterator[tuple[str, Any, Tensor, int]]:
    """A name, a posterior after a few steps, one row, and a number of draws."""
    torch.manual_seed(0)
    engine = bnn.SVI(bnn.guides.AutoNormal, num_steps=20, compile=False)
    x = torch.randn(200, 10)
    fit = engine.run(bnn.models.MLP(10), (x, x[:, 0]), progress=False)
    yield "10-50-1", fit, x[:1], 100
    if not quick:
        x, y = torch.rand(64, 1, 28, 28), torch.arange(64) % 10
        yield "LeNet", engine.run(bnn.models.LeNet(), (x, y), progress=False), x[:1], 30


def contenders(posterior: Any, row: Tensor, num_draws: int, folder: Path) -> dict[str, Call]:
    """``predict`` with all that the programs return, and the programs."""
    program = _program(posterior, row, num_draws, folder / "net.pt2")

    def predicted() -> None:
        found = posterior.predict(row, num_draws)
        if found.means is None:
            _ = found.entropy, found.mutual_information
        else:
            _ = found.mean, found.sd, found.quantile([0.025, 0.5, 0.975])

    calls: dict[str, Call] = {"posterior.predict": predicted, BASE: lambda: program(row)}
    if importlib.util.find_spec("onnxruntime") and importlib.util.find_spec("onnxscript"):
        runtime = importlib.import_module("onnxruntime")
        posterior.export(folder / "net.onnx", row, num_draws, raw=False)
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        session = runtime.InferenceSession(str(folder / "net.onnx"), options)
        x = row.numpy()
        calls["ONNX Runtime"] = lambda: session.run(None, {"x": x})
    return calls


def _program(posterior: Any, row: Tensor, num_draws: int, path: Path) -> Callable[[Tensor], Any]:
    posterior.export(path, row, num_draws, raw=False)
    program: Any = torch.export.load(path).module()

    @torch.inference_mode()
    def run(x: Tensor) -> Any:
        return program(x)

    return run


def milliseconds(call: Call, num_calls: int) -> float:
    """Median CPU time of one call: a busy machine does not lengthen it."""
    for _ in range(3):
        call()
    found = []
    for _ in range(num_calls):
        start = time.thread_time()
        call()
        found.append(time.thread_time() - start)
    return 1e3 * statistics.median(found)


def measure(*, quick: bool = False) -> list[tuple[str, str, float, float]]:
    """Network, contender, milliseconds, and how many times those of torch.export."""
    rows: list[tuple[str, str, float, float]] = []
    num_calls = 3 if quick else CALLS
    with tempfile.TemporaryDirectory() as folder:
        for net, posterior, row, num_draws in posteriors(quick=quick):
            calls = contenders(posterior, row, num_draws, Path(folder))
            times = {name: milliseconds(call, num_calls) for name, call in calls.items()}
            name_of_net = f"{net}, {num_draws} draws"
            rows += [(name_of_net, name, ms, ms / times[BASE]) for name, ms in times.items()]
    ms = milliseconds(row_of_an_estimator(), num_calls)
    rows.append(("10-50-1, 1,000 draws", "BNNRegressor.predict", ms, math.nan))
    return rows


def row_of_an_estimator() -> Call:
    """One row by the estimator of scikit-learn, at its default of 1,000 draws."""
    x = torch.randn(200, 10, dtype=torch.float64).numpy()
    estimator = bnn.sklearn.BNNRegressor(num_steps=20, random_state=0).fit(x, x[:, 0])
    return lambda: estimator.predict(x[:1])


def main(argv: Sequence[str] | None = None) -> list[tuple[str, str, float, float]]:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke test, figures mean nothing")
    given = parser.parse_args(argv)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = measure(quick=given.quick)
    finally:
        torch.set_num_threads(threads)
    for net, name, ms, ratio in rows:
        times = "" if math.isnan(ratio) else f"{ratio:6.1f}"
        print(f"{net:22} {name:22} {ms:8.2f} ms {times}".rstrip())
    return rows


if __name__ == "__main__":
    main()
