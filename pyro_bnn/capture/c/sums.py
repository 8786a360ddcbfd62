"""Sums in C: reductions, running totals, products with vectors, and of matrices in tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.fx import Node

from pyro_bnn.capture.c.graph import (
    REDUCTIONS,
    SCANS,
    ZERO,
    Computed,
    Index,
    Memory,
    Place,
    args_of,
    broadcast,
    dtype_of,
    kind_of,
    loops_over,
    numel,
    require,
    shape_of,
)
from pyro_bnn.capture.c.loops import Body, Loops, WrittenHereError, for_loops
from pyro_bnn.capture.c.operations import C_TYPES, SUFFIXES, aten, literal

# Rows and vectors of a tile by the bytes of a vector register: sums, vectors of b and an entry of a
# fit the 16 registers of SSE and AVX2, the 32 of AVX512; else vectors are loaded for every row
TILES = {16: (6, 2), 32: (6, 2), 64: (6, 4)}

MAX_PRODUCT = 1 << 24  # multiplications; larger ones gain from a library


def reduction(loops: Loops, node: Node, packet: Any) -> None:
    """Write a sum, or what is like it, over some dimensions."""
    source, given, keep, *_ = [*args_of(node), None, None]
    shape = shape_of(source)
    listed = range(len(shape)) if given in (None, []) else given
    dims = [d % len(shape) for d in ([listed] if isinstance(listed, int) else listed)]
    keep = bool(node.kwargs.get("keepdim", keep))
    dtype = dtype_of(node)
    if numel(source) == 0 and packet is not aten.mean:
        start = literal(REDUCTIONS[packet][1], dtype)
        loops.values[node] = Computed(lambda _: start)
        return

    def entry(place: Place) -> str:
        return loops.operand(source, place, dtype)

    count = math.prod(shape[d] for d in dims)
    finish = "" if packet is not aten.mean else f" / {literal(count, dtype)}"
    _reduce(loops, _Sum(node, shape, dims, entry, packet, keep=keep, finish=finish))


def scan(loops: Loops, node: Node, packet: Any) -> None:
    """Write the running totals of entries along a dimension."""
    source, given, *_ = args_of(node)
    shape, dtype = shape_of(node), dtype_of(node)
    start, joined = SCANS[packet]
    if not shape or shape[given % len(shape)] == 1:
        loops.values[node] = Computed(lambda place: loops.operand(source, place, dtype))
        return
    sizes, place = loops_over(shape)
    loops.close()
    loops.body = Body(sizes)
    term, memory = loops.operand(source, place, dtype), loops.new(node)
    along, total = str(place[given % len(shape)]), loops.name("s")
    lines = [
        *loops.body.lines,
        f"{total} = {joined.format(total, term)};",
        f"{memory.name}[{memory.at(place)}] = {total};",
    ]
    order = sorted(loops.body.loops, key=lambda loop: loop[0] == along)
    first = f"{kind_of(node)} {total} = {literal(start, dtype)};"
    loops.lines += for_loops(order, lines, "// in order", [first])
    loops.values[node] = memory


class _Sum:
    """A sum of entries over dimensions, or what is like it.

    Args:
        node: What it is.
        shape: Of the entries.
        dims: What it is over.
        entry: Reads an entry.
        packet: One of ``REDUCTIONS``.
        keep: Whether the dimensions stay, with one entry.
        finish: What is done to the sum.

    Attributes:
        sizes, place: Loops over all entries, and the place inside them.
        over, kept: Names and sizes of the loops that are summed over, and of the others.
        left: The place of a sum.
        kind, first: Its type in C, and where it starts.
        sign, clause: Its operation, and that as a clause of a pragma.
    """

    def __init__(
        self,
        node: Node,
        shape: tuple[int, ...],
        dims: Sequence[int],
        entry: Callable[[Place], str],
        packet: Any,
        *,
        keep: bool = False,
        finish: str = "",
    ) -> None:
        self.node, self.entry, self.finish = node, entry, finish
        self.sizes, self.place = loops_over(shape)
        loops = {d: (str(self.place[d]), n) for d, n in enumerate(shape) if n > 1}
        self.over = [loop for d, loop in loops.items() if d in dims]
        self.kept = [loop for d, loop in loops.items() if d not in dims]
        places = [ZERO if d in dims else i for d, i in enumerate(self.place)]
        self.left = tuple(i for d, i in enumerate(places) if keep or d not in dims)
        self.sign, start, self.clause = REDUCTIONS[packet]
        self.kind, self.first = kind_of(node), literal(start, dtype_of(node))

    def neighbours(self, loads: Iterable[tuple[int, Index]]) -> dict[str, float]:
        """Sizes of what is read with neighbours in memory along each loop."""
        worth = dict.fromkeys((name for name, _ in (*self.over, *self.kept)), 0.0)
        for size, where in loads:
            for name, factor in where.terms:
                if name in worth and factor == 1:
                    worth[name] += size
        return worth

    def joined(self, total: str, term: str) -> str:
        """A total and one more term."""
        if self.sign in "<>":
            is_chosen = f"{term} {self.sign} {total} || {term} != {term}"
            return f"{total} = {is_chosen} ? {term} : {total};"
        return f"{total} = {total} {self.sign} {term};"


def _reduce(loops: Loops, of: _Sum) -> None:
    """Reduce entries over dimensions, with neighbours in memory innermost."""
    if not of.finish and _reduce_in_nest(loops, of):
        return
    loops.close()
    node, over, kept, finish = of.node, of.over, of.kept, of.finish
    loops.body = Body(of.sizes)
    term = of.entry(of.place)
    lines = loops.body.lines
    worth = of.neighbours(loops.body.loads)
    last = max(worth, key=lambda name: (worth[name], name), default=None)
    if numel(node) == 1:
        total = loops.name("s")
        loops.lines += [f"{of.kind} {total} = {of.first};"]
        over = sorted(over, key=lambda loop: loop[0] == last)
        simd = f"#pragma omp simd reduction({of.clause}:{total})" if of.clause else ""
        loops.lines += for_loops(over, [*lines, of.joined(total, term)], simd)
        if finish:
            loops.lines.append(f"{total} = {total}{finish};")
        loops.values[node] = Computed(lambda _: total)
        return
    memory = loops.new(node)
    to = f"{memory.name}[{memory.at(of.left)}]"
    if last in [name for name, _ in over]:
        over = sorted(over, key=lambda loop: loop[0] == last)
        simd = f"#pragma omp simd reduction({of.clause}:sum)" if of.clause else ""
        inner = [f"{of.kind} sum = {of.first};"]
        inner += for_loops(over, [*lines, of.joined("sum", term)], simd)
        loops.lines += for_loops(kept, [*inner, f"{to} = sum{finish};"], "")
    else:
        loops.lines += for_loops(kept, [f"{to} = {of.first};"])
        outer = [loop for loop in kept if loop[0] != last]
        inner_loop = [loop for loop in kept if loop[0] == last]
        inner = [*lines, of.joined(to, term)]
        loops.lines += for_loops([*outer, *over, *inner_loop], inner)
        if finish:
            loops.lines += for_loops(kept, [f"{to} = {to}{finish};"])
    loops.values[node] = memory


def _reduce_in_nest(loops: Loops, of: _Sum) -> bool:
    """Reduce entries in the loops that are open, or that others may join; False if that cannot be.

    The numbers of a batch of rows go through a cache once for all that is done with each of them.
    """
    sizes, over = of.sizes, [name for name, _ in of.over]
    innermost = f"i{len(sizes) - 1}"
    of_rows = over == [innermost]
    cannot_join = innermost in over and not (of_rows and of.clause)
    if len(sizes) < 2 or not over or not of.kept or cannot_join:
        return False
    if loops.nest is None or loops.nest.shape != sizes:
        if of_rows:
            return False
        loops.open(sizes)
    nest = loops.nest
    assert nest is not None
    num_lines, num_loads = len(nest.lines), len(nest.loads)
    loops.body = nest
    try:
        term = of.entry(of.place)
    except WrittenHereError:
        term = None
    worth = of.neighbours(nest.loads[num_loads:])
    if term is None or worth[innermost] < max(worth.values()):
        del nest.lines[num_lines:], nest.loads[num_loads:]
        return False
    memory = loops.new(of.node)
    to = f"{memory.name}[{memory.at(of.left)}]"
    if of_rows:
        total = loops.name("s")
        nest.before.append(f"{of.kind} {total} = {of.first};")
        nest.lines.append(of.joined(total, term))
        nest.after.append(f"{to} = {total};")
        nest.clauses.append(f"reduction({of.clause}:{total})")
    else:
        loops.lines += for_loops(of.kept, [f"{to} = {of.first};"])
        nest.lines.append(of.joined(to, term))
    nest.written.add(memory.name)
    nest.touched.add(memory.name)
    loops.values[of.node] = memory
    return True


def product(loops: Loops, node: Node, a: Any, b: Any) -> None:
    """Write a product ``[..., M, K] [..., K, N]``."""
    *batch, m, k = shape_of(a)
    n = shape_of(b)[-1]
    dtype, lead = dtype_of(node), len(batch)
    require(dtype in SUFFIXES, node)
    require(k > 0, node)
    if k == 1:  # every entry is one product
        loops.values[node] = Computed(
            lambda place: loops.let(
                dtype,
                f"{loops.read(a, broadcast((*place[:-1], ZERO), shape_of(a)))} * "
                f"{loops.read(b, broadcast((*place[:-2], ZERO, place[-1]), shape_of(b)))}",
            )
        )
        return
    if 1 in (m, n):
        for operand, other in ((a, m), (b, n)):
            if other == 1 and m * n > 1:  # the vector is read for each row of the matrix
                vector = b if operand is b else a
                if loops.located(vector, loops_over(shape_of(vector))[1]) is None:
                    loops.realise(vector)

        # in the order of the matrix in memory
        matrix = b if m == 1 else a
        found = loops.located(matrix, loops_over(shape_of(matrix))[1])
        is_transposed = found is not None and _is_transposed(found[1], shape_of(matrix))
        over_rows = (m == 1) != is_transposed
        order, inner = ((k, m, n), lead) if over_rows else ((m, n, k), lead + 2)

        def entry(place: Place) -> str:
            row, column = (i for d, i in enumerate(place) if d >= lead and d != inner)
            left = loops.read(a, broadcast((*place[:lead], row, place[inner]), shape_of(a)))
            right = loops.read(b, broadcast((*place[:lead], place[inner], column), shape_of(b)))
            return f"{left} * {right}"

        _reduce(loops, _Sum(node, (*batch, *order), [inner], entry, aten.sum))
        return
    require(math.prod(batch) * m * n * k <= MAX_PRODUCT, node)
    _tiles(loops, node, a, b, tuple(batch), (m, n, k))


def _tiles(
    loops: Loops, node: Node, a: Node, b: Node, batch: tuple[int, ...], sizes: tuple[int, int, int]
) -> None:
    """A product by tiles of a few rows and vectors, each in registers."""
    m, n, k = sizes
    row, column, inner = (Index(0, ((name, 1),)) for name in ("row", "column", "inner"))
    lead = tuple(ZERO if s == 1 else Index(0, ((f"i{d}", 1),)) for d, s in enumerate(batch))
    for operand in (a, b):
        if loops.located(operand, (*lead, ZERO, ZERO)) is None:
            loops.realise(operand)
    found = loops.located(b, (*lead, inner, column))
    assert found is not None
    if dict(found[1].terms).get("column") != 1:  # rows of b are no vectors: another order
        loops.store_copy(b)
    left, right = (
        loops.located(a, (*lead, row, inner)),
        loops.located(b, (*lead, inner, column)),
    )
    assert left is not None
    assert right is not None
    loops.close()
    memory = loops.new(node)
    dtype = dtype_of(node)
    kind = C_TYPES[dtype]
    lanes = min(loops.vector_bytes // dtype.itemsize, 1 << (n.bit_length() - 1))
    starts = list(range(0, n - lanes + 1, lanes)) + ([n - lanes] if n % lanes else [])
    most_rows, most_vectors = TILES[loops.vector_bytes]
    height = -(-m // -(-m // most_rows))
    vector = f"vector_{kind}_{lanes}"
    lines = [
        f"typedef {kind} {vector} "
        f"__attribute__((vector_size({lanes * dtype.itemsize}), aligned({dtype.itemsize}), "
        "may_alias));"
    ]
    for group in range(0, len(starts), most_vectors):
        columns = starts[group : group + most_vectors]
        for first, rows in ((0, height), (m - m % height, m % height)):
            if not rows:
                continue
            tile = _tile(vector, rows, columns, k, left, right, (memory, (*lead, row, column)))
            end = m - m % height if first == 0 else m
            lines.append(f"for (i64 row = {first}; row < {end}; row += {rows}) {{")
            lines += [*tile, "}"]
    outer = [(f"i{d}", s) for d, s in enumerate(batch) if s > 1]
    loops.lines += for_loops(outer, lines) if outer else ["{", *lines, "}"]
    loops.values[node] = memory


def _is_transposed(where: Index, shape: tuple[int, ...]) -> bool:
    """Whether the entries of a column are neighbours in memory, and not those of a row."""
    factors, (row, column) = dict(where.terms), loops_over(shape)[1][-2:]
    return factors.get(str(row)) == 1 and factors.get(str(column)) != 1


def _tile(
    vector: str,
    rows: int,
    columns: Sequence[int],
    depth: int,
    left: tuple[str, Index],
    right: tuple[str, Index],
    out: tuple[Memory, Place],
) -> list[str]:
    """A tile of a product: of rows from ``row`` on, and of vectors that begin at columns."""

    def moved(where: Index, **shift: int) -> Index:
        """A place where variables are other numbers: ``column``, or further on: ``row``."""
        factors = dict(where.terms)
        start = where.start + sum(factors.get(name, 0) * by for name, by in shift.items())
        kept = tuple((name, f) for name, f in where.terms if name != "column")
        return Index(start, kept)

    cells = [(r, c) for r in range(rows) for c in range(len(columns))]
    memory, place = out
    lines = [f"{vector} " + ", ".join(f"c{r}_{c} = {{0}}" for r, c in cells) + ";"]
    lines.append(f"for (i64 inner = 0; inner < {depth}; inner++) {{")
    for c, column in enumerate(columns):
        where = moved(right[1], column=column)
        lines.append(f"const {vector} b{c} = *(const {vector} *)({right[0]} + {where});")
    for r in range(rows):
        entry = f"{left[0]}[{moved(left[1], row=r)}]"
        lines += [f"c{r}_{c} += {entry} * b{c};" for c in range(len(columns))]
    lines.append("}")
    for r, c in cells:
        where = moved(memory.at(place), row=r, column=columns[c])
        lines.append(f"*({vector} *)({memory.name} + {where}) = c{r}_{c};")
    return lines
