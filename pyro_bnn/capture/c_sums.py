"""Sums in C: reductions, products with vectors, and products of matrices in tiles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch.fx import Node

from pyro_bnn.capture.c_graph import (
    REDUCTIONS,
    ZERO,
    Computed,
    Index,
    Memory,
    Place,
    args_of,
    broadcast,
    dtype_of,
    loops_over,
    numel,
    require,
    shape_of,
)
from pyro_bnn.capture.c_loops import Body, Loops, WrittenHereError, for_loops
from pyro_bnn.capture.c_operations import (
    C_TYPES,
    SUFFIXES,
    aten,
    literal,
)

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
    _reduce(loops, node, shape, dims, entry, REDUCTIONS[packet], keep=keep, finish=finish)


def _reduce(
    loops: Loops,
    node: Node,
    shape: tuple[int, ...],
    dims: Sequence[int],
    entry: Callable[[Place], str],
    how: tuple[str, float, str],
    *,
    keep: bool = False,
    finish: str = "",
) -> None:
    """Reduce entries over dimensions, with neighbours in memory innermost."""
    if not finish and _reduce_in_nest(loops, node, shape, dims, entry, how, keep=keep):
        return
    loops.close()
    dtype, (sign, start, clause) = dtype_of(node), how
    sizes, place = loops_over(shape)
    names = {d: str(place[d]) for d in range(len(shape)) if shape[d] > 1}
    loops.body = Body(sizes)
    term = entry(place)
    lines, loads = loops.body.lines, loops.body.loads
    worth = _neighbours(names.values(), loads)
    over = [(names[d], shape[d]) for d in names if d in dims]
    kept = [(names[d], shape[d]) for d in names if d not in dims]
    last = max(names.values(), key=lambda name: (worth[name], name), default=None)
    kind, first = C_TYPES[dtype], literal(start, dtype)
    out_place = _left(place, dims, keep=keep)
    if numel(node) == 1:
        total = loops.name("s")
        loops.lines += [f"{kind} {total} = {first};"]
        over = sorted(over, key=lambda loop: loop[0] == last)
        simd = f"#pragma omp simd reduction({clause}:{total})" if clause else ""
        loops.lines += for_loops(over, [*lines, _joined(total, term, sign)], simd)
        if finish:
            loops.lines.append(f"{total} = {total}{finish};")
        loops.values[node] = Computed(lambda _: total)
        return
    memory = loops.new(node)
    to = f"{memory.name}[{memory.at(out_place)}]"
    if last in [name for name, _ in over]:
        over = sorted(over, key=lambda loop: loop[0] == last)
        simd = f"#pragma omp simd reduction({clause}:sum)" if clause else ""
        inner = [f"{kind} sum = {first};"]
        inner += for_loops(over, [*lines, _joined("sum", term, sign)], simd)
        loops.lines += for_loops(kept, [*inner, f"{to} = sum{finish};"], "")
    else:
        loops.lines += for_loops(kept, [f"{to} = {first};"])
        outer = [loop for loop in kept if loop[0] != last]
        inner_loop = [loop for loop in kept if loop[0] == last]
        inner = [*lines, _joined(to, term, sign)]
        loops.lines += for_loops([*outer, *over, *inner_loop], inner)
        if finish:
            loops.lines += for_loops(kept, [f"{to} = {to}{finish};"])
    loops.values[node] = memory


def _neighbours(names: Iterable[str], loads: Iterable[tuple[int, Index]]) -> dict[str, float]:
    """Sizes of what is read with neighbours in memory along each loop."""
    worth = dict.fromkeys(names, 0.0)
    for size, where in loads:
        for name, factor in where.terms:
            if name in worth and factor == 1:
                worth[name] += size
    return worth


def _left(place: Place, dims: Sequence[int], *, keep: bool) -> Place:
    """The place of a sum over dimensions."""
    if keep:
        return tuple(ZERO if d in dims else i for d, i in enumerate(place))
    return tuple(i for d, i in enumerate(place) if d not in dims)


def _reduce_in_nest(
    loops: Loops,
    node: Node,
    shape: tuple[int, ...],
    dims: Sequence[int],
    entry: Callable[[Place], str],
    how: tuple[str, float, str],
    *,
    keep: bool,
) -> bool:
    """Reduce entries in the loops that are open, or that others may join; False if that cannot be.

    The numbers of a batch of rows go through a cache once for all that is done with each of them.
    """
    (sign, start, clause), dtype = how, dtype_of(node)
    sizes, place = loops_over(shape)
    names = {d: str(place[d]) for d in range(len(shape)) if shape[d] > 1}
    over = [names[d] for d in names if d in dims]
    kept = [(names[d], shape[d]) for d in names if d not in dims]
    innermost = f"i{len(sizes) - 1}"
    of_rows = over == [innermost]
    if len(sizes) < 2 or not over or not kept or (innermost in over and not (of_rows and clause)):
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
        term = entry(place)
    except WrittenHereError:
        term = None
    worth = _neighbours(names.values(), nest.loads[num_loads:])
    if term is None or worth[innermost] < max(worth.values()):
        del nest.lines[num_lines:], nest.loads[num_loads:]
        return False
    memory = loops.new(node)
    to = f"{memory.name}[{memory.at(_left(place, dims, keep=keep))}]"
    kind, first = C_TYPES[dtype], literal(start, dtype)
    if of_rows:
        total = loops.name("s")
        nest.before.append(f"{kind} {total} = {first};")
        nest.lines.append(_joined(total, term, sign))
        nest.after.append(f"{to} = {total};")
        nest.clauses.append(f"reduction({clause}:{total})")
    else:
        loops.lines += for_loops(kept, [f"{to} = {first};"])
        nest.lines.append(_joined(to, term, sign))
    nest.written.add(memory.name)
    nest.touched.add(memory.name)
    loops.values[node] = memory
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

        _reduce(loops, node, (*batch, *order), [inner], entry, REDUCTIONS[aten.sum])
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


def _joined(total: str, term: str, sign: str) -> str:
    if sign in "<>":
        return f"{total} = {term} {sign} {total} || {term} != {term} ? {term} : {total};"
    return f"{total} = {total} {sign} {term};"


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
