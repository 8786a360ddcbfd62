"""Numbers of a table that is too large for the memory: in files without a name, on the disk.

What pandas and pyarrow read is in memory as a whole, and so would be what a split makes of it.
Nothing is left of such a file when the process ends, even if it is killed.
"""

from __future__ import annotations

import io
import math
import mmap
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.errors import OutputError
from pyro_bnn.files.mapped import MappedFile
from pyro_bnn.memory import GIB

MOST_IN_MEMORY = GIB  # bytes of text, or of a table in single precision
NUMBERS_AT_ONCE = 1 << 24


def is_large(num_bytes: int) -> bool:
    """Whether so many bytes are kept on the disk."""
    return num_bytes > MOST_IN_MEMORY


def is_large_table(shape: Sequence[int]) -> bool:
    """Whether a table of this shape is kept on the disk, whatever its dtype."""
    return is_large(math.prod(shape) * torch.float32.itemsize)


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Say of a disk that takes no more what is written to it, and what to do.

    Raises:
        OutputError: In place of an error of the system.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write {what} to {tempfile.gettempdir()}: {error.strerror or error}; set "
            "TMPDIR to a folder with more room before Python starts, or take fewer rows"
        ) from error


def pieces(num_rows: int, row: Sequence[int]) -> Iterator[slice]:
    """Blocks of rows of this shape that fit the memory many times."""
    size = max(1, NUMBERS_AT_ONCE // max(1, math.prod(row)))
    return (slice(start, start + size) for start in range(0, num_rows, size))


class Bytes(io.RawIOBase):
    """Bytes in memory or in a mapped file, as a file of their own."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data, self._place = data, 0

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """The next bytes, as many as go into the buffer."""
        some = self._data[self._place : self._place + len(buffer)]
        buffer[: len(some)] = some
        self._place += len(some)
        return len(some)


class Numbers:
    """Rows that come piece by piece, in memory or on the disk.

    Args:
        shape: Of all rows, ``[N, ...]``; there may be fewer.
        dtype: Of the numbers.
        is_large: Whether they are on the disk.
        device: Where they are if not on the disk.

    Raises:
        OutputError: If the disk has no room for them.

    Example:
        >>> rows = Numbers((3, 2), torch.float32, is_large=True)
        >>> rows.append(torch.ones(1, 2))
        >>> rows.append(torch.zeros(1, 2))
        >>> rows.whole().tolist()
        [[1.0, 1.0], [0.0, 0.0]]
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        *,
        is_large: bool,
        device: torch.device | str = "cpu",
    ) -> None:
        self._row, self._dtype, self._count = tuple(shape[1:]), dtype, 0
        self._row_bytes = math.prod(self._row) * dtype.itemsize
        self._file = None
        if is_large:
            self._file = MappedFile(shape[0] * self._row_bytes, what="rows of a table")
        else:
            self._memory = torch.empty(tuple(shape), dtype=dtype, device=device)

    def __len__(self) -> int:
        return self._count

    def append(self, rows: Tensor | np.ndarray) -> None:
        """Add rows ``[n, ...]``."""
        if isinstance(rows, np.ndarray):
            rows = torch.from_numpy(np.require(rows, requirements="W"))  # torch warns of others
        if self._file is None:
            self._memory[self._count : self._count + len(rows)] = rows
        else:
            self._file.write(rows.to(self._dtype), self._count * self._row_bytes)
        self._count += len(rows)

    def whole(self) -> Tensor:
        """All rows that were added, ``[N, ...]``."""
        if self._file is None:
            return self._memory[: self._count]
        return self._file.map(self._dtype).reshape(-1, *self._row)[: self._count]


def stored(values: np.ndarray) -> np.ndarray:
    """An array ``[N]`` that is on the disk, of the dtype that it has."""
    numbers = Numbers(values.shape, torch.from_numpy(values[:0].copy()).dtype, is_large=True)
    numbers.append(values)
    return numbers.whole().numpy()
