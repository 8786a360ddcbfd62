r"""The matrix :math:`I + C^\top C` of the determinant lemma and of Woodbury's identity."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

BLOCK = 1024  # rows that are multiplied together where there are TALL of them or more
TALL, NARROW = 1 << 17, 16


def capacitance_tril(C: Tensor) -> Tensor:
    """Cholesky factor ``[R, R]`` of I + C^T C, C ``[P, R]``."""
    eye = torch.eye(C.shape[1], dtype=C.dtype, device=C.device)
    gram: Tensor = _Gram.apply(C)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    chol: Tensor = torch.linalg.cholesky(eye + gram)
    return chol


class _Gram(torch.autograd.Function):
    """C^T C ``[R, R]`` of C ``[P, R]``; its gradient is one product, where autograd makes two.

    A tall and narrow matrix is multiplied block by block: at ``[475000, 10]`` in float32 with an
    error of 1e-7 of the value, where one sum over all rows has up to 2e-4 (by rows, on an EPYC),
    in a third of the time to 1.1 times it.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(C: Tensor) -> Tensor:
        num_rows, num_columns = C.shape
        if C.device.type != "cpu" or num_rows < TALL or num_columns > NARROW:
            return C.mT @ C
        num_blocks = num_rows // BLOCK
        blocks = C[: num_blocks * BLOCK].unflatten(0, (num_blocks, BLOCK))
        rest = C[num_blocks * BLOCK :]
        product: Tensor = (blocks.mT @ blocks).sum(0) + rest.mT @ rest
        return product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (C,) = ctx.saved_tensors
        along: Tensor = (gradient + gradient.mT) @ C.mT  # [R, P]
        return along.mT
