"""Recordings of pure tensor functions: their operations as one graph, compiled or not.

:func:`capture` runs a function once and notes each operation, gradient included, in some 50
microseconds: a graph for inputs of these shapes. :func:`compile_graph` takes seconds, so its graph
serves all numbers of rows that its recording would treat alike: ``make_fx`` records the operations
on tensors without data, whose number of rows is a symbol.
"""

from __future__ import annotations

import itertools
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.fx import Graph as Nodes
from torch.fx import GraphModule, Node
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from pyro_bnn.capture.inductor.recording import LazyGraph, record_rows
from pyro_bnn.capture.simplify import memory_of, simplify, writes_into_view
from pyro_bnn.errors import CaptureError
from pyro_bnn.memory import Mode
from pyro_bnn.program.dependence import WAYS_OUT
from pyro_bnn.program.handlers import without_validation
from pyro_bnn.program.random_state import own_generators
from pyro_bnn.program.recurrent import is_plain, recurrence

if TYPE_CHECKING:  # this and sympy take half a second to import
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

logger = logging.getLogger("pyro_bnn")

aten = torch.ops.aten
BY_INDEX = frozenset({aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_})
"""Operations whose second argument has an index or None for each dimension."""
MOST_FACTORS = 32  # of a running product that is written factor by factor

TensorFunction: TypeAlias = Callable[..., tuple[Tensor, ...]]

DEPENDENT = "it has data-dependent control flow: its operations depend on values of tensors"


class _ShapeError(CaptureError):
    """A result has a shape that values decide."""


class Graph:
    """A function recorded for inputs of given shapes, and the numbers of rows that it serves.

    Args:
        run: The recorded operations.
        shapes: What was found of the sizes while they were recorded; None if they are all numbers.
    """

    def __init__(self, run: TensorFunction, shapes: ShapeEnv | None = None) -> None:
        self.run, self._shapes = run, shapes
        self._conditions: list[Any] = []
        self._num_read = 0  # how many guards were read

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        """The operations at other inputs."""
        return self.run(*args)

    def bind(self, *args: Tensor) -> Callable[[int], None]:
        """So many calls of the operations at these very tensors, whose values change."""

        def calls(times: int) -> None:
            with torch.no_grad():
                for _ in range(times):
                    self.run(*args)

        return calls

    def serves(self, num_rows: int) -> bool:
        """Whether all choices that the recorded code made by its number of rows are the same."""
        if self._shapes is None:
            return False
        guards = self._shapes.guards  # guards of the recording and of the compiler
        if self._num_read != len(guards):
            self._conditions, self._num_read = _conditions(guards), len(guards)
        return all(
            bool(condition.subs(dict.fromkeys(condition.free_symbols, num_rows)))
            for condition in self._conditions
        )


def _conditions(guards: Sequence[Any]) -> list[Any]:
    """What guards say of the number of rows, once: all sizes that they know are that number."""
    import sympy

    rows = sympy.Symbol("rows", integer=True, positive=True)
    said = {guard.expr.subs(dict.fromkeys(guard.expr.free_symbols, rows)) for guard in guards}
    return [condition for condition in said if condition != sympy.true]


def capture(fn: TensorFunction, args: Sequence[Tensor], *, num_state: int = 0) -> Graph:
    """Record ``fn`` as a graph for inputs of these shapes and dtypes.

    Args:
        fn: Pure function of tensors that returns a tuple of tensors.
        args: Example inputs; nothing is written to them.
        num_state: How many leading inputs the graph overwrites with its trailing outputs.

    Raises:
        CaptureError: If operations depend on the values of inputs.
    """
    graph = record(fn, args)
    simplify(graph)
    end_with_writes(graph, num_state)
    LazyGraph.force_recompile(graph)
    return Graph(graph.forward)


def record(
    fn: TensorFunction,
    args: Sequence[Tensor],
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> GraphModule:
    """The operations of ``fn``, in order, as they are.

    Where a mask chooses rows, ``make_fx`` records them: it has symbols for their number.

    Args:
        fn: Pure function of tensors that returns a tuple of tensors.
        args: Example inputs; nothing is written to them.
        decompositions: Operations that are recorded as what these functions do.

    Raises:
        CaptureError: If operations depend on the values of inputs, or on random numbers.
    """
    try:
        graph = _operations(fn, args, decompositions or {})
    except _ShapeError:
        return record_rows(fn, args, {}, {})[0]
    if any(writes_into_view(node) for node in graph.graph.nodes):
        return _without_writes(graph, args, decompositions or {})
    return graph


def _without_writes(
    graph: GraphModule, args: Sequence[Tensor], decompositions: Mapping[Any, Callable[..., Any]]
) -> GraphModule:
    """The same graph, in which what was written into parts of a tensor makes another tensor.

    As of a series that a loop over time fills, or the state of a recurrent layer. Constants are
    inputs meanwhile, since torch lets nothing else be written.
    """
    names = [node.target for node in graph.graph.nodes if node.op == "get_attr"]
    constants = {name: getattr(graph, name) for name in names}

    def run(*values: Tensor) -> tuple[Tensor, ...]:
        held = dict(zip(constants, values[len(args) :], strict=True))
        found: tuple[Tensor, ...] = torch.func.functional_call(graph, held, values[: len(args)])
        return found

    with torch.no_grad():
        functional = torch.func.functionalize(run, remove="mutations")
        pure = _operations(functional, args, decompositions, [*constants.values()])
    nodes = [node for node in pure.graph.nodes if node.op == "placeholder"][len(args) :]
    for node, (name, value) in zip(nodes, constants.items(), strict=True):
        pure.register_buffer(name, value, persistent=False)
        with pure.graph.inserting_before(node):
            constant = pure.graph.get_attr(name)
        constant.meta = node.meta
        node.replace_all_uses_with(constant)
        pure.graph.erase_node(node)
    LazyGraph.force_recompile(pure)
    return pure


def _operations(
    fn: TensorFunction,
    args: Sequence[Tensor],
    decompositions: Mapping[Any, Callable[..., Any]],
    constants: Sequence[Tensor] = (),
) -> GraphModule:
    """The operations of one call of ``fn`` on copies of its inputs, and of constants as inputs."""
    recorder = _Recorder(decompositions)
    copies = [value.detach().clone() for value in (*args, *constants)]
    for number, copy_of_input in enumerate(copies):
        recorder.input(copy_of_input, varies=number < len(args))
    with own_generators(), without_validation():
        with recorder, _Unread(recorder):
            values = fn(*copies)
        recorder.graph.output(tuple(recorder.node(value) for value in values))
    return LazyGraph(recorder.constants, recorder.graph)


class TensorMeta(NamedTuple):
    """A tensor without its numbers."""

    shape: torch.Size
    dtype: torch.dtype
    stride: tuple[int, ...]
    device: torch.device


class _Recorder(Mode):
    """Notes every operation on tensors as a node of a graph.

    What no input leads to is a constant, which may be read as a number; what depends on an input,
    or is drawn at random, may not.
    """

    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.decompositions = decompositions
        self.graph, self.constants = Nodes(), nn.Module()
        self._nodes = WeakTensorKeyDictionary()  # entries go with their tensors
        self._varying: set[Node] = set()

    def input(self, value: Tensor, *, varies: bool = True) -> None:
        """Take a tensor as the graph's next input."""
        node = self.graph.placeholder(f"input_{len(self.graph.nodes)}")
        self._varying.update({node} if varies else ())
        self._know(value, node)

    def node(self, value: Any) -> Any:
        """The node of a tensor, which is a constant where no operation made it; the rest as is."""
        if not isinstance(value, Tensor):
            return value
        node = self._nodes.get(value)
        if node is None:
            name = f"constant_{len(self.graph.nodes)}"
            self.constants.register_buffer(name, value.detach(), persistent=False)
            node = self.graph.get_attr(name)
            self._know(value, node)
        return node

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.decompositions:
            with self:
                rule = self.decompositions.get(func, func.decompose)
                values = rule(*args, **kwargs)
            if values is not NotImplemented:
                return values
        if func is torch.ops.aten.lift_fresh.default:  # a constant: nothing may write into it
            func = torch.ops.aten.lift_fresh_copy.default
        if getattr(func, "overloadpacket", None) in BY_INDEX:
            places = self._places(args[1])
            args = (args[0], places, *args[2:])
            if func is aten.index_put.default and any(
                p is not None and not p.numel() for p in places
            ):
                func, args, kwargs = aten.clone.default, args[:1], {}  # written at no place
        given, named = cast(Any, map_aggregate((args, kwargs), self.node))
        node = self.graph.call_function(func, given, named)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        if is_random or not self._varying.isdisjoint(node.all_input_nodes):
            _check_unread(func, args)
            self._varying.add(node)
        values = func(*args, **kwargs)
        if isinstance(values, Tensor):
            self._know(values, node)
        elif isinstance(values, (tuple, list)):
            for i, value in enumerate(values):
                if isinstance(value, Tensor):
                    part = self.graph.call_function(operator.getitem, (node, i))
                    self._varying.update({part} if node in self._varying else ())
                    self._know(value, part)
        return values

    def _places(self, indices: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Indices, in which masks that no input leads to are the places that they choose."""
        found: list[Tensor | None] = []
        for index in indices:
            is_mask = index is not None and index.dtype is torch.bool and index.ndim > 0
            if index is not None and is_mask and not self.is_varying(index):
                found += index.nonzero().unbind(1)
            else:
                found.append(index)
        return found

    def is_varying(self, value: Tensor) -> bool:
        """Whether a tensor depends on an input, or was drawn at random."""
        return self._nodes.get(value) in self._varying

    def _know(self, value: Tensor, node: Node) -> None:
        self._nodes[value] = node
        node.meta["val"] = TensorMeta(value.shape, value.dtype, value.stride(), value.device)


class _Unread(TorchFunctionMode):
    """Lets no numbers leave a recording by the ways that are no operations."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in WAYS_OUT and self._recorder.is_varying(args[0]):
            raise CaptureError(DEPENDENT)
        if func in (torch.cumprod, Tensor.cumprod) and len(args) == 2 and not kwargs:
            return _running_products(*args)
        if is_plain(func, args):
            return recurrence(func, args)
        return func(*args, **(kwargs or {}))


def _running_products(x: Tensor, dim: int) -> Tensor:
    """``cumprod`` one product after the other: its gradient in torch looks for zeros of x.

    Few factors, as of ``StickBreakingTransform`` and ``CorrCholeskyTransform``; more as in torch.
    """
    if not x.ndim or not 1 < x.shape[dim] <= MOST_FACTORS or not x.is_floating_point():
        return x.cumprod(dim)
    return torch.stack(list(itertools.accumulate(x.unbind(dim), torch.mul)), dim)


def _check_unread(func: Any, args: tuple[Any, ...]) -> None:
    """Raise if values of an operation's arguments become a number, or decide a shape."""
    if torch.Tag.data_dependent_output in func.tags:
        raise CaptureError(DEPENDENT)
    decides = torch.Tag.dynamic_output_shape in func.tags
    if func is torch.ops.aten.index.Tensor:  # a mask decides the shape, places do not
        decides = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    if decides:
        raise _ShapeError(DEPENDENT)


def end_with_writes(graph: GraphModule, num_state: int) -> None:
    """Write the trailing outputs into the leading inputs, and return the others.

    An input that is also read here, by what is returned or by another input, is read first.

    Raises:
        CaptureError: If inputs are exchanged, so that none can be written first.
    """
    if not num_state:
        return
    state = [node for node in graph.graph.nodes if node.op == "placeholder"][:num_state]
    output = graph.graph.output_node()
    values = list(cast(Sequence[Any], output.args[0]))
    new = dict(zip(state, values[-num_state:], strict=True))
    readers = {node: [to for to in new if memory_of(new[to]) is node is not to] for node in state}
    try:
        order = list(TopologicalSorter(readers).static_order())
    except CycleError:
        raise CaptureError("parts of its state are exchanged with each other") from None
    returned = values[:-num_state]
    with graph.graph.inserting_before(output):
        for i, value in enumerate(returned):
            if memory_of(value) in new:
                returned[i] = graph.graph.call_function(torch.ops.aten.clone.default, (value,))
        for node in order:
            graph.graph.call_function(torch.ops.aten.copy_.default, (node, new[node]))
    output.args = (tuple(returned),)
    graph.recompile()
