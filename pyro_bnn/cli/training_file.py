"""The file ``training.safetensors`` of a fit: the rows that distances are measured to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.data.split import Column
from pyro_bnn.diagnostics.novelty import Novelty
from pyro_bnn.errors import FileFormatError
from pyro_bnn.files.tensors import read_tensors, write_tensors
from pyro_bnn.report.evaluation.units import to_numpy

FORMAT = "pyro_bnn training inputs"
VERSION = 1
MOST_ROWS, MOST_NUMBERS = 10_000, 1 << 21  # 8 MiB


def novelty(x: Float[Tensor, "N ..."], columns: Sequence[Column], seed: int) -> Novelty:
    """The rows that distances are measured to: all training rows, or a random sample of 10,000.

    With more than 209 inputs the sample is smaller: 2^21 numbers in total. A new row is as
    exchangeable with the sample as with all rows, so p-values hold; narrow gaps are harder to see.

    Args:
        x: Training inputs in the model's units: rows ``[N, I]``, or images.
        columns: The columns that became the I inputs.
        seed: Seed of the sample, which is drawn without replacement.
    """
    rows = x.reshape(len(x), -1)
    most = max(1, min(MOST_ROWS, MOST_NUMBERS // rows.shape[1]))
    if len(rows) > most:
        sample = np.random.default_rng(seed).choice(len(rows), most, replace=False)
        rows = rows[torch.as_tensor(sample, device=x.device)]
    return Novelty(to_numpy(rows.float()), _sizes(columns))


def write(novelty: Novelty, path: Path) -> None:
    """Write the rows, in float32.

    Raises:
        OutputError: If the file cannot be written.
    """
    x = torch.tensor(novelty.x, dtype=torch.float32)
    write_tensors({"format": FORMAT, "version": VERSION, "x": x}, path)


def read(path: Path, columns: Sequence[Column]) -> Novelty:
    """Read what `write` wrote.

    Raises:
        FileFormatError: If the file is missing, damaged, foreign or newer, or has other columns.
    """
    document = read_tensors(path)
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        raise FileFormatError(
            f"{path} does not hold training inputs as this package writes them; fit again"
        )
    x: Any = document.get("x")
    sizes = _sizes(columns)
    is_table = isinstance(x, Tensor) and x.dtype == torch.float32 and x.ndim == 2 and len(x) > 0
    if not is_table or x.shape[1] != sum(sizes) or not bool(x.isfinite().all()):
        raise FileFormatError(f"{path} is damaged: its rows are not {sum(sizes)} finite numbers")
    return Novelty(to_numpy(x), sizes)


def _sizes(columns: Sequence[Column]) -> tuple[int, ...]:
    """How many inputs each column becomes."""
    return tuple(len(column.inputs) for column in columns)
