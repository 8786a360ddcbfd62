"""Functions of draws and rows, computed a chunk of draws at a time within a memory bound."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_bnn.draws import Draws
from pyro_bnn.effects import without_validation
from pyro_bnn.fusion import fuse
from pyro_bnn.memory import CountBytes, beyond, bytes_per_draw, draws_at_once, require_bytes
from pyro_bnn.program import Params, Program
from pyro_bnn.recording import TensorFunction
from pyro_bnn.simplify import simplify

logger = logging.getLogger("pyro_bnn")

CAPTURE_FROM = 64 << 20  # bytes of intermediate results from which a graph repays its capture
GRAPHS_KEPT = 8

Rows = tuple[Tensor, ...]  # [N, ...] each
Function = Callable[[Tensor, Rows, Params], tuple[Tensor, ...]]


class Chunks:
    """What is learned of a program's functions over draws, kept for later calls.

    Args:
        program: The model.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._bytes: dict[object, tuple[int, int, int]] = {}
        self._graphs: dict[object, TensorFunction | None] = {}
        self._observed: dict[object, tuple[Distribution, bool]] = {}

    def over(self, name: str, fn: Function, draws: Draws, rows: Rows, params: Params) -> Pass:
        """A function over draws, not yet computed.

        Args:
            name: Of the function; one name always means the same one.
            fn: Pure function of draws ``[s, Q]``, rows and parameters; every tensor that it
                returns is ``[s, ...]``.
            draws: The draws.
            rows: Tensors ``[N, ...]``.
            params: Values of the model's point-estimated parameters.
        """
        with torch.no_grad(), CountBytes() as counter:
            z = next(draws.blocks())
        z = z[:1]
        key = (name, _shapes(z, *rows))
        if key not in self._bytes:
            stored = _stored_bytes(fn, z, rows, params)  # first calls may do more: not counted
            working, at_one_row = bytes_per_draw(lambda z, *few: fn(z, few, params), z, rows)
            self._bytes[key] = working, at_one_row, stored
        working, at_one_row, stored = self._bytes[key]
        of_z = 2 * z.nbytes  # in a chunk of draws, and in the blocks that it is cut from
        return Pass(
            chunks=self,
            name=name,
            fn=fn,
            draws=draws,
            rows=rows,
            params=params,
            working=working + of_z,
            at_one_row=at_one_row + of_z,
            stored=stored,
            fixed=counter.total,
        )

    def graph(self, of: Pass, size: int) -> TensorFunction | None:
        """The function as a graph for ``size`` draws; None where it runs as it is."""
        key = (of.name, size, tuple(of.params), _shapes(*of.rows, *of.params.values()))
        if key not in self._graphs:
            worth = len(of.draws) * of.working >= CAPTURE_FROM
            if not worth or not self.program.is_batched:
                return None
            _make_room(self._graphs)
            self._graphs[key] = _capture(of, size)
        return self._graphs[key]

    def observed(self, of: Pass) -> tuple[Distribution, bool]:
        """The distribution of y ``[N]`` at one draw, and whether rows of it are masked.

        What it is at other draws differs in its tensors alone.
        """
        key = _shapes(*of.rows)
        if key not in self._observed:
            _make_room(self._observed)
            z = next(of.draws.blocks())[0]
            self._observed[key] = self.program.observed(z, of.rows[0], of.params)
        return self._observed[key]


@dataclass(frozen=True)
class Pass:
    """One pass of a function over all draws, as :meth:`Chunks.over` makes it.

    Attributes:
        working: Bytes that a draw takes while it is computed.
        at_one_row: Bytes that it takes at a single row.
        stored: Bytes of what is computed of a draw, each tensor once.
        fixed: Bytes that a block of draws takes in the making.
    """

    chunks: Chunks
    name: str
    fn: Function
    draws: Draws
    rows: Rows
    params: Params
    working: int
    at_one_row: int
    stored: int
    fixed: int

    def excess(self, memory: int, kept: int) -> str | None:
        """What to say where results of ``kept`` bytes a draw exceed the bound, else None.

        Raises:
            OptionError: If the bound is no positive integer.
        """
        require_bytes(memory)
        working = self.working + self.fixed
        if working + kept * len(self.draws) <= memory:
            return None
        return beyond(
            len(self.draws),
            len(self.rows[0]),
            working,
            memory,
            kept * len(self.draws),
            least=self.at_one_row + self.fixed,
            num_chains=self.draws.num_chains,
        )

    def parts(self, memory: int, *, kept: int = 0, beside: int = 0) -> Iterator[tuple[Tensor, ...]]:
        """The function of each chunk of draws ``[s, ...]``, in order.

        Args:
            memory: Bound in bytes on results and intermediate results.
            kept: Bytes that the caller keeps of every draw.
            beside: Bytes that the caller needs for every draw of a chunk.

        Raises:
            OptionError: If the result or a single draw exceeds the bound; names the number of
                samples that fits.
        """
        size = draws_at_once(
            len(self.draws),
            len(self.rows[0]),
            self.working + beside,
            memory=memory,
            result_bytes=kept * len(self.draws),
            fixed_bytes=self.fixed,
            at_one_row=self.at_one_row + beside // len(self.rows[0]),
            num_chains=self.draws.num_chains,
        )
        graph = self.chunks.graph(self, size)
        for z in self.draws.chunks(size):
            with torch.no_grad():
                values = self._one(z, size, graph)
            yield values

    def _one(self, z: Tensor, size: int, graph: TensorFunction | None) -> tuple[Tensor, ...]:
        if graph is None:
            return self.fn(z, self.rows, self.params)
        full = z if len(z) == size else torch.cat([z, z[-1:].expand(size - len(z), -1)])
        values = graph(full, *self.rows, *self.params.values())
        return tuple(value[: len(z)] for value in values)

    def together(self, memory: int, *, kept: int | None = None) -> tuple[Tensor, ...]:
        """The function of all draws, ``[S, ...]``; see :meth:`parts`."""
        kept = self.stored if kept is None else kept
        return together(self.parts(memory, kept=kept), len(self.draws))


def together(parts: Iterator[tuple[Tensor, ...]], num_draws: int) -> tuple[Tensor, ...]:
    """Chunks ``[s, ...]`` of several tensors as whole tensors ``[S, ...]``, each stored once.

    A dimension along which a tensor is expanded stays so, and two that are one tensor stay one.
    """
    whole: list[Tensor] = []
    twins: list[int] = []  # position of the tensor that each one is
    shapes: list[torch.Size] = []
    start = 0
    for values in parts:
        if not whole:
            first: dict[object, int] = {}
            for i, value in enumerate(values):
                twins.append(first.setdefault(_identity(value), i))
                shapes.append(value.shape[1:])
                whole.append(value.new_empty((num_draws, *_collapsed(value).shape[1:])))
        for i, value in enumerate(values):
            if twins[i] == i:
                whole[i][start : start + len(value)] = _collapsed(value, whole[i])
        start += len(values[0])
    full = [
        whole[twin].expand(num_draws, *shape) for twin, shape in zip(twins, shapes, strict=True)
    ]
    return tuple(full[twin] for twin in twins)


def _identity(value: Tensor) -> tuple[object, ...]:
    """What two tensors share that are one."""
    return value.data_ptr(), value.shape, value.stride(), value.dtype


def _collapsed(value: Tensor, like: Tensor | None = None) -> Tensor:
    """One entry of each dimension along which ``[s, ...]`` is expanded, or ``like`` has one."""
    for dim in range(1, value.ndim):
        is_expanded = value.stride(dim) == 0 if like is None else like.shape[dim] == 1
        if is_expanded and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


def _capture(of: Pass, size: int) -> TensorFunction | None:
    """Record the function for ``size`` draws, on distinct clones of its inputs."""
    names, num_rows = tuple(of.params), len(of.rows)

    def fn(z: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        params = dict(zip(names, values[num_rows:], strict=True))
        return of.fn(z, values[:num_rows], params)

    z = next(of.draws.chunks(1)).repeat(size, 1)
    clones = [value.detach().clone() for value in (*of.rows, *of.params.values())]
    try:
        with torch.no_grad(), without_validation():
            graph = make_fx(fn)(z, *clones)
    except Exception as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        logger.warning(
            "%s cannot be captured as a graph and runs through plain Pyro, which is slower: %s",
            of.name,
            reason[0],
        )
        return None
    simplify(graph)
    fuse(graph)
    return graph.forward


def _make_room(kept: dict[object, Any]) -> None:
    """Forget the oldest of what is kept."""
    while len(kept) >= GRAPHS_KEPT:
        del kept[next(iter(kept))]


def _stored_bytes(fn: Function, z: Tensor, rows: Rows, params: Params) -> int:
    """Bytes that :func:`together` keeps of one draw at N rows, from one row and two."""
    totals = []
    for count in (1, 2):
        with torch.no_grad():
            values = fn(z, tuple(value[:count] for value in rows), params)
        distinct = {_identity(value): _collapsed(value) for value in values}
        totals.append(sum(value.nbytes for value in distinct.values()))
    return totals[0] + (totals[1] - totals[0]) * (len(rows[0]) - 1)


def _shapes(*values: Tensor) -> tuple[object, ...]:
    return tuple((value.shape, value.dtype, value.device) for value in values)
