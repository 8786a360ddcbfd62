"""Which compiler a step gets: C's alone for one of few numbers, torch's Inductor for the others."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from pyro_bnn.capture.c.library import compile_c
from pyro_bnn.capture.inductor.compiling import compile_graph
from pyro_bnn.capture.record import Graph, TensorFunction
from pyro_bnn.errors import CaptureError

# numbers that a step in C may read; with more, libraries on all cores are faster
MAX_NUMBERS = 1 << 19

logger = logging.getLogger("pyro_bnn")


class NotInCError(CaptureError):
    """A step that is not written in C, in a run too short for another compiler."""


def compiler_of(*, is_long: bool) -> Callable[..., Graph]:
    """What compiles a step, called as ``compile_graph`` is.

    The choice is by the step's operations and sizes alone, so that a run stays the same.

    Args:
        is_long: Whether Inductor compiles what is not written in C; ``NotInCError`` otherwise.
    """
    return functools.partial(_compile, is_long=is_long)


def _compile(
    fn: TensorFunction,
    args: Sequence[Tensor],
    *,
    is_long: bool,
    rows: Mapping[int, int] | None = None,
    num_state: int = 0,
) -> Graph:
    try:
        _check_few(args)
        return compile_c(fn, args, num_state=num_state)
    except CaptureError as error:
        logger.debug("a step is not written in C: %s", error)
        if not is_long:
            raise NotInCError(str(error)) from error
    return compile_graph(fn, args, rows=rows, num_state=num_state)


def _check_few(args: Sequence[Tensor]) -> None:
    if (count := sum(value.numel() for value in args)) > MAX_NUMBERS:
        raise CaptureError(f"its {count:,} numbers are more than {MAX_NUMBERS:,}")
