"""Laplace's approximation of the head of a trained network, with Kronecker factors.

Features of N rows are given, and a trained head of C classes. Each fit is a process of its own with
bounds on its time and memory; seconds are of the fit alone, memory is the most that the process
took, torch itself included. This package looks for the mode from the trained head; laplace-torch,
where it is installed, takes the curvature where the head is, once at the trained weights and, to
compare probabilities, at the mode. ``gap`` is the largest difference of its probit probabilities
from this package's, at 100 rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks import _settings, _tables
from benchmarks._settings import Settings

CASES = {  # features, classes, rows
    "768-10": (768, 10, 600),
    "128-200": (128, 200, 400),
    "768-1000": (768, 1_000, 50_000),
}
QUICK = {"20-3": (20, 3, 60)}
LIMIT = 600.0  # s of a process
MEMORY = 12 << 30  # bytes that it may ask for
PRIOR = 0.1  # sd
NEW = 100  # rows that are predicted
BATCH = 500
Row = dict[str, Any]


def trained_head(case: str) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    """A head near its mode under the prior, and the features and labels of its rows."""
    num_features, num_classes, num_rows = (CASES | QUICK)[case]
    torch.manual_seed(0)
    x = torch.randn(num_rows, num_features)
    logits = x @ torch.randn(num_features, num_classes) * 2 / num_features**0.5
    y = torch.distributions.Categorical(logits=logits).sample()
    y[:num_classes] = torch.arange(num_classes)[:num_rows]
    net = nn.Linear(num_features, num_classes)
    adam = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(max(1, 100 * BATCH // max(BATCH, num_rows)) + 1):
        for rows in torch.randperm(num_rows).split(BATCH):
            adam.zero_grad()
            penalty = 0.5 / PRIOR**2 / num_rows * net.weight.square().sum()
            (nn.functional.cross_entropy(net(x[rows]), y[rows]) + penalty).backward()
            adam.step()
    return net.requires_grad_(requires_grad=False), x, y


def pyro_bnn(case: str, kept: Path) -> Row:
    """The fit of this package; keeps the mode and the probabilities there."""
    import pyro_bnn as bnn

    net, x, y = trained_head(case)
    likelihood = bnn.likelihoods.Categorical(net.out_features)
    model = bnn.bayesian(net, prior=bnn.priors.Normal(PRIOR), likelihood=likelihood)
    engine = bnn.Laplace(structure="kron")  # imports the engines
    start = time.perf_counter(), time.process_time()
    posterior: Any = engine.run(model, (x, y), init=net, progress=False)
    seconds, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    values = posterior.program.constrain(posterior.guide.centre())
    probs = posterior.class_probs(x[:NEW])
    torch.save({**values, "probs": probs.detach()}, kept)
    return {"seconds": seconds, "cpu": cpu, "nats_to_go": posterior.newton_decrement}


def laplace_torch(case: str, kept: Path) -> Row:
    """The fit of laplace-torch where the head is, then at the mode, whose probabilities differ."""
    from laplace import Laplace  # type: ignore[import-not-found]
    from torch.utils.data import DataLoader, TensorDataset

    net, x, y = trained_head(case)
    net.requires_grad_(requires_grad=True)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH)

    def fit() -> Any:
        la = Laplace(
            net,
            "classification",
            subset_of_weights="all",
            hessian_structure="kron",
            prior_precision=PRIOR**-2,
        )
        la.fit(loader)
        la.posterior_precision  # noqa: B018  # decomposes the factors
        return la

    start = time.perf_counter(), time.process_time()
    la = fit()
    seconds, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    row: Row = {"seconds": seconds, "cpu": cpu}
    if kept.exists() and len(x) * net.out_features < 1e6:
        ours = torch.load(kept)
        with torch.no_grad():
            net.weight.copy_(ours["weight"])
            net.bias.copy_(ours["bias"])
        la = fit()
        probs = la(x[:NEW], link_approx="probit")
        row["gap"] = float((probs - ours["probs"]).abs().max())
    return row


CONTENDERS = {"pyro_bnn": pyro_bnn, "laplace-torch": laplace_torch}


def one(case: str, contender: str, threads: int, kept: Path) -> Row:
    """A fit in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.heads", "--one", case, contender, str(threads)]
    try:
        run = subprocess.run(
            [*command, str(kept)], capture_output=True, text=True, timeout=LIMIT, check=False
        )
    except subprocess.TimeoutExpired:
        return {"failed": f"not done after {LIMIT:.0f} s"}
    if run.returncode:
        if "not enough memory" in run.stderr or not run.stderr:
            return {"failed": f"not done within {MEMORY >> 30} GiB"}
        return {"failed": run.stderr.strip().splitlines()[-1][:100]}
    found: Row = json.loads(run.stdout.splitlines()[-1])
    return found


def rows(settings: Settings) -> Iterator[Row]:
    """A row a case and contender."""
    installed = importlib.util.find_spec("laplace") is not None
    for case, (features, classes, num_rows) in (QUICK if settings.quick else CASES).items():
        with tempfile.TemporaryDirectory() as folder:
            for contender in CONTENDERS if installed else ("pyro_bnn",):
                found = one(case, contender, settings.threads, Path(folder) / "mode.pt")
                title = f"{features} features, {classes:,} classes, {num_rows:,} rows"
                yield {"case": title, "contender": contender, **found}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print, and write ``heads.json``."""
    settings = _settings.parse("heads", __doc__, argv, rounds=1)
    measured = []
    for row in rows(settings):
        print(row, flush=True)
        measured.append(row)
    found = _settings.result("heads", settings, measured)
    print(_tables.heads(found))
    if settings.out is not None:
        _settings.write(found, settings.out)
        _tables.update(settings.out)
    return found


def _one(case: str, contender: str, threads: str, kept: str) -> None:
    _settings.set_threads(int(threads))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    row = CONTENDERS[contender](case, Path(kept))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({**row, "peak_bytes": peak}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--one", nargs=4)
    given, rest = parser.parse_known_args()
    if given.one:
        _one(*given.one)
    else:
        main(rest)
