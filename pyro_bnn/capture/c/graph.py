"""Facts of a graph that is written in C: kinds of operations, shapes, places of entries."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx import Node

from pyro_bnn.capture.c.operations import C_TYPES, SUFFIXES, aten
from pyro_bnn.errors import CaptureError

DEEPEST = 32  # operations in one expression


class Index(NamedTuple):
    """A place along a dimension: a number and multiples of variables."""

    start: int = 0
    terms: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        parts = [name if factor == 1 else f"{factor} * {name}" for name, factor in self.terms]
        return " + ".join([*parts, *([str(self.start)] if self.start or not parts else [])])

    def plus(self, other: Index) -> Index:
        """The sum."""
        factors = dict(self.terms)
        for name, factor in other.terms:
            factors[name] = factors.get(name, 0) + factor
        return Index(self.start + other.start, tuple(factors.items()))

    def times(self, factor: int) -> Index:
        """A multiple."""
        return Index(self.start * factor, tuple((name, f * factor) for name, f in self.terms))


ZERO = Index()


Place = tuple[Index, ...]


class Memory(NamedTuple):
    """Where numbers lie: entry ``[i, j, ...]`` at the sum of places times strides."""

    name: str
    strides: tuple[int, ...]
    start: int = 0

    def at(self, place: Place) -> Index:
        """Where an entry lies."""
        found = Index(self.start)
        for index, stride in zip(place, self.strides, strict=True):
            found = found.plus(index.times(stride))
        return found


class View(NamedTuple):
    """Entries of another node, at other places."""

    source: Node
    place: Callable[[Place], Place]


class Computed(NamedTuple):
    """Entries that are computed where they are read; writes what is needed, returns a name."""

    at: Callable[[Place], str]


FILLS: dict[Any, Callable[[Node], Any]] = {
    aten.full: lambda node: node.args[1],
    aten.full_like: lambda node: node.args[1],
    aten.scalar_tensor: lambda node: node.args[0],
    aten.zeros: lambda _: 0,
    aten.zeros_like: lambda _: 0,
    aten.new_zeros: lambda _: 0,
    aten.ones: lambda _: 1,
    aten.ones_like: lambda _: 1,
    aten.new_ones: lambda _: 1,
    aten.empty_like: lambda _: 0,
    aten.fill_: lambda node: node.args[1],
    aten.fill: lambda node: node.args[1],
}


# operation in C, start value, name of OpenMP's reduction
REDUCTIONS: dict[Any, tuple[str, float, str]] = {
    aten.sum: ("+", 0, "+"),
    aten.mean: ("+", 0, "+"),
    aten.any: ("||", 0, ""),
    aten.all: ("&&", 1, ""),
    aten.amax: (">", -math.inf, ""),
    aten.amin: ("<", math.inf, ""),
    aten.prod: ("*", 1, "*"),
}


# running totals: where one starts, and how it takes in a term
SCANS: dict[Any, tuple[float, str]] = {
    aten.cumsum: (0, "{0} + {1}"),
    aten.cumprod: (1, "{0} * {1}"),
}


VIEWS = frozenset(
    {
        aten.view,
        aten._unsafe_view,
        aten.reshape,
        aten.unsqueeze,
        aten.squeeze,
        aten.transpose,
        aten.t,
        aten.permute,
        aten.select,
        aten.diagonal,
        aten.flip,
        aten.slice,
        aten.expand,
        aten.alias,
        aten.detach,
        aten.lift_fresh_copy,
        operator.getitem,
        aten.split_with_sizes,
        aten.split,
        aten.unbind,
        aten.chunk,
    }
)


OWN_LOOPS = frozenset(
    {aten.mm, aten.bmm, aten.index, aten.index_put, aten.cat, aten.stack, *REDUCTIONS, *SCANS}
)


def packet_of(node: Node) -> Any:
    """The operation, whichever its overload."""
    return getattr(node.target, "overloadpacket", node.target)


def args_of(node: Node) -> list[Any]:
    """The arguments of an operation."""
    return list(node.args)


def is_view(node: Node) -> bool:
    """Whether a node has entries of another one, at other places, or is a list of such nodes."""
    return node.op == "call_function" and packet_of(node) in VIEWS


def is_cheap(node: Node) -> bool:
    """Whether a node is no more than numbers that are written down."""
    return packet_of(node) in FILLS or packet_of(node) is aten.arange


def is_elementwise(node: Node) -> bool:
    """Whether a node may be computed where it is read."""
    if packet_of(node) in (aten.mm, aten.bmm):
        return shape_of(node.args[0])[-1] == 1
    return node.op == "call_function" and packet_of(node) not in OWN_LOOPS


def is_range(node: Node) -> bool:
    """Whether a node counts from 0."""
    return packet_of(node) is aten.arange and len(node.args) == 1


def readers_of(node: Node) -> list[Node]:
    """What reads a node, through views too."""
    found = []
    for user in node.users:
        if is_view(user):
            found += readers_of(user) or [user]
            if numel(user) > numel(node):  # each entry is read several times
                found.append(user)
        else:
            found += [user] * sum(a is node for a in user.all_input_nodes)
    return found


def stored_of(nodes: Sequence[Node]) -> dict[Node, bool]:
    """Whether each node that could be computed where it is read is stored all the same."""
    is_stored: dict[Node, bool] = {}
    depths: dict[Node, int] = {}  # of the expression that a node is where it is read
    for node in nodes:
        depth = 1 + max((depths[source] for source in node.all_input_nodes), default=0)
        is_named = node.op != "call_function" or numel(node) <= 1
        is_stored[node] = not (is_named or is_view(node) or is_cheap(node)) and (
            depth > DEEPEST or _is_read_often(node)
        )
        is_inner = not (is_named or is_stored[node]) and (is_view(node) or is_elementwise(node))
        depths[node] = depth if is_inner else 0
    return is_stored


def _is_read_often(node: Node) -> bool:
    readers = readers_of(node)
    return len(readers) != 1 or any(numel(reader) > numel(node) for reader in readers)


def known(node: Any) -> Any:
    """What is known of a node's tensor; None of a list."""
    return node.meta.get("val")


def shape_of(node: Any) -> tuple[int, ...]:
    """Sizes of a node's tensor."""
    return tuple(known(node).shape)


def dtype_of(node: Any) -> torch.dtype:
    """Of a node's numbers.

    Raises:
        CaptureError: If they are not written in C.
    """
    dtype: torch.dtype = known(node).dtype
    if dtype not in C_TYPES:
        raise CaptureError(f"numbers of {dtype} are not written in C")
    return dtype


def kind_of(node: Node) -> str:
    """The type of a node's numbers in C."""
    return C_TYPES[dtype_of(node)]


def numel(node: Any) -> int:
    """How many numbers a node has; of a list, more than one."""
    return 2 if known(node) is None else math.prod(shape_of(node))


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Of numbers that lie in their order."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def own_strides(node: Node) -> tuple[int, ...]:
    """Of an input; where there is one entry, those of numbers in their order."""
    shape = shape_of(node)
    given = zip(shape, known(node).stride, strides_of(shape), strict=True)
    return tuple(other if n == 1 else stride for n, stride, other in given)


def common_dtype(args: Sequence[Any]) -> torch.dtype:
    """In which operands are compared."""
    own = [dtype_of(a) for a in args if isinstance(a, Node)]
    numbers = [a for a in args if not isinstance(a, Node)]
    tensors = [torch.empty((), dtype=dtype) for dtype in own]
    common = own[0]
    for tensor in tensors[1:]:
        common = torch.promote_types(common, tensor.dtype)
    if any(isinstance(a, float) for a in numbers) and common not in SUFFIXES:
        return torch.float32
    return torch.int64 if numbers and common is torch.bool else common


def index_shape(node: Node) -> tuple[int, ...]:
    """The shape of what ``index_put`` writes."""
    given, listed, *_ = args_of(node)
    base = shape_of(given)
    at = [d for d, index in enumerate(listed) if index is not None]
    together = np.broadcast_shapes(*(shape_of(listed[d]) for d in at))
    return (*base[: at[0]], *together, *base[at[-1] + 1 :])


def broadcast(place: Place, shape: tuple[int, ...]) -> Place:
    """The place in something of fewer entries that serves a place in what it is expanded to."""
    own = place[len(place) - len(shape) :]
    return tuple(ZERO if n == 1 else i for n, i in zip(shape, own, strict=True))


def loops_over(shape: tuple[int, ...]) -> tuple[tuple[int, ...], Place]:
    """Sizes of the loops over a shape, and the place inside them: none over one entry."""
    place: list[Index] = []
    sizes: list[int] = []
    for n in shape:
        place.append(ZERO if n == 1 else Index(0, ((f"i{len(sizes)}", 1),)))
        sizes += [] if n == 1 else [n]
    return tuple(sizes), tuple(place)


def groups_of(old: tuple[int, ...], new: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Dimensions of two shapes of as many numbers that have the same numbers; not those of 1."""
    left = [d for d, n in enumerate(old) if n != 1]
    right = [d for d, n in enumerate(new) if n != 1]
    groups: list[tuple[list[int], list[int]]] = []
    while left:
        olds, news = [left.pop(0)], [right.pop(0)]
        while (a := math.prod(old[d] for d in olds)) != (b := math.prod(new[d] for d in news)):
            if a < b:
                olds.append(left.pop(0))
            else:
                news.append(right.pop(0))
        groups.append((olds, news))
    return groups


def require(condition: Any, node: Node) -> None:
    """Give up on a node of another form.

    Raises:
        CaptureError: If the condition does not hold.
    """
    if not condition:
        raise CaptureError(f"{node.target} of this form is not written in C")
