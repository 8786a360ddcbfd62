r"""Recordings for any number of rows N, made of recordings at three numbers of them.

Torch's rules for functions of many draws read sizes as numbers, so that a symbol does not come
through, as in convolutions. So a function is recorded at three N: its operations have to be the
same, and each whole number among their arguments linear in N,

.. math:: i(N) = a N + b

with a and b by the first two, and the third as the proof.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pyro_bnn.capture.fuse import pool_by_lines
from pyro_bnn.capture.record import TensorFunction, TensorMeta, record
from pyro_bnn.capture.simplify import alike, is_random, simplify
from pyro_bnn.errors import CaptureError

if TYPE_CHECKING:  # half a second to import
    import sympy

NUMBERS_OF_ROWS = (3, 5, 8)

aten = torch.ops.aten
_VIEWS = frozenset(
    {aten.expand.default, aten.view.default, aten._unsafe_view.default, aten.slice.Tensor}
)
_REFUSAL = "its operations depend on the number of rows"


def record_any_rows(fn: TensorFunction, rows: Tensor) -> GraphModule:
    """The operations of ``fn`` of rows ``[N, ...]`` for any N, constants folded.

    Args:
        fn: Pure function of one tensor that returns a tuple of tensors.
        rows: Example rows, at least one; they are repeated.

    Raises:
        CaptureError: If operations depend on the values of rows, on N other than by linear sizes,
            or on random numbers.
    """
    recordings = [record(fn, (some_rows(rows, n),)) for n in NUMBERS_OF_ROWS]
    graph = recordings[0]
    nodes = [list(recording.graph.nodes) for recording in recordings]
    if len({len(found) for found in nodes}) > 1:
        raise CaptureError(_REFUSAL)
    sizes = _Sizes(graph, nodes[0][0])
    for three in zip(*nodes, strict=True):
        _generalise(three, recordings, sizes)
    simplify(graph)
    pool_by_lines(graph)
    _remove_copies(graph)
    _keep_used_constants(graph)
    graph.recompile()
    return graph


def _remove_copies(graph: GraphModule) -> None:
    """Drop views whose sizes and strides are, for any N, those of what they view."""
    for node in list(graph.graph.nodes):
        if node.target in _VIEWS and isinstance(node.args[0], Node) and alike(node.args[0], node):
            node.replace_all_uses_with(node.args[0])
    graph.graph.eliminate_dead_code()


def _keep_used_constants(graph: GraphModule) -> None:
    """Forget constants that were folded, and what others are views of: files would hold it."""
    used = {str(node.target) for node in graph.graph.find_nodes(op="get_attr")}
    for name, value in list(graph.named_buffers()):
        if name in used:
            setattr(graph, name, value.clone(memory_format=torch.contiguous_format))
        else:
            delattr(graph, name)


def some_rows(rows: Tensor, count: int) -> Tensor:
    """So many rows: the first ones, from the start again where there are fewer."""
    places = torch.arange(count, device=rows.device) % len(rows)
    return rows[places]


class _Sizes:
    """Whole numbers that are linear in the number of rows: nodes of a graph, and symbols.

    Args:
        graph: The recording.
        rows: Its input.
    """

    def __init__(self, graph: GraphModule, rows: Node) -> None:
        import sympy

        self._graph = graph
        with graph.graph.inserting_after(rows):
            count = graph.graph.call_function(aten.sym_size.int, (rows, 0))
        self._last = count
        self._nodes: dict[tuple[int, int], Node] = {(1, 0): count}
        self._symbol = sympy.Symbol("rows", integer=True, positive=True)

    def node(self, slope: int, start: int) -> Node:
        """The node of ``slope * N + start``."""
        if (slope, start) not in self._nodes:
            made = self._nodes[1, 0]
            for function, number, neutral in ((operator.mul, slope, 1), (operator.add, start, 0)):
                if number != neutral:
                    with self._graph.graph.inserting_after(self._last):
                        made = self._graph.graph.call_function(function, (made, number))
                    self._last = made
            self._nodes[slope, start] = made
        return self._nodes[slope, start]

    def symbol(self, slope: int, start: int) -> sympy.Expr:
        """The same as a symbol: sizes of tensors that are not taken for numbers."""
        return slope * self._symbol + start


def _generalise(nodes: tuple[Node, ...], recordings: Sequence[GraphModule], sizes: _Sizes) -> None:
    """Let the first of three nodes stand for any number of rows.

    Raises:
        CaptureError: If they differ by more than sizes that are linear in it.
    """
    first = nodes[0]
    if len({(node.op, str(node.target)) for node in nodes}) > 1:
        raise CaptureError(_REFUSAL)
    if first.op == "get_attr":
        values = [getattr(of, str(node.target)) for of, node in zip(recordings, nodes, strict=True)]
        if any(v.shape != values[0].shape or not _are_equal(v, values[0]) for v in values[1:]):
            raise CaptureError(f"{_REFUSAL}: a constant is another one for each")
        return
    if is_random(first):
        raise CaptureError("its operations draw random numbers")
    first.args, first.kwargs = cast(
        tuple[Any, Any],
        _merged([(node.args, dict(node.kwargs)) for node in nodes], sizes.node),
    )
    metas = [node.meta.get("val") for node in nodes]
    if isinstance(metas[0], TensorMeta):
        shape, stride = (
            _merged([tuple(getattr(meta, of)) for meta in metas], sizes.symbol)
            for of in ("shape", "stride")
        )
        first.meta["val"] = metas[0]._replace(shape=shape, stride=stride)


def _are_equal(a: Tensor, b: Tensor) -> bool:
    return bool(torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))


def _merged(values: Sequence[Any], size: Callable[[int, int], Any]) -> Any:
    """One argument of three: what they agree on, or the size that they are at three N.

    Raises:
        CaptureError: If they agree on nothing.
    """
    first = values[0]
    if isinstance(first, Node):
        if len({str(value) for value in values}) == 1:
            return first
    elif isinstance(first, tuple | list) and len({len(value) for value in values}) == 1:
        merged = [_merged(three, size) for three in zip(*values, strict=True)]
        return tuple(merged) if isinstance(first, tuple) else merged
    elif isinstance(first, dict) and all(value.keys() == first.keys() for value in values):
        return {key: _merged([value[key] for value in values], size) for key in first}
    elif len({repr(value) for value in values}) == 1:  # NaN does not equal itself
        return first
    elif all(type(value) is int for value in values):
        a, b, c = NUMBERS_OF_ROWS
        slope, rest = divmod(values[1] - first, b - a)
        if not rest and values[2] == first + slope * (c - a):
            return size(slope, first - slope * a)
    raise CaptureError(_REFUSAL)
