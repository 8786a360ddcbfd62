"""Recordings of pure tensor functions: their operations as one graph, compiled or not.

``make_fx`` records the operations of one call on tensors without data, gradient included. A graph
serves all numbers of rows of a batch that its recording would treat alike, if it is told which
dimensions these are; for the rest it is specialised to the shapes and dtypes of its inputs.
"""

from __future__ import annotations

import copy
import functools
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeAlias, cast

import sympy
import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from pyro_bnn.effects import without_validation
from pyro_bnn.errors import CaptureError
from pyro_bnn.layout import lay_out
from pyro_bnn.simplify import memory_of, simplify

logger = logging.getLogger("pyro_bnn")

TensorFunction: TypeAlias = Callable[..., tuple[Tensor, ...]]


ROWS = sympy.Symbol("rows", integer=True, positive=True)


class RowsError(CaptureError):
    """Operations that are those of one number of rows."""


class Graph:
    """A function recorded for inputs of given shapes, and the numbers of rows that it serves.

    Args:
        run: The recorded operations.
        shapes: What was found of the sizes while they were recorded.
    """

    def __init__(self, run: TensorFunction, shapes: ShapeEnv) -> None:
        self.run, self._shapes = run, shapes
        self._conditions: list[Any] = []
        self._num_read = 0  # of the guards

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        """The operations at other inputs."""
        return self.run(*args)

    def serves(self, num_rows: int) -> bool:
        """Whether all choices that the recorded code made by its number of rows are the same."""
        guards = self._shapes.guards  # of the recording, and of the compiler
        if self._num_read != len(guards):
            self._conditions, self._num_read = _conditions(guards), len(guards)
        return all(bool(condition.subs(ROWS, num_rows)) for condition in self._conditions)


def _conditions(guards: Sequence[Any]) -> list[Any]:
    """What guards say of the number of rows, once: all sizes that they know are that number."""
    said = {guard.expr.subs(dict.fromkeys(guard.expr.free_symbols, ROWS)) for guard in guards}
    return [condition for condition in said if condition != sympy.true]


def capture(
    fn: TensorFunction,
    args: Sequence[Tensor],
    *,
    rows: Mapping[int, int] | None = None,
    num_state: int = 0,
) -> Graph:
    """Record ``fn`` as a graph for inputs of these shapes and dtypes.

    Args:
        fn: Pure function of tensors that returns a tuple of tensors.
        args: Example inputs; nothing is written to them.
        rows: Number of the input to its dimension of rows; the graph serves any number of them.
        num_state: How many leading inputs the graph overwrites with its trailing outputs.

    Raises:
        CaptureError: If the operations depend on the number of rows.
    """
    graph, _, shapes = _record(fn, args, rows or {}, {})
    simplify(graph)
    _end_with_writes(graph, num_state)
    return Graph(graph.forward, shapes)


def compile_graph(
    fn: TensorFunction,
    args: Sequence[Tensor],
    *,
    rows: Mapping[int, int] | None = None,
    num_state: int = 0,
    in_order: bool = False,
) -> Graph:
    """Record ``fn`` as a graph and compile it with Inductor; arguments as of :func:`capture`.

    Args:
        fn: Pure function of tensors that returns a tuple of tensors.
        args: Example inputs.
        rows: Number of the input to its dimension of rows.
        num_state: How many leading inputs the graph overwrites with its trailing outputs.
        in_order: Whether operations stay where ``fn`` has them. Moved next to what uses them they
            are cheaper to run, unless an entry of a state is written: the whole state is copied
            first if its old entries are read after that.

    Raises:
        CaptureError: If the operations depend on the number of rows.
    """
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about its own code
        from torch._inductor.decomposition import select_decomp_table

        graph, examples, shapes = _record(fn, args, rows or {}, select_decomp_table())
        simplify(graph)
        lay_out(graph)
        _end_with_writes(graph, num_state)
        options = _IN_ORDER if in_order else _OPTIONS
        compiled = _compiled(graph, examples, options, in_cpp=in_order)
    return Graph(cast(TensorFunction, compiled), shapes)


_EVERY: dict[str, Any] = {
    "size_asserts": False,  # of inputs, whose shapes chose the graph
    # gradients of the sites are written side by side, not chosen among by every kernel that reads
    "max_pointwise_cat_inputs": 0,
    "cpp.enable_floating_point_contract_flag": "fast",
}
_OPTIONS: dict[str, Any] = {
    **_EVERY,
    # what several kernels read, such as scales of weights, is computed once and stored
    "realize_opcount_threshold": 4,
    "realize_reads_threshold": 1,
}
_IN_ORDER: dict[str, Any] = {**_EVERY, "reorder_for_locality": False}


def _compiled(
    graph: GraphModule, examples: list[Any], options: Mapping[str, Any], *, in_cpp: bool
) -> Any:
    """The graph compiled for the processor's vector instructions, whatever the compiler is.

    Whether it knows them is asked, in some seconds, only where it failed; and so is Inductor's own
    entry, which traces the graph twice more before it compiles the same operations.

    Args:
        graph: What to compile.
        examples: Inputs without data.
        options: Of Inductor.
        in_cpp: Whether C++ calls the kernels one after the other, where that compiles: for graphs
            of many small ones that are called very often.
    """
    from torch import _inductor as inductor

    known = {**options, "cpp.vec_isa_ok": True}
    if inductor.config.cpp.vec_isa_ok is None and all(e.device.type == "cpu" for e in examples):
        try:
            return _lowered(graph, examples, known, in_cpp=in_cpp)
        except Exception:
            logger.debug("compiling again, with a look at the compiler", exc_info=True)
    return inductor.compile(graph, examples, options=dict(options))


def _lowered(
    graph: GraphModule, examples: list[Any], options: Mapping[str, Any], *, in_cpp: bool
) -> TensorFunction:
    """The graph compiled as it is, by the part of Inductor that comes after tracing.

    What tracing would bring is there: the recording has no gradients left to take, its operations
    are decomposed, and none but the last ones write.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import TracingContext, detect_fake_mode, tracing
    from torch._inductor import compile_fx, config
    from torch._inductor.virtualized import V

    mode = detect_fake_mode(examples)
    own = GraphModule(graph, copy.deepcopy(graph.graph))  # which the compiler rewrites
    outputs = cast(Sequence[Any], graph.graph.output_node().args[0])
    with (
        config.patch(dict(options)),
        enable_python_dispatcher(),
        V.set_fake_mode(mode),
        tracing(TracingContext(mode)),
    ):
        compiled = compile_fx.compile_fx_forward(
            own,
            examples,
            num_orig_model_outputs=len(outputs),
            num_example_inputs=len(examples),
            compiler_config_extra=compile_fx.create_compiler_config_extra(own),
            inner_compile=functools.partial(compile_fx.compile_fx_inner, cpp_wrapper=in_cpp),
            is_inference=True,
        )
    return lambda *args: tuple(compiled(list(args)))


def _record(
    fn: TensorFunction,
    args: Sequence[Tensor],
    rows: Mapping[int, int],
    decompositions: Mapping[Any, Any],
) -> tuple[GraphModule, list[Tensor], ShapeEnv]:
    """The operations of ``fn``, and inputs without data of the shapes that they take.

    Inputs without data are distinct objects: two that are one tensor stay two inputs.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    shapes = ShapeEnv()
    mode = FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True)
    examples: list[Tensor] = []
    for i, arg in enumerate(args):
        dims = [DimDynamic.STATIC] * arg.ndim
        if i in rows:
            dims[rows[i]] = DimDynamic.DYNAMIC
        context: Any = StatelessSymbolicContext(dynamic_sizes=dims)
        examples.append(mode.from_tensor(arg.detach(), symbolic_context=context))
    symbols: list[Any] = [examples[i].shape[dim] for i, dim in rows.items()]
    trace = make_fx(
        fn,
        decomposition_table=dict(decompositions),
        tracing_mode="fake",
        _allow_non_fake_inputs=True,
    )
    with mode, without_validation():
        graph = trace(*examples)
    for size in symbols:
        if isinstance(size, torch.SymInt) and size.node.maybe_as_int() is not None:
            raise RowsError(f"its operations are those of {int(size)} rows only")
    return graph, examples, shapes


def _end_with_writes(graph: GraphModule, num_state: int) -> None:
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
