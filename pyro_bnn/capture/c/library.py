"""Graphs of few numbers compiled by a C compiler alone, and kept for the next process.

What :mod:`~pyro_bnn.capture.c.source` writes needs no header and no library but C's own, so that a
second is enough to compile it, and none of torch's compiler is imported. The file that is kept is
named after the source, the compiler and the processor; one that is damaged is made again.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from pyro_bnn.capture.c.decompositions import decompositions
from pyro_bnn.capture.c.graph import strides_of
from pyro_bnn.capture.c.source import FUNCTION, Source, c_source
from pyro_bnn.capture.cache import STEPS, cache_folder
from pyro_bnn.capture.record import Graph, TensorFunction, TensorMeta, record
from pyro_bnn.capture.simplify import simplify
from pyro_bnn.errors import CaptureError
from pyro_bnn.files.private import is_kept, keep, private_folder

FLAGS = (
    "-x",
    "c",
    "-std=gnu11",
    "-O2",
    "-ftree-vectorize",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-signed-zeros",
    "-fopenmp-simd",
    "-shared",
    "-fPIC",
)
# A source of more lines, as of a loop over time, is compiled without passes that gain it little
LONG = 4_000
LONG_FLAGS = tuple(
    f"-fno-{each}" for each in ("tree-ccp", "tree-pre", "tree-vrp", "tree-dominator-opts", "gcse")
)
# C libraries with vector versions of exp, log, ...
VECTOR_MATH = ('-DVECTOR_MATH=__attribute__((simd("notinbranch")))',), ("-lmvec", "-lm")
PLAIN = (), ("-lm",)
VECTOR_BYTES = {"AVX512": 64, "AVX2": 32}  # bytes of a vector register; 16 elsewhere


class CGraph(Graph):
    """A step in C on tensors of given shapes, of which the first are overwritten.

    Args:
        source: The function; it writes over its first inputs.
        like: Those of its inputs that a caller gives.
        returned: Those that precede them, which are returned.
    """

    def __init__(
        self, source: Source, like: Sequence[Tensor], returned: Sequence[TensorMeta]
    ) -> None:
        super().__init__(self._run)
        self._source, self._function = source, _function(source.text)
        self._like = [_layout(value) for value in like]
        self._given = [(value.shape, value.stride(), value.dtype) for value in like]
        self._returned = returned
        self._work = torch.empty(source.num_bytes, dtype=torch.uint8)

    def bind(self, *args: Tensor) -> Callable[[int], None]:
        """So many steps on these very tensors; other threads go on meanwhile."""
        kept = [*self._outputs(), *self._checked(args), *self._source.constants]
        function, pointers, work = self._function, _pointers(kept), torch.empty_like(self._work)
        address = work.data_ptr()

        def steps(times: int) -> None:
            _require_in_range(function(pointers, address, times))
            kept[0].size()  # alive as long as this is

        steps.work = work  # type: ignore[attr-defined]
        steps.returned = kept[: len(self._returned)]  # type: ignore[attr-defined]
        return steps

    def _run(self, *args: Tensor) -> tuple[Tensor, ...]:
        outputs = self._outputs()
        pointers = _pointers([*outputs, *self._checked(args), *self._source.constants])
        _require_in_range(self._function(pointers, self._work.data_ptr(), 1))
        return tuple(outputs)

    def _outputs(self) -> list[Tensor]:
        return [torch.empty(value.shape, dtype=value.dtype) for value in self._returned]

    def _checked(self, args: Sequence[Tensor]) -> Sequence[Tensor]:
        if [(value.shape, value.stride(), value.dtype) for value in args] == self._given:
            return args
        if [_layout(value) for value in args] != self._like:
            raise CaptureError("tensors lie in memory otherwise than those of the recording")
        return args


def compile_c(fn: TensorFunction, args: Sequence[Tensor], *, num_state: int = 0) -> CGraph:
    """Record ``fn`` as a graph, write it in C and compile it.

    Args:
        fn: Pure function of tensors on the CPU that returns a tuple of tensors.
        args: Example inputs; nothing is written to them.
        num_state: How many leading inputs the graph overwrites with its trailing outputs.

    Raises:
        CaptureError: If it has operations that are not written in C, or cannot be compiled.
    """
    if any(not value.is_cpu for value in args):
        raise CaptureError("only tensors on the CPU are worked on in C")
    graph = record(fn, args, decompositions())
    simplify(graph)
    results = cast(Sequence[Node], graph.graph.output_node().args[0])
    returned = [node.meta["val"] for node in results[: len(results) - num_state]]
    with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
        for number, value in enumerate(returned):  # memory to write to, as that of the state
            strides = strides_of(value.shape)
            graph.graph.placeholder(f"output_{number}").meta["val"] = value._replace(stride=strides)
    size = VECTOR_BYTES.get(torch.backends.cpu.get_cpu_capability(), 16)
    return CGraph(c_source(graph, vector_bytes=size), args, returned)


def _require_in_range(returned: int) -> None:
    """Raise where a step returned as an index was out of range.

    Raises:
        IndexError: If it did; torch's own operations raise it too.
    """
    if returned:
        raise IndexError(f"index out of range for a dimension of size {returned - 1}")


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*[value.data_ptr() for value in tensors])


def _layout(value: Tensor) -> tuple[object, ...]:
    strides = tuple(s for n, s in zip(value.shape, value.stride(), strict=True) if n != 1)
    return value.shape, strides, value.dtype


def _function(text: str) -> Callable[..., int]:
    """The function of a source, compiled where no process has done so before."""
    compiler = os.environ.get("CXX", "g++")
    key = "\n".join([text, compiler, *_flags(text), _processor()])
    try:
        with private_folder(cache_folder() / STEPS) as folder:
            path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.so"
            if not is_kept(path, key):
                keep(path, _compiled(compiler, text), key)
            function = getattr(ctypes.CDLL(str(path)), FUNCTION)
    except OSError as error:
        raise CaptureError(f"a compiled step cannot be kept and loaded: {error}") from error
    function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong)
    function.restype = ctypes.c_longlong
    found: Callable[..., int] = function
    return found


def _flags(text: str) -> tuple[str, ...]:
    return FLAGS + (LONG_FLAGS if text.count("\n") > LONG else ())


def _compiled(compiler: str, text: str) -> bytes:
    """The library that a compiler makes of a source."""
    with tempfile.TemporaryDirectory(prefix="pyro-bnn-") as scratch:
        source, made = Path(scratch, "step.c"), Path(scratch, "step.so")
        source.write_text(text)
        for options, libraries in (VECTOR_MATH, PLAIN):
            command = [compiler, *_flags(text), *options, str(source), "-o", str(made), *libraries]
            try:
                done = subprocess.run(  # noqa: S603 - the compiler that Inductor calls too
                    command, capture_output=True, text=True, check=False
                )
            except OSError as error:
                raise CaptureError(f"no C compiler: {error}") from error
            if not done.returncode:
                return made.read_bytes()
    raise CaptureError(f"{compiler} failed: {done.stderr.strip().splitlines()[:1]}")


@functools.cache
def _processor() -> str:
    """What instructions the processor knows, as far as the system says."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    flags = (line for line in lines if line.startswith(("flags", "Features")))
    return f"{platform.machine()} {platform.processor()} {next(flags, '')}"
