"""Rows of a CSV file that a fitted model predicts: the columns of the fit, found by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.data.columns import Column
from pyro_bnn.data.csv_file import (
    check_missing,
    count_rows,
    find_separator,
    is_number,
    parse,
    read_structure,
)
from pyro_bnn.data.tables import read_text
from pyro_bnn.errors import DataError

TRUTH_VALUES = {"true": 1.0, "false": 0.0}


@dataclass(frozen=True, eq=False, kw_only=True)
class NewRows:
    """Rows of a file, in the file's own units.

    Attributes:
        header: Names of all its columns, in its order.
        fields: All its fields as they stand there, a list for each of N rows.
        separator: Between its fields.
        unused: Columns that are neither inputs nor target.
        x: Inputs ``[N, I]`` float64, in the order of the fit.
        y: Target ``[N]``: float64, or class labels int64; several ``[N, O]``. None if the file
            lacks a column of it.
    """

    header: list[str]
    fields: list[list[str]]
    separator: str
    unused: tuple[str, ...]
    x: Float[Tensor, "N I"]
    y: Tensor | None


def read_new_rows(
    path: Path,
    columns: Sequence[Column],
    target: str | Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> NewRows:
    """Read the rows of a CSV file that has the columns of a fit, in any order.

    Args:
        path: The file, with a header; see :func:`pyro_bnn.data.csv_file.read_csv`. It is read once,
            and may be a pipe; ``-`` is standard input.
        columns: Input columns of the fit; the file may have others beside them.
        target: Name of the target, or of several, whose columns may be absent.
        class_names: Names of the classes, where the target is one.

    Raises:
        DataError: If the file cannot be read, lacks a column (names all of them), or an input or
            the target has a missing value, text among numbers, a number that is not finite, or a
            category or class that the fit has not seen (names the column and the first line).
    """
    text = read_text(path, once=True)
    separator = find_separator(text)
    header, lines = read_structure(text, separator, path, min_columns=1)
    absent = [column.name for column in columns if column.name not in header]
    if absent:
        raise DataError(
            f"{str(path)!r} lacks {'column' if len(absent) == 1 else 'columns'} "
            f"{', '.join(map(repr, absent))} of the fit; it has {', '.join(map(repr, header))}"
        )
    targets = [target] if isinstance(target, str) else list(target or ())
    has_target = bool(targets) and set(targets) <= set(header)
    used = [column.name for column in columns] + (targets if has_target else [])
    frame = parse(text, separator, header, path, dtype=str)[used]
    check_missing(frame, lines, path)

    def values(name: str) -> np.ndarray[Any, Any]:
        return np.asarray(frame[name].to_numpy(dtype=object).astype(str))

    blocks = [_encode(column, values(column.name), lines, path) for column in columns]
    y: Tensor | None = None
    if has_target:
        if class_names is None:
            numbers = [_numbers(name, values(name), lines, path) for name in targets]
            y = torch.tensor(np.stack(numbers, 1) if len(targets) > 1 else numbers[0])
        else:
            (name,) = targets
            y = torch.tensor(_labels(name, values(name), class_names, lines, path))
    as_written = parse(text, separator, header, path, dtype=str, na_filter=False)
    return NewRows(
        header=header,
        fields=as_written.to_numpy(dtype=object).tolist(),
        separator=separator,
        unused=tuple(name for name in header if name not in (*used, *targets)),
        x=torch.tensor(np.concatenate(blocks, axis=1)),
        y=y,
    )


def _encode(
    column: Column, text: np.ndarray[Any, Any], lines: list[int], path: Path
) -> np.ndarray[Any, Any]:
    """The inputs ``[N, n]`` that a column becomes."""
    if column.categories is None:
        return _numbers(column.name, text, lines, path)[:, None]
    known = set(column.categories)
    _refuse(
        [i for i, value in enumerate(text) if value not in known],
        text,
        f"{str(path)!r}: column {column.name!r} holds values that the fit has not seen",
        f"known are {', '.join(map(repr, column.categories))}",
        lines,
    )
    return np.stack([text == value for value in column.categories], axis=1).astype(np.float64)


def _numbers(
    name: str, text: np.ndarray[Any, Any], lines: list[int], path: Path
) -> np.ndarray[Any, Any]:
    """Numbers ``[N]``; True and False are 1 and 0."""
    numbers = np.array([_number(value) for value in text], dtype=np.float64)
    _refuse(
        np.flatnonzero(~np.isfinite(numbers)).tolist(),
        text,
        f"{str(path)!r}: column {name!r} holds something else than finite numbers",
        "mend these fields",
        lines,
    )
    return numbers


def _labels(
    name: str,
    text: np.ndarray[Any, Any],
    class_names: Sequence[str],
    lines: list[int],
    path: Path,
) -> np.ndarray[Any, Any]:
    """Class labels ``[N]`` int64: the position of each value among the class names."""
    position = {class_name: label for label, class_name in enumerate(class_names)}
    labels = [position.get(value, position.get(_whole(value), -1)) for value in text]
    _refuse(
        [i for i, label in enumerate(labels) if label < 0],
        text,
        f"{str(path)!r}: target {name!r} holds classes that the fit has not seen",
        f"known are {', '.join(map(repr, class_names))}",
        lines,
    )
    return np.array(labels, dtype=np.int64)


def _refuse(
    rows: list[int], text: np.ndarray[Any, Any], what: str, hint: str, lines: list[int]
) -> None:
    if rows:
        raise DataError(
            f"{what}, in {count_rows(len(rows))}, first {str(text[rows[0]])!r} in line "
            f"{lines[rows[0]]}; {hint}"
        )


def _number(text: str) -> float:
    if is_number(text):
        return float(text)
    return TRUTH_VALUES.get(text.lower(), np.nan)


def _whole(text: str) -> str:
    """A whole number or truth value as class names spell it: ``3`` for 3.0, ``True`` for TRUE."""
    if is_number(text) and float(text).is_integer():
        return str(int(float(text)))
    return text.capitalize() if text.lower() in TRUTH_VALUES else text
