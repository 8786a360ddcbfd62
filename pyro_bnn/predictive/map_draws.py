"""Functions of draws and rows, computed a chunk of them at a time within a memory bound."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_bnn import memory as bounds
from pyro_bnn.capture.fuse import fuse
from pyro_bnn.capture.record import TensorFunction, record
from pyro_bnn.capture.simplify import simplify
from pyro_bnn.errors import OptionError
from pyro_bnn.memory import CountBytes, beyond, bytes_per_draw
from pyro_bnn.predictive.draws import Atoms, Draws
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Params

logger = logging.getLogger("pyro_bnn")

CAPTURE_FROM = 64 << 20  # bytes of intermediate results from which a graph repays its capture
GRAPHS_KEPT = 8
LIKE_ROWS = 64  # rows at which a function is tested for dependence between rows
TOLERANCE = 1e-4  # rounding between batches of rows is smaller, dependence between rows larger

RowTensors = tuple[Tensor, ...]  # [N, ...] each
Function = Callable[[Tensor, RowTensors, Params], tuple[Tensor, ...]]
Axes = tuple[int | None, ...]  # for each tensor its dimension of rows, or None


class Cost(NamedTuple):
    """Bytes of one draw at a single row, and for each further one."""

    first: float
    more: float

    def at(self, num_rows: int) -> int:
        """Bytes at so many rows."""
        return max(1, int(self.first + self.more * (num_rows - 1)))


class Chunks:
    """What is learned of a program's functions over draws, kept for later calls.

    Args:
        program: The model.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._costs: dict[object, tuple[Cost, Cost, Axes | None]] = {}
        self._graphs: dict[object, TensorFunction | None] = {}
        self._are_apart: dict[str, bool] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_graphs": {}}  # recorded anew where it is read: they hold code

    def over(self, name: str, fn: Function, draws: Draws, rows: RowTensors, params: Params) -> Pass:
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
        count = len(rows)
        rows = (*rows, *self.program.for_all_draws(rows[0], params))
        if len(rows) > count:
            fn = functools.partial(_reusing, self.program, fn, count)
        key = (name, _shapes(z, *rows))
        if key not in self._costs:
            # run once before it is measured: a first call may allocate more
            stored, axes = _stored(fn, z, rows, params)
            at_all, at_one = bytes_per_draw(lambda z, *few: fn(z, few, params), z, rows)
            of_z = 2 * z.nbytes  # z is in the chunk and in the block that it is cut from
            working = Cost(at_one + of_z, (at_all - at_one) / max(1, len(rows[0]) - 1))
            self._costs[key] = working, stored, axes
        return Pass(self, name, fn, draws, z, rows, params, *self._costs[key], counter.total)

    def graph(self, of: Pass, size: int) -> TensorFunction | None:
        """The function as a graph for ``size`` draws; None where it runs as it is."""
        key = (of.name, size, tuple(of.params), _shapes(*of.rows, *of.params.values()))
        if key not in self._graphs:
            worth = len(of.draws) * of.working >= CAPTURE_FROM
            if not worth or not self.program.is_batched:
                return None
            while len(self._graphs) >= GRAPHS_KEPT:  # drop the oldest graph
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = _capture(of, size)
        return self._graphs[key]

    def are_rows_apart(self, of: Pass) -> bool:
        """Whether what a function says of a row is the same without the other rows.

        It is a fact of the model, which is found once for each function, by rows at which it is
        asked for: three or more.
        """
        if of.axes is None or of.num_rows < 3:
            return False
        if of.name not in self._are_apart:
            self._are_apart[of.name] = _are_apart(of, of.axes)
        return self._are_apart[of.name]


@dataclass(frozen=True)
class Pass:
    """One pass of a function over all draws, as :meth:`Chunks.over` makes it.

    Attributes:
        one: The first draw ``[1, Q]``.
        cost: Bytes that a draw takes while it is computed.
        kept: Bytes of what is computed of a draw, each tensor once.
        axes: Which dimension of each tensor is that of the rows; None altogether where one has two.
        fixed: Bytes that a block of draws takes in the making.
        first_row: Number of its first row, where it is of some of the rows.
    """

    chunks: Chunks
    name: str
    fn: Function
    draws: Draws
    one: Tensor
    rows: RowTensors
    params: Params
    cost: Cost
    kept: Cost
    axes: Axes | None
    fixed: int
    first_row: int = 0

    @property
    def num_rows(self) -> int:
        """Number of rows N."""
        return len(self.rows[0])

    @property
    def working(self) -> int:
        """Bytes that a draw takes while it is computed, at all rows."""
        return self.cost.at(self.num_rows)

    @property
    def stored(self) -> int:
        """Bytes of what is computed of a draw at all rows."""
        return self.kept.at(self.num_rows)

    def at(self, start: int, stop: int) -> Pass:
        """The same at some of the rows."""
        rows = tuple(value[start:stop] for value in self.rows)
        return replace(self, rows=rows, first_row=self.first_row + start)

    def excess(self, memory: int, kept: int) -> str | None:
        """What to say where results of ``kept`` bytes a draw exceed the bound, else None.

        Raises:
            OptionError: If the bound is no positive integer.
        """
        working, of_some = self.working, self.cost.first + bounds.WORKING_SET
        if working > of_some and self.chunks.are_rows_apart(self):
            working = int(of_some)
        return beyond(
            len(self.draws),
            self.num_rows,
            working + self.fixed,
            memory,
            kept * len(self.draws),
            least=int(self.cost.first) + self.fixed,
            num_chains=self.draws.num_chains,
        )

    def blocks(self, left: int) -> list[Pass]:
        """The same at some rows after the others, where one draw at all rows exceeds the caches.

        Args:
            left: Bytes for computing.
        """
        room = min(bounds.WORKING_SET, left - self.fixed - self.cost.first)
        at_once = max(1, int(room / max(1.0, self.cost.more)))
        if at_once >= self.num_rows or not self.chunks.are_rows_apart(self):
            return [self]
        size = -(-self.num_rows // -(-self.num_rows // at_once))  # blocks of equal size
        return [self.at(start, start + size) for start in range(0, self.num_rows, size)]

    def parts(self, left: int) -> Iterator[tuple[Tensor, ...]]:
        """The function of each chunk of draws ``[s, ...]``, in order.

        Args:
            left: Bytes for computing.
        """
        left -= self.fixed
        atoms = self.draws.atoms
        if atoms is not None and len(atoms.points) < len(self.draws):
            at_points = len(atoms.points) * self.stored
            if at_points + self.working <= left:
                yield from self._of_atoms(atoms, left - at_points)
                return
        size = max(1, min(len(self.draws), min(left, bounds.WORKING_SET) // self.working))
        graph = self.chunks.graph(self, size)
        for z in self.draws.chunks(size):
            with torch.no_grad():
                values = self._one(z, size, graph)
            yield values

    def _of_atoms(self, atoms: Atoms, left: int) -> Iterator[tuple[Tensor, ...]]:
        """The function of each chunk of draws, computed once at each of the points."""
        points = replace(self, draws=Draws.of(atoms.points))
        values = collected(points, [points], left)
        for order in atoms.order.split(max(1, min(left, bounds.WORKING_SET) // self.stored)):
            made = {identity(value): collapsed(value)[order] for value in values}
            yield tuple(made[identity(v)].expand(len(order), *v.shape[1:]) for v in values)

    def _one(self, z: Tensor, size: int, graph: TensorFunction | None) -> tuple[Tensor, ...]:
        if graph is None:
            return self.fn(z, self.rows, self.params)
        full = z if len(z) == size else torch.cat([z, z[-1:].expand(size - len(z), -1)])
        values = graph(full, *self.rows, *self.params.values())
        return tuple(value[: len(z)] for value in values)

    def together(self, memory: int, *, kept: int | None = None) -> tuple[Tensor, ...]:
        """The function of all draws, ``[S, ...]``.

        Args:
            memory: Bound in bytes on results and intermediate results.
            kept: Bytes that the caller keeps of every draw, if that is more than the result.

        Raises:
            OptionError: If the result or a single draw exceeds the bound; names the number of
                samples that fits.
        """
        kept = self.stored if kept is None else kept
        if refusal := self.excess(memory, kept):
            raise OptionError(refusal)
        left = memory - kept * len(self.draws)
        return collected(self, self.blocks(left), left)


def _reusing(
    program: Program, fn: Function, count: int, z: Tensor, rows: RowTensors, params: Params
) -> tuple[Tensor, ...]:
    """The function of the first ``count`` tensors; the program uses the others for all draws."""
    with program.reusing(rows[count:]):
        return fn(z, rows[:count], params)


def collected(whole: Pass, blocks: Iterable[Pass], left: int) -> tuple[Tensor, ...]:
    """The function of all draws and rows ``[S, ...]``, put together of its chunks at some rows.

    A dimension along which a tensor is expanded stays so, and two that are one tensor stay one.
    """
    places: list[Tensor] = []
    shapes: list[Sequence[int]] = []
    axes = whole.axes or ()
    for block in blocks:
        start = 0
        for values in block.parts(left):
            axes = axes or (None,) * len(values)
            if not places:
                made: dict[object, Tensor] = {}
                for value, axis in zip(values, axes, strict=True):
                    shape, size = list(value.shape), list(collapsed(value).shape)
                    if axis is not None:
                        size[axis] = whole.num_rows if size[axis] == shape[axis] else 1
                        shape[axis] = whole.num_rows
                    size[0] = shape[0] = len(whole.draws)
                    places.append(made.setdefault(identity(value), value.new_empty(size)))
                    shapes.append(shape)
            for value, place, axis in zip(values, places, axes, strict=True):
                at = place[start : start + len(value)]
                if axis is not None and place.shape[axis] > 1:
                    at = at.narrow(axis, block.first_row - whole.first_row, value.shape[axis])
                at.copy_(collapsed(value, at))
            start += len(values[0])
    full = {id(place): place.expand(shape) for place, shape in zip(places, shapes, strict=True)}
    return tuple(full[id(place)] for place in places)


def identity(value: Tensor) -> tuple[object, ...]:
    """What two tensors share that are one."""
    return value.data_ptr(), value.shape, value.stride(), value.dtype


def collapsed(value: Tensor, like: Tensor | None = None) -> Tensor:
    """One entry of each dimension along which ``[s, ...]`` is expanded, or another one has one."""
    for dim in range(1, value.ndim):
        has_one = value.stride(dim) == 0 if like is None else like.shape[dim] == 1
        if has_one and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


def _capture(of: Pass, size: int) -> TensorFunction | None:
    """Record the function for ``size`` draws."""
    names, num_rows = tuple(of.params), len(of.rows)

    def fn(z: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
        params = dict(zip(names, values[num_rows:], strict=True))
        return of.fn(z, values[:num_rows], params)

    z = of.one.repeat(size, 1)
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


def _stored(fn: Function, z: Tensor, rows: RowTensors, params: Params) -> tuple[Cost, Axes | None]:
    """Bytes that :meth:`Pass.together` keeps of one draw, and the axes of rows, by one and two."""
    with torch.no_grad():
        one, two = (fn(z, tuple(value[:n] for value in rows), params) for n in (1, 2))
    first, both = (
        sum({identity(v): collapsed(v).nbytes for v in values}.values()) for values in (one, two)
    )
    differing = [
        [dim for dim, sizes in enumerate(zip(a.shape, b.shape, strict=True)) if sizes == (1, 2)]
        for a, b in zip(one, two, strict=True)
    ]
    axes = tuple(dims[0] if dims else None for dims in differing)
    return Cost(first, both - first), axes if max(map(len, differing)) < 2 else None


def _are_apart(of: Pass, axes: Axes) -> bool:
    """By rows spread over all, and halves of these alone.

    The first half tells what all rows share, such as their mean; the middle one lacks rows before
    and after it, and tells what runs along the rows in either direction.
    """
    count = min(of.num_rows, LIKE_ROWS)
    half = count // 2
    spread = torch.linspace(0, of.num_rows - 1, count).long()
    some = tuple(value[spread.to(value.device)] for value in of.rows)
    with torch.no_grad():
        whole = of.fn(of.one, some, of.params)
        for first in (0, (count - half) // 2):
            few = tuple(value.narrow(0, first, half) for value in some)
            for value, part, axis in zip(whole, of.fn(of.one, few, of.params), axes, strict=True):
                held = value if axis is None else value.narrow(axis, first, half)
                scale = float(held.double().abs().nan_to_num(0, 0, 0).max())
                if not torch.allclose(
                    held.double(), part.double(), TOLERANCE, TOLERANCE * scale, equal_nan=True
                ):
                    return False
    return True


def _shapes(*values: Tensor) -> tuple[object, ...]:
    return tuple((value.shape, value.dtype, value.device) for value in values)
