"""Arrays in an NPZ file; nothing in it is ever unpickled."""

from __future__ import annotations

import zipfile
import zlib
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
from pyro_bnn.errors import DataError, ShapeError

SPLIT_KEYS = ("x_train", "y_train", "x_test", "y_test")


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
            or for what :func:`from_arrays` refuses.
        ShapeError: If shapes do not fit each other.
        OptionError: If ``index`` is out of range.
    """
    arrays = _read(path)
    name = path.stem
    if set(SPLIT_KEYS) <= set(arrays):
        check_index(index, 1, name)
        x_train, y_train, x_test, y_test = (arrays[key] for key in SPLIT_KEYS)
        for pair, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
            if x.shape[:1] != y.shape[:1] or x.ndim == 0 or len(x) == 0:
                raise ShapeError(
                    f"{path.name}: x_{pair} and y_{pair} must have the same number of rows, at "
                    f"least one, got {list(x.shape)} and {list(y.shape)}"
                )
        for kind, train, test in (("x", x_train, x_test), ("y", y_train, y_test)):
            if train.shape[1:] != test.shape[1:]:
                raise ShapeError(
                    f"{path.name}: rows of {kind}_train and {kind}_test differ in shape, "
                    f"{list(train.shape)} and {list(test.shape)}"
                )
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
        f"{', '.join(sorted(arrays)) or 'none'}"
    )


def _read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    if not path.is_file():
        raise DataError(f"no file {str(path)!r}; check the path")
    wanted = {"x", "y", *SPLIT_KEYS}
    try:
        with zipfile.ZipFile(path):
            pass  # a file that is no archive is refused before NumPy looks for pickles
        with np.load(path, allow_pickle=False) as file:
            return {
                key: file[key] if key in wanted else np.empty(0)  # read only what is used
                for key in file.files
            }
    except (zipfile.BadZipFile, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{str(path)!r} is truncated or no NPZ file: {error}") from error
    except ValueError as error:
        raise DataError(
            f"{str(path)!r} holds an array that cannot be read: {error}; Python objects are never "
            "unpickled, save plain arrays of numbers or text"
        ) from error
