"""Peaks of memory and times of predictions, log-likelihoods and exports.

Run as ``python -m tests.soak.peaks FOLDER ROWS DRAWS``; the last line that is printed is JSON. A
step's ``anonymous`` is the most memory of its own that the process held beyond what it held before,
in bytes; ``resident`` is that with pages of mapped files, which the system may take back.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

T = TypeVar("T")
NUM_TEST = 1_000
TREE = 1 << 28  # bytes of an array of a tree, which has several
NET = (5, 20, 1)


class Peaks:
    """Measures steps, each from what was held when it began."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, float]] = {}

    def of(self, name: str, step: Callable[[], T]) -> T:
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        before, top, is_over = held("RssAnon"), 0, threading.Event()

        def watch() -> None:
            nonlocal top
            while not is_over.wait(0.002):
                top = max(top, held("RssAnon"))

        resident = held("VmRSS")
        watcher = threading.Thread(target=watch)
        watcher.start()
        start = time.perf_counter()
        try:
            made = step()
        finally:
            seconds = time.perf_counter() - start
            is_over.set()
            watcher.join()
        self.found[name] = {
            "anonymous": max(0, top - before),
            "resident": max(0, held("VmHWM") - resident),
            "seconds": round(seconds, 1),
        }
        sys.stderr.write(f"{name}: {self.found[name]}\n")
        return made


def held(key: str) -> int:
    """Bytes of a line of ``/proc/self/status``."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) << 10


def main(folder: Path, num_rows: int, num_draws: int) -> None:
    from pyro_bnn import arviz_io, guides, models
    from pyro_bnn.data import Dataset
    from pyro_bnn.posterior import GuidePosterior, Provenance
    from pyro_bnn.program import Program

    torch.manual_seed(0)
    x, y = torch.randn(num_rows, NET[0]), torch.randn(num_rows)
    model = models.MLP(NET[0], hidden=(NET[1],))
    program = Program(model, x, y)
    guide = guides.AutoNormal(model, init_scale=0.2)
    guide.setup(x[:1])
    posterior = GuidePosterior(program, guide, Provenance("AutoNormal", "SVI"))
    train, test = Dataset(x, y), Dataset(x[:NUM_TEST], y[:NUM_TEST])
    arviz_io.save_netcdf(posterior.to_arviz(test, test, 8), folder / "small.nc")  # what loads once
    posterior.predict(x[:5], 8).log_prob(y[:5])
    peaks = Peaks()
    prediction = posterior.predict(x, num_draws)
    peaks.of("moments", lambda: prediction.sd)
    peaks.of("log score", lambda: prediction.log_prob(y))
    peaks.of("quantiles", lambda: prediction.quantile([0.05, 0.5, 0.95]))
    peaks.of("log joint", lambda: posterior.log_joint((x, y), num_draws))
    fits = number_that_fits(lambda: posterior.to_arviz(train, test, num_draws, memory=TREE))
    tree = peaks.of("tree", lambda: posterior.to_arviz(train, test, fits, memory=TREE))
    peaks.of("NetCDF", lambda: arviz_io.save_netcdf(tree, folder / "tree.nc"))
    check(folder / "tree.nc", posterior.log_likelihood((x, y), fits))
    found = {
        "rows": num_rows,
        "draws": num_draws,
        "threads": torch.get_num_threads(),
        "netcdf_bytes": (folder / "tree.nc").stat().st_size,
        "steps": peaks.found,
    }
    sys.stdout.write(json.dumps(found) + "\n")


def number_that_fits(call: Callable[[], object]) -> int:
    """The number of draws that the error of a call names."""
    from pyro_bnn.errors import OptionError

    try:
        call()
    except OptionError as error:
        return int(re.findall(r"num_samples=(\d+) fits", str(error))[0])
    raise AssertionError("all draws fit")


def check(path: Path, log_likelihood: torch.Tensor) -> None:
    """What xarray reads from the file is what was computed, at a few draws and rows."""
    import xarray as xr

    num_draws, num_rows = log_likelihood.shape
    with xr.open_datatree(path, engine="h5netcdf") as opened:
        stored = opened["log_likelihood"].dataset["y"]
        assert stored.shape == (1, num_draws, num_rows)
        for draw in (0, num_draws // 2, num_draws - 1):
            found = torch.as_tensor(stored.isel(chain=0, draw=draw).values)
            assert torch.equal(found, log_likelihood[draw])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
