"""What a frozen body makes of rows, computed once: a chunk at a time, on disk where it is large."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pyro_bnn import memory
from pyro_bnn.files.mapped import MappedFile
from pyro_bnn.memory import CountBytes

FIRST_ROWS = 16  # of the chunk that tells what a row costs
CHUNK_BYTES = 16 * memory.WORKING_SET  # that a chunk's intermediate results add up to


def features(
    body: Callable[[Tensor], Tensor], x: Tensor, *, most_bytes: int | None = None
) -> Tensor:
    """The output ``[N, ...]`` of a body at all rows, without gradients.

    The body is called on a first chunk of 16 rows, and on chunks of as many rows as 256 MiB of
    intermediate results allow from there on. It may write to its argument.

    Args:
        body: Function of rows ``[n, ...]`` that gives a row for each, whatever the other rows are.
        x: Rows ``[N, ...]``, at least one.
        most_bytes: Of the output; beyond them it is in a file that has no name and goes with it, in
            the folder for temporary files (``TMPDIR``). Default: ``memory.STORED_DRAWS``, 1 GiB.

    Raises:
        OutputError: If the disk has no room for the file.

    Example:
        >>> features(torch.nn.Linear(3, 2), torch.zeros(40, 3)).shape
        torch.Size([40, 2])
    """
    num_rows = len(x)
    with torch.no_grad():
        rows = x[:FIRST_ROWS].clone()
        with CountBytes() as counter:
            first = body(rows)
        size = max(1, CHUNK_BYTES * len(first) // max(1, counter.total))
        out, starts = _empty(first, num_rows, most_bytes), range(len(first), num_rows, size)
        out[: len(first)] = first
        for start in starts:
            some = x[start : start + size]
            out[start : start + len(some)] = body(some.clone())
    return out


def _empty(first: Tensor, num_rows: int, most_bytes: int | None) -> Tensor:
    """Room for all rows ``[N, ...]``, in memory or in a file."""
    shape = num_rows, *first.shape[1:]
    num_bytes = num_rows * first[0].nbytes
    bound = memory.STORED_DRAWS if most_bytes is None else most_bytes
    if num_bytes <= bound or first.device.type != "cpu":
        return first.new_empty(shape)
    return MappedFile(num_bytes, what="features").map(first.dtype).reshape(shape)
