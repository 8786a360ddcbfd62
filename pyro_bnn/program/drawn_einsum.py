"""Sums in log space whose backward pass draws one term: a backend of ``opt_einsum``."""

from __future__ import annotations

import functools
from typing import Any

import torch
from pyro.ops.einsum.util import Tensordot
from torch import Tensor

from pyro_bnn.program import log_einsum


class DrawnSum(torch.autograd.Function):
    """Log of a sum over the last dimension; backward, the indicator of one term, drawn by size."""

    generate_vmap_rule = True

    @staticmethod
    def forward(terms: Tensor) -> Tensor:
        """The log of the sum ``[...]`` of the exponentials of terms ``[..., K]``."""
        return terms.logsumexp(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Keep the terms."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The gradient at the term that was drawn: the largest after Gumbel noise."""
        (terms,) = ctx.saved_tensors
        uniform = torch.rand_like(terms).clamp_min(torch.finfo(terms.dtype).tiny)
        place = (terms - (-uniform.log()).log()).argmax(-1, keepdim=True)
        numbers = torch.arange(terms.shape[-1], device=terms.device)
        at_place: Tensor = grad.unsqueeze(-1) * (numbers == place)
        return at_place


def _drawn_sum(terms: Tensor, dims: tuple[int, ...]) -> Tensor:
    summed: Tensor = DrawnSum.apply(terms.flatten(dims[0]))  # type: ignore[no-untyped-call]
    return summed


einsum = functools.partial(log_einsum.einsum, log_sum=_drawn_sum)
tensordot = Tensordot(einsum)
transpose = log_einsum.transpose
