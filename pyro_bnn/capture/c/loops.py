"""Loops in C over entries of tensors, and the memory that they work in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from pyro_bnn.capture.c.graph import (
    Computed,
    Index,
    Memory,
    Place,
    View,
    broadcast,
    dtype_of,
    loops_over,
    numel,
    require,
    shape_of,
    strides_of,
)
from pyro_bnn.capture.c.operations import C_TYPES, SUFFIXES, literal


@dataclass
class Body:
    """The inside of a loop nest: its lines, and what they know of each entry."""

    shape: tuple[int, ...] = ()
    lines: list[str] = field(default_factory=list)
    names: dict[tuple[Node, Place], str] = field(default_factory=dict)
    written: set[str] = field(default_factory=set)
    touched: set[str] = field(default_factory=set)
    # item sizes and places of what is read
    loads: list[tuple[int, Index]] = field(default_factory=list)
    # sums over the innermost loop: lines before it and after it, and clauses of its pragma
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    clauses: list[str] = field(default_factory=list)

    @property
    def loops(self) -> list[tuple[str, int]]:
        """Names and sizes of the loops."""
        return [(f"i{d}", n) for d, n in enumerate(self.shape)]


class WrittenHereError(Exception):
    """What is read was written in the same loops, at other places."""


class Loops:
    """What is written so far, and what is known of each node."""

    def __init__(self, vector_bytes: int) -> None:
        self.vector_bytes = vector_bytes
        self.values: dict[Node, Memory | View | Computed] = {}
        self.lines: list[str] = []
        self.body = Body()  # of what is being written
        self.nest: Body | None = None  # loops that the next store may join
        self.num_names = 0
        self.slots: dict[str, tuple[torch.dtype, int]] = {}  # work memory
        self.users: dict[str, int] = {}  # position after which a slot is free
        self.last: dict[Node, int] = {}  # position at which a node is read for the last time
        self.now = 0

    # Reading entries

    def read(self, node: Node, place: Place) -> str:
        """The name of an entry, in the loops that are being written."""
        known = self.body.names.get((node, place))
        if known is not None:
            return known
        require(node in self.values, node)  # it has no entries
        value = self.values[node]
        if isinstance(value, View):
            name = self.read(value.source, value.place(place))
        elif isinstance(value, Computed):
            name = value.at(place)
        else:
            if value.name in self.body.written:
                raise WrittenHereError
            where = value.at(place)
            self.body.touched.add(value.name)
            self.body.loads.append((numel(node), where))
            name = self.let(dtype_of(node), f"{value.name}[{where}]")
        self.body.names[node, place] = name
        return name

    def let(self, dtype: torch.dtype, expression: str) -> str:
        """A new variable."""
        expression = expression.replace("@", SUFFIXES.get(dtype, ""))
        name = self.name("v")
        self.body.lines.append(f"const {C_TYPES[dtype]} {name} = {expression};")
        return name

    def name(self, letter: str) -> str:
        """A name that is new."""
        self.num_names += 1
        return f"{letter}{self.num_names}"

    def operand(self, value: Any, place: Place, dtype: torch.dtype | None) -> str:
        """An argument of an elementwise operation whose result is at a place, in a dtype."""
        if not isinstance(value, Node):
            return literal(value, dtype or torch.float64)
        name = self.read(value, broadcast(place, shape_of(value)))
        return name if dtype in (None, dtype_of(value)) else f"(({C_TYPES[dtype]}){name})"

    # Storing them

    def store(self, node: Node, into: Memory | None = None, source: Node | None = None) -> None:
        """Store entries by a loop, which may join the one before; at a view or in work memory."""
        source = source or node
        memory = into or self.new(node)
        shape, place = loops_over(shape_of(source))
        is_written = into is not None and self.nest is not None and into.name in self.nest.written
        if self.nest is None or self.nest.shape != shape or is_written:
            self.open(shape)
        assert self.nest is not None
        num_lines, num_loads = len(self.nest.lines), len(self.nest.loads)
        try:
            self.body = self.nest
            name = self.read(source, place)
        except WrittenHereError:
            del self.nest.lines[num_lines:], self.nest.loads[num_loads:]
            self.open(shape)
            self.body = self.nest
            name = self.read(source, place)
        self.nest.lines.append(f"{memory.name}[{memory.at(place)}] = {name};")
        self.nest.written.add(memory.name)
        self.nest.touched.add(memory.name)
        if into is None:
            self.values[node] = memory
            self.nest.names[node, place] = name

    def store_copy(self, node: Node) -> None:
        """Have a node's numbers lie in memory of their own."""
        memory = self.new(node)
        self.store(node, memory)
        self.values[node] = memory

    def open(self, shape: tuple[int, ...]) -> None:
        """Begin loops over a shape."""
        self.close()
        self.nest = Body(shape)

    def close(self) -> None:
        """Write the loops that are open."""
        nest, self.nest = self.nest, None
        if nest is not None:
            simd = f"#pragma omp simd {' '.join(nest.clauses)}" if nest.clauses else ""
            self.lines += for_loops(nest.loops, nest.lines, simd, nest.before, nest.after)

    def new(self, node: Node) -> Memory:
        """Work memory for a node until it is read for the last time."""
        dtype, size = dtype_of(node), numel(node)
        for name, (kind, count) in self.slots.items():
            is_free = self.users[name] < self.now and not (self.nest and name in self.nest.touched)
            if kind == dtype and count >= size and is_free:
                break
        else:
            name = f"w{len(self.slots)}"
            self.slots[name] = (dtype, size)
        self.users[name] = max(self.last[node], self.now)
        return Memory(name, strides_of(shape_of(node)))

    def realise(self, node: Node) -> None:
        """Have the numbers of a node lie in memory, in their order."""
        value = self.values[node]
        if not (isinstance(value, Memory) and value.strides == strides_of(shape_of(node))):
            self.store(node)

    def located(self, node: Node, place: Place) -> tuple[str, Index] | None:
        """Where an entry lies, where it is not computed."""
        value = self.values[node]
        while isinstance(value, View):
            node, place = value.source, value.place(place)
            value = self.values[node]
        return (value.name, value.at(place)) if isinstance(value, Memory) else None


def for_loops(
    loops: Sequence[tuple[str, int]],
    lines: Sequence[str],
    simd: str = "",
    before: Sequence[str] = (),
    after: Sequence[str] = (),
) -> list[str]:
    """Loops around lines; the innermost one has no order, and lines before it and after it."""
    if not loops:
        return ["{", *before, *lines, *after, "}"]
    *outer, inner = [f"for (i64 {name} = 0; {name} < {size}; {name}++) {{" for name, size in loops]
    innermost = [simd or "#pragma GCC ivdep", inner, *lines, "}"]
    return [*outer, *before, *innermost, *after, *["}"] * len(outer)]
