"""Functions of draws and rows, computed a chunk of them at a time within a memory bound."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn import memory as bounds
from pyro_bnn.capture.fuse import fuse
from pyro_bnn.capture.record import TensorFunction, record
from pyro_bnn.capture.simplify import simplify
from pyro_bnn.errors import OptionError
from pyro_bnn.memory import (
    CountBytes,
    beyond,
    bytes_per_draw,
    draws_at_once,
    readable,
    require_bytes,
)
from pyro_bnn.predictive.collected import Collected, collapsed, identity, taken
from pyro_bnn.predictive.draws import Atoms, Draws
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

logger = logging.getLogger("pyro_bnn")

CAPTURE_FROM = 64 << 20  # bytes of intermediate results from which a graph repays its capture
GRAPHS_KEPT = 8
LIKE_ROWS = 64  # rows at which a function is tried for whether rows depend on each other
TOLERANCE = 1e-4  # rounding differs between batches of rows by less, what rows share by more

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
        first_row: Number of its first row, where it is of some of the rows.
        is_captured: Whether it may run as a graph, which few calls do not repay.
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
    first_row: int = 0
    is_captured: bool = True

    @cached_property
    def axes(self) -> tuple[int | None, ...] | None:
        """Which dimension of each tensor is that of the rows, None where it has none.

        None altogether where a row's values depend on the other rows, so that all are needed. It
        is found anew for each pass: other rows of the same shape may depend on each other.
        """
        return _row_axes(self.fn, next(self.draws.blocks())[:1], self.rows, self.params)

    def excess(self, memory: int, kept: int) -> str | None:
        """What to say where results of ``kept`` bytes a draw exceed the bound, else None.

        Raises:
            OptionError: If the bound is no positive integer.
        """
        require_bytes(memory)
        working = self._least() + self.fixed
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

    def _least(self) -> int:
        """Bytes to compute one draw, at some rows after the others where that can be."""
        of_some = self.at_one_row + bounds.WORKING_SET
        return of_some if self.working > of_some and self.axes else self.working

    def by_rows(self, memory: int, *, kept: int = 0, beside: int = 0) -> list[Pass]:
        """The same at some rows after the others, where one draw at all rows exceeds the caches.

        Args:
            memory: Bound in bytes on results and intermediate results.
            kept: Bytes that the caller keeps of every draw.
            beside: Bytes that the caller needs for every draw of a chunk, at all rows.
        """
        require_bytes(memory)
        num_rows = len(self.rows[0])
        of_rows = self.working - self.at_one_row + beside
        left = memory - kept * len(self.draws) - self.fixed - self.at_one_row
        at_once = int(min(bounds.WORKING_SET, left) * num_rows / max(1, of_rows)) - 1
        if at_once >= num_rows - 1 or at_once < 1 or self.axes is None:
            return [self]
        count = -(-num_rows // at_once)
        size = -(-num_rows // count)
        parts = zip(*(value.split(size) for value in self.rows), strict=True)
        return [
            replace(
                self.chunks.over(self.name, self.fn, self.draws, rows, self.params),
                fixed=self.fixed,
                first_row=i * size,
                is_captured=self.is_captured,
            )
            for i, rows in enumerate(parts)
        ]

    def smallest(self, memory: int) -> Pass:
        """The same at all rows if one draw there is within the bound, else at some of them.

        Raises:
            OptionError: If the bound is no positive integer.
        """
        require_bytes(memory)
        return self if self.working <= memory - self.fixed else self.by_rows(memory)[0]

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
        atoms, left = self.draws.atoms, memory - kept * len(self.draws)
        if atoms is not None and len(atoms.points) < len(self.draws):
            at_points = len(atoms.points) * self.stored
            if at_points + self.fixed + self.working + beside <= left:
                yield from self._of_atoms(atoms, left, beside)
                return
        graph = self.chunks.graph(self, size) if self.is_captured else None
        for z in self.draws.chunks(size):
            with torch.no_grad():
                values = self._one(z, size, graph)
            yield values

    def _of_atoms(self, atoms: Atoms, left: int, beside: int) -> Iterator[tuple[Tensor, ...]]:
        """The function of each chunk of draws, computed once at each of the points."""
        points = replace(self, draws=Draws.of(atoms.points), is_captured=False)
        at_points = points.together(left)
        room = min(left - self.fixed - len(atoms.points) * self.stored, bounds.WORKING_SET)
        for order in atoms.order.split(max(1, room // max(1, self.stored + beside))):
            yield taken(at_points, order)

    def _one(self, z: Tensor, size: int, graph: TensorFunction | None) -> tuple[Tensor, ...]:
        if graph is None:
            return self.fn(z, self.rows, self.params)
        full = z if len(z) == size else torch.cat([z, z[-1:].expand(size - len(z), -1)])
        values = graph(full, *self.rows, *self.params.values())
        return tuple(value[: len(z)] for value in values)

    def together(
        self, memory: int, *, kept: int | None = None, disk: bool = False
    ) -> tuple[Tensor, ...]:
        """The function of all draws, ``[S, ...]``.

        Args:
            memory: Bound in bytes on results and intermediate results.
            kept: Bytes that the caller keeps of every draw, if that is more than the result.
            disk: Whether a result beyond the bound is written to files, and mapped from there.

        Raises:
            OptionError: If the result or a single draw exceeds the bound; names the number of
                samples that fits.
            OutputError: If the disk has no room.
        """
        kept = self.stored if kept is None else kept
        refusal = self.excess(memory, kept)
        is_beyond = refusal is not None
        if refusal is not None and not disk:
            raise OptionError(refusal)
        if is_beyond:
            logger.warning(
                "%d draws at %d rows are %s, more than the bound of %s in memory: they are written "
                "to a file in %s",
                len(self.draws),
                len(self.rows[0]),
                readable(kept * len(self.draws)),
                readable(memory),
                tempfile.gettempdir(),
            )
            kept = 0
        whole, num_rows = Collected(len(self.draws), disk=is_beyond), len(self.rows[0])
        for some in self.by_rows(memory, kept=kept):
            axes = () if some is self else self.axes or ()
            start = 0
            for values in some.parts(memory, kept=kept):
                whole.add(values, start, first_row=some.first_row, num_rows=num_rows, axes=axes)
                start += len(values[0])
        return whole.tensors()


def _capture(of: Pass, size: int) -> TensorFunction | None:
    """Record the function for ``size`` draws."""
    names, num_rows = tuple(of.params), len(of.rows)

    def fn(z: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        params = dict(zip(names, values[num_rows:], strict=True))
        return of.fn(z, values[:num_rows], params)

    z = next(of.draws.chunks(1)).repeat(size, 1)
    try:
        with torch.no_grad():
            graph = record(fn, (z, *of.rows, *of.params.values()))
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
    """Bytes that :meth:`Pass.together` keeps of one draw at N rows, from one row and two."""
    totals = []
    for count in (1, 2):
        with torch.no_grad():
            values = fn(z, tuple(value[:count] for value in rows), params)
        distinct = {identity(value): collapsed(value) for value in values}
        totals.append(sum(value.nbytes for value in distinct.values()))
    return totals[0] + (totals[1] - totals[0]) * (len(rows[0]) - 1)


def _row_axes(fn: Function, z: Tensor, rows: Rows, params: Params) -> tuple[int | None, ...] | None:
    """See :meth:`Pass.axes`; from rows spread over all, and from halves of these alone.

    The first half tells what all rows share, such as their mean; the middle one lacks rows before
    and after it, and tells what runs along the rows in either direction.
    """
    count = min(len(rows[0]), LIKE_ROWS)
    half = count // 2
    if count < 3:  # no row is in the middle
        return None
    spread = torch.linspace(0, len(rows[0]) - 1, count).long()
    some = tuple(value[spread.to(value.device)] for value in rows)
    axes = None
    with torch.no_grad():
        whole = fn(z, some, params)
        for first in (0, (count - half) // 2):
            part = fn(z, tuple(value.narrow(0, first, half) for value in some), params)
            axes = _axes_of(whole, part, first, half, count)
            if axes is None:
                return None
    return axes


def _axes_of(
    whole: tuple[Tensor, ...], part: tuple[Tensor, ...], first: int, half: int, count: int
) -> tuple[int | None, ...] | None:
    """Along which dimension each tensor at some rows is part of that at all rows, if they are."""
    axes: list[int | None] = []
    for value, of_half in zip(whole, part, strict=True):
        shapes = list(zip(value.shape, of_half.shape, strict=True))
        differing = [dim for dim, (a, b) in enumerate(shapes) if a != b]
        if (differing and shapes[differing[0]] != (count, half)) or len(differing) > 1:
            return None
        axes.append(differing[0] if differing else None)
        kept = value.narrow(differing[0], first, half) if differing else value
        tolerance = TOLERANCE * float(kept.double().abs().nan_to_num(0, 0, 0).max())
        if not torch.allclose(
            kept.double(), of_half.double(), TOLERANCE, tolerance, equal_nan=True
        ):
            return None
    return tuple(axes)


def _shapes(*values: Tensor) -> tuple[object, ...]:
    return tuple((value.shape, value.dtype, value.device) for value in values)
