"""The C++ kernels of a graph in one file, for a compiler that spends its time on headers.

Inductor writes a file for each run of operations between two matrix products. Each includes the
same headers, which take the compiler two seconds to read and the kernel a tenth; compiled once they
take half of one, after six seconds. So the kernels of a graph share one file and its headers.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch._inductor import async_compile
from torch._inductor.codecache import CppPythonBindingsCodeCache

NAME = CppPythonBindingsCodeCache.entry_function  # of each kernel where it is written


class _Kernel:
    """A kernel of a file that is not compiled yet, by its number there."""

    def __init__(self, number: int) -> None:
        self.number = number


class OneFile(async_compile.AsyncCompile):
    """Takes the kernels of a graph one by one, and compiles them where the first is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._kernels: list[tuple[Sequence[str], str]] = []

    def cpp_pybinding(self, argtypes: Sequence[str], source_code: str) -> Any:
        """Note a kernel; `wait` replaces what this returns."""
        self._kernels.append((argtypes, source_code))
        return _Kernel(len(self._kernels) - 1)

    def wait(self, scope: dict[str, Any]) -> None:
        """Replace the kernels among the names of a module by functions of their arguments."""
        waiting = {name: value for name, value in scope.items() if isinstance(value, _Kernel)}
        if waiting:
            run = _loaded(self._kernels)
            scope.update({n: functools.partial(run, k.number) for n, k in waiting.items()})
        super().wait(scope)


@contextmanager
def in_one_file() -> Iterator[None]:
    """What Inductor compiles inside has its kernels in one file."""
    before = async_compile.AsyncCompile
    # Inductor's code looks this module up when it is loaded
    async_compile.AsyncCompile = OneFile  # type: ignore[misc]
    try:
        yield
    finally:
        async_compile.AsyncCompile = before  # type: ignore[misc]


def _loaded(kernels: Sequence[tuple[Sequence[str], str]]) -> Any:
    """Compile kernels, each of the types of its arguments and its source.

    Returns:
        A function of a number of a kernel and its arguments.
    """
    sources, cases = [], []
    for number, (types, source) in enumerate(kernels):
        values = (
            f"parse_arg<{t.replace('const ', '')}>(args, {n})" for n, t in enumerate(types, 1)
        )
        cases.append(f"case {number}: {NAME}_{number}({', '.join(values)}); break;")
        sources += [f"#define {NAME} {NAME}_{number}", source, f"#undef {NAME}"]
    chosen = f"switch (parse_arg<int64_t>(args, 0)) {{ {' '.join(cases)} }}"
    bindings = CppPythonBindingsCodeCache.suffix_template.format(
        entry_func=NAME,
        arg_len="PyTuple_GET_SIZE(args)",  # each kernel has its own
        call_entry_func=f"{chosen} Py_RETURN_NONE;",
        extra_parse_arg="",
    )
    # read first, as the name of a kernel is another word while its own source is read
    headers = "#include <torch/csrc/inductor/cpp_prefix.h>"
    module = CppPythonBindingsCodeCache.load("\n".join([headers, *sources, bindings]))
    return getattr(module, NAME)
