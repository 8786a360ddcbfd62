"""Rows of a table that a fitted model predicts: the columns of the fit, found by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pyro_bnn.data.arrays import listed
from pyro_bnn.data.fields import TRUTH_VALUES, Fields, TextRows, number
from pyro_bnn.data.parquet_file import read_fields
from pyro_bnn.data.split import Column
from pyro_bnn.errors import DataError


@dataclass(frozen=True, eq=False, kw_only=True)
class NewRows:
    """Rows of a file, in the file's own units.

    Attributes:
        header: Names of all columns of the file.
        separator: Between its fields.
        text: Its rows as they stand there.
        unused: Columns that are neither inputs nor target.
        x: Inputs ``[N, I]`` float64, in the order of the fit.
        y: Target ``[N]``: float64, or class labels int64; several ``[N, O]``. None if the file
            lacks a column of it.
    """

    header: list[str]
    separator: str
    text: TextRows
    unused: tuple[str, ...]
    x: Float[Tensor, "N I"]
    y: Tensor | None


def read_new_rows(
    path: Path,
    columns: Sequence[Column],
    target: str | Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> NewRows:
    """Read the rows of a CSV or Parquet file that has the columns of a fit, in any order.

    Args:
        path: The file, with a header; see :func:`pyro_bnn.data.csv_file.csv_fields`. It is read
            once, and may be a pipe; ``-`` is standard input.
        columns: Input columns of the fit; the file may have others beside them.
        target: Name of the target, or of several, whose columns may be absent.
        class_names: Names of the classes, where the target is one.

    Raises:
        DataError: If the file cannot be read, lacks a column (names all of them), or an input or
            the target has a missing value, text among numbers, a number that is not finite, or a
            category or class that the fit has not seen (names the column and the first line).
    """
    fields = read_fields(path, once=True)
    fields.check_header(min_columns=1)
    header = fields.header
    absent = [column.name for column in columns if column.name not in header]
    if absent:
        raise DataError(
            f"{str(path)!r} lacks {'column' if len(absent) == 1 else 'columns'} "
            f"{listed(absent)} of the fit; it has {listed(header)}"
        )
    targets = [target] if isinstance(target, str) else list(target or ())
    has_target = bool(targets) and set(targets) <= set(header)
    used = [column.name for column in columns] + (targets if has_target else [])
    fields.check_missing(used)
    y: Tensor | None = None
    if has_target and class_names is None:
        numbers = [fields.numbers(name) for name in targets]
        y = torch.tensor(np.stack(numbers, 1, dtype=np.float64))
        y = y if len(targets) > 1 else y[:, 0]
    elif has_target:
        y = _labels(fields, targets[0], class_names or ())
    unused = tuple(name for name in header if name not in (*used, *targets))
    return NewRows(
        header=header,
        separator=fields.separator,
        text=fields.rows,
        unused=unused,
        x=fields.inputs(columns),
        y=y,
    )


def _labels(fields: Fields, name: str, class_names: Sequence[str]) -> Int[Tensor, " N"]:
    """The position of each field among the class names, spelled as these or as a number."""
    place = {class_name: label for label, class_name in enumerate(class_names)}
    text = fields.as_text(name)
    labels = text.each(
        next((place[word] for word in _spellings(value) if word in place), -1)
        for value in text.values
    )
    fields.refuse(
        name,
        np.flatnonzero(labels < 0),
        "classes that the fit has not seen,",
        f"known are {listed(class_names)}",
    )
    return torch.tensor(labels)


def _spellings(text: str) -> Iterator[str]:
    """How class names may spell a field: ``3.0`` is ``3``, ``1`` is ``True``, ``TRUE`` is ``1``."""
    yield text
    value = number(text)
    if value.is_integer():
        yield str(int(value))
    if value in TRUTH_VALUES.values():
        yield str(bool(value))
