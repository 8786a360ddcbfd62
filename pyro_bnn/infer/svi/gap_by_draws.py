"""The gap of a closed-form bound at the end of a run, by draws of the outputs."""

from __future__ import annotations

import math

import torch

from pyro_bnn.infer.svi.estimators.last_layer import LastLayer
from pyro_bnn.infer.svi.step_loss import StepLoss
from pyro_bnn.posterior.bound_gap import BoundGap
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.program.terms import Batch, Params, with_prefix

NUM_DRAWS = 32
MOST_ROWS = 2_048  # of a large table, spread over all; the gap is scaled to all rows
NUMBERS = 1 << 22  # at once
STREAM = 223  # of random numbers, beside those of starts, steps and comparisons


def bound_gap(loss: StepLoss, values: Params, whole: Batch, seed: int) -> BoundGap | None:
    """The gap at values of the parameters; None where what is maximised is no such bound.

    Args:
        loss: What the steps minimise.
        values: Of the parameters of guide and model, with their prefixes.
        whole: All rows.
        seed: Of the run.
    """
    estimator, num_rows = loss.estimator, len(whole.x)
    if not isinstance(estimator, LastLayer) or not estimator.is_bound:
        return None
    device = whole.x.device
    generator = torch.Generator(device).manual_seed(derived_seed(seed, STREAM))
    noise = loss.guide.draw_noise(NUM_DRAWS, generator)
    count = min(num_rows, MOST_ROWS)
    rows = whole.take(torch.linspace(0, num_rows - 1, count, device=device).long())
    outputs = estimator.outputs
    size = max(1, NUMBERS // (NUM_DRAWS * outputs.num_outputs * (1 + outputs.num_shared)))
    params = {**loss.program.params, **with_prefix(values, "model.")}
    total = torch.zeros(NUM_DRAWS, dtype=torch.float64, device=device)
    with torch.no_grad():
        for part in map(Batch, rows.x.split(size), rows.y.split(size)):
            own = with_prefix(values, "guide.")
            total += estimator.slack(noise, generator, part, params, own).double().sum(-1)
    total *= num_rows / count
    error = float(total.std()) / math.sqrt(NUM_DRAWS)
    return BoundGap(float(total.mean()), error, num_rows)
