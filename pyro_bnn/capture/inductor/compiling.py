"""Graphs compiled by torch's Inductor."""

from __future__ import annotations

import copy
import functools
import logging
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule

from pyro_bnn.capture.cache import use_for_inductor
from pyro_bnn.capture.inductor.recording import record_rows
from pyro_bnn.capture.record import Graph, TensorFunction, end_with_writes
from pyro_bnn.capture.simplify import simplify
from pyro_bnn.capture.transpose import lay_out
from pyro_bnn.errors import CaptureError

logger = logging.getLogger("pyro_bnn")

SECONDS_AN_OPERATION = 0.022  # that Inductor takes on one core, as 75 for 3,365 operations
PRECOMPILE = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"  # Inductor's variable, on unless it is 0

_EVERY: dict[str, Any] = {
    "size_asserts": False,  # the graph was chosen by the shapes of its inputs
    # gradients of sites are concatenated once, not selected again in every kernel that reads them
    "max_pointwise_cat_inputs": 0,
    "cpp.enable_floating_point_contract_flag": "fast",
}
_OPTIONS: dict[str, Any] = {
    **_EVERY,
    # values that several kernels read, such as scales of weights, are computed once and stored
    "realize_opcount_threshold": 8,
    "realize_reads_threshold": 1,
}
_IN_ORDER: dict[str, Any] = {**_EVERY, "reorder_for_locality": False}


def compile_graph(
    fn: TensorFunction,
    args: Sequence[Tensor],
    *,
    rows: Mapping[int, int] | None = None,
    num_state: int = 0,
    in_order: bool = False,
    most_operations: int | None = None,
) -> Graph:
    """Record ``fn`` as a graph and compile it with Inductor.

    Args:
        fn: Pure function of tensors that returns a tuple of tensors.
        args: Example inputs; nothing is written to them.
        rows: Number of the input to its dimension of rows; the graph serves any number of them.
        num_state: How many leading inputs the graph overwrites with its trailing outputs.
        in_order: Whether operations stay in the order of ``fn``. Otherwise each moves next to its
            users, which is cheaper. It is not where an entry of a state is overwritten: if old
            entries are read later, the whole state is copied first.
        most_operations: How many may be compiled; default any number.

    Raises:
        CaptureError: If the operations depend on the number of rows, or are more than may be.
    """
    use_for_inductor()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler warns about its own code
        from torch._inductor import lowering  # noqa: F401  # the lowering of pooling expects it imported
        from torch._inductor.decomposition import select_decomp_table

        graph, examples, shapes = record_rows(fn, args, rows or {}, select_decomp_table())
        simplify(graph)
        count = len(graph.graph.nodes)
        if most_operations is not None and count > most_operations:
            raise CaptureError(
                f"its {count:,} operations, as of a loop over time, would take about "
                f"{count * SECONDS_AN_OPERATION:.0f} seconds to compile; compile=True does it"
            )
        lay_out(graph)
        end_with_writes(graph, num_state)
        options = {
            **(_IN_ORDER if in_order else _OPTIONS),
            # precompiled headers pay from the fifth graph on; a fit has one or two
            "cpp_cache_precompile_headers": os.environ.get(PRECOMPILE, "0") == "1",
        }
        compiled = _compiled(graph, examples, options, in_cpp=in_order)
    return Graph(cast(TensorFunction, compiled), shapes)


def _compiled(
    graph: GraphModule, examples: list[Any], options: Mapping[str, Any], *, in_cpp: bool
) -> Any:
    """The graph compiled for the processor's vector instructions, whatever the compiler is.

    The compiler is taken to know them. Only if it fails, Inductor tests it, which takes seconds,
    and compiles by its public entry, which traces the graph twice more.

    Args:
        graph: What to compile.
        examples: Inputs without data.
        options: Of Inductor.
        in_cpp: Whether C++ code calls the kernels one after the other: for graphs of many small
            kernels that run very often. It is ignored where that does not compile.
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

    Tracing would change nothing: the recording needs no gradients, its operations are decomposed,
    and only the last ones write.
    """
    from torch._dispatch.python import enable_python_dispatcher
    from torch._guards import TracingContext, detect_fake_mode, tracing
    from torch._inductor import compile_fx, config
    from torch._inductor.virtualized import V

    from pyro_bnn.capture.inductor.one_file import in_one_file

    mode = detect_fake_mode(examples)
    copied = GraphModule(graph, copy.deepcopy(graph.graph))  # the compiler rewrites it
    outputs = cast(Sequence[Any], graph.graph.output_node().args[0])
    with (
        config.patch(dict(options)),
        enable_python_dispatcher(),
        V.set_fake_mode(mode),
        nullcontext() if in_cpp else in_one_file(),
        tracing(TracingContext(mode)),
    ):
        compiled = compile_fx.compile_fx_forward(
            copied,
            examples,
            num_orig_model_outputs=len(outputs),
            num_example_inputs=len(examples),
            compiler_config_extra=compile_fx.create_compiler_config_extra(copied),
            inner_compile=functools.partial(compile_fx.compile_fx_inner, cpp_wrapper=in_cpp),
            is_inference=True,
        )
    return lambda *args: tuple(compiled(list(args)))
