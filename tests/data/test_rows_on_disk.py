"""Rows of a memory-mapped file are read a minibatch at a time, and never copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import pyro_bnn as bnn

NUM_ROWS, NUM_INPUTS = 60_000, 50


class LargestMade(TorchDispatchMode):
    """The most bytes of a tensor that is made, views and those of memory-mapped rows aside."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest, self._rows = 0, rows.untyped_storage().data_ptr()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for value in tree_leaves(made):
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() != self._rows:
                self.largest = max(self.largest, value.untyped_storage().nbytes())
        return made


@pytest.fixture
def x(tmp_path: Path) -> Tensor:
    rows = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", "float32", (NUM_ROWS, NUM_INPUTS))
    rows[:] = np.random.default_rng(0).normal(size=(1_000, NUM_INPUTS)).repeat(60, axis=0)
    rows.flush()
    return torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c"))


@pytest.mark.parametrize(
    "engine",
    [
        bnn.SVI(bnn.guides.AutoNormal, num_steps=20, batch_size=100, compile=False),
        bnn.SGHMC(
            num_chains=1, warmup_steps=20, num_samples=5, thin=2, batch_size=100, compile=False
        ),
    ],
    ids=["svi", "sghmc"],
)
def test_no_fit_copies_rows_on_disk(engine: Any, x: Tensor) -> None:
    y = x[:, 0].clone()
    with LargestMade(x) as made:
        rows = bnn.data.Dataset(x, y)
        posterior = engine.run(bnn.models.MLP(NUM_INPUTS, hidden=(4,)), rows, progress=False)
        posterior.predict(x[:10], num_samples=2)
    assert rows.x.data_ptr() == x.data_ptr()
    assert made.largest < x.nbytes / 2
