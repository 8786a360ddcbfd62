"""Kernels of one file are those of a file for each, in its compiler's time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pyro_bnn.capture.inductor.compiling import compile_graph

WEIGHT = torch.linspace(-1, 1, 400, dtype=torch.float64).view(20, 20)


def two_products(x: Tensor, count: Tensor) -> tuple[Tensor, ...]:
    """Pointwise operations before, between and after products: kernels of other arguments."""
    h = (x.sin() + 1.0) @ WEIGHT
    z = (h.tanh() * count) @ WEIGHT
    return z.exp().sum(0), (z + h).cos(), count + 1


@pytest.mark.slow("compiles")
def test_all_kernels_of_a_graph_are_compiled_in_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import async_compile, config

    its_own = async_compile.AsyncCompile
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    x, count = torch.linspace(0, 1, 600, dtype=torch.float64).view(30, 20), torch.tensor([3])
    with config.patch(compile_threads=1):  # of which Inductor waits for nothing
        graph = compile_graph(two_products, (x, count), rows={0: 0})
    (source,) = tmp_path.rglob("*.main.cpp")
    assert len([*tmp_path.glob("*/*.main.so")]) == 1  # as the cache looks for it
    assert source.read_text().count("#define kernel kernel_") >= 3
    for num_rows in (30, 7):  # whose number is an argument of the kernels
        found = graph(x[:num_rows], count)
        for value, expected in zip(found, two_products(x[:num_rows], count), strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-13)
    assert async_compile.AsyncCompile is its_own
