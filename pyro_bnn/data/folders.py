"""A folder in the layout of the UCI regression benchmark."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.labels import Task, encode_labels
from pyro_bnn.data.split import (
    NUM_SPLITS,
    Split,
    Table,
    check_index,
    make_split,
    published_rows,
)
from pyro_bnn.data.tables import read_rows, read_table
from pyro_bnn.errors import DataError


def load_folder(folder: Path, task: Task | None = None, index: int = 0) -> Split:
    """Load one split of a folder in the UCI layout.

    The folder holds ``data.txt`` (N rows, white space between columns, no header),
    ``index_features.txt`` and ``index_target.txt`` (columns, from 0). Where it also holds
    ``index_train_<k>.txt`` and ``index_test_<k>.txt`` (rows, from 0), these are the splits; else
    the 20 splits (or as many as ``n_splits.txt`` says) of :func:`published_rows`.

    Args:
        folder: The folder.
        task: ``"classification"`` codes the values of the target as 0 .. C-1, and ``"counts"``
            leaves 0, 1, 2, ... as they are; regression if None.
        index: Number of the split.

    Returns:
        The split.

    Raises:
        DataError: If a file is missing, truncated or no table of numbers, columns or rows are out
            of range, a column is both input and target, or a row both training and test row.
        OptionError: If ``index`` is out of range.
    """
    rows = read_table(folder / "data.txt")
    features = read_rows(folder / "index_features.txt", rows.shape[1])
    target = read_rows(folder / "index_target.txt", rows.shape[1])
    if len(np.unique([*features, *target])) < len(features) + len(target):
        raise DataError(
            f"{str(folder)!r}: a column stands twice in index_features.txt and index_target.txt"
        )
    name = folder.resolve().name
    y: Tensor = torch.tensor(rows[:, target])  # [N, O]
    class_names = None
    if task == "classification":
        y, class_names = encode_labels(rows[:, target], f"target of {name}")
    elif len(target) == 1:
        y = y[:, 0]  # [N]
    data = Dataset(torch.tensor(rows[:, features]), y, class_names=class_names)
    table = Table(data, task or "regression", name)
    return make_split(table, *_split_rows(folder, len(rows), index), index=index)


def _split_rows(folder: Path, num_rows: int, index: int) -> tuple[Tensor, Tensor]:
    num_written = len(list(folder.glob("index_train_*.txt")))
    num_splits = num_written or NUM_SPLITS
    if not num_written and (folder / "n_splits.txt").is_file():
        num_splits = int(read_rows(folder / "n_splits.txt")[0])
        if num_splits == 0:
            raise DataError(f"{str(folder / 'n_splits.txt')!r} says 0 splits; expected at least 1")
    check_index(index, num_splits, folder.resolve().name)
    if not num_written:
        return published_rows(num_rows, index, folder.resolve().name)
    train, test = (
        read_rows(folder / f"index_{part}_{index}.txt", num_rows) for part in ("train", "test")
    )
    both = np.intersect1d(train, test)
    if len(both):
        raise DataError(
            f"{str(folder)!r}: row {both[0]} is in index_train_{index}.txt and in "
            f"index_test_{index}.txt ({len(both)} such rows)"
        )
    return torch.tensor(train), torch.tensor(test)
