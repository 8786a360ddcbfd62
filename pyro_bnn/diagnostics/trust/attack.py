r"""Inputs changed by a step against the prediction, beside one of random signs.

.. math:: x' = x + \epsilon\, \mathrm{sign}\, \nabla_x L, \qquad
    L = -\log \frac1S \sum_s p(y \mid x, z_s)

L is the loss of the predictive density, the mean over all draws: the gradient of a single draw's
loss would give a weaker attack on the prediction.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pyro_bnn.checks import check_positive
from pyro_bnn.data import Dataset
from pyro_bnn.data.arrays import ArrayLike, to_tensor
from pyro_bnn.posterior.posterior import Posterior
from pyro_bnn.program.random_state import seeded
from pyro_bnn.program.terms import Batch

ROWS = 128  # at once
DRAWS = 25  # at once


class Attacked(NamedTuple):
    """Inputs near the given ones, every number moved by up to epsilon, within the bounds.

    Attributes:
        x: Moved up the gradient of the loss ``[N, ...]``.
        control: Moved by up to epsilon with random signs ``[N, ...]``.
        gradient: Gradient of the loss of each row ``[N, ...]``, in nats a unit of x.
    """

    x: Tensor
    control: Tensor
    gradient: Tensor


def fgsm(
    posterior: Posterior,
    data: Dataset | tuple[ArrayLike, ArrayLike],
    epsilon: float | Tensor,
    *,
    num_samples: int | None = None,
    seed: int = 0,
    low: float | Tensor | None = None,
    high: float | Tensor | None = None,
) -> Attacked:
    """The fast gradient sign method against a posterior predictive, and its random control.

    Predict at ``x`` and at ``control`` with the same ``num_samples`` and ``seed``: the attack is
    against the mean over these very draws. A loss of score that the control shares comes from
    noise, not from the attack.

    Args:
        posterior: The posterior whose prediction is attacked.
        data: Rows x and their targets y, in the model's units.
        epsilon: Largest move of every number of x, > 0, in the model's units; a tensor of the
            shape of a row where columns have different units.
        num_samples: Number of draws, the total over chains.
        seed: Seed of the draws and of the random signs.
        low: Least value that x can have, such as 0 for images, one or one a column; None for no
            bound.
        high: Largest such value.

    Raises:
        DataError: If y lies outside the support of the likelihood.
        OptionError: If epsilon is not positive.
        ShapeError: If the shapes do not fit.

    References:
        Goodfellow, Shlens & Szegedy, "Explaining and Harnessing Adversarial Examples", ICLR 2015,
        arXiv:1412.6572.
    """
    for step in torch.as_tensor(epsilon).unique().tolist():
        check_positive("epsilon", step)
    x, y = (data.x, data.y) if isinstance(data, Dataset) else data
    program, inputs = posterior.program, to_tensor(x, "x")
    y = program.batch(inputs, to_tensor(y, "y")).y
    rows = Batch(program.plain_inputs(inputs), y)  # no features of a frozen body
    draws = posterior.draws(num_samples, seed)
    parts = zip(rows.x.split(ROWS), rows.y.split(ROWS), strict=True)
    gradient = torch.cat([_gradient(posterior, draws, Batch(*part)) for part in parts])
    signs = torch.randint(0, 2, gradient.shape, generator=seeded(seed)).to(gradient) * 2 - 1
    moved, control = (
        _within(rows.x + epsilon * step, low, high) for step in (gradient.sign(), signs)
    )
    return Attacked(moved, control, gradient)


def _within(x: Tensor, low: float | Tensor | None, high: float | Tensor | None) -> Tensor:
    x = x if low is None else torch.maximum(x, torch.as_tensor(low).to(x))
    return x if high is None else torch.minimum(x, torch.as_tensor(high).to(x))


def _gradient(posterior: Posterior, draws: Tensor, batch: Batch) -> Tensor:
    """Gradient in x of minus the log of the mean density over draws, for each row.

    It is the mean of the gradients of the draws, weighed by their densities.
    """
    program, params = posterior.predictor, posterior.params
    blocks = draws.split(DRAWS)
    with torch.no_grad():
        parts = [program.log_likelihood(z, batch, params) for z in blocks]
        weights = torch.cat(parts).softmax(0).split(DRAWS)  # [S, N]
    total = torch.zeros_like(batch.x)
    for z, weight in zip(blocks, weights, strict=True):
        with torch.enable_grad():
            x = batch.x.detach().requires_grad_()
            values = program.log_likelihood(z, Batch(x, batch.y), params)
            (gradient,) = torch.autograd.grad(-(weight * values).sum(), x)
        total += gradient
    return total
