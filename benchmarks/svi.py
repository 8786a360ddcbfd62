"""One step of mean-field SVI: this package, stock Pyro, and a deterministic torch step.

Run ``python -m benchmarks.svi``. Medians of interleaved blocks of steps on one thread; set-up
(tracing, graph capture) is outside the blocks and printed on its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pyro
import torch
from pyro.infer import Trace_ELBO
from pyro.infer.autoguide import AutoNormal
from pyro.optim import Adam  # type: ignore[attr-defined]  # made at import time
from torch import Tensor, nn

import pyro_bnn as bnn
from benchmarks._timing import medians, print_table
from pyro_bnn.infer.svi import _Run

STEPS = 50


def data(num_rows: int, num_inputs: int) -> tuple[Tensor, Tensor]:
    """Rows of a random regression problem."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, num_inputs, generator=generator)
    return x, torch.sin(x[:, 0]) + 0.1 * torch.randn(num_rows, generator=generator)


def ours(x: Tensor, y: Tensor, hidden: tuple[int, ...]) -> tuple[Callable[[], None], float]:
    """Steps of ``SVI(AutoNormal)``, and the seconds before the first can start."""
    start = time.perf_counter()
    model = bnn.models.MLP(x.shape[1], hidden=hidden)
    program = bnn.Program(model, x, y)
    guide = bnn.guides.AutoNormal(model)
    guide.setup(x)
    run = _Run(bnn.SVI(bnn.guides.AutoNormal, num_steps=10**9), program, guide, seed=0)
    batch = program.batch(x, y)
    run._advance(1, batch)
    setup = time.perf_counter() - start

    def block() -> None:
        for _ in range(STEPS):
            run._advance(1, batch)

    return block, setup


def stock_pyro(x: Tensor, y: Tensor, hidden: tuple[int, ...]) -> Callable[[], None]:
    """Steps of ``pyro.infer.SVI`` with Pyro's AutoNormal on the same model.

    Without clearing the store the second network would meet the first one's parameters.
    """
    pyro.clear_param_store()
    model = bnn.models.MLP(x.shape[1], hidden=hidden)
    svi = pyro.infer.SVI(model, AutoNormal(model), Adam({"lr": 0.01}), Trace_ELBO())

    def block() -> None:
        for _ in range(STEPS):
            svi.step(x, y)

    return block


def deterministic(x: Tensor, y: Tensor, hidden: tuple[int, ...]) -> Callable[[], None]:
    """Steps of a torch network of the same shape under fused Adam."""
    sizes = (x.shape[1], *hidden, 1)
    layers: list[nn.Module] = []
    for i in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), nn.ReLU()]
    net = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01, fused=True)
    target = y.unsqueeze(-1)

    def block() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            nn.functional.mse_loss(net(x), target).backward()
            optimizer.step()

    return block


def main() -> None:
    """Print one table a network."""
    torch.set_num_threads(1)
    for num_inputs, hidden, rows in ((10, (50,), 128), (10, (50,), 1000), (784, (400, 400), 256)):
        x, y = data(rows, num_inputs)
        block, setup = ours(x, y, hidden)
        seconds = medians(
            {
                "deterministic torch, fused Adam": deterministic(x, y, hidden),
                "pyro_bnn SVI(AutoNormal), captured graph": block,
                "pyro.infer.SVI, pyro's AutoNormal": stock_pyro(x, y, hidden),
            }
        )
        per_step = {name: value / STEPS for name, value in seconds.items()}
        net = "-".join(map(str, (num_inputs, *hidden, 1)))
        print_table(
            f"{net}, batch {rows}, one thread: a step, and its ratio to the deterministic one "
            f"(our set-up: {setup:.2f} s, not in the step)",
            per_step,
            "deterministic torch, fused Adam",
        )


if __name__ == "__main__":
    main()
