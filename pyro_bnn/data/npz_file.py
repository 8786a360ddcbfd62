"""Arrays in an NPZ file; nothing in it is ever unpickled."""

from __future__ import annotations

import io
import math
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pyro_bnn.data.labels import Task
from pyro_bnn.data.split import (
    NUM_SPLITS,
    Split,
    check_index,
    make_split,
    published_rows,
    table_of_arrays,
)
from pyro_bnn.errors import BNNError, DataError, ShapeError

SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
HEADER = 1 << 16  # bytes; more than NumPy takes for the header of an array
COPIES = 3  # of the arrays in float64 that are held at once


def load_npz(path: Path, task: Task | None = None, index: int = 0) -> Split:
    """Load arrays from an NPZ file.

    Args:
        path: File with the arrays ``x`` and ``y``, split as the UCI benchmark (see
            :func:`published_rows`), or ``x_train, y_train, x_test, y_test``, which are one split.
        task: As in :func:`from_arrays`: by default floating y is regression, the rest classes.
        index: Number of the split: 0 .. 19, or 0 where the file holds the split.

    Returns:
        The split.

    Raises:
        DataError: If the file is missing, truncated, no NPZ, holds Python objects or other arrays,
            declares arrays that it does not hold or that exceed the memory of this machine (before
            they are read), or for what :func:`from_arrays` refuses.
        ShapeError: If shapes do not fit each other.
        OptionError: If ``index`` is out of range.
    """
    arrays = _read(path)
    name = path.stem
    if set(SPLIT_KEYS) <= set(arrays):
        check_index(index, 1, name)
        x_train, y_train, x_test, y_test = (arrays[key] for key in SPLIT_KEYS)
        num_train = len(x_train)
        x, y = np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test])
        rows = torch.arange(num_train), torch.arange(num_train, len(x))
        return make_split(table_of_arrays(x, y, task, name), *rows)
    if {"x", "y"} <= set(arrays):
        check_index(index, NUM_SPLITS, name)
        table = table_of_arrays(arrays["x"], arrays["y"], task, name)
        return make_split(table, *published_rows(len(table.x), index, name), index=index)
    raise DataError(
        f"{str(path)!r} must hold the arrays x and y, or {', '.join(SPLIT_KEYS)}; it holds "
        f"{', '.join(sorted(arrays)[:8]) or 'none'}{', ...' if len(arrays) > 8 else ''}"
    )


@dataclass(frozen=True)
class Declared:
    """What the header of an array in an archive says, before anything of it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def is_text(self) -> bool:
        """Whether it holds anything but numbers."""
        return self.dtype.kind not in "biufc"

    @property
    def num_bytes(self) -> int:
        """Its size, numbers as float64."""
        return math.prod(self.shape) * max(self.dtype.itemsize, 8)


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays that are used by name, and empty ones for all others."""
    if not path.is_file():
        raise DataError(f"no file {str(path)!r}; check the path")
    try:
        with zipfile.ZipFile(path) as file:
            members = {m.filename[:-4]: m for m in file.infolist() if m.filename.endswith(".npy")}
            keys = SPLIT_KEYS if set(SPLIT_KEYS) <= set(members) else ("x", "y")
            used = {key: members[key] for key in keys if key in members}
            declared = {key: _declared(file, member, path) for key, member in used.items()}
            _check_declared(declared, path)
            arrays = {name: np.empty(0) for name in members}
            for key, member in used.items():
                with file.open(member) as stream:
                    arrays[key] = np.lib.format.read_array(stream, allow_pickle=False)
            return arrays
    except BNNError:
        raise
    except Exception as error:  # of the archive, the compression or a header, whatever they are
        raise DataError(f"{str(path)!r} is truncated or no NPZ file: {error}") from error


def _declared(file: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Declared:
    """Read the header of an array, and refuse one that asks for more than the file holds."""
    what = f"{str(path)!r}: the array {member.filename[:-4]!r}"
    with file.open(member) as stream:
        start = io.BytesIO(stream.read(HEADER))
    read = np.lib.format.read_array_header_1_0
    if np.lib.format.read_magic(start) != (1, 0):
        read = np.lib.format.read_array_header_2_0  # of 3.0 too, whose names are UTF-8
    shape, _, dtype = read(start)
    if dtype.kind not in "biufcSUmM" or dtype.itemsize == 0:
        raise DataError(
            f"{what} holds {dtype}: Python objects are never unpickled, save plain arrays of "
            "numbers or text"
        )
    held = member.file_size - start.tell()
    size = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or size != held:
        raise DataError(
            f"{what} is said to be {list(shape)} of {dtype}, {size:,} bytes, but has {held:,}: "
            "the file is truncated or no NPZ file"
        )
    return Declared(shape, dtype)


def _check_declared(declared: dict[str, Declared], path: Path) -> None:
    """Refuse arrays that do not fit each other, or the memory, before they are read."""
    pairs = (("x", "y"), ("x_train", "y_train"), ("x_test", "y_test"))
    for x, y in (pair for pair in pairs if set(pair) <= set(declared)):
        rows = declared[x].shape[:1]
        if rows != declared[y].shape[:1] or not rows or rows == (0,):
            raise ShapeError(
                f"{path.name}: {x} and {y} must have the same number of rows, at least one, got "
                f"{x} {list(declared[x].shape)} and {y} {list(declared[y].shape)}"
            )
    for kind in ("x", "y") if "x_train" in declared else ():
        train, test = declared[f"{kind}_train"], declared[f"{kind}_test"]
        if train.shape[1:] != test.shape[1:]:
            raise ShapeError(
                f"{path.name}: rows of {kind}_train and {kind}_test differ in shape, "
                f"{list(train.shape)} and {list(test.shape)}"
            )
        if train.is_text != test.is_text:
            raise DataError(
                f"{path.name}: {kind}_train holds {train.dtype} and {kind}_test {test.dtype}; "
                "expected numbers in both, or text in both"
            )
    needed = COPIES * sum(array.num_bytes for array in declared.values())
    memory = _machine_memory()
    if needed > memory:
        raise DataError(
            f"{str(path)!r} needs about {needed / 2**30:,.1f} GiB of memory, and this machine has "
            f"{memory / 2**30:,.1f}; take fewer rows or columns"
        )


def _machine_memory() -> float:
    """Bytes of physical memory; infinite where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return float("inf")
