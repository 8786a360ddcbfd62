"""A network cut in two: the frozen body, a function of x alone, and the rest, which is fitted.

The cut is found by looking at the network, never declared. Where one module holds all that is drawn
or trained, such as ``head``, and f is its output, the body is what comes before it. Else the
network's own ``forward`` is recorded as a graph of module calls (``torch.fx``), and the body is
every node that depends on x and on nothing that is drawn or trained; a skip connection around the
head, or x itself, is then one of the tensors that cross the cut. A cut is taken only if the two
halves give the network's own output at other weights and at other numbers of rows.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call

from pyro_bnn.likelihoods import as_columns

ROUNDING = 1e-4  # relative, by which the two halves may differ from the whole
FEW = 3  # rows that are looked at


class FrozenBody:
    """The body of a network, and what is left of it.

    Features ``[N, 1, ..., 1, D]`` are the tensors that cross the cut, each row flattened, one after
    the other. They have one dimension more than x, so that no x is taken for them.

    Args:
        net: The network.
        moving: Names of its parameters and buffers that are drawn or trained.
        halves: How it is cut.
        crossing: The shapes of a row of each tensor that crosses the cut; None where it is the
            number of rows.
        ndim: Dimensions of the features.
        dtype: Of the features.
    """

    def __init__(
        self,
        net: nn.Module,
        moving: frozenset[str],
        halves: _AtModule | _AtGraph,
        crossing: tuple[torch.Size | int | None, ...],
        ndim: int,
        dtype: torch.dtype,
    ) -> None:
        self._net, self.moving, self._halves, self._crossing = net, moving, halves, crossing
        self._sizes = [shape.numel() for shape in crossing if isinstance(shape, torch.Size)]
        self.row_shape = torch.Size([*(1 for _ in range(ndim - 2)), sum(self._sizes)])
        self._dtype = dtype

    def is_same(self, other: FrozenBody) -> bool:
        """Whether it cuts the same network at the same place."""
        return (self._net is other._net and str(self._halves) == str(other._halves)) and (
            self._crossing == other._crossing and self._dtype == other._dtype
        )

    def modules_of_rest(self) -> set[nn.Module]:
        """Modules that run on the features."""
        return {m for name in self._halves.paths for m in self._net.get_submodule(name).modules()}

    def are_features(self, x: Tensor) -> bool:
        """Whether rows are features of this body, and not yet its inputs."""
        return x.shape[1:] == self.row_shape and x.is_floating_point()

    def features(self, x: Tensor, values: Mapping[str, Tensor]) -> Tensor:
        """Features of rows x ``[N, ...]``.

        Args:
            x: Inputs of the network, to which it may write.
            values: Stand in for the network's parameters and buffers, by name.
        """
        tensors = _tensors(_called(self._net, self._halves.body, values, x))
        flat = [value.reshape(len(x), -1).to(self._dtype) for value in tensors]
        return torch.cat(flat, -1).reshape(len(x), *self.row_shape)

    def rest(self, features: Tensor, values: Mapping[str, Tensor]) -> Any:
        """What the network returns, of features; see :meth:`features`."""
        parts = iter(features.flatten(1).split(self._sizes, -1))
        crossing = [
            next(parts).reshape(-1, *shape)
            if isinstance(shape, torch.Size)
            else (len(features) if shape is None else shape)
            for shape in self._crossing
        ]
        return _called(self._net, self._halves.rest, values, crossing)


def frozen_body(net: nn.Module, moving: Iterable[str], x: Tensor, ndim: int) -> FrozenBody | None:
    """Cut a network; None where no cut is found.

    A body that draws random numbers, as dropout in training mode, or whose rows depend on each
    other, as those of batch normalisation in training mode, is none.

    Args:
        net: The network.
        moving: Names of its parameters and buffers that are drawn or trained, at every place.
        x: Some rows.
        ndim: Dimensions that the features are to have.
    """
    tensors = _named_tensors(net)
    names = [name for name in moving if name in tensors]
    moved = {id(tensors[name]) for name in names}
    has_body = any(id(value) not in moved for value in net.parameters())
    if not has_body or not names or x.ndim < 1 or not len(x):
        return None
    spread = torch.linspace(0, len(x) - 1, min(len(x), FEW)).long().to(x.device)
    for make in (_AtModule.of, _AtGraph.of):
        with contextlib.suppress(Exception), torch.no_grad():
            halves = make(net, moved)
            body = None
            if halves is not None and halves.is_whole(net, x[spread]):
                body = _body(net, frozenset(names), halves, x[spread], ndim)
            if body is not None and _is_right(net, body, {n: tensors[n] for n in names}, x[spread]):
                return body
    return None


def _named_tensors(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers at every place where they stand."""
    buffers = dict(net.named_buffers(remove_duplicate=False))
    return {**dict(net.named_parameters(remove_duplicate=False)), **buffers}


def _body(
    net: nn.Module, moving: frozenset[str], halves: _AtModule | _AtGraph, x: Tensor, ndim: int
) -> FrozenBody | None:
    """The body, once its outputs at two numbers of rows tell what crosses the cut."""
    own = _copies(net)
    at_two = [_called(net, halves.body, own, torch.cat([x] * n)) for n in (1, 2)]
    crossing: list[torch.Size | int | None] = []
    for one, two in zip(*at_two, strict=True):
        if isinstance(one, Tensor):
            if len(one) != len(x) or len(two) != 2 * len(x) or not one.is_floating_point():
                return None
            crossing.append(one.shape[1:])
        elif type(one) is int:
            if (one, two) != (len(x), 2 * len(x)) and one != two:
                return None
            crossing.append(None if one != two else one)
        else:
            return None
    dtypes = {value.dtype for value in _tensors(at_two[0])}
    if len(dtypes) != 1:
        return None
    return FrozenBody(net, moving, halves, tuple(crossing), ndim, dtypes.pop())


def _is_right(net: nn.Module, body: FrozenBody, moving: Mapping[str, Tensor], x: Tensor) -> bool:
    """Whether the two halves are the whole, the body repeats itself, and its rows are apart."""
    own = _copies(net)
    state = _random_state(x)
    features = body.features(x.clone(), own)
    if not torch.equal(state, _random_state(x)):
        return False
    alone = [body.features(row.clone(), own) for row in x.flip(0).split(1)]
    if not _are_close(torch.cat(alone).flip(0), features):
        return False
    for scale, some in ((0.1, x), (-0.2, x[:1])):
        values = own | {name: _other(value, scale) for name, value in moving.items()}
        whole = functional_call(net, values, (some.clone(),), tie_weights=False)
        found = body.rest(features[: len(some)].clone(), values)
        if not (isinstance(whole, Tensor) and isinstance(found, Tensor)):
            return False
        if not _are_close(as_columns(found), as_columns(whole)):
            return False
    return True


def _copies(net: nn.Module) -> dict[str, Tensor]:
    """Copies of what a run may write to."""
    return {name: value.detach().clone() for name, value in net.named_buffers()}


def _other(value: Tensor, scale: float) -> Tensor:
    """Another value of a drawn or trained tensor."""
    if not value.is_floating_point():
        return value
    wave = torch.arange(1, value.numel() + 1, device=value.device).sin().reshape(value.shape)
    return value.detach() + scale * wave.to(value)


def _random_state(x: Tensor) -> Tensor:
    """The state of the generator that layers on the device of x draw from."""
    return torch.cuda.get_rng_state(x.device) if x.is_cuda else torch.get_rng_state()


def _are_close(found: Tensor, expected: Tensor) -> bool:
    if found.shape != expected.shape:
        return False
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=ROUNDING, atol=ROUNDING * scale)


def _tensors(crossing: Iterable[Any]) -> list[Tensor]:
    return [value for value in crossing if isinstance(value, Tensor)]


class _Run(nn.Module):
    """A function that runs parts of a network, as a module, so that values can stand in."""

    def __init__(self, net: nn.Module, run: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.net = net
        self._run = run

    def forward(self, given: Any) -> Any:
        return self._run(self.net, given)


def _called(
    net: nn.Module,
    run: Callable[[nn.Module, Any], Any],
    values: Mapping[str, Tensor],
    given: Any,
) -> Any:
    """Run parts of a network, with values in place of its parameters and buffers."""
    named = {f"net.{name}": value for name, value in values.items()}
    return functional_call(_Run(net, run), named, (given,), tie_weights=False)


class _Reached(Exception):  # noqa: N818  # no error: it carries the input of a module
    def __init__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().__init__()
        self.inputs, self.named = args, kwargs


@dataclass(frozen=True)
class _AtModule:
    """A network that ends with the one module which holds all that moves.

    Args:
        path: Name of the module.
    """

    path: str

    @classmethod
    def of(cls, net: nn.Module, moved: set[int]) -> _AtModule | None:
        """The smallest such module; None where it is the network itself."""
        path, module = [], net
        while not any(id(value) in moved for value in _own(module)):
            within = [
                (name, child) for name, child in module.named_children() if _holds(child, moved)
            ]
            if len(within) != 1:
                break
            name, module = within[0]
            path.append(name)
        return cls(".".join(path)) if path else None

    @property
    def paths(self) -> list[str]:
        """Names of the modules that the rest calls."""
        return [self.path]

    def body(self, net: nn.Module, x: Tensor) -> tuple[Any, ...]:
        """What the module is called with."""

        def stop(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            raise _Reached(args, kwargs)

        handle = net.get_submodule(self.path).register_forward_pre_hook(
            stop, with_kwargs=True, prepend=True
        )
        try:
            net(x)
        except _Reached as reached:
            if len(reached.inputs) == 1 and not reached.named:
                return reached.inputs
        finally:
            handle.remove()
        raise ValueError(f"{self.path} is not called with one tensor")

    def is_whole(self, net: nn.Module, x: Tensor) -> bool:
        """Whether the network's output is the module's, itself or seen in another shape.

        What comes after the module may do nothing at some rows, such as a clamp, so that equal
        numbers say too little.
        """
        outputs: list[tuple[Any, int]] = []

        def note(_: nn.Module, __: Any, output: Any) -> None:
            outputs.append((output, output._version if isinstance(output, Tensor) else 0))

        handle = net.get_submodule(self.path).register_forward_hook(note)
        try:
            whole = functional_call(net, _copies(net), (x.clone(),), tie_weights=False)
        finally:
            handle.remove()
        if len(outputs) != 1:
            return False
        output, version = outputs[0]
        if not (isinstance(whole, Tensor) and isinstance(output, Tensor)):
            return False
        is_same = whole is output or whole.untyped_storage().data_ptr() == (
            output.untyped_storage().data_ptr()
        )
        return is_same and whole.numel() == output.numel() and whole._version == version

    def rest(self, net: nn.Module, crossing: list[Any]) -> Any:
        """The module's output."""
        return net.get_submodule(self.path)(*crossing)


class _Tracer(fx.Tracer):
    """Calls of modules without anything that moves, and of those of torch, are one node each."""

    proxy_buffer_attributes = True

    def __init__(self, moved: set[int]) -> None:
        super().__init__()
        self._moved = moved

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether its inside is left out."""
        return not _holds(m, self._moved) or super().is_leaf_module(m, module_qualified_name)


@dataclass(frozen=True)
class _AtGraph:
    """Two graphs of module calls.

    Args:
        first: From x to what crosses the cut.
        last: From there to the network's output.
    """

    first: fx.Graph
    last: fx.Graph

    def __str__(self) -> str:
        return f"{self.first}\n{self.last}"

    @classmethod
    def of(cls, net: nn.Module, moved: set[int]) -> _AtGraph | None:
        """Cut the graph of the network's forward; None where its body has no parameters."""
        held = {id(value): value for value in _named_tensors(net).values()}
        light = copy.deepcopy(net, dict(held))  # the tensors themselves: a trace may set attributes
        graph = _Tracer(moved).trace(light)
        nodes = list(graph.nodes)
        (output,) = (node for node in nodes if node.op == "output")
        _, *others = (node for node in nodes if node.op == "placeholder")
        if others:
            raise ValueError("the network has more arguments than x")
        of_x: set[fx.Node] = set()
        moves: set[fx.Node] = set()
        for node in nodes:
            sources = node.all_input_nodes
            if node.op == "placeholder" or not of_x.isdisjoint(sources):
                of_x.add(node)
            if not moves.isdisjoint(sources) or _reads(light, node, moved):
                moves.add(node)
        crossing = [
            n for n in nodes if n in of_x and n not in moves and not moves.isdisjoint(n.users)
        ]
        if output not in moves or not any(
            _reads(light, node, set(held) - moved, nn.Parameter) for node in _before(crossing)
        ):
            return None
        first = fx.Graph()
        first.output(tuple(_copied(first, nodes, crossing, {})))
        last = fx.Graph()
        given: dict[fx.Node, fx.Node] = {
            node: last.placeholder(f"crossing_{i}") for i, node in enumerate(crossing)
        }
        ends = output.all_input_nodes
        _copied(last, nodes, ends, given)
        last.output(fx.map_arg(output.args[0], given.__getitem__))
        return cls(first, last)

    @property
    def paths(self) -> list[str]:
        """Names of the modules that the rest calls."""
        return [str(node.target) for node in self.last.nodes if node.op == "call_module"]

    def is_whole(self, net: nn.Module, x: Tensor) -> bool:  # noqa: ARG002
        """Whether it is: the graph has all operations."""
        return True

    def body(self, net: nn.Module, x: Tensor) -> tuple[Any, ...]:
        """What crosses the cut."""
        return cast(tuple[Any, ...], fx.Interpreter(net, graph=self.first).run(x))

    def rest(self, net: nn.Module, crossing: list[Any]) -> Any:
        """The network's output."""
        return fx.Interpreter(net, graph=self.last).run(*crossing)


def _own(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers of a module itself."""
    values = (*module._parameters.values(), *module._buffers.values())
    return (value for value in values if value is not None)


def _holds(module: nn.Module, moved: set[int]) -> bool:
    return any(id(value) in moved for part in module.modules() for value in _own(part))


def _reads(net: nn.Module, node: fx.Node, tensors: set[int], kind: type[Tensor] = Tensor) -> bool:
    """Whether a node is, or is the call of a module that has, one of some tensors of a kind."""
    if node.op == "call_module":
        parts = net.get_submodule(str(node.target)).modules()
        read: list[Any] = [value for part in parts for value in _own(part)]
    elif node.op == "get_attr":
        read = [_attribute(net, str(node.target))]
    else:
        return False
    return any(id(value) in tensors and isinstance(value, kind) for value in read)


def _attribute(net: nn.Module, name: str) -> Any:
    """A parameter or buffer.

    Raises:
        AttributeError: If it is none, as a tensor that is kept as a plain attribute.
    """
    tensors = _named_tensors(net)
    if name not in tensors:
        raise AttributeError(f"{name} is neither a parameter nor a buffer")
    return tensors[name]


def _before(ends: Iterable[fx.Node], without: Iterable[fx.Node] = ()) -> set[fx.Node]:
    """Nodes that others need, themselves included, up to some that are given."""
    found: set[fx.Node] = set()
    left, stops = list(ends), set(without)
    while left:
        node = left.pop()
        if node not in found and node not in stops:
            found.add(node)
            left += node.all_input_nodes
    return found


def _copied(
    graph: fx.Graph, nodes: list[fx.Node], ends: list[fx.Node], given: dict[fx.Node, fx.Node]
) -> list[fx.Node]:
    """Copy what some nodes need into a graph, in order; the copies of these nodes."""
    needed = _before(ends, given)
    for node in nodes:
        if node in needed:
            given[node] = graph.node_copy(node, given.__getitem__)
    return [given[node] for node in ends]
