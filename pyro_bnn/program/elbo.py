r"""The ELBO of a guide at given noise, in its two halves.

.. math:: \tfrac{N}{B} \sum_{b} E_q \log p(y_b \mid x_b, z)
          - \mathrm{KL}\bigl(q(z) \,\|\, p(z)\bigr)

The KL is summed over all of z, once per data set. Its entropy is in closed form where the guide has
it, the expected log prior where the marginals of q and the prior are a pair of families with a
closed form; the rest is a Monte Carlo average over the same draws. For a guide without density (a
point estimate) the second half is minus the log prior density of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from pyro_bnn.program.batched import refused_as
from pyro_bnn.program.handlers import total_log_prob
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.terms import (
    Batch,
    ELBOTerms,
    GuideLike,
    GuideTerms,
    Params,
    RowEstimate,
    with_prefix,
)


def elbo(
    joint: Joint,
    guide: GuideLike,
    params: Params,
    noise: Tensor,
    args: Sequence[Any] | None = None,
    estimate: RowEstimate | None = None,
    row_noise: Sequence[Tensor] = (),
) -> ELBOTerms:
    """The ELBO of a guide, of a plain model or of rows; see :meth:`Program.elbo`.

    Args:
        joint: The model.
        guide: The guide.
        params: Values of the guide's parameters, keys ``guide.<name>``, and of the model's, keys
            ``model.<name>``.
        noise: Noise ``[S, M]`` of S particles; of rows also ``[S, B, M]``.
        args: The model's arguments, as a batch of rows; default those that it was traced with.
        estimate: Of the likelihood term of rows, where it is another one.
        row_noise: Its noise, beside that of the draws.
    """
    args = joint.args if args is None else args
    of_guide = with_prefix(params, "guide.")
    of_model = {**joint.params, **with_prefix(params, "model.")}  # frozen ones keep their values
    by_row = noise.ndim == 3
    q = guide.terms(of_guide, noise[:, 0] if by_row else noise)
    # the likelihood has draws of its own, apart from the KL's
    is_apart = by_row or estimate is not None
    first = [rows[:1] for rows in args] if is_apart else args
    weights = q.weights if estimate is None else estimate.kl_weights
    jacobian = guide.has_log_prob
    rows, scale, log_prior, log_factors = _at_draws(joint, q, weights, first, of_model, jacobian)
    if estimate is not None:
        batch = cast(Batch, args)
        rows, scale = estimate.rows(q, (noise, *row_noise), batch, of_model, of_guide)
    elif by_row:
        z = guide.terms(of_guide, noise.flatten(0, 1), density=False).z
        z = z.unflatten(0, (*noise.shape[:2], -1)).transpose(1, 2).flatten(0, 1)  # [D, B, P]
        rows, scale = _at_draws_of_each_row(joint, z, cast(Batch, args), of_model)
    kl, sampled = _kl(joint, q, weights, log_prior)
    if q.weights is None:
        expected = guide.reduce_log_likelihood(rows, scale)
    else:
        expected = (q.weights @ rows.sum(-1)) * scale
    return ELBOTerms(expected, kl, sampled, log_factors)


def _at_draws(
    joint: Joint,
    q: GuideTerms,
    weights: Tensor | None,
    args: Sequence[Any],
    params: Params,
    jacobian: bool,
) -> tuple[Tensor, float, Tensor, Tensor | None]:
    """The model at the D draws of a guide.

    Returns:
        Log densities ``[D, B]`` of the rows, their scale N/B, the mean over draws of the log prior,
        but for what is in closed form, and that of penalties, or None.
    """
    blocks = None  # None: the whole prior is sampled
    if q.marginals is not None:
        blocks = joint.latents.closed_forms(q.marginals.cauchy, q.marginals.others).sampled
    has_factors, scale = False, 1.0

    def one(draw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nonlocal has_factors, scale
        z, params_of_draw = joint.split_draw(draw, params)
        run = joint.run_at(z, args, params_of_draw)
        prior = joint.run_log_prior(run, z, jacobian=jacobian, blocks=blocks)
        factors = joint.penalties(run)
        has_factors = bool(factors)
        rows, scale = joint.row_densities(run)
        return rows, prior, total_log_prob(factors, like=z)

    if len(q.z) == 1:
        rows, log_prior, log_factors = one(q.z.squeeze(0))
        rows = rows.unsqueeze(0)  # [D, B]
    else:
        rows, *of_draws = joint.batched(one, q.z)
        log_prior, log_factors = (_mean(values, weights) for values in of_draws)
    return rows, scale, log_prior, log_factors if has_factors else None


def _at_draws_of_each_row(
    joint: Joint, draws: Tensor, batch: Batch, params: Params
) -> tuple[Tensor, float]:
    """Log densities ``[D, B]`` of each row at draws ``[D, B, P]`` of its own; N/B."""
    scale = 1.0

    def one(draw: Tensor, x: Tensor, y: Tensor) -> Tensor:
        nonlocal scale
        z, params_of_draw = joint.split_draw(draw, params)
        run = joint.run_at(z, (x.unsqueeze(0), y.unsqueeze(0)), params_of_draw)
        rows, scale = joint.row_densities(run, num_rows=batch.x.shape[0])
        return rows.squeeze(0)

    with refused_as(
        "draws for each row need a model that can be batched over draws and rows, and this one "
        "cannot: leave per_example_draws at False"
    ):
        rows = torch.func.vmap(lambda draw: torch.func.vmap(one)(draw, *batch))(draws)
    return rows, scale


def _kl(
    joint: Joint, q: GuideTerms, weights: Tensor | None, log_prior: Tensor
) -> tuple[Tensor, Tensor]:
    """KL(q || p) ``[]`` out of the sampled part of the log prior, and its own sampled part."""
    sampled = -log_prior
    if q.marginals is not None:
        log_prior = log_prior + joint.latents.expected_log_prior(q.marginals)
    if q.entropy is not None:
        kl = -q.entropy - log_prior
    elif q.log_prob is not None:
        kl = sampled = _mean(q.log_prob, weights) - log_prior
    else:
        kl = -log_prior
    return (kl if q.kl_scale == 1 else q.kl_scale * kl), sampled


def _mean(of_draws: Tensor, weights: Tensor | None) -> Tensor:
    """Mean over draws ``[D, ...]`` of given or equal weights."""
    return of_draws.mean(0) if weights is None else weights @ of_draws
