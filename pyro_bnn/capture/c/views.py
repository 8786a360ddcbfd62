"""Views in C: entries of a tensor at other places."""

from __future__ import annotations

import math
import operator
from typing import Any

from torch.fx import Node

from pyro_bnn.capture.c.graph import (
    ZERO,
    Index,
    Memory,
    Place,
    View,
    args_of,
    broadcast,
    groups_of,
    numel,
    packet_of,
    require,
    shape_of,
    strides_of,
)
from pyro_bnn.capture.c.loops import Loops
from pyro_bnn.capture.c.operations import (
    aten,
)


def view(loops: Loops, node: Node, packet: Any) -> View | Memory:
    """Where the entries of a view lie."""
    if packet is operator.getitem:
        return _piece(node)
    source, *rest = args_of(node)
    old, new = shape_of(source), shape_of(node)
    if packet in (aten.transpose, aten.t, aten.permute):
        order = list(range(len(old)))
        if packet is aten.permute:
            order = [d % len(old) for d in rest[0]]
        elif len(old) > 1:
            a, b = rest if packet is aten.transpose else (-2, -1)
            a, b = int(a) % len(old), int(b) % len(old)
            order[a], order[b] = order[b], order[a]
        back = [order.index(d) for d in range(len(old))]
        return View(source, lambda place: tuple(place[d] for d in back))
    if packet in (aten.select, aten.slice):
        dim = int(rest[0] if rest else 0) % len(old)
        start = int((rest[1:2] or [0])[0] or 0)
        start = max(0, start + old[dim]) if start < 0 else start
        if packet is aten.select:
            return _row(source, dim, start)
        return _part(source, dim, start, step=int((rest[3:4] or [1])[0]))
    if packet is aten.diagonal:
        offset, *dims = [int(number) for number in (*rest, *(0, 0, 1)[len(rest) :])]
        row, column = dims[0] % len(old), dims[1] % len(old)
        shifts = {row: Index(max(0, -offset)), column: Index(max(0, offset))}

        def on_diagonal(place: Place) -> Place:
            others = iter(place[:-1])
            return tuple(
                place[-1].plus(shifts[d]) if d in shifts else next(others) for d in range(len(old))
            )

        return View(source, on_diagonal)
    if packet is aten.flip:
        turned = {d % len(old): Index(old[d] - 1) for d in rest[0]}
        return View(
            source,
            lambda place: tuple(
                i.times(-1).plus(turned[d]) if d in turned else i for d, i in enumerate(place)
            ),
        )
    if packet is aten.expand:
        return View(source, lambda place: broadcast(place, old))
    if packet in (aten.alias, aten.detach, aten.lift_fresh_copy):
        return View(source, lambda place: place)
    return _reshape(loops, node, source, old, new)


def _piece(node: Node) -> View:
    whole, number = args_of(node)
    source, *rest = args_of(whole)
    is_row, sizes = packet_of(whole) is aten.unbind, (0 if not rest else rest[0])
    require(is_row or packet_of(whole) in (aten.split_with_sizes, aten.split), whole)
    dim = int(((rest[:1] if is_row else rest[1:2]) or [0])[0]) % len(shape_of(source))
    if is_row:
        return _row(source, dim, number)
    return _part(source, dim, number * sizes if isinstance(sizes, int) else sum(sizes[:number]))


def _row(source: Node, dim: int, number: int) -> View:
    """Entries of one number along a dimension, which the view lacks."""
    return View(source, lambda place: (*place[:dim], Index(number), *place[dim:]))


def _part(source: Node, dim: int, start: int, step: int = 1) -> View:
    """Entries from a number on along a dimension."""
    shift = Index(start)

    def at(place: Place) -> Place:
        return (*place[:dim], place[dim].times(step).plus(shift), *place[dim + 1 :])

    return View(source, at)


def _reshape(
    loops: Loops, node: Node, source: Node, old: tuple[int, ...], new: tuple[int, ...]
) -> View | Memory:
    """Other sizes for the same numbers, in their order."""
    groups = groups_of(old, new)
    if any(len(olds) > 1 for olds, _ in groups):  # several dimensions become one
        loops.realise(source)
        value = loops.values[source]
        assert isinstance(value, Memory)
        require(value.strides == strides_of(old) or numel(node) == 1, node)
        return Memory(value.name, strides_of(new), value.start)

    def place_of(place: Place) -> Place:
        found = [ZERO] * len(old)
        for olds, news in groups:
            for place_in_old in olds:
                for d in news:
                    size = math.prod(new[later] for later in news if later > d)
                    found[place_in_old] = found[place_in_old].plus(place[d].times(size))
        return tuple(found)

    return View(source, place_of)
