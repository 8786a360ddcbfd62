"""Densities of a model at one point, by which it is told from another with the same sites."""

from __future__ import annotations

import torch
from torch import Tensor

from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch, Params


def fingerprint(program: Program, z: Tensor, params: Params, rows: Batch) -> Tensor:
    """Log prior, log likelihoods and f of some rows at z ``[P]``, in double precision."""
    with torch.no_grad():
        values = (
            program.log_prior(z, rows.x, params).reshape(1),
            program.log_likelihood(z, rows, params),
            program.function(z, rows.x, params).flatten(),
        )
    return torch.cat(values).double()


def wave(like: Tensor) -> Tensor:
    """Values without a pattern that a network could be blind to."""
    return torch.arange(1, like.numel() + 1).sin().reshape(like.shape).to(like)
