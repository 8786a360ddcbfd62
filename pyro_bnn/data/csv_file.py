"""A table in a CSV file: header, text columns one-hot encoded, missing values refused."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.data.arrays import check_finite
from pyro_bnn.data.labels import Task, encode_labels
from pyro_bnn.data.split import Table
from pyro_bnn.data.tables import read_text
from pyro_bnn.errors import DataError, UnknownNameError


def read_csv(path: Path, target: str | None = None, task: Task | None = None) -> Table:
    """Read a CSV file.

    The first line is the header; the separator is a comma, semicolon or tab, whichever the header
    has most. Columns of text are one-hot encoded, a column ``"colour=red"`` for each value in
    alphabetical order; True and False are 1 and 0.

    Args:
        path: The file, UTF-8.
        target: Column that is predicted; the last one if None.
        task: ``"classification"`` or ``"regression"``; by default a target of text or True and
            False is classification and numbers are regression. Classes are coded 0 .. C-1 in the
            order of their values.

    Returns:
        The data set, unsplit; its ``note`` says which column was taken as the target by default.

    Raises:
        DataError: If the file is missing, empty, not text, has rows of different lengths (names the
            line), no proper header, missing values (names columns and rows), text among numbers,
            text that differs in most rows, or a target that does not suit the task.
        UnknownNameError: If there is no column ``target``; suggests the nearest.
    """
    text = read_text(path)
    separator = _separator(text)
    header, lines = _structure(text, separator, path)
    if target is not None and target not in header:
        raise UnknownNameError(f"target column of {path.name}", target, header)
    frame = _parse(text, separator, header, path)
    _check_missing(frame, lines, path)
    chosen = header[-1] if target is None else target
    y, task, class_names = _target(frame[chosen], chosen, task, lines, path)
    x, input_names = _inputs(frame.drop(columns=chosen), lines, path)
    check_finite(x, f"x of {path.name}", input_names)
    check_finite(y, f"target {chosen!r} of {path.name}")
    return Table(
        x=x,
        y=y,
        task=task,
        name=path.stem,
        input_names=input_names,
        target_name=chosen,
        class_names=class_names,
        note="" if target else f"The target is the last column, {chosen!r}; target= takes another.",
    )


def _separator(text: str) -> str:
    first = text.lstrip().split("\n", 1)[0]
    return max(",;\t", key=first.count)


def _structure(text: str, separator: str, path: Path) -> tuple[list[str], list[int]]:
    """Return the header and the line number of every row; refuse rows of another length."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    header: list[str] = []
    lines: list[int] = []
    try:
        for row in reader:
            if not row:
                continue
            if not header:
                header = [name.strip() for name in row]
                _check_header(header, path)
            elif len(row) != len(header):
                raise DataError(
                    f"{str(path)!r}, line {reader.line_num}: expected {len(header)} fields as in "
                    f"the header, got {len(row)}; is the file truncated?"
                )
            else:
                lines.append(reader.line_num)
    except csv.Error as error:
        raise DataError(f"{str(path)!r}, line {reader.line_num}: {error}") from error
    if not lines:
        raise DataError(f"{str(path)!r} has a header but no rows")
    return header, lines


def _check_header(header: list[str], path: Path) -> None:
    if len(header) < 2:
        raise DataError(
            f"{str(path)!r} has one column, {header[0]!r}; expected inputs and a target, separated "
            "by commas, semicolons or tabs"
        )
    if all(_is_number(name) for name in header):
        raise DataError(
            f"{str(path)!r} has no header: its first line is all numbers; put column names there"
        )
    if "" in header:
        raise DataError(
            f"{str(path)!r}: column {header.index('')} has no name; if pandas wrote its index "
            "there, write with index=False"
        )
    repeated = sorted({name for name in header if header.count(name) > 1})
    if repeated:
        raise DataError(
            f"{str(path)!r}: several columns are called {', '.join(map(repr, repeated))}"
        )


def _parse(text: str, separator: str, header: list[str], path: Path) -> Any:
    import pandas as pd

    try:
        return pd.read_csv(
            io.StringIO(text, newline=""),
            sep=separator,
            skipinitialspace=True,
            header=0,
            names=header,
            index_col=False,
            low_memory=False,
        )
    except pd.errors.ParserError as error:
        raise DataError(f"{str(path)!r} cannot be parsed: {error}") from error


def _check_missing(frame: Any, lines: list[int], path: Path) -> None:
    missing = frame.isna()
    columns = [name for name in frame.columns if missing[name].any()]
    if not columns:
        return
    parts = [f"{name!r} in {_rows(int(missing[name].sum()))}" for name in columns[:5]]
    more = f" and {len(columns) - 5} more columns" if len(columns) > 5 else ""
    first = int(np.flatnonzero(missing.any(axis=1).to_numpy())[0])
    raise DataError(
        f"{str(path)!r} has missing values: {', '.join(parts)}{more} of {len(frame)}, first in "
        f"line {lines[first]}; fill them or drop these rows or columns"
    )


def _target(
    column: Any, name: str, task: Task | None, lines: list[int], path: Path
) -> tuple[Tensor, Task, tuple[str, ...] | None]:
    import pandas as pd

    is_bool = pd.api.types.is_bool_dtype(column)
    is_text = not is_bool and not pd.api.types.is_numeric_dtype(column)
    if is_text and task is None:
        _check_numbers(_text(column), name, lines, path)
    task = task or ("classification" if is_bool or is_text else "regression")
    what = f"target {name!r} of {path.name}"
    if task == "classification":
        values = _text(column) if is_text else column.to_numpy()
        labels, class_names = encode_labels(values, what)
        if is_text and len(class_names) > max(20, len(labels) // 2):
            raise DataError(
                f"{what} is text with {len(class_names)} different values in {len(labels)} rows, "
                "hardly classes; name another column with target="
            )
        return labels, task, class_names
    if is_text:
        raise DataError(
            f"{what} is text, for instance {str(column.iloc[0])!r}; regression needs numbers"
        )
    return torch.tensor(column.to_numpy(dtype=np.float64)), task, None


def _inputs(frame: Any, lines: list[int], path: Path) -> tuple[Tensor, tuple[str, ...]]:
    """Return the inputs ``[N, I]`` float64 and their names."""
    import pandas as pd

    columns: list[np.ndarray[Any, Any]] = []
    names: list[str] = []
    for name in frame.columns:
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column):  # truth values count as numeric
            columns.append(column.to_numpy(dtype=np.float64))
            names.append(name)
            continue
        text = _text(column)
        _check_numbers(text, name, lines, path)
        _check_categories(text, name, path)
        for value in np.unique(text):
            columns.append((text == value).astype(np.float64))
            names.append(f"{name}={value}")
    return torch.tensor(np.stack(columns, axis=1)), tuple(names)


def _check_numbers(text: np.ndarray[Any, Any], name: str, lines: list[int], path: Path) -> None:
    """Refuse a column of numbers that a few other fields made text."""
    other = [i for i, value in enumerate(text) if not _is_number(value)]
    if other and 2 * len(other) < len(text):
        raise DataError(
            f"{str(path)!r}: column {name!r} holds numbers, but not in {_rows(len(other))}, first "
            f"{str(text[other[0]])!r} in line {lines[other[0]]}; mend these fields"
        )


def _check_categories(text: np.ndarray[Any, Any], name: str, path: Path) -> None:
    num_values = len(np.unique(text))
    if num_values > max(20, len(text) // 2):
        raise DataError(
            f"{str(path)!r}: column {name!r} is text with {num_values} different values in "
            f"{len(text)} rows; an identifier or free text cannot be one-hot encoded, drop it"
        )


def _text(column: Any) -> np.ndarray[Any, Any]:
    return np.asarray(column.to_numpy(dtype=object).astype(str))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"
