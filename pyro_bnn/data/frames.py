"""Data frames with columns of text, encoded and refused as the same table in a CSV file is.

Numbers stay in the dtype that pandas has them in; what is neither numbers nor categories is read
as what it prints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_bnn.data.arrays import EXACT, ArrayLike, column_names, column_order
from pyro_bnn.data.csv_file import lines_of
from pyro_bnn.data.encoding import Target, table_of
from pyro_bnn.data.fields import Fields, TextColumn, text_columns
from pyro_bnn.data.labels import Task, check_task, is_categorical
from pyro_bnn.data.split import Column, Split, make_split, rows_of_split
from pyro_bnn.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

FRAME = "the data frame"
ROWS_AT_ONCE = 10_000  # as text


def from_frame(
    frame: pd.DataFrame,
    *,
    target: Target,
    test_fraction: float = 0.1,
    seed: int = 0,
    rows: tuple[ArrayLike, ArrayLike] | None = None,
    task: Task | None = None,
) -> Split:
    """Split and standardise a data frame, whose columns of text are one-hot encoded.

    A column ``"colour=red"`` stands for each value of a column of text, in alphabetical order, and
    of a column of dtype ``category``, whatever its levels are, in their order; True and False are 1
    and 0. A posterior of the split predicts frames with the same columns, text
    included, in any order: ``posterior.predict(new, raw=True).to_frame()`` has the index of these.

    Args:
        frame: N rows of pandas with one column or more beside the targets, all of them inputs.
        target: Column that is predicted, or several, as a sequence or separated by commas. Several
            are numbers, y ``[N, O]``.
        test_fraction: Share of the rows for the test, between 0 and 1; rounded to rows.
        seed: Of the permutation, >= 0; the global random state is not touched.
        rows: As in :func:`from_arrays`, by position.
        task: ``"classification"``, ``"regression"`` or ``"counts"``; by default a target of text,
            categories, or True and False is classification and numbers are regression.

    Returns:
        A split called ``"the data frame"``.

    Raises:
        DataError: If the frame has no rows, names of columns that are no text, empty or repeated,
            missing values or text that a CSV has for them (names columns and the first row), text
            among numbers, text that differs in most rows, numbers that are not finite, or a target
            that does not suit the task.
        OptionError: If ``test_fraction``, ``seed``, ``rows`` or ``task`` is not allowed, or a
            target is named twice.
        UnknownNameError: If there is no column ``target``; suggests the nearest.

    Example:
        >>> import pandas as pd
        >>> frame = pd.DataFrame({"town": ["Oslo", "Rome"] * 5, "age": range(10),
        ...                       "cost": [float(i) for i in range(10)]})
        >>> from_frame(frame, target="cost").train.input_names
        ('town=Oslo', 'town=Rome', 'age')
    """
    check_task(task)
    table = table_of(frame_fields(frame), target, task)
    train, test = rows_of_split(len(table.data), rows, test_fraction, seed)
    return make_split(table, train, test)


def encoded(x: ArrayLike, input_names: Sequence[str] | None) -> ArrayLike:
    """Inputs ``[N, I]`` float64 of a frame whose columns of text became inputs of a fit.

    Args:
        x: A data frame with the columns of the fit before they were encoded, in any order;
            anything else comes back as it is.
        input_names: Names of the I inputs of the fit, or None.

    Raises:
        DataError: If it has other columns beside these, or a field that cannot be used, such as a
            category which the fit has not seen.
    """
    names = column_names(x)
    if names is None or input_names is None:
        return x
    is_numeric = all(dtype.kind in "biuf" for dtype in x.dtypes)
    columns = _columns_of(input_names, names)
    if columns is None and list(x.columns) != list(range(len(input_names))):
        column_order(names, _named_by_user(input_names, names), "x")
    if columns is None or (is_numeric and set(names) == set(input_names)):
        return x
    column_order(names, [column.name for column in columns], "x")  # refuses others
    fields = frame_fields(x)
    fields.check_header(min_columns=1)
    fields.check_missing(fields.header)
    return fields.inputs(columns)


def _columns_of(input_names: Sequence[str], names: Sequence[str]) -> list[Column] | None:
    """The columns that became inputs, as far as they are among these names; None if one is not."""
    categories: dict[str, list[str] | None] = {}
    for name in input_names:
        places = [place for place, sign in enumerate(name) if sign == "="]
        start = next((name[:place] for place in places if name[:place] in names), None)
        if name in names:
            categories[name] = None
        elif start is None:
            return None
        else:
            known = categories.setdefault(start, [])
            if known is None:  # a column of numbers and one of text of the same name
                return None
            known.append(name[len(start) + 1 :])
    return [
        Column(name, None if known is None else tuple(known)) for name, known in categories.items()
    ]


def _named_by_user(input_names: Sequence[str], names: Sequence[str]) -> list[str]:
    """The columns before they were encoded: ``"town"`` for ``"town=Oslo"`` and ``"town=Rome"``.

    Names that a frame has as they are after it stay.
    """
    starts = Counter(name.partition("=")[0] for name in input_names if "=" in name)
    kept = {name.partition("=")[0] for name in names if name in input_names and "=" in name}
    before: dict[str, None] = {}
    for name in input_names:
        start = name.partition("=")[0]
        is_category = start in names or (starts[start] > 1 and start not in kept)
        before[start if name not in names and is_category else name] = None
    return list(before)


def frame_fields(frame: Any) -> Fields:
    """The columns of a data frame.

    Args:
        frame: The data frame.

    Raises:
        DataError: If it is none, or a name of a column is no text.
    """
    if column_names(frame) is None:
        raise DataError(
            f"expected a data frame of pandas, got {type(frame).__name__}; data.from_arrays takes "
            "arrays"
        )
    if nameless := [name for name in frame.columns if not isinstance(name, str)]:
        raise DataError(
            f"{FRAME} has columns whose names are no text, such as {nameless[0]!r}: name them, as "
            "in frame.columns = [...]"
        )
    return pandas_fields(
        frame.items(),
        place=lambda row: f"row {frame.index[[row]].tolist()[0]!r}",
        source=FRAME,
        name=FRAME,
    )


def pandas_fields(
    columns: Iterable[tuple[str, Any]], words: Collection[str] = (), **table: Any
) -> Fields:
    """Columns of pandas as those of a table.

    Args:
        columns: Each name and its series.
        words: Those that are of dtype category to hold each different text once, not because they
            are of categories.
        **table: What else :class:`Fields` takes.
    """
    header: list[str] = []
    numeric: dict[str, np.ndarray[Any, Any]] = {}
    text: dict[str, TextColumn] = {}
    for name, series in columns:  # of equal names the last one: Fields refuses these
        header.append(name)
        if is_categorical(series):
            column = _categories(series)
            text[name] = column.without_blanks() if name in words else column
        elif getattr(series.dtype, "kind", "O") in "fiu":
            numeric[name] = _numbers(series)
        else:
            text[name] = text_columns(zip(_texts(series), strict=True), [0])[0]
    rows = ColumnRows([numeric[name] if name in numeric else text[name] for name in header])
    return Fields(header=header, numeric=numeric, text=text, rows=rows, **table)


def _categories(series: Any) -> TextColumn:
    """The categories that occur, in their order."""
    used = series.cat.remove_unused_categories().cat
    categories = tuple(map(str, used.categories))
    missing = [str(np.nan)] if series.isna().any() else []  # its code is -1
    return TextColumn([*categories, *missing], used.codes.to_numpy(), categories)


def _numbers(series: Any) -> np.ndarray[Any, Any]:
    """Numbers as they are, missing ones as NaN."""
    missing = {"dtype": np.float64, "na_value": np.nan} if series.isna().any() else {}
    return np.asarray(series.to_numpy(**missing))


def _texts(series: Any) -> Iterator[str]:
    """The fields of a column as they print; a missing one is nan.

    Dates keep NaT for a missing value, whatever ``na_value`` says.
    """
    values = series.to_numpy(dtype=object, na_value=np.nan)
    return map(str, np.where(series.isna(), np.nan, values).tolist())


class ColumnRows:
    """The rows of a table of columns as text."""

    def __init__(self, columns: Sequence[np.ndarray[Any, Any] | TextColumn]) -> None:
        self._columns = columns

    def __iter__(self) -> Iterator[list[str]]:
        for start in range(0, len(self._columns[0]), ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            yield from map(list, zip(*(_fields(own, some) for own in self._columns), strict=True))

    def lines(self) -> Iterator[str]:
        """Each row as a line of a CSV file, without its end."""
        return lines_of(self, ",")


def _fields(column: np.ndarray[Any, Any] | TextColumn, rows: slice) -> list[str]:
    """Some fields as text from which numbers come back whole.

    Floating numbers beyond 2^53 are not written as whole numbers, of which they are none.
    """
    if isinstance(column, TextColumn):
        return [column.values[code] for code in column.codes[rows]]
    numbers = column[rows]
    if numbers.dtype.kind != "f":
        return list(map(str, numbers.tolist()))
    values = numbers.astype(np.float64).tolist()  # float32 has all its digits there
    return [f"{value:.16e}" if abs(value) >= EXACT else str(value) for value in values]
