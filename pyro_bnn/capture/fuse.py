"""Fewer passes over memory in the graph of a network that is batched over draws.

A network at S draws and N rows writes S N H activations a layer, many times the size of its
weights and of its output: what it costs is how often these are written and read. Four rewrites,
the same numbers to rounding:

- a layer whose input is the same for all draws is one product ``[S H, I] [I, N]``, not S of them,
  and the layers after it keep that order, ``[S, H', H] [S, H, N]``;
- a bias is added by the product itself, as the weight of an input that is 1 or as its start;
- the largest of each window of pixels, which torch looks for window by window with its place, is
  the largest of whole images that hold one pixel of each window, six times faster;
- an activation overwrites its input where nothing else reads it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from pyro_bnn.capture.record import TensorMeta

aten = torch.ops.aten

_PRODUCTS = frozenset({aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default})
_RESHAPES = frozenset({aten.view.default, aten._unsafe_view.default})
_VIEWS = frozenset({aten.reshape.default, aten.transpose.int, aten.permute.default})
_IN_PLACE: Mapping[Any, Any] = {
    aten.relu.default: aten.relu_.default,
    aten.leaky_relu.default: aten.leaky_relu_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.silu.default: aten.silu_.default,
    aten.erf.default: aten.erf_.default,
    aten.exp.default: aten.exp_.default,
    aten.add.Tensor: aten.add_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
}
_FRESH = _PRODUCTS | {aten.convolution.default} | {*_IN_PLACE, *_IN_PLACE.values()}


def fuse(module: GraphModule) -> None:
    """Rewrite a graph without gradients, in place.

    Args:
        module: A recording, specialised to the shapes of its inputs. A graph that
            draws random numbers, writes into tensors or reads strides stays as it is.
    """
    nodes = list(module.graph.nodes)
    if any(_is_delicate(node) for node in nodes):
        return
    for node in nodes:
        if node.target in _RESHAPES:  # strides are no longer those of the capture
            node.target = aten.reshape.default
    turned: set[Node] = set()
    for node in nodes:
        if node.target is aten.bmm.default:
            _turn(module, node, turned)
        elif _keeps_order(node, turned):
            turned.add(node)
    pool_by_lines(module)
    module.graph.eliminate_dead_code()  # do it now: operations that write in place never look dead
    for node in list(module.graph.nodes):
        _overwrite(node)
    module.recompile()


def _is_delicate(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    tags = getattr(node.target, "tags", ())
    writes = bool(schema and schema.is_mutable) or torch.Tag.nondeterministic_seeded in tags
    return writes or node.target in (aten.as_strided.default, aten.view_as_real.default)


def _keeps_order(node: Node, turned: set[Node]) -> bool:
    """Whether a node's result lies in memory as its argument that has been turned."""
    if node.target not in _IN_PLACE and node.target is not aten.reshape.default:
        return False
    return any(a in turned and _value(a).shape == _value(node).shape for a in node.all_input_nodes)


def _turn(module: GraphModule, node: Node, turned: set[Node]) -> None:
    """``bmm(h, w)`` with h ``[S, N, I]``, w ``[S, I, H]`` as ``(w^T h^T)^T``, bias included.

    Only where h is one matrix for all draws, or the result of such a product.
    """
    inputs, weights = cast(tuple[Node, Node], node.args)
    num_draws, num_inputs, num_units = _value(weights).shape
    num_rows = _value(inputs).shape[1]
    shared = _shared(inputs)
    if shared is None and inputs not in turned:
        return
    add, bias = _bias(node, (num_draws, 1, num_units))
    last = node if add is None else add
    call = functools.partial(_call, module)
    with module.graph.inserting_before(last):
        w = call([num_draws, num_units, num_inputs], aten.transpose.int, weights, 1, 2)
        b = None
        if bias is not None:
            b = call([num_draws, num_units, 1], aten.transpose.int, bias, 1, 2)
        turned_shape = [num_draws, num_units, num_rows]
        if shared is None:
            h = call([num_draws, num_inputs, num_rows], aten.transpose.int, inputs, 1, 2)
            product = (
                call(turned_shape, aten.bmm.default, w, h)
                if b is None
                else call(turned_shape, aten.baddbmm.default, b, w, h)
            )
        else:
            x = _reshape(module, shared, [num_rows, num_inputs])
            x = call([num_inputs, num_rows], aten.transpose.int, x, 0, 1)
            num_columns = num_inputs
            if b is not None:  # the weight of an input that is 1: an addmm would write it first
                num_columns += 1
                w = call([num_draws, num_units, num_columns], aten.cat.default, [w, b], 2)
                ones = call([1, num_rows], aten.new_ones.default, x, [1, num_rows])
                x = call([num_columns, num_rows], aten.cat.default, [x, ones], 0)
            w = _reshape(module, w, [num_draws * num_units, num_columns])
            product = call([num_draws * num_units, num_rows], aten.mm.default, w, x)
            product = _reshape(module, product, turned_shape)
        result = call([num_draws, num_rows, num_units], aten.transpose.int, product, 1, 2)
    last.replace_all_uses_with(result)
    turned.add(result)


def _shared(inputs: Node) -> Node | None:
    """The matrix ``[N, I]`` or ``[1, N, I]`` that is expanded to ``[S, N, I]``, if it is one."""
    if inputs.target is not aten.expand.default:
        return None
    source = cast(Node, inputs.args[0])
    shape = _value(inputs).shape
    return source if _value(source).shape in (shape[1:], (1, *shape[1:])) else None


def _bias(product: Node, shape: tuple[int, ...]) -> tuple[Node | None, Node | None]:
    """The only reader of a product if it adds a tensor of a shape, and that tensor."""
    reader = product
    while len(reader.users) == 1:
        user = next(iter(reader.users))
        if user.target is aten.reshape.default and _value(user).shape == _value(product).shape:
            reader = user
            continue
        if user.target is aten.add.Tensor and not user.kwargs:
            for other in user.args:
                if isinstance(other, Node) and other is not reader:
                    same = _value(other).dtype == _value(product).dtype
                    return (user, other) if same and _value(other).shape == shape else (None, None)
        break
    return None, None


def pool_by_lines(module: GraphModule) -> None:
    """Let the largest of windows of pixels be that of whole images; see above.

    Args:
        module: A recording. The number of its rows may be a symbol.
    """
    for node in list(module.graph.nodes):
        if node.target is aten.max_pool2d_with_indices.default:
            _pool(module, node)


def _pool(module: GraphModule, node: Node) -> None:
    """The largest of windows that lie side by side, first of their rows, then of their columns.

    Only where nothing reads the places of the largest, and no window leaves the image.
    """
    image, kernel, *rest = cast(tuple[Any, ...], node.args)
    # stride, padding, dilation, rounding up
    usual: Any = ((kernel, []), ([0, 0],), ([1, 1],), (False,))
    is_usual = all(given in known for given, known in zip(rest, usual, strict=False))
    if not is_usual or node.kwargs or any(user.args[1] != 0 for user in node.users):
        return
    h = cast(Node, image)
    for dim, width in zip((-2, -1), kernel * 2, strict=False):  # one size is that of both
        shape = list(_value(h).shape)
        shape[dim] //= width
        with module.graph.inserting_before(node):
            lines = [
                _call(module, shape, aten.slice.Tensor, h, dim, i, shape[dim] * width, width)
                for i in range(width)
            ]
            h = lines[0]
            for line in lines[1:]:
                h = _call(module, shape, aten.maximum.default, h, line)
    for user in list(node.users):
        user.replace_all_uses_with(h)


def _overwrite(node: Node) -> None:
    """Let an elementwise operation write into an argument that nothing else reads."""
    if node.target not in _IN_PLACE or node.kwargs:
        return
    args = list(node.args)
    commutes = node.target in (aten.add.Tensor, aten.mul.Tensor)
    if commutes and isinstance(args[1], Node) and not _is_free(args[0], node):
        args.reverse()
    if _is_free(args[0], node):
        node.args = tuple(args)
        node.target = _IN_PLACE[node.target]


def _is_free(value: Any, reader: Node) -> bool:
    """Whether a value has the reader's shape and dtype, memory of its own, and no other reader."""
    if not isinstance(value, Node):
        return False
    if _value(value).shape != _value(reader).shape or _value(value).dtype != _value(reader).dtype:
        return False
    while len(value.users) == 1:
        if value.target in _FRESH:
            return True
        if value.target not in _VIEWS:
            return False
        value = cast(Node, value.args[0])
    return False


def _call(module: GraphModule, shape: Sequence[int], target: Any, *args: Any) -> Node:
    """A new node, with the shape of its result and the dtype of its arguments."""
    node = module.graph.call_function(target, args)
    dtype = _value(node.all_input_nodes[0]).dtype
    device = _value(node.all_input_nodes[0]).device
    node.meta["val"] = TensorMeta(cast(torch.Size, tuple(shape)), dtype, (), device)
    return node


def _reshape(module: GraphModule, value: Node, shape: list[int]) -> Node:
    return _call(module, shape, aten.reshape.default, value, shape)


def _value(node: Any) -> Tensor:
    """What is known of a node's tensor: shape, dtype, device."""
    return cast(Tensor, node.meta["val"])
