"""The objective of a training run as its snapshots are compared by, and what that may cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_bnn.guides import Guide
from pyro_bnn.infer.batches import Batches, Minibatches
from pyro_bnn.infer.svi.estimators.by_name import AUTO, make_estimator
from pyro_bnn.infer.svi.estimators.estimator import Estimator
from pyro_bnn.infer.svi.paired import (
    FEWEST,
    MOST,
    NUMBERS_A_ROW,
    PairedObjective,
    rows_of_a_pair,
)
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.terms import Batch

SHARE = 0.25  # of the time of the steps so far, that a comparison may take
SECONDS_A_STEP = 1e-4  # of the smallest network
SECONDS_A_ROW = 3e-6  # of a pair, beside its products: noise of rows, functions of layers
PRODUCTS_A_SECOND = 1e10  # of numbers, in a forward or a backward pass

LossAt = Callable[[Sequence[Tensor], Sequence[Tensor], Batch, Estimator | None], Tensor]


def objective_of(
    loss_at: LossAt,
    program: Joint,
    guide: Guide,
    whole: Batch,
    seed: int,
    estimator: Estimator | None = None,
    *,
    needs_all_rows: bool = False,
) -> PairedObjective:
    """What a run maximises, at draws of its guide's noise, on all rows.

    Args:
        loss_at: What it minimises, at values of its parameters, noise, rows and an estimator.
        program: The model as tensor functions.
        guide: The guide.
        whole: All rows.
        seed: Of the run.
        estimator: Of its steps; another one takes its place where that has a lower variance.
        needs_all_rows: Whether the objective is no sum over rows.
    """
    nodes = None if estimator is None else estimator.nodes
    keeps = estimator is not None and (nodes is not None or estimator.compares)
    best = estimator if keeps else make_estimator(AUTO, program, guide)
    is_exact = nodes is not None or guide.noise_dim == 0 or (best is not None and best.is_exact)

    def objective(values: Sequence[Tensor], noise: Sequence[Tensor], rows: Batch) -> Tensor:
        return -loss_at(values, noise if nodes is None else [nodes], rows, best)

    def draw_noise(count: int, generator: torch.Generator) -> Tensor:
        return guide.draw_noise(count, generator) if nodes is None else nodes[:1]

    return PairedObjective(
        objective,
        draw_noise,
        whole,
        seed=seed,
        estimator=best,
        is_exact=is_exact,
        needs_all_rows=needs_all_rows,
        numbers_a_row=NUMBERS_A_ROW if program.has_rows else NUMBERS_A_ROW + program.num_observed,
    )


def most_pairs(program: Joint, batches: Batches, num_steps: int) -> int:
    """How many pairs of draws a comparison may take: a rule of sizes, so that a seed repeats.

    Args:
        program: The model as tensor functions; each number that it observes counts as a row where
            it has no rows.
        batches: Of the steps.
        num_steps: Number of steps so far.
    """
    num_latents, num_rows = program.num_latents, len(batches.whole.x)
    rows_a_step = batches.size if isinstance(batches, Minibatches) else num_rows
    rows = rows_of_a_pair(num_rows)
    if not program.has_rows:
        num_rows = rows_a_step = rows = program.num_observed
    step = SECONDS_A_STEP + 6 * rows_a_step * num_latents / PRODUCTS_A_SECOND
    pair = 8 * rows * num_latents / PRODUCTS_A_SECOND
    if rows < num_rows:
        pair += rows * SECONDS_A_ROW
    return int(min(max(SHARE * num_steps * step / pair, FEWEST), MOST))
