"""A table in a CSV file: header, text columns one-hot encoded, missing values refused."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.data.arrays import check_finite, to_floating, to_tensor
from pyro_bnn.data.columns import Column
from pyro_bnn.data.labels import Task, encode_labels
from pyro_bnn.data.split import Table
from pyro_bnn.data.tables import read_text
from pyro_bnn.errors import DataError, OptionError, UnknownNameError

Target: TypeAlias = "str | Sequence[str]"


def read_csv(path: Path, target: Target | None = None, task: Task | None = None) -> Table:
    """Read a CSV file.

    The first line is the header; the separator is a comma, semicolon or tab, whichever the header
    has most. Columns of text are one-hot encoded, a column ``"colour=red"`` for each value in
    alphabetical order; True and False are 1 and 0.

    Args:
        path: The file, UTF-8.
        target: Column that is predicted, or several, as a sequence or separated by commas; the last
            one if None. Several are numbers, y ``[N, O]``.
        task: ``"classification"``, ``"regression"`` or ``"counts"``; by default a target of text or
            True and False is classification and numbers are regression. Classes are coded 0 .. C-1
            in the order of their values; counts 0, 1, 2, ... stay as they are.

    Returns:
        The data set, unsplit; its ``note`` says which column was taken as the target by default.

    Raises:
        DataError: If the file is missing, empty, not text, has rows of different lengths (names the
            line), no proper header, missing values (names columns and rows), text among numbers,
            commas in numbers, text that differs in most rows, or a target that does not suit the
            task; or if several targets are not all numbers, or leave no input.
        OptionError: If a target is named twice.
        UnknownNameError: If there is no column ``target``; suggests the nearest.
    """
    return _read(path, target, task)[0]


def read_columns(
    path: Path, target: Target | None = None, task: Task | None = None
) -> tuple[Column, ...]:
    """Input columns of a CSV file in its order, as :func:`read_csv` encodes them.

    Args:
        path: As in :func:`read_csv`.
        target: As in :func:`read_csv`.
        task: As in :func:`read_csv`.

    Raises:
        DataError: As :func:`read_csv`.
        UnknownNameError: As :func:`read_csv`.
    """
    return _read(path, target, task)[1]


def _read(path: Path, target: Target | None, task: Task | None) -> tuple[Table, tuple[Column, ...]]:
    text = read_text(path)
    separator = find_separator(text)
    header, lines = read_structure(text, separator, path)
    chosen = [header[-1]] if target is None else _chosen(target, header, path)
    frame = parse(text, separator, header, path)
    check_missing(frame, lines, path)
    y, task, class_names = _targets(frame, chosen, task, lines, path)
    x, columns = _inputs(frame.drop(columns=chosen), lines, path)
    input_names = tuple(name for column in columns for name in column.inputs)
    check_finite(x, f"x of {path.name}", input_names, lines)
    check_finite(y, f"target {', '.join(map(repr, chosen))} of {path.name}", lines=lines)
    table = Table(
        x=x,
        y=y,
        task=task,
        name=path.stem,
        input_names=input_names,
        target_name=", ".join(chosen),
        class_names=class_names,
        note=""
        if target
        else f"The target is the last column, {chosen[0]!r}; target= takes another.",
        target_names=tuple(chosen) if len(chosen) > 1 else None,
    )
    return table, columns


def find_separator(text: str) -> str:
    """The separator of a table: comma, semicolon or tab, whichever its header has most."""
    first = text[: 1 << 20].lstrip().split("\n", 1)[0]
    return max(",;\t", key=first.count)


def read_structure(
    text: str, separator: str, path: Path, min_columns: int = 2
) -> tuple[list[str], list[int]]:
    """Return the header and the line number of every row.

    Args:
        text: The file's text.
        separator: Between fields.
        path: Where it was read, for messages.
        min_columns: Fewest columns of a header.

    Raises:
        DataError: If the header cannot be used, a row has another length, or there is no row.
    """
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    header: list[str] = []
    lines: list[int] = []
    try:
        for row in reader:
            if not row:
                continue
            if not header:
                header = [name.strip() for name in row]
                _check_header(header, path, min_columns)
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


def _check_header(header: list[str], path: Path, min_columns: int) -> None:
    if len(header) < min_columns:
        raise DataError(
            f"{str(path)!r} has one column, {header[0]!r}; expected inputs and a target, separated "
            "by commas, semicolons or tabs"
        )
    if all(is_number(name) for name in header):
        raise DataError(
            f"{str(path)!r} has no header: its first line is all numbers; put column names there"
        )
    if "" in header:
        raise DataError(
            f"{str(path)!r}: column {header.index('')} has no name; if pandas wrote its index "
            "there, write with index=False"
        )
    repeated = sorted(name for name, count in Counter(header).items() if count > 1)
    if repeated:
        more = f" and {len(repeated) - 5} more names" if len(repeated) > 5 else ""
        raise DataError(
            f"{str(path)!r}: several columns are called {', '.join(map(repr, repeated[:5]))}{more}"
        )


def parse(text: str, separator: str, header: list[str], path: Path, **options: Any) -> Any:
    """The rows as a pandas data frame.

    Args:
        text: The file's text.
        separator: Between fields.
        header: Names of the columns.
        path: Where it was read, for messages.
        options: Of ``pandas.read_csv``, such as ``dtype``.

    Raises:
        DataError: If pandas cannot read it.
    """
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
            **options,
        )
    except pd.errors.ParserError as error:
        raise DataError(f"{str(path)!r} cannot be parsed: {error}") from error


def check_missing(frame: Any, lines: list[int], path: Path) -> None:
    """Refuse missing values.

    Raises:
        DataError: If there is one; names columns, counts rows, and names the first line.
    """
    missing = frame.isna().to_numpy()  # [N, columns]
    counts = missing.sum(0)
    columns = np.flatnonzero(counts)
    if not len(columns):
        return
    parts = [f"{frame.columns[c]!r} in {count_rows(int(counts[c]))}" for c in columns[:5]]
    more = f" and {len(columns) - 5} more columns" if len(columns) > 5 else ""
    first = int(np.flatnonzero(missing.any(1))[0])
    raise DataError(
        f"{str(path)!r} has missing values: {', '.join(parts)}{more} of {len(frame)}, first in "
        f"line {lines[first]}; fill them or drop these rows or columns"
    )


def _chosen(target: Target, header: list[str], path: Path) -> list[str]:
    """Columns that are predicted; a name with commas goes before names that they separate.

    Raises:
        DataError: If no other column is left.
        OptionError: If there is none, or one is named twice.
        UnknownNameError: If there is no such column; suggests the nearest.
    """
    several = isinstance(target, str) and target not in header and "," in target
    names = [target] if isinstance(target, str) else list(target)
    if several:
        names = [name.strip() for name in str(target).split(",")]
    for name in names:
        if name not in header:
            raise UnknownNameError(f"target column of {path.name}", name, header)
    if not names or len(set(names)) < len(names):
        raise OptionError(f"target names each column once, not {target!r}")
    if len(names) == len(header):
        raise DataError(f"{str(path)!r}: the targets are all columns, and none is left as an input")
    return names


def _targets(
    frame: Any, names: list[str], task: Task | None, lines: list[int], path: Path
) -> tuple[Tensor, Task, tuple[str, ...] | None]:
    """The one target ``[N]``, or several ``[N, O]``, which are numbers."""
    found = [_target(frame[name], name, task, lines, path) for name in names]
    if len(found) == 1:
        return found[0]
    for name, (_, what, _) in zip(names, found, strict=True):
        if what == "classification":
            raise DataError(
                f"{path.name}: several targets are numbers, but {name!r} is of classes: predict it "
                "alone, or write 0 and 1 and pass task='counts' for a Bernoulli likelihood"
            )
    return torch.stack([y for y, _, _ in found], 1), found[0][1], None


def _target(
    column: Any, name: str, task: Task | None, lines: list[int], path: Path
) -> tuple[Tensor, Task, tuple[str, ...] | None]:
    import pandas as pd

    is_bool = pd.api.types.is_bool_dtype(column)
    is_text = not is_bool and not pd.api.types.is_numeric_dtype(column)
    if is_text:
        _check_commas(_text(column), name, lines, path)
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
                "hardly classes; name another column as the target"
            )
        return labels, task, class_names
    if is_text:
        raise DataError(
            f"{what} is text, for instance {str(column.iloc[0])!r}; regression needs numbers"
        )
    return torch.tensor(_floating(column, what)), task, None


def _inputs(frame: Any, lines: list[int], path: Path) -> tuple[Tensor, tuple[Column, ...]]:
    """Return the inputs ``[N, I]`` float64 and the columns they come from."""
    import pandas as pd

    values: list[np.ndarray[Any, Any]] = []
    columns: list[Column] = []
    for name, column in frame.items():
        if pd.api.types.is_numeric_dtype(column):  # truth values count as numeric
            values.append(_floating(column, f"{str(path)!r}: column {name!r}"))
            columns.append(Column(name))
            continue
        text = _text(column)
        _check_commas(text, name, lines, path)
        _check_numbers(text, name, lines, path)
        categories, code = np.unique(text, return_inverse=True)
        _check_categories(len(categories), len(text), name, path)
        columns.append(Column(name, tuple(str(value) for value in categories)))
        values.extend((code == c).astype(np.float64) for c in range(len(categories)))
    return torch.tensor(np.stack(values, axis=1)), tuple(columns)


def _floating(column: Any, what: str) -> np.ndarray[Any, Any]:
    """Numbers and truth values as float64 ``[N]``; whole ones that it lacks are refused."""
    if column.dtype.kind in "iu":
        return to_floating(to_tensor(column, what), what).numpy()
    return np.asarray(column.to_numpy(dtype=np.float64))


def _check_commas(text: np.ndarray[Any, Any], name: str, lines: list[int], path: Path) -> None:
    """Refuse a column of numbers with commas, which would become categories."""
    numbers = [any(is_number(value.replace(",", to)) for to in (".", "")) for value in text]
    commas = [i for i, value in enumerate(text) if numbers[i] and "," in value]
    if commas and 2 * sum(numbers) > len(text):
        first = commas[0]
        raise DataError(
            f"{str(path)!r}: commas in the numbers of column {name!r}, in "
            f"{count_rows(len(commas))}, first {str(text[first])!r} in line {lines[first]}; write "
            "decimals with a point, 1.5, and thousands without a separator, 1500"
        )


def _check_numbers(text: np.ndarray[Any, Any], name: str, lines: list[int], path: Path) -> None:
    """Refuse a column of numbers that a few other fields, or their own size, made text."""
    other = [i for i, value in enumerate(text) if not is_number(value)]
    if not other:
        longest = max(text, key=len)
        raise DataError(
            f"{str(path)!r}: column {name!r} holds whole numbers too large to be read, such as "
            f"{str(longest)[:40]}; write them with a decimal point, or drop an identifier"
        )
    if 2 * len(other) < len(text):
        raise DataError(
            f"{str(path)!r}: column {name!r} holds numbers, but not in {count_rows(len(other))}, "
            f"first {str(text[other[0]])!r} in line {lines[other[0]]}; mend these fields"
        )


def _check_categories(num_values: int, num_rows: int, name: str, path: Path) -> None:
    if num_values > max(20, num_rows // 2):
        raise DataError(
            f"{str(path)!r}: column {name!r} is text with {num_values} different values in "
            f"{num_rows} rows; an identifier or free text cannot be one-hot encoded, drop it"
        )


def _text(column: Any) -> np.ndarray[Any, Any]:
    return np.asarray(column.to_numpy(dtype=object).astype(str))


def is_number(text: str) -> bool:
    """Whether a field is a number; ``1_000`` is one to Python alone."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def count_rows(count: int) -> str:
    """A number of rows in words."""
    return "1 row" if count == 1 else f"{count} rows"
