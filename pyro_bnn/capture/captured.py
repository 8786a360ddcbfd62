"""Pure tensor functions that replay a recording of themselves, without Pyro or autograd.

Replaying a graph costs the arithmetic and a Python call for each operation; compiled by Inductor,
the arithmetic alone; on a GPU it becomes one launch of a CUDA graph.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from pyro_bnn.capture.compilers import NotInCError
from pyro_bnn.capture.cuda_graph import CudaGraphs
from pyro_bnn.capture.inductor.compiling import compile_graph
from pyro_bnn.capture.inductor.recording import RowsError
from pyro_bnn.capture.record import DEPENDENT, Graph, TensorFunction, capture
from pyro_bnn.errors import CaptureError
from pyro_bnn.program.random_state import own_generators

logger = logging.getLogger("pyro_bnn")

MOST_OPERATIONS = 2_000  # that are compiled by Inductor unless that is asked for
RTOL = {torch.float32: 1e-3, torch.float64: 1e-6}  # relative error that a replay may have


class Captured:
    """A tensor function that replays a captured graph where it can, and says where it cannot.

    At its capture every graph is compared with the function itself, at other values and, where it
    serves them, at another number of rows: a function whose operations depend on the values of its
    inputs is found out.

    Args:
        fn: Pure function of tensors that returns a tuple of tensors. It draws no random numbers:
            noise is an input.
        name: What it is, for the one line that says it could not be captured.
        enabled: With False the function runs as it is.
        compiled: Whether graphs are compiled.
        rows: Number of the input to its dimension of rows, where one compiled graph serves all
            numbers of rows of at least 2; empty for a graph a shape.
        num_state: How many leading inputs are overwritten by as many trailing outputs, which are
            not returned.
        strict: Whether a failure is an error, instead of a line and a slower path.
        in_order: Whether compiled operations stay in their order, for states written by entries.
        compiler: What compiles instead of Inductor, called as ``compile_graph`` is.

    Attributes:
        is_captured: False once a capture failed; the function then runs through plain Pyro.
        is_compiled: Whether new graphs are compiled; False once a compilation failed.
        is_strict: Whether a failure is an error; may be changed.
    """

    def __init__(
        self,
        fn: TensorFunction,
        name: str,
        *,
        enabled: bool = True,
        compiled: bool = False,
        rows: Mapping[int, int] | None = None,
        num_state: int = 0,
        strict: bool = False,
        in_order: bool = False,
        compiler: Callable[..., Graph] | None = None,
    ) -> None:
        self._fn, self._name, self.is_strict = fn, name, strict
        self._compile = compiler or functools.partial(
            compile_graph,
            in_order=in_order,
            most_operations=None if strict else MOST_OPERATIONS,
        )
        self._rows, self._num_state = dict(rows or {}), num_state
        self._graphs: dict[object, Graph] = {}
        self._by_rows: dict[object, list[Graph]] = {}  # that serve several numbers of rows
        self.is_captured, self.is_compiled = enabled, compiled

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        """The function's outputs, detached.

        Raises:
            CaptureError: If ``strict`` and the function cannot be captured or compiled.
        """
        graph = self._graph(args) if self.is_captured else None
        if graph is None:
            return self._directly(args)
        with torch.no_grad():
            return graph(*args)

    @property
    def path(self) -> str:
        """How it computes from now on: ``"compiled"``, ``"captured"`` or ``"eager"``."""
        how = "compiled" if self.is_compiled else "captured"
        return how if self.is_captured else "eager"

    def serves(self, num_rows: int) -> bool:
        """Whether so many rows can do without another compilation."""
        graphs = [graph for found in self._by_rows.values() for graph in found]
        return self.path != "compiled" or any(graph.serves(num_rows) for graph in graphs)

    def bind(self, *args: Tensor) -> Callable[[int], None]:
        """So many calls of the function at these very tensors, whose values change.

        Raises:
            CaptureError: If ``strict`` and the function cannot be captured or compiled.
        """
        graph = self._graph(args) if self.is_captured else None
        return (graph or Graph(lambda *values: self._directly(values))).bind(*args)

    def bind_compiled(self, *args: Tensor) -> tuple[Callable[[int], None], list[Tensor]] | None:
        """As :meth:`bind`, with the tensors that each call returns anew; None unless it is in C."""
        steps = self.bind(*args) if self.is_compiled else None
        returned = getattr(steps, "returned", None)
        return None if steps is None or returned is None else (steps, returned)

    def _directly(self, args: Sequence[Tensor]) -> tuple[Tensor, ...]:
        values = tuple(value.detach() for value in self._fn(*args))
        return _write_back(args, values, self._num_state)

    def _graph(self, args: Sequence[Tensor]) -> Graph | None:
        key = _key(args, {})
        if key not in self._graphs:
            graph = self._find(args) or self._make(args, self._shared_rows(args))
            if graph is None:
                return None
            self._graphs[key] = graph
        return self._graphs[key]

    def _shared_rows(self, args: Sequence[Tensor]) -> Mapping[int, int]:
        """The dimensions of rows, where a graph can serve several numbers of them."""
        if not self.is_compiled:
            return {}
        counts = {args[i].shape[dim] for i, dim in self._rows.items()}
        return self._rows if len(counts) == 1 and counts.isdisjoint((0, 1)) else {}

    def _find(self, args: Sequence[Tensor]) -> Graph | None:
        """A graph made for another number of rows that serves this one too."""
        rows = self._shared_rows(args)
        made = self._by_rows.get(_key(args, rows), []) if rows else []
        return next((graph for graph in made if graph.serves(_count(args, rows))), None)

    def _make(self, args: Sequence[Tensor], rows: Mapping[int, int]) -> Graph | None:
        """A new graph, compiled if it can be; None, with a line, where there is none."""
        try:
            graph = self._try(args, rows)
        except RowsError:  # a graph for each number of rows
            self._rows, rows = {}, {}
            graph = self._try(args, rows)
        if graph is not None and rows:
            self._by_rows.setdefault(_key(args, rows), []).append(graph)
        return graph

    def _try(self, args: Sequence[Tensor], rows: Mapping[int, int]) -> Graph | None:
        failure = None
        if self.is_compiled:
            try:
                make = functools.partial(self._compile, rows=rows) if rows else self._compile
                return self._checked(make, args, rows)
            except RowsError:
                raise
            except NotInCError:
                self.is_compiled = False
            except Exception as error:
                self._refuse("cannot be compiled", error)
                failure, self.is_compiled = error, False
        try:
            graph = self._checked(capture, args, {})
        except Exception as error:
            self._refuse("cannot be captured as a graph", error)
            failure, graph, self.is_captured = error, None, False
        if failure is not None:
            what = (
                "compiled and runs as an uncompiled graph"
                if self.is_captured
                else "captured as a graph and runs through plain Pyro, which is slower"
            )
            logger.warning("%s cannot be %s: %s", self._name, what, _reason(failure))
        return graph

    def _refuse(self, what: str, error: Exception) -> None:
        if self.is_strict:
            raise CaptureError(f"{self._name} {what}: {_reason(error)}") from error

    def _checked(
        self,
        make: Callable[..., Graph],
        args: Sequence[Tensor],
        rows: Mapping[int, int],
    ) -> Graph:
        """A graph, compared with the function at other values and, of several, number of rows.

        Raises:
            CaptureError: If they differ.
        """
        graph = make(self._fn, args, num_state=self._num_state)
        if all(a.is_cuda for a in args):
            graph.run = CudaGraphs(graph.run, self._num_state)
        others = [_moved(args, by, self._num_state) for by in (0.1, -0.1)]
        if rows and graph.serves(fewer := max(2, _count(args, rows) // 2)):
            for i, dim in rows.items():
                others[1][i] = others[1][i].narrow(dim, 0, fewer).clone()
        for other in others:
            copies = [a.clone() for a in other]
            with own_generators():
                expected = self._directly(other)
            with own_generators(), torch.no_grad():
                actual = graph(*copies)
            state = list(zip(copies, other, strict=True))[: self._num_state]
            pairs = [*zip(actual, expected, strict=True), *state]
            largest = max((_size(wanted) for wanted in expected), default=0.0)
            for value, wanted in pairs:
                if not _is_close(value, wanted, largest):
                    raise CaptureError(
                        "a graph of its operations gives other numbers than the function itself; "
                        "do they depend on values of its inputs, draw random numbers or change a "
                        "buffer?"
                    )
        return graph


def _write_back(
    args: Sequence[Tensor], values: tuple[Tensor, ...], num_state: int
) -> tuple[Tensor, ...]:
    if not num_state:
        return values
    owned = {arg.untyped_storage().data_ptr() for arg in args[:num_state]}
    with torch.no_grad():
        values = tuple(v.clone() if v.untyped_storage().data_ptr() in owned else v for v in values)
        for target, value in zip(args[:num_state], values[-num_state:], strict=True):
            target.copy_(value)
    return values[:-num_state]


def _key(args: Sequence[Tensor], rows: Mapping[int, int]) -> object:
    """Shapes, dtypes and devices, whatever the number of rows."""
    return tuple(
        (tuple(None if d == rows.get(i) else n for d, n in enumerate(a.shape)), a.dtype, a.device)
        for i, a in enumerate(args)
    )


def _count(args: Sequence[Tensor], rows: Mapping[int, int]) -> int:
    return next(args[i].shape[dim] for i, dim in rows.items())


def _moved(args: Sequence[Tensor], by: float, num_state: int) -> list[Tensor]:
    """The inputs at other values, of the same sign; whole numbers as they are.

    State is moved away from 0 too: an update by moments of 0 has the sign of the gradient for its
    size, and rounding decides it.
    """
    moved = []
    for i, arg in enumerate(args):
        value = arg.detach().clone()
        if value.is_floating_point():
            ramp = torch.linspace(0.5, 1, value.numel(), dtype=value.dtype, device=value.device)
            moved_value = value * (1 + by * ramp.reshape(value.shape))
            if i < num_state:
                value = moved_value + 0.1
            else:  # whole numbers may be labels or codes
                value = torch.where(value == value.round(), value, moved_value)
        moved.append(value)
    return moved


def _is_close(actual: Tensor, expected: Tensor, largest: float) -> bool:
    """Whether a value agrees, up to the rounding of sums as large as the largest output."""
    if not expected.is_floating_point():
        return bool(torch.equal(actual, expected))
    rtol = RTOL.get(expected.dtype, 1e-2)
    atol = rtol * _size(expected) + 10 * torch.finfo(expected.dtype).eps * largest
    return bool(torch.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True))


def _size(value: Tensor) -> float:
    finite = value[value.isfinite()] if value.is_floating_point() else value[:0]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _reason(error: Exception) -> str:
    """One line of what went wrong."""
    name = type(error).__name__
    if "DataDependent" in name or "data-dependent" in str(error):
        return DEPENDENT
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip() if lines else name


def value_and_grad(
    fn: Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Tensor, tuple[Tensor, ...]]],
    num_variables: int,
) -> TensorFunction:
    """A function of tensors that returns (value, auxiliary..., gradients...).

    Args:
        fn: Maps (variables, other inputs) to (scalar, auxiliary tensors).
        num_variables: How many leading inputs are variables to differentiate by.
    """

    def with_gradients(*args: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            variables = [a.detach().requires_grad_() for a in args[:num_variables]]
            value, auxiliary = fn(variables, args[num_variables:])
            gradients = torch.autograd.grad(
                value, variables, allow_unused=True, materialize_grads=True
            )
        return (value, *auxiliary, *gradients)

    return with_gradients
