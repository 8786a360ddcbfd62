"""CUDA graphs: all kernels of a function launched at once.

The kernels of a small network take less time than their launches; a CUDA graph records them once
and replays them by one launch, at fixed addresses.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

logger = logging.getLogger("pyro_bnn")

MAX_GRAPHS = 8  # graphs of one function, one a set of input shapes; each holds its own memory
WARMUPS = 3  # calls before the recording, in which libraries set themselves up


class CudaGraphs:
    """A function of CUDA tensors that replays a recording of its kernels.

    Inputs are copied to the recording's own memory and outputs out of it, so nothing that a caller
    holds is overwritten by a later call.

    Args:
        fn: Pure function of tensors that returns a tuple of tensors, without synchronisation.
        num_state: How many leading inputs it writes to.
    """

    def __init__(self, fn: Callable[..., tuple[Tensor, ...]], num_state: int = 0) -> None:
        self._fn, self._num_state = fn, num_state
        self._recordings: dict[object, _Recording] = {}
        self._is_enabled = True

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        """The function's outputs; its writes to the leading inputs are done."""
        key = tuple((a.shape, a.dtype) for a in args)
        recording = self._recordings.get(key)
        if recording is None:
            if not self._is_enabled or len(self._recordings) == MAX_GRAPHS:
                return tuple(self._fn(*args))
            try:
                recording = self._recordings[key] = _Recording(self._fn, args)
            except RuntimeError as error:
                self._is_enabled = False
                logger.warning(
                    "the graph cannot be replayed as a CUDA graph, and its kernels are launched "
                    "one by one: %s",
                    str(error).splitlines()[0],
                )
                return tuple(self._fn(*args))
        return recording.replay(args, self._num_state)


class _Recording:
    """The kernels of one call, at fixed addresses."""

    def __init__(self, fn: Callable[..., tuple[Tensor, ...]], args: Sequence[Tensor]) -> None:
        self._inputs = [a.detach().clone() for a in args]
        with torch.cuda.device(self._inputs[0].device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARMUPS):
                    fn(*self._inputs)
                    # a state that calls move on may leave its range: the place in a table, say
                    _copy(self._inputs, list(args))
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._outputs = tuple(fn(*self._inputs))

    def replay(self, args: Sequence[Tensor], num_state: int) -> tuple[Tensor, ...]:
        _copy(self._inputs, list(args))
        self._graph.replay()
        if num_state:
            _copy(list(args[:num_state]), self._inputs[:num_state])
        return tuple(value.clone() for value in self._outputs)


def _copy(targets: list[Tensor], sources: list[Tensor]) -> None:
    cast(Any, torch)._foreach_copy_(targets, sources)  # one launch for many tensors
