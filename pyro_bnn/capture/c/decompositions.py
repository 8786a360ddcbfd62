"""Rules that express operations without C code of their own in operations that have it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pyro_bnn.capture.c.operations import aten
from pyro_bnn.capture.c.source import WRITTEN
from pyro_bnn.capture.inductor.recording import rules_of_torch
from pyro_bnn.errors import CaptureError

OUTSIDE = 2**31 - 1  # an index that no table has
MOST_COLUMNS = 32  # larger matrices are factorised by a library, not column by column


@functools.cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Torch's own rules in terms of other operations of ATen, and those below."""
    rules = {
        operation: rule
        for operation, rule in rules_of_torch().items()
        if getattr(operation, "overloadpacket", operation) not in WRITTEN
    }
    return rules | {
        aten.embedding.default: functools.partial(_embedding, rules[aten.embedding.default]),
        # torch's own rules for these two look at dtypes, and import sympy to do so
        aten.addmm.default: _addmm,
        aten.softplus_backward.default: _softplus_backward,
        aten.dot.default: lambda a, b: (a * b).sum(),
        aten.tril.default: _tril,
        aten.repeat.default: _repeat,
        aten.select_scatter.default: _select_scatter,
        aten.diagonal_scatter.default: _diagonal_scatter,
        aten.linalg_cholesky_ex.default: _cholesky,
        aten.linalg_solve_triangular.default: _solve_triangular,
    }


def _embedding(
    rule: Callable[..., Tensor], weight: Tensor, indices: Tensor, *options: Any
) -> Tensor:
    """Torch's own rule, in which a negative index would be one from the end."""
    return rule(weight, torch.where(indices < 0, OUTSIDE, indices), *options)


def _addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * bias + alpha * a.mm(b)


def _softplus_backward(slope: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    scaled = beta * x
    return torch.where(scaled > threshold, slope, slope * scaled.sigmoid())


def _tril(x: Tensor, diagonal: int = 0) -> Tensor:
    rows, columns = torch.arange(x.shape[-2]), torch.arange(x.shape[-1])
    return torch.where(columns <= rows.unsqueeze(-1) + diagonal, x, 0)


def _repeat(x: Tensor, counts: list[int]) -> Tensor:
    shape = (1,) * (len(counts) - x.ndim) + tuple(x.shape)
    pairs = list(zip(counts, shape, strict=True))
    single = x.reshape([size for _, n in pairs for size in (1, n)])
    whole = single.expand([size for pair in pairs for size in pair]).clone()
    return whole.reshape([count * n for count, n in pairs])


def _select_scatter(x: Tensor, values: Tensor, dim: int, index: int) -> Tensor:
    dim %= x.ndim
    places = torch.arange(x.shape[dim]).reshape([-1] + [1] * (x.ndim - 1 - dim))
    return torch.where(places == index % x.shape[dim], values.unsqueeze(dim), x)


def _diagonal_scatter(
    x: Tensor, values: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    is_plain = offset == 0 and (dim1 % x.ndim, dim2 % x.ndim) == (x.ndim - 2, x.ndim - 1)
    if not is_plain or x.shape[-1] != x.shape[-2]:
        raise CaptureError("another diagonal than that of square matrices is not written in C")
    places = torch.arange(x.shape[-1])
    return torch.where(places == places.unsqueeze(-1), values.unsqueeze(-1), x)


def _cholesky(
    x: Tensor, *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """The factor L of x = L L', not finite where x has none, and 0 as the error code."""
    n = _small(x)
    if upper or check_errors:
        raise CaptureError("this form of a Cholesky factorisation is not written in C")
    columns: list[Tensor] = []
    rest = x
    for k in range(n):
        scaled = rest[..., :, k] / rest[..., k, k].sqrt().unsqueeze(-1)
        column = torch.where(torch.arange(n) >= k, scaled, 0)
        rest = rest - column.unsqueeze(-1) * column.unsqueeze(-2)
        columns.append(column)
    return torch.stack(columns, -1), x.new_zeros(x.shape[:-2], dtype=torch.int32)


def _solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    """Solve A X = B for X, a row at a time; X A = B if not ``left``."""
    if unitriangular:
        raise CaptureError("a triangle of ones on its diagonal is not written in C")
    if not left:
        return _solve_triangular(a.mT, b.mT, upper=not upper).mT
    n = _small(a)
    solved: dict[int, Tensor] = {}
    for i in reversed(range(n)) if upper else range(n):
        solved[i] = b[..., i, :] / a[..., i, i].unsqueeze(-1)
        b = b - a[..., :, i].unsqueeze(-1) * solved[i].unsqueeze(-2)
    return torch.stack([solved[i] for i in range(n)], -2)


def _small(x: Tensor) -> int:
    n = x.shape[-1]
    if n > MOST_COLUMNS:
        raise CaptureError(f"a factorisation of {n} columns is not written in C")
    return n
