r"""An ensemble trained to its optimum, all members in one batch: where chains can start.

Member k descends from a draw of the prior on

.. math:: U(z) = -\tfrac{N}{N - H} \sum_{n \notin \text{held}} \log p(y_n \mid x_n, z) - \log p(z)

with H rows held out, by Adam, and ends where the held-out rows had their highest likelihood.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_bnn.capture.captured import Captured
from pyro_bnn.errors import DataError
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.steps.adam import PlainAdam
from pyro_bnn.infer.steps.potentials import of_one

HELD_OUT = 0.1  # of the rows
LOOK = 10  # steps between two looks at the held-out rows
PATIENCE = 30  # looks in a row at which no member has improved, then all stop
MOST_STEPS = 20_000


def train(problem: Problem, starts: Tensor, learning_rate: float) -> Tensor:
    """Members ``[K, P]``, each where its held-out rows were likeliest.

    Args:
        problem: Model and data; its seed chooses the held-out rows, a tenth, the same for all.
        starts: Where the members start ``[K, P]``.
        learning_rate: Of Adam.

    Raises:
        DataError: If there are fewer than ten rows.
    """
    program, rows = problem.program, problem.rows
    num_rows = len(rows.x)
    if num_rows < 10:
        raise DataError(
            f"members stop by a tenth of the rows: at least ten are needed, not {num_rows}"
        )
    generator = torch.Generator().manual_seed(problem.seed)
    order = torch.randperm(num_rows, generator=generator).to(rows.x.device)
    num_held = round(HELD_OUT * num_rows)
    held, kept = (rows.take(i) for i in (order[:num_held], order[num_held:]))
    _, potential, data, _ = of_one(program, kept)
    gradient = Captured(potential, f"the members of {problem.engine}")
    params = {name: value.detach() for name, value in program.params.items()}

    def held_out(z: Tensor) -> Tensor:
        with torch.no_grad():
            return program.log_likelihood(z, held, params).sum(-1)  # [K]

    return _descend(
        starts, lambda z: gradient(z, *data)[1], held_out, learning_rate, problem.progress
    )


def _descend(
    starts: Tensor,
    slope: Callable[[Tensor], Tensor],
    held_out: Callable[[Tensor], Tensor],
    learning_rate: float,
    progress: bool,
) -> Tensor:
    z = starts.clone()
    best, best_score = z.clone(), held_out(z)
    adam = PlainAdam([z], lr=learning_rate)
    waited = 0
    bar = tqdm(range(1, MOST_STEPS + 1), disable=not progress, desc="members", unit="step")
    for step in bar:
        z.grad = slope(z)
        adam.step()
        if step % LOOK:
            continue
        score = held_out(z)
        better = score > best_score  # False where the score is NaN
        best = torch.where(better.unsqueeze(-1), z, best)
        best_score = torch.where(better, score, best_score)
        waited = 0 if bool(better.any()) else waited + 1
        if waited == PATIENCE:
            break
    bar.close()
    return best
