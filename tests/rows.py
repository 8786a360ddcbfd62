"""Small data sets that are not standardised, for the tests of the command line's parts."""

from __future__ import annotations

from typing import Any

import torch

from pyro_bnn.data import Dataset, Split


def split_of(x: Any, y: Any) -> Split:
    """The same rows for training and test, not standardised."""
    data = Dataset(x, y)
    task = "regression" if data.num_classes is None else "classification"
    return Split(data, data, task, "rows")  # type: ignore[arg-type]  # mypy widens the literal


def regression(num_rows: int = 6, num_targets: int | None = None) -> Split:
    """Noise with two inputs."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_rows, 2, generator=generator)
    shape = (num_rows,) if num_targets is None else (num_rows, num_targets)
    return split_of(x, torch.randn(*shape, generator=generator))


def classes(num_classes: int) -> Split:
    """Twelve rows with three inputs, every class present."""
    generator = torch.Generator().manual_seed(0)
    return split_of(torch.randn(12, 3, generator=generator), torch.arange(12) % num_classes)
