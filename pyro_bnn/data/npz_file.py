"""Arrays in an NPZ file; nothing in it is ever unpickled.

`numpy.load` takes memory for what a header declares; here it is counted before anything is read.
"""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from pyro_bnn.data.labels import Task
from pyro_bnn.data.split import Split, check_index, make_split, published_split, table_of_arrays
from pyro_bnn.data.tables import check_packing
from pyro_bnn.errors import DataError, ShapeError
from pyro_bnn.files.machine import machine_bytes

SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")
COPIES = 3  # copies of the arrays in float64 held at once


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
            unpacks to far more than its size, declares arrays that it does not hold or that exceed
            the memory of this machine, or for what :func:`from_arrays` refuses.
        ShapeError: If shapes do not fit each other.
        OptionError: If ``index`` is out of range.
    """
    arrays = _read(path)
    name = path.stem
    if set(SPLIT_KEYS) <= set(arrays):
        check_index(index, 1, name)
        _check_given_split(arrays, path)
        x, y = (np.concatenate([arrays[f"{k}_train"], arrays[f"{k}_test"]]) for k in "xy")
        rows = torch.arange(len(x)).tensor_split([len(arrays["x_train"])])
        return make_split(table_of_arrays(x, y, task, name), *rows)
    if {"x", "y"} <= set(arrays):
        return published_split(table_of_arrays(arrays["x"], arrays["y"], task, name), index)
    raise DataError(
        f"{str(path)!r} must hold the arrays x and y, or {', '.join(SPLIT_KEYS)}; it holds "
        f"{', '.join(sorted(arrays)[:8]) or 'none'}{', ...' if len(arrays) > 8 else ''}"
    )


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays that are used by name, and empty ones for all others.

    An array is read as far as its member reaches, whatever its header says, and the member to its
    end, which checks its CRC; both only where memory holds them.
    """
    if not path.is_file():
        raise DataError(f"no file {str(path)!r}; check the path")
    try:
        with zipfile.ZipFile(path) as file:
            members = {m.filename[:-4]: m for m in file.infolist() if m.filename.endswith(".npy")}
            keys = SPLIT_KEYS if set(SPLIT_KEYS) <= set(members) else ("x", "y")
            used = {key: members[key] for key in keys if key in members}
            num_bytes = sum(member.file_size for member in used.values())
            check_packing(num_bytes, path, "write it by numpy.savez, which does not pack")
            _check_memory(num_bytes, path)
            declared = 0
            for member in used.values():
                with file.open(member) as stream:
                    declared += 8 * _declared_size(stream, member.file_size)
            _check_memory(declared, path)
            arrays = {key: _array(file.read(member)) for key, member in used.items()}
    except DataError:
        raise
    except Exception as error:  # of the archive, the compression or a header, whatever they are
        raise DataError(
            f"{str(path)!r} is truncated or no NPZ file, or holds Python objects, which are never "
            f"unpickled: {error}"
        ) from error
    return {name: np.empty(0) for name in members} | arrays


def _declared_size(stream: IO[bytes], num_bytes: int) -> int:
    """How many values an array of so many bytes has, by its header; nothing behind this is read."""
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"arrays of version {version} of the format are not of plain numbers")
    shape, _, dtype = read(stream)
    size = math.prod(shape)
    return min(size, num_bytes // dtype.itemsize) if dtype.itemsize else size


def _array(member: bytes) -> np.ndarray[Any, Any]:
    stream = io.BytesIO(member)
    array: np.ndarray[Any, Any] = np.lib.format.read_array(stream, allow_pickle=False)
    if stream.read(1):
        raise ValueError("an array has more bytes than it says")
    return array


def _check_given_split(arrays: dict[str, np.ndarray[Any, Any]], path: Path) -> None:
    """Refuse arrays that would not fit each other when training and test rows are put together."""
    x_train, y_train, x_test, y_test = (arrays[key] for key in SPLIT_KEYS)
    fits = all(len(np.shape(array)) and len(array) for array in (x_train, y_train, x_test, y_test))
    fits = fits and (len(x_train), len(x_test)) == (len(y_train), len(y_test))
    for train, test in ((x_train, x_test), (y_train, y_test)):
        if not fits or train.shape[1:] != test.shape[1:]:
            shapes = ", ".join(f"{key} {list(arrays[key].shape)}" for key in SPLIT_KEYS)
            raise ShapeError(
                f"{path.name}: x and y must have the same number of rows, at least one, and rows "
                f"for training and test the same shape, got {shapes}"
            )
        if (train.dtype.kind in "biufc") != (test.dtype.kind in "biufc"):
            raise DataError(
                f"{path.name}: training rows hold {train.dtype} and test rows {test.dtype}; "
                "expected numbers in both, or text in both"
            )


def _check_memory(num_bytes: int, path: Path) -> None:
    needed, memory = COPIES * num_bytes, machine_bytes()
    if needed > memory:
        raise DataError(
            f"{str(path)!r} needs about {needed / 2**30:,.1f} GiB of memory, and this machine has "
            f"{memory / 2**30:,.1f}; take fewer rows or columns"
        )
