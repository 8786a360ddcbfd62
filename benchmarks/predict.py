"""Prediction with 1,000 draws of a 1x50 network at 1,000 rows, against ``pyro.infer.Predictive``.

Run ``python -m benchmarks.predict``. Pyro's ``Predictive(parallel=True)`` raises on networks with
matrix weights, so its sequential loop is timed.
"""

from __future__ import annotations

import pyro
import torch

import pyro_bnn as bnn
from benchmarks._timing import medians, print_table
from benchmarks.svi import data

NUM_DRAWS = 1_000


def main() -> None:
    """Print one table."""
    torch.set_num_threads(1)
    x, y = data(1_000, 10)
    model = bnn.models.MLP(10, hidden=(50,))
    posterior = bnn.SVI(bnn.guides.AutoNormal, num_steps=100).run(model, (x, y), progress=False)
    predictive = pyro.infer.Predictive(model, posterior_samples=posterior.sample(NUM_DRAWS))
    seconds = medians(
        {
            "pyro_bnn posterior.predict": lambda: posterior.predict(x, NUM_DRAWS).mean,
            "pyro.infer.Predictive, sequential": lambda: predictive(x)["y"].mean(0),
        },
        rounds=5,
    )
    print_table(
        "10-50-1, 1,000 draws at 1,000 rows, one thread: a call, and its ratio",
        seconds,
        "pyro_bnn posterior.predict",
    )


if __name__ == "__main__":
    main()
