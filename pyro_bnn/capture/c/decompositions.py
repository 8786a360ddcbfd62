"""Rules that express operations without C code of their own in operations that have it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
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
        aten.diag_embed.default: _diag_embed,
        aten.logsumexp.default: _logsumexp,
        aten.var.correction: _variance,
        aten.std.correction: lambda x, *how, **kwargs: _variance(x, *how, **kwargs).sqrt(),
        aten.linalg_vector_norm.default: _norm,
        aten.gather.default: _gather,
        aten.index_select.default: _index_select,
        aten.scatter_add.default: _scatter_add,
        aten.index_add.default: _index_add,
        aten.index_put.default: _index_put,
        aten.roll.default: _roll,
        aten.constant_pad_nd.default: _pad,
        aten.copy.default: _copy,
        aten.fill.Tensor: _copy,
        aten.new_empty_strided.default: lambda x, size, _, **how: x.new_zeros(size, **how),
        aten.as_strided.default: _as_strided,
        aten.as_strided_scatter.default: _as_strided_scatter,
        aten.linalg_cholesky_ex.default: _cholesky,
        aten.linalg_solve_triangular.default: _solve_triangular,
        aten.cholesky_solve.default: _cholesky_solve,
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


def _index_put(
    x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False
) -> Any:
    """One number where a mask is true, as ``Multinomial`` writes it; the rest as it is."""
    mask = indices[0]
    is_mask = len(indices) == 1 and mask is not None and mask.dtype is torch.bool
    if mask is None or not is_mask or accumulate or values.numel() != 1:
        return NotImplemented
    return torch.where(mask.reshape(*mask.shape, *[1] * (x.ndim - mask.ndim)), values, x)


def _copy(x: Tensor, values: Tensor, _: bool = False) -> Tensor:
    return values.to(x.dtype).expand(x.shape).clone()


def _as_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> Tensor:
    """Entries at places of memory, as gradients of what was written into parts are read."""
    return x.reshape(-1)[_places(x, size, stride, offset)]


def _as_strided_scatter(
    x: Tensor,
    values: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None = None,
) -> Tensor:
    places = _places(x, size, stride, offset)
    return x.reshape(-1).index_put([places], values).reshape(x.shape)


def _places(x: Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None) -> Tensor:
    """Places ``[*size]`` among the entries of x in their order."""
    if not x.is_contiguous():
        raise CaptureError("places in memory that does not lie by rows are not written in C")
    places = torch.full((), offset or 0)
    for d, (count, step) in enumerate(zip(size, stride, strict=True)):
        along = torch.arange(count) * step
        places = places + along.reshape([-1] + [1] * (len(size) - 1 - d))
    return places.expand(tuple(size))


def _select_scatter(x: Tensor, values: Tensor, dim: int, index: int) -> Tensor:
    dim %= x.ndim
    places = torch.arange(x.shape[dim]).reshape([-1] + [1] * (x.ndim - 1 - dim))
    return torch.where(places == index % x.shape[dim], values.unsqueeze(dim), x)


def _diagonal_scatter(
    x: Tensor, values: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    dims = dim1 % x.ndim, dim2 % x.ndim
    offset = offset if dims[0] < dims[1] else -offset
    if sorted(dims) != [x.ndim - 2, x.ndim - 1] or x.shape[-1] != x.shape[-2]:
        raise CaptureError("another diagonal than that of square matrices is not written in C")
    places, gap = torch.arange(x.shape[-1]), values.new_zeros((*values.shape[:-1], abs(offset)))
    by_column = torch.cat([gap, values] if offset > 0 else [values, gap], -1)
    return torch.where(places == places.unsqueeze(-1) + offset, by_column.unsqueeze(-2), x)


def _diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    size = x.shape[-1] + abs(offset)
    zeros = x.new_zeros((*x.shape[:-1], size, size))
    return _diagonal_scatter(zeros, x, offset, dim1, dim2)


def _logsumexp(x: Tensor, dims: list[int], keepdim: bool = False) -> Tensor:
    largest = x.amax(dims, keepdim=True)
    shift = torch.where(largest.isinf(), 0, largest)
    total = (x - shift).exp().sum(dims, keepdim=keepdim).log()
    return total + (shift if keepdim else shift.reshape(total.shape))


def _variance(
    x: Tensor,
    dims: list[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    dims = list(dims) if dims else list(range(x.ndim))
    count = math.prod(x.shape[d] for d in dims)
    squares = (x - x.mean(dims, keepdim=True)).square().sum(dims, keepdim=keepdim)
    return squares / max(count - (1 if correction is None else correction), 0)


def _norm(
    x: Tensor,
    order: float = 2,
    dims: list[int] | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    if order not in (1, 2) or dtype is not None:
        raise CaptureError(f"a norm of order {order} is not written in C")
    dims = list(dims) if dims else list(range(x.ndim))
    if order == 1:
        return x.abs().sum(dims, keepdim=keepdim)
    return x.square().sum(dims, keepdim=keepdim).sqrt()


def _entries(index: Tensor, dim: int) -> list[Tensor]:
    """Places of entries along each dimension, of which one has an index, and none from the end."""
    places = [
        torch.arange(n).reshape([-1] + [1] * (index.ndim - 1 - d))
        for d, n in enumerate(index.shape)
    ]
    places[dim % index.ndim] = torch.where(index < 0, OUTSIDE, index)
    return places


def _at(x: Tensor, places: list[Tensor | None]) -> Tensor:
    found: Tensor = aten.index.Tensor(x, places)
    return found


def _gather(x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Tensor:  # noqa: ARG001
    return _at(x, [*_entries(index, dim)]) if x.ndim else x


def _scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if index.shape != source.shape:
        raise CaptureError("an index of other sizes than what is added is not written in C")
    return _added(x, [*_entries(index, dim)], source) if x.ndim else x + source


def _along(dim: int, index: Tensor, ndim: int) -> list[Tensor | None]:
    return [None] * (dim % ndim) + [torch.where(index < 0, OUTSIDE, index)]


def _index_select(x: Tensor, dim: int, index: Tensor) -> Tensor:
    return _at(x, _along(dim, index, x.ndim))


def _index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: float = 1) -> Tensor:
    return _added(x, _along(dim, index, x.ndim), alpha * source)


def _added(x: Tensor, places: list[Tensor | None], source: Tensor) -> Tensor:
    added: Tensor = aten.index_put.default(x, places, source, accumulate=True)
    return added


def _roll(x: Tensor, shifts: list[int], dims: list[int] | None = None) -> Tensor:
    if not dims:
        return _roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        at = -shift % x.shape[dim]
        x = torch.cat([x.narrow(dim, at, x.shape[dim] - at), x.narrow(dim, 0, at)], dim)
    return x


def _pad(x: Tensor, widths: list[int], value: float = 0) -> Tensor:
    for number in range(len(widths) // 2):
        dim, (left, right) = x.ndim - 1 - number, widths[2 * number : 2 * number + 2]
        cut = x.narrow(dim, max(0, -left), x.shape[dim] + min(0, left) + min(0, right))
        sizes = [[*x.shape[:dim], max(0, width), *x.shape[dim + 1 :]] for width in (left, right)]
        before, after = (torch.full(size, value, dtype=x.dtype) for size in sizes)
        x = torch.cat([before, cut, after], dim)
    return x


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


def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    low = factor.mT if upper else factor
    half = _solve_triangular(low, b, upper=False)
    return _solve_triangular(low.mT, half, upper=True)


def _small(x: Tensor) -> int:
    n = x.shape[-1]
    if n > MOST_COLUMNS:
        raise CaptureError(f"a factorisation of {n} columns is not written in C")
    return n
