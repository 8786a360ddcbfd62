"""Recordings of tensors without data, whose number of rows is a symbol; graphs without code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule as LazyGraph
from torch.fx.experimental.proxy_tensor import make_fx

from pyro_bnn.errors import CaptureError
from pyro_bnn.program.handlers import without_validation

if TYPE_CHECKING:  # this and sympy take half a second to import
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

# LazyGraph writes its code when it is first called
__all__ = ["LazyGraph", "RowsError", "record_rows", "rules_of_torch"]


class RowsError(CaptureError):
    """Operations that are those of one number of rows."""


def record_rows(
    fn: Callable[..., tuple[Tensor, ...]],
    args: Sequence[Tensor],
    rows: Mapping[int, int],
    decompositions: Mapping[Any, Any],
) -> tuple[GraphModule, list[Tensor], ShapeEnv]:
    """The operations of ``fn``, and inputs without data of the shapes that they take.

    Inputs without data are distinct objects: two that are one tensor stay two inputs.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
    )

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


def rules_of_torch() -> dict[Any, Callable[..., Any]]:
    """Torch's own rules of operations in terms of other operations of ATen."""
    table: Mapping[Any, Callable[..., Any]] = torch._decomp.decomposition_table
    of_aten = "torch._decomp.decompositions"
    return {operation: rule for operation, rule in table.items() if rule.__module__ == of_aten}
