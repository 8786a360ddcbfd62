"""The gap of a closed-form bound at the end of a run, by draws of the outputs."""

from __future__ import annotations

import math

import torch

from pyro_bnn.infer.svi.estimators.last_layer import LastLayer
from pyro_bnn.infer.svi.step_loss import StepLoss
from pyro_bnn.posterior.bound_gap import BoundGap
from pyro_bnn.program.random_state import derived_seed
from pyro_bnn.program.terms import Batch, Params, with_prefix

NUM_DRAWS = 32  # of f
FEWER = 16  # of other sites, where these are random
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
    num_others = 1 if estimator.is_exact else FEWER
    num_draws = NUM_DRAWS // num_others
    noise = loss.guide.draw_noise(num_others, generator)
    count = min(num_rows, MOST_ROWS)
    rows = whole.take(torch.linspace(0, num_rows - 1, count, device=device).long())
    outputs = estimator.outputs
    a_row = num_others * (outputs.numbers_a_row + num_draws * outputs.num_shared)
    size = max(1, NUMBERS // (a_row + NUM_DRAWS * outputs.num_outputs))
    params = {**loss.program.params, **with_prefix(values, "model.")}
    total = torch.zeros(num_others, num_draws, dtype=torch.float64, device=device)
    with torch.no_grad():
        for part in map(Batch, rows.x.split(size), rows.y.split(size)):
            own = with_prefix(values, "guide.")
            above = estimator.slack(noise, generator, part, params, own, num_draws=num_draws)
            total += above.double().sum(-1)
    of_draws = total.flatten() if estimator.is_exact else total.mean(-1)
    share = count / num_rows
    error = float(of_draws.std()) / math.sqrt(len(of_draws))
    return BoundGap(float(total.mean()) / share, error / share, num_rows)
