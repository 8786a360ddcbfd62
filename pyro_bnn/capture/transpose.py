r"""Long dimensions last in the graph of a batched network, so that its loops run along them.

Batched over chains, a layer has activations ``[C, N, H]``, with N rows of the data and H units. A
product that writes them is slower than its transpose, which writes ``[C, H, N]``, and a loop along
20 units is all remainder where one along 200 rows is not. So products and elementwise operations
whose result has more rows than columns become those of the transposes:

.. math:: A B = (B^\top A^\top)^\top

The same numbers to rounding. A batched product with an inner dimension of one or two becomes a sum
of elementwise products, which joins its neighbours in one loop; so does the outer product of two
vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

aten = torch.ops.aten

FEW = 2  # terms of a product that is written out
_VIEWS = frozenset({aten.view.default, aten._unsafe_view.default})
_SAME = _VIEWS | {aten.alias.default}


def lay_out(module: GraphModule) -> None:
    """Turn the tall results of a graph, in place.

    Args:
        module: A recording, without operations that write; its first dimension may be
            a symbol.
    """
    turned: dict[Node, Node] = {}
    lines: dict[Node, Node] = {}
    for node in list(module.graph.nodes):
        source = _same(node)
        with module.graph.inserting_before(node):
            if source is not None and source in turned:
                turned[node] = turned[source]
            elif node.target is aten.bmm.default:
                if _is_tall(node) or _is_thin(node) or _is_turned(node):
                    turned[node] = _product(module, node, turned, lines)
            elif _is_outer_product(node):
                node.replace_all_uses_with(_call(module, aten.mul.Tensor, *node.args))
            elif (
                _is_tall(node)
                and _is_pointwise(node)
                and any(a in turned for a in node.all_input_nodes)
            ):
                turned[node] = _pointwise(module, node, turned)
    for node, result in turned.items():
        with module.graph.inserting_after(result):
            back = _call(module, aten.permute.default, result, [0, 2, 1])
        node.replace_all_uses_with(back)
    for node in module.graph.nodes if turned else ():
        if node.target in _VIEWS:  # a view of a transposed result may need a copy
            node.target = aten.reshape.default
    module.graph.eliminate_dead_code()
    module.recompile()


def _is_tall(node: Node) -> bool:
    """Whether a node is a batch of matrices with more rows than columns, in numbers."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, Tensor) or value.ndim != 3:
        return False
    rows, columns = value.shape[1:]
    return isinstance(rows, int) and isinstance(columns, int) and rows > columns


def _is_thin(node: Node) -> bool:
    """Whether a product has few rows or columns, and sums over more terms."""
    a, b = cast(tuple[Node, Node], node.args)
    (rows, inner), columns = _value(a).shape[1:], _value(b).shape[2]
    if not all(isinstance(size, int) for size in (rows, inner, columns)):
        return False
    return bool(min(rows, columns) <= FEW and inner > max(rows, columns))


def _is_outer_product(node: Node) -> bool:
    """Whether a node is a product of two matrices that has a single term."""
    return node.target is aten.mm.default and _value(cast(Node, node.args[0])).shape[1] == 1


def _is_turned(node: Node) -> bool:
    """Whether only the transpose of a product is read."""
    readers = list(node.users)
    while len(readers) == 1 and _same(readers[0]) is not None:
        readers = list(readers[0].users)
    return bool(readers) and all(_is_transpose(reader) for reader in readers)


def _is_transpose(node: Node) -> bool:
    return node.target is aten.permute.default and list(cast(Any, node.args[1])) == [0, 2, 1]


def _same(node: Node) -> Node | None:
    """What a node is another name for, in the same shape."""
    if node.target not in _SAME:
        return None
    source = cast(Node, node.args[0])
    return source if str(_value(source).shape) == str(_value(node).shape) else None


def _is_pointwise(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.pointwise in tags and not any(
        isinstance(a, Node) and not isinstance(_value(a), Tensor) for a in node.args
    )


def _product(
    module: GraphModule, node: Node, turned: dict[Node, Node], lines: dict[Node, Node]
) -> Node:
    """``B^T A^T`` ``[C, M, N]`` for a product of A ``[C, N, K]`` and B ``[C, K, M]``."""

    def call(target: Any, *args: Any) -> Node:
        return _call(module, target, *args)

    a, b = cast(tuple[Node, Node], node.args)
    num_terms, (num_rows, num_columns) = _value(a).shape[2], _value(node).shape[1:]
    left, right = _transposed(module, b, turned), _transposed(module, a, turned)
    if isinstance(num_terms, int) and num_terms <= FEW:
        right = _lines(module, right, lines) or right
        terms = [
            call(
                aten.mul.Tensor,
                call(aten.slice.Tensor, left, 2, k, k + 1),
                call(aten.slice.Tensor, right, 1, k, k + 1),
            )
            for k in range(num_terms)
        ]
        return functools.reduce(lambda x, y: call(aten.add.Tensor, x, y), terms)
    if not _is_thin(node):
        return call(aten.bmm.default, left, right)
    few, many = (a, left) if num_rows <= num_columns else (left, a)
    few = _lines(module, few, lines) or few
    products = [
        call(aten.mul.Tensor, many, call(aten.slice.Tensor, few, 1, i, i + 1))
        for i in range(min(num_rows, num_columns))
    ]
    sums = [call(aten.unsqueeze.default, call(aten.sum.dim_IntList, p, [2]), 2) for p in products]
    result = sums[0] if len(sums) == 1 else call(aten.cat.default, sums, 2)
    return result if many is left else call(aten.permute.default, result, [0, 2, 1])


def _lines(module: GraphModule, node: Node, lines: dict[Node, Node]) -> Node | None:
    """A batch ``[C, K, N]`` of one matrix, from its few columns one after the other ``[1, K, N]``.

    None where it is not the transpose of a matrix ``[N, K]`` that all of the batch share.
    """
    source, is_turned = node, False
    while source.target is not aten.expand.default:
        if _is_transpose(source):
            is_turned = not is_turned
        elif _same(source) is None:
            return None
        source = cast(Node, source.args[0])
    source = cast(Node, source.args[0])
    shape = tuple(_value(source).shape)
    shape = (1, *shape) if len(shape) == 2 else shape
    if not is_turned or len(shape) != 3 or shape[0] != 1 or not shape[2] <= FEW:
        return None
    if str(shape[:0:-1]) != str(tuple(_value(node).shape[1:])):  # a row or column that is expanded
        return None
    if source not in lines:
        matrix = _call(module, aten.view.default, source, list(shape))
        columns = [_call(module, aten.slice.Tensor, matrix, 2, k, k + 1) for k in range(shape[2])]
        lines[source] = _call(
            module,
            aten.cat.default,  # is written out, also for a single one
            [_call(module, aten.permute.default, c, [0, 2, 1]) for c in columns],
            1,
        )
    return lines[source]


def _pointwise(module: GraphModule, node: Node, turned: dict[Node, Node]) -> Node:
    """The same operation of the transposes."""
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda a: _transposed(module, a, turned))
    return _call(module, cast(Callable[..., Any], node.target), *args, **kwargs)


def _transposed(module: GraphModule, node: Node, turned: dict[Node, Node]) -> Node:
    """A node with its last two dimensions exchanged; one that has fewer as it broadcasts."""
    if node in turned:
        return turned[node]
    num_dims = _value(node).ndim
    if num_dims == 0:
        return node
    if num_dims == 1:
        return _call(module, aten.unsqueeze.default, node, 1)
    if _is_transpose(node):
        return cast(Node, node.args[0])
    order = [*range(num_dims - 2), num_dims - 1, num_dims - 2]
    return _call(module, aten.permute.default, node, order)


def _call(module: GraphModule, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A new node, with what is known of its result."""
    node = module.graph.call_function(target, args, kwargs)
    values = map_arg((args, kwargs), _value)
    node.meta["val"] = target(*values[0], **values[1])
    return node


def _value(node: Node) -> Any:
    return node.meta["val"]
