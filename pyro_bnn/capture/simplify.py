"""Fewer operations in a captured graph, with the same numbers to the last bit.

A small network's step is bound by the number of operations, and autograd leaves many that do
nothing (``x * 1``, ``x ** 1``, a view of the same shape), stand twice, or depend on no input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

aten = torch.ops.aten

_NEUTRAL: Mapping[Any, float] = {  # second argument that returns the first unchanged
    aten.mul.Tensor: 1,
    aten.mul.Scalar: 1,
    aten.div.Tensor: 1,
    aten.div.Scalar: 1,
    aten.sub.Tensor: 0,
    aten.pow.Tensor_Scalar: 1,
}
_FILLS: Mapping[Any, Callable[[Node], Any]] = {  # value of a tensor that depends on a shape alone
    aten.ones_like.default: lambda _: 1.0,
    aten.zeros_like.default: lambda _: 0.0,
    aten.new_zeros.default: lambda _: 0.0,
    aten.new_ones.default: lambda _: 1.0,
    aten.full_like.default: lambda node: node.args[1],
}
_ALSO_PURE = (aten.fill.Scalar, aten.masked_fill.Scalar)  # pure like the elementwise ones
_CHEAP = (  # making these again costs less than reading them
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    torch.ops.prims.iota.default,
)


def simplify(module: GraphModule) -> None:
    """Remove operations that do nothing, fold constants, merge duplicates; in place.

    Elementwise operations and copies that write over what the graph itself has made return it
    anew; a graph with others that write, or that draw random numbers, stays as it is.

    Args:
        module: A recording; sizes that are symbols are never taken for known ones.
    """
    _remove_writes(module)
    calls = [node for node in module.graph.nodes if node.op == "call_function"]
    if any(_is_impure(node) for node in calls):
        return
    _remove_neutral(module)
    _fold_constants(module)
    _merge_duplicates(module)
    module.recompile()


def _remove_writes(module: GraphModule) -> None:
    """Let operations that overwrite a result of the graph return a new one instead."""
    order = {node: place for place, node in enumerate(module.graph.nodes)}
    for node in list(module.graph.nodes):
        pure = _without_write(node)
        if pure is None:
            continue
        written = node.args[0]
        node.target = pure
        if pure is aten.clone.default:
            node.args, node.kwargs = node.args[1:2], {}
        for user in list(written.users):
            if user is not node and order[user] > order[node]:
                user.replace_input_with(written, node)


def _without_write(node: Node) -> Any:
    """The operation that returns what this one writes over its first argument, or None."""
    name = getattr(node.target, "_opname", "")
    if node.op != "call_function" or not name.endswith("_") or not _is_impure(node):
        return None
    pure = getattr(getattr(aten, name[:-1], None), cast(Any, node.target)._overloadname, None)
    is_pure = pure is aten.copy.default or pure in _ALSO_PURE
    if not is_pure and torch.Tag.pointwise not in getattr(pure, "tags", ()):
        return None
    written = node.args[0]
    if not isinstance(written, Node) or any(map(_may_be_view, (written, *written.users))):
        return None
    if pure is aten.copy.default:  # copy overwrites everything: the result is the source
        source = node.args[1]
        return aten.clone.default if isinstance(source, Node) and alike(source, node) else None
    if pure in _ALSO_PURE:  # lays its result out by rows, which views may count on
        return pure if _is_by_rows(_value(written)) else None
    dtypes = {_value(source).dtype for source in node.all_input_nodes}
    return pure if len(dtypes) == 1 and _keeps_dtype(pure, node) else None


def writes_into_view(node: Node) -> bool:
    """Whether an operation writes over parts of a tensor, or over one that others are parts of."""
    if node.op != "call_function" or not _is_impure(node) or not node.args:
        return False
    name, written = getattr(node.target, "_opname", ""), node.args[0]
    if not name.endswith("_") or not isinstance(written, Node):
        return False
    return any(map(_may_be_view, (written, *written.users)))


def _keeps_dtype(pure: Any, node: Node) -> bool:
    """Whether an operation returns the dtype of what it would write; a comparison does not."""

    def number(source: Node) -> Tensor:
        return torch.empty(0, dtype=_value(source).dtype)  # meta ones make torch import Dynamo

    args, kwargs = map_arg((node.args, dict(node.kwargs)), number)
    return bool(pure(*args, **kwargs).dtype == _value(cast(Node, node.args[0])).dtype)


def _may_be_view(node: Node) -> bool:
    """Whether a node may return memory of an argument that it does not write."""
    schema = getattr(node.target, "_schema", None)
    if node.op != "call_function" or schema is None:
        return True
    aliases = [a.alias_info for a in schema.arguments if a.alias_info is not None]
    return any(not alias.is_write for alias in aliases)


def memory_of(node: Node) -> Node:
    """The node whose memory a node returns: its own, or that of what it may be a view of."""
    while node.op == "call_function" and _may_be_view(node):
        node = node.all_input_nodes[0]
    return node


def _remove_neutral(module: GraphModule) -> None:
    for node in list(module.graph.nodes):
        same = _equal_argument(node)
        if same is not None and _value(same).dtype == _value(node).dtype:
            node.replace_all_uses_with(same)
            module.graph.erase_node(node)


def _equal_argument(node: Node) -> Node | None:
    """The argument that a node returns unchanged, if it is such a node."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], Node):
        return None
    first: Node = node.args[0]
    if node.target is aten.detach.default:
        return first
    if node.target in _NEUTRAL and len(node.args) == 2 and not node.kwargs:
        is_neutral = not isinstance(node.args[1], Node) and node.args[1] == _NEUTRAL[node.target]
        return first if is_neutral else None
    if node.target in (aten.expand.default, aten.view.default):
        sizes = _shape(first), _shape(node)
        return first if sizes[0] is not None and sizes[0] == sizes[1] else None
    if node.target is aten.clone.default:
        return first if alike(first, node) else None
    if node.target is aten.t.default and first.target is aten.t.default:
        return cast(Node, first.args[0])
    return None


def _fold_constants(module: GraphModule) -> None:
    known: dict[Node, Any] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            known[node] = getattr(module, cast(str, node.target))
        elif node.op == "call_function":
            if node.target in _FILLS:
                like, shape = _value(node), _shape(node)
                fill = _FILLS[node.target](node)
                if shape is None or isinstance(fill, Node):
                    continue
                known[node] = torch.full(shape, fill, dtype=like.dtype, device=like.device)
            elif node.target in _CHEAP:
                continue
            elif all(source in known for source in node.all_input_nodes):
                args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda n: known[n])
                known[node] = cast(Callable[..., Any], node.target)(*args, **kwargs)
    for node, value in known.items():
        if node.op == "get_attr" or not isinstance(value, Tensor):
            continue
        readers = [user for user in node.users if user not in known]
        if not readers:
            continue
        name = f"folded_{node.name}"
        module.register_buffer(name, value, persistent=False)
        with module.graph.inserting_before(node):
            constant = module.graph.get_attr(name)
        constant.meta = node.meta
        for reader in readers:
            reader.replace_input_with(node, constant)
    module.graph.eliminate_dead_code()


def _merge_duplicates(module: GraphModule) -> None:
    first: dict[Any, Node] = {}
    for node in list(module.graph.nodes):
        if node.op not in ("call_function", "get_attr"):
            continue
        key = (node.op, node.target, repr(node.args), repr(node.kwargs))  # names stand for nodes
        if key in first:
            node.replace_all_uses_with(first[key])
            module.graph.erase_node(node)
        else:
            first[key] = node


def _is_impure(node: Node) -> bool:
    """Whether an operation writes over an argument or draws random numbers."""
    schema = getattr(node.target, "_schema", None)
    return bool(schema and schema.is_mutable) or is_random(node)


def is_random(node: Node) -> bool:
    """Whether an operation draws random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags and not _drops_nothing(node)


def _drops_nothing(node: Node) -> bool:
    """Whether all that an operation draws is a dropout, and its probability is 0."""
    for place, argument in enumerate(cast(Any, node.target)._schema.arguments):
        if argument.name == "dropout_p":
            default = node.args[place] if place < len(node.args) else argument.default_value
            return bool(node.kwargs.get("dropout_p", default) == 0)
    return False


def alike(first: Node, second: Node) -> bool:
    """Whether two tensors have one dtype and, as far as is known, the same sizes and strides."""
    a, b = _value(first), _value(second)
    return a.dtype == b.dtype and _layout(a) == _layout(b)


def _layout(value: Any) -> list[str]:
    """Sizes and strides; of those that are symbols, their expressions."""
    return [str(size) for size in (*value.shape, *_strides(value))]


def _strides(value: Any) -> Sequence[int]:
    strides: Sequence[int] = value.stride if isinstance(value.stride, tuple) else value.stride()
    return strides


def _is_by_rows(value: Any) -> bool:
    """Whether entries lie one after the other, the last dimension first."""
    size = 1
    for length, stride in zip(reversed(value.shape), reversed(_strides(value)), strict=True):
        if length != 1 and stride != size:
            return False
        size *= length
    return True


def _value(node: Node) -> Any:
    """What is known of a node's tensor: shape, dtype, device."""
    return node.meta["val"]


def _shape(node: Node) -> tuple[int, ...] | None:
    """A node's shape, or None where a size is a symbol."""
    shape = tuple(_value(node).shape)
    return shape if all(isinstance(size, int) for size in shape) else None
