"""A table in a CSV file: header, text columns one-hot encoded, missing values refused."""

from __future__ import annotations

import csv
import io
import itertools
import math
import mmap
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, Protocol, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.data.arrays import EXACT, count_rows, listed, plain_numbers, shown
from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.labels import Task, check_several, encode_labels
from pyro_bnn.data.on_disk import Bytes, Numbers, is_large_table, pieces
from pyro_bnn.data.split import Column, Table
from pyro_bnn.data.tables import BLOCK, read_large, to_number
from pyro_bnn.data.written import are_codes, are_dates, marks
from pyro_bnn.errors import DataError, OptionError, UnknownNameError

Target: TypeAlias = "str | Sequence[str]"
ROWS_AT_ONCE = 100_000  # of a file, by pandas
MOST_CODED = 1 << 24  # numbers that text may become, whatever the size of the table
CODED = 100  # a larger table may become so many inputs for each of its columns
WHOLE = re.compile(r"[-+]?(\d+)(?:\.0*)?")
SEPARATOR_LINE = re.compile(rb'"?sep=([,;\t])"?[ ,;\t]*(?:\r\n|\n|\r)', re.IGNORECASE)
TRUTH_VALUES = {"true": 1.0, "false": 0.0}
MISSING = frozenset({
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
})  # fmt: skip
"""Fields that are no value, those of ``pandas.read_csv``."""


def read_csv(path: Path, target: Target | None = None, task: Task | None = None) -> Table:
    """Read a CSV file.

    The first line is the header; the separator is a comma, semicolon or tab, whichever the header
    has most outside quotes. Columns of text are one-hot encoded, a column ``"colour=red"`` for each
    value in alphabetical order; True and False are 1 and 0.

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
    return table_of(Fields.read(path), path.stem, target, task)


def table_of(fields: Fields, name: str, target: Target | None, task: Task | None) -> Table:
    """The data set of the fields of a file, of which the last is the target where none is named.

    Args:
        fields: The fields.
        name: Of the data set.
        target: As in :func:`read_csv`.
        task: As in :func:`read_csv`.

    Raises:
        DataError: As :func:`read_csv`.
        OptionError: As :func:`read_csv`.
        UnknownNameError: As :func:`read_csv`.
    """
    last = fields.header[-1]
    note = "" if target else f"The target is the last column, {last!r}; target= takes another."
    table = encode(fields, [last] if target is None else target, task)
    return replace(table, name=name, note=f"{note} {table.note}".strip())


def encode(fields: Fields, target: Target, task: Task | None) -> Table:
    """The data set of a table, called after it.

    Args:
        fields: The table.
        target: As in :func:`read_csv`.
        task: As in :func:`read_csv`.

    Raises:
        DataError: As :func:`read_csv`.
        OptionError: As :func:`read_csv`.
        UnknownNameError: As :func:`read_csv`.
    """
    header = fields.header
    chosen = _chosen(target, fields)
    fields.check_missing(header)
    y, task, class_names = _targets(fields, chosen, task)
    columns = tuple(fields.describe(name) for name in header if name not in chosen)
    _check_size(fields, columns)
    data = Dataset(
        fields.inputs(columns),
        y,
        input_names=[name for column in columns for name in column.inputs],
        target_name=", ".join(chosen),
        class_names=class_names,
        target_names=chosen if len(chosen) > 1 else None,
    )
    is_on_disk = is_large_table(data.x.shape)
    return Table(data, task, fields.name, _told(columns), columns, is_on_disk)


def _told(columns: Sequence[Column]) -> str:
    """What a reader should know of how columns were read."""
    coded = [column for column in columns if column.categories and are_codes(column.categories)]
    return " ".join(
        f"Column {column.name!r} is of codes with leading zeros, such as "
        f"{shown(_code(column.categories or ()))}: categories, not numbers."
        for column in coded
    )


def _code(values: Iterable[str]) -> str:
    """The first value with a leading zero."""
    return next(value for value in values if len(value) > 1 and value[0] == "0")


class Rows(Protocol):
    """The rows of a table as text, made anew each time that they are asked for."""

    def __iter__(self) -> Iterator[list[str]]:
        """The fields of each row."""
        ...

    def lines(self) -> Iterator[str]:
        """Each row as a line of a CSV file, without its end."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Fields:
    """The fields of a table, and what is said of those that cannot be used.

    Attributes:
        source: What errors call the table.
        name: The same, shorter.
        separator: Between fields of a file: comma, semicolon or tab, as the header has them.
        header: Names of the columns.
        plain: Columns of which every field is a number, finite and below 2^53, float64 ``[N]``.
        text: The fields of all other columns without blanks around them ``[N]``.
        rows: All rows as text.
        place: Where a row stands, as errors say it: the line of a file that it ends in.
        min_columns: Fewest columns that there may be.
        levels: The categories, in order, of columns that are said to be of these.

    Raises:
        DataError: If the names of the columns cannot be used, or there are no rows.
    """

    source: str
    name: str
    header: list[str]
    plain: Mapping[str, Float[np.ndarray[Any, Any], " N"]]
    text: Mapping[str, np.ndarray[Any, Any]]
    rows: Rows
    place: Callable[[int], str]
    separator: str = ","
    min_columns: InitVar[int] = 2
    levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self, min_columns: int) -> None:
        no_rows = "" if len(self) else "a header but no rows"
        if fault := _fault(self.header, min_columns) or no_rows:
            raise DataError(f"{self.source} has {fault}")

    def __len__(self) -> int:
        return len(next(iter((self.plain or self.text).values()), ()))

    @classmethod
    def read(cls, path: Path, *, min_columns: int = 2, once: bool = False) -> Fields:
        """Read a file.

        Args:
            path: The file, UTF-8.
            min_columns: Fewest columns of a header.
            once: As in :func:`read_text`.

        Raises:
            DataError: If it is no text or no CSV, the header cannot be used, a row has another
                length, or there is no row.
        """
        file = CSVText(path, read_large(path, once=once))
        header = [name.strip() for name in file.header]
        plain, text = file.columns()
        return cls(
            source=repr(str(path)),
            name=path.name,
            header=header,
            plain={name: plain[i] for i, name in enumerate(header) if i in plain},
            text={name: text[i] for i, name in enumerate(header) if i in text},
            rows=file,
            place=lambda row: f"line {file.line(row)}",
            separator=file.separator,
            min_columns=min_columns,
        )

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """The fields ``[N]`` of a column, text."""
        if name in self.text:
            return self.text[name]
        column = self.header.index(name)
        return np.array([row[column].strip() for row in self.rows], dtype=object)

    def refuse(self, name: str, rows: Sequence[int], what: str, hint: str) -> None:
        """Refuse a column for what it holds in some rows, where there are any.

        Raises:
            DataError: Names the column, the number of rows, and the first field with its place.
        """
        if rows:
            raise DataError(
                f"{self.source}: column {name!r} holds {what} in {count_rows(len(rows))}, "
                f"first {shown(self.column(name)[rows[0]])} in {self.place(rows[0])}; {hint}"
            )

    def check_missing(self, names: Sequence[str]) -> None:
        """Refuse missing values.

        Raises:
            DataError: If there is one; names columns, counts rows, and names the first place.
        """
        found = {
            name: [i for i, field in enumerate(self.text[name]) if field in MISSING]
            for name in names
            if name in self.text
        }
        parts = [f"{name!r} in {count_rows(len(rows))}" for name, rows in found.items() if rows]
        if parts:
            more = f" and {len(parts) - 5} more columns" if len(parts) > 5 else ""
            first = self.place(min(rows[0] for rows in found.values() if rows))
            raise DataError(
                f"{self.source} has missing values: {', '.join(parts[:5])}{more} of "
                f"{len(self)}, first in {first}; fill them or drop these rows or columns"
            )

    def describe(self, name: str, *, are_classes: bool = False) -> Column:
        """What a column is: numbers, or text, which is to be that of categories.

        Args:
            name: Of the column.
            are_classes: Whether text may be numbers in most rows.

        Raises:
            DataError: If it holds text among numbers, commas in numbers, or free text.
        """
        if name in self.plain:
            return Column(name)
        if name in self.levels:
            return Column(name, self.levels[name])
        text = self.text[name]
        if are_codes(text):
            return self._categories(
                name, f"of codes with leading zeros, such as {shown(_code(text))},"
            )
        values = set(text)  # once each: there may be few
        if not any(math.isnan(number(field)) for field in values):
            return Column(name)
        words = {field for field in values if math.isnan(number(field, {}))}
        with_comma = {
            field
            for field in words
            if not all(math.isnan(number(field.replace(",", to), {})) for to in (".", ""))
        }
        other = [i for i, field in enumerate(text) if field in words]
        commas = [i for i in other if text[i] in with_comma]
        if 2 * (len(text) - len(other) + len(commas)) > len(text):
            hint = "write decimals with a point, 1.5, and thousands without a separator, 1500"
            self.refuse(name, commas, "commas in its numbers,", hint)
        if not are_classes:
            self._check_written(name, other)
            if 2 * len(other) < len(text):
                self.refuse(name, other, "numbers, but not", "mend these fields")
        return self._categories(name, "text")

    def _check_written(self, name: str, other: Sequence[int]) -> None:
        """Refuse numbers with a mark, and dates, which would be categories.

        Args:
            name: Of the column.
            other: Rows whose fields are no plain numbers.

        Raises:
            DataError: Names the mark, or says that they are dates.
        """
        text = self.text[name]
        found = marks(set(text))
        marked = [i for i in other if text[i] in found]
        if 2 * (len(text) - len(other) + len(marked)) > len(text) and marked:
            hint = (
                "write plain numbers, all in one unit, such as -1500.5; categories begin with a "
                "letter, and a target of classes has task='classification'"
            )
            self.refuse(name, marked, f"numbers with {found[text[marked[0]]]!r},", hint)
        if are_dates({text[i] for i in other}):
            hint = (
                "write numbers, such as days since the first one, the month or the hour, or drop "
                "the column; pandas.to_datetime reads dates"
            )
            self.refuse(name, other, "dates or times", hint)

    def _categories(self, name: str, what: str) -> Column:
        """Text as categories.

        Raises:
            DataError: If there are too many.
        """
        categories = tuple(sorted(set(self.text[name])))
        if len(categories) > max(20, len(self) // 2):
            raise DataError(
                f"{self.source}: column {name!r} is {what} with {len(categories)} different "
                f"values in {len(self)} rows; an identifier or free text is neither an input nor "
                "classes: drop it, or name another column as the target"
            )
        return Column(name, categories)

    def inputs(self, columns: Sequence[Column]) -> Float[Tensor, "N I"]:
        """Columns as inputs, float64.

        Raises:
            DataError: As :meth:`numbers`, or if a category is unknown.
        """
        shape = (len(self), sum(len(column.inputs) for column in columns))
        found = Numbers(shape, torch.float64, is_large=is_large_table(shape))
        values = [self._values(column) for column in columns]
        for piece in pieces(*shape[:1], shape[1:]):
            parts = [
                own[piece, None]
                if column.categories is None
                else own[piece, None] == np.arange(len(column.categories))
                for column, own in zip(columns, values, strict=True)
            ]
            found.append(torch.from_numpy(np.concatenate(parts, 1, dtype=np.float64)))
        return found.whole()

    def _values(self, column: Column) -> np.ndarray[Any, Any]:
        """Numbers ``[N]``, or the places of categories."""
        if column.categories is None:
            return self.numbers(column.name)
        text, known = self.column(column.name), set(column.categories)
        self.refuse(
            column.name,
            [i for i, field in enumerate(text) if field not in known],
            "values that the fit has not seen,",
            f"known are {listed(column.categories)}",
        )
        places = {category: place for place, category in enumerate(column.categories)}
        return np.fromiter((places[field] for field in text), np.int32, len(text))

    def numbers(self, name: str) -> Float[np.ndarray[Any, Any], " N"]:
        """The numbers of a column, float64; True and False are 1 and 0.

        Raises:
            DataError: If a field is no finite number, or a whole number that float64 lacks.
        """
        if name in self.plain:
            return self.plain[name]
        text = self.text[name]
        if are_codes(text):
            codes = [i for i, field in enumerate(text) if len(field) > 1 and field[0] == "0"]
            hint = "the fit had numbers there: write them without zeros in front"
            self.refuse(name, codes, "codes with leading zeros", hint)
        values = np.array([number(field) for field in text])
        bad = np.flatnonzero(~np.isfinite(values)).tolist()
        self.refuse(name, bad, "something else than finite numbers,", "mend these fields")
        lost = [
            i
            for i in np.flatnonzero(np.abs(values) >= EXACT).tolist()
            if (digits := WHOLE.fullmatch(text[i])) and int(digits[1]) > EXACT
        ]
        hint = (
            "different ones would become equal: subtract an offset, drop an identifier, or write "
            "floating numbers as 1.5e16"
        )
        self.refuse(name, lost, "whole numbers beyond 2^53, which float64 does not all have,", hint)
        return values


def _check_size(fields: Fields, columns: Sequence[Column]) -> None:
    """Refuse text whose values, each an input of its own, are far more than the table has fields.

    Raises:
        DataError: Names the column with the most values.
    """
    num_rows, num_inputs = len(fields), sum(len(column.inputs) for column in columns)
    if num_rows * num_inputs > max(MOST_CODED, CODED * num_rows * len(columns)):
        column = max(columns, key=lambda column: len(column.inputs))
        raise DataError(
            f"{fields.source}: column {column.name!r} is text with {len(column.inputs)} different "
            f"values, each of which would be an input of {num_rows} rows: drop it, or put rare "
            "values into one"
        )


class CSVText:
    """The text of a CSV file: its rows one after the other, or its columns at once.

    Args:
        path: The file, for errors.
        data: All of it, UTF-8; in memory or in a file that is mapped.

    Attributes:
        separator: Comma, semicolon or tab, whichever the first line has most outside quotes.
        header: Its fields.
    """

    def __init__(self, path: Path, data: bytes | mmap.mmap) -> None:
        named = SEPARATOR_LINE.match(data)  # a line such as sep=; that spreadsheets write
        self._path, self._data = path, data
        self._begin, self._above = (named.end(), 1) if named else (0, 0)  # bytes, lines
        first = data[self._begin : self._begin + csv.field_size_limit()]
        start = first.decode(errors="ignore").lstrip("\r\n ")
        self._first = re.split("[\r\n]", start, maxsplit=1)[0]
        self.separator = max(",;\t", key=lambda mark: len(_split(self._first, mark)))
        if named:
            self.separator = named[1].decode()
        _, self.header = next(self._lines(), (0, list[str]()))
        if not self.header:
            raise DataError(f"{str(path)!r} has no header")

    def __iter__(self) -> Iterator[list[str]]:
        """Each row below the header."""
        return (row for _, row in itertools.islice(self._lines(), 1, None))

    def lines(self) -> Iterator[str]:
        """Each row below the header as `lines_of` writes it; without quotes it stands there."""
        blank = (self.separator.encode() + b" ", b"\n ", b"\r ")  # before a field
        begin = self._data[self._begin : self._begin + 1]
        if begin == b" " or any(map(self._holds, (b'"', *blank))):
            return lines_of(self, self.separator)
        file = io.TextIOWrapper(self._opened(), encoding="utf-8")
        return itertools.islice(filter(None, (line.rstrip("\n") for line in file)), 1, None)

    def line(self, row: int) -> int:
        """The line in which a row ends."""
        return next(itertools.islice(self._lines(), row + 1, None))[0]

    def columns(self) -> tuple[dict[int, np.ndarray[Any, Any]], dict[int, np.ndarray[Any, Any]]]:
        """Those of plain numbers, and the text of all others, by place.

        Raises:
            DataError: If it is no CSV, or a row has another length.
        """
        plain = self._plain()
        if len(plain) == len(self.header) and not self._holds(b'"'):
            return plain, {}
        text = self._text([i for i in range(len(self.header)) if i not in plain])
        num_rows = {len(column) for column in (*plain.values(), *text.values())}
        if len(num_rows) > 1:  # pandas takes another line for blank
            return {}, self._text(range(len(self.header)))
        return plain, text

    def _lines(self) -> Iterator[tuple[int, list[str]]]:
        """Each row that is not blank and the line in which it ends, the header first."""
        file = io.TextIOWrapper(self._opened(), encoding="utf-8", newline="")
        reader = csv.reader(file, delimiter=self.separator, skipinitialspace=True, strict=True)
        length = num_rows = 0
        try:
            for row in filter(None, reader):
                length = length or len(row)
                if len(row) != length:
                    fields = "field" if length == 1 else "fields"
                    raise DataError(
                        f"{self._at(reader.line_num)}: expected {length} {fields} as "
                        f"in the header, got {len(row)}; {self._why(length, num_rows)}"
                    )
                yield reader.line_num + self._above, row
                num_rows += 1
        except csv.Error as error:
            raise DataError(f"{self._at(reader.line_num)}: {error}") from error

    def _at(self, line: int) -> str:
        return f"{str(self._path)!r}, line {line + self._above}"

    def _why(self, length: int, num_rows: int) -> str:
        """Why a row may have another length than the header, after so many rows that have not."""
        if num_rows == 1 and (length == 1 or self._first.startswith("#")):
            return f"is the first line, {self._first[:40]!r}, a comment or title? Delete it"
        return "is the file truncated?"

    def _text(self, places: Sequence[int]) -> dict[int, np.ndarray[Any, Any]]:
        """The fields of some columns; equal ones of a column are one text in memory."""
        found: list[list[str]] = [[] for _ in places]
        known: list[dict[str, str]] = [{} for _ in places]
        for row in self:
            for place, column, same in zip(places, found, known, strict=True):
                field = row[place].strip()
                column.append(same.setdefault(field, field))
        return {p: np.array(c, dtype=object) for p, c in zip(places, found, strict=True)}

    def _plain(self) -> dict[int, np.ndarray[Any, Any]]:
        """Columns that pandas reads as numbers, if it reads the file at all: it is 20 times faster.

        It takes a code such as ``007`` for a number, and cuts a line that is too long with a
        warning. Where it fails, the rows are read one by one, which says what is wrong.
        """
        import pandas as pd

        if self._holds(b"\0"):
            return {}
        columns = {i: self._column() for i in range(len(self.header))}
        whole: set[int] = set()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                warnings.simplefilter("ignore", DeprecationWarning)  # of the precision, from 3.1 on
                for block in pd.read_csv(
                    self._opened(),
                    sep=self.separator,
                    header=0,
                    names=list(columns),
                    index_col=False,
                    na_filter=False,
                    skipinitialspace=True,
                    float_precision="round_trip",
                    chunksize=ROWS_AT_ONCE,
                ):
                    for place in list(columns):
                        values = block[place].to_numpy()
                        if values.dtype.kind in "iu":
                            whole.add(place)
                        if (numbers := plain_numbers(values)) is None:
                            del columns[place]
                        else:
                            columns[place].append(numbers)
        except (pd.errors.ParserError, pd.errors.ParserWarning, ValueError, OverflowError):
            return {}
        if whole and self._has_codes():
            columns = {place: found for place, found in columns.items() if place not in whole}
        return {place: found.whole().numpy() for place, found in columns.items() if len(found)}

    def _column(self) -> Numbers:
        """Room for the numbers of a column, of which there are fewer than lines."""
        return Numbers((self._num_lines,), torch.float64, is_large=self._is_large)

    @cached_property
    def _num_lines(self) -> int:
        file = self._opened()
        blocks = iter(lambda: file.read(BLOCK), b"")
        return 1 + sum(block.count(b"\n") + block.count(b"\r") for block in blocks)

    @property
    def _is_large(self) -> bool:
        return not isinstance(self._data, bytes)

    def _opened(self) -> BinaryIO:
        """The text as a file, below the line of the separator."""
        if isinstance(self._data, bytes):
            file: BinaryIO = io.BytesIO(self._data)
        else:
            file = io.BufferedReader(Bytes(self._data), BLOCK)
        file.read(self._begin)
        return file

    def _holds(self, mark: bytes) -> bool:
        return self._data.find(mark, self._begin) >= 0

    def _has_codes(self) -> bool:
        """Whether a digit follows a zero with which a field begins."""
        starts = (self.separator.encode(), b"\n", b"\r", b'"', b" ")  # a set of them is slower
        return any(re.compile(start + rb"0\d").search(self._data, self._begin) for start in starts)


def lines_of(rows: Iterable[Sequence[str]], separator: str) -> Iterator[str]:
    """Each row as a line of a CSV file, without its end; quotes are where they are needed."""
    found: list[str] = []
    file: Any = SimpleNamespace(write=found.append)  # called once for each row
    writer = csv.writer(file, delimiter=separator, lineterminator="\r\n")  # both are quoted
    for row in rows:
        writer.writerow(row)
        yield found.pop().removesuffix("\r\n")


def _split(line: str, separator: str) -> list[str]:
    """The fields of a line; what is in quotes is one."""
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True))


def _fault(header: list[str], min_columns: int) -> str:
    """What a header has that it should not have; empty where it can be used."""
    if not header:
        return "no columns"
    if len(header) < min_columns:
        return (
            f"one column, {header[0]!r}; expected inputs and a target, separated by commas, "
            "semicolons or tabs"
        )
    if all(not math.isnan(number(name, {})) for name in header):
        return "no header: its first line is all numbers; put column names there"
    if "" in header:
        return (
            f"a header in which column {header.index('')} has no name; if pandas wrote its index "
            "there, write with index=False"
        )
    if repeated := sorted(name for name, count in Counter(header).items() if count > 1):
        more = f" and {len(repeated) - 5} more names" if len(repeated) > 5 else ""
        names = ", ".join(map(repr, repeated[:5]))
        return f"a header in which several columns are called {names}{more}"
    return ""


def _chosen(target: Target, fields: Fields) -> list[str]:
    """Columns that are predicted; a name with commas goes before names that they separate.

    Raises:
        DataError: If no other column is left.
        OptionError: If there is none, or one is named twice.
        UnknownNameError: If there is no such column; suggests the nearest.
    """
    header = fields.header
    several = isinstance(target, str) and target not in header and "," in target
    names = [target] if isinstance(target, str) else list(target)
    if several:
        names = [name.strip() for name in str(target).split(",")]
    for name in names:
        if name not in header:
            raise UnknownNameError(f"target column of {fields.name}", name, header)
    if not names or len(set(names)) < len(names):
        raise OptionError(f"target names each column once, not {target!r}")
    if len(names) == len(header):
        raise DataError(
            f"{fields.source}: the targets are all columns, and none is left as an input"
        )
    return names


def _targets(
    fields: Fields, names: list[str], task: Task | None
) -> tuple[Tensor, Task, tuple[str, ...] | None]:
    """The one target ``[N]``, or several ``[N, O]``, which are numbers."""
    found = [_target(fields, name, task) for name in names]
    if len(found) == 1:
        return found[0]
    for name, (_, what, _) in zip(names, found, strict=True):
        if what == "classification":
            raise DataError(
                f"{fields.name}: several targets are numbers, but {name!r} is of classes: "
                "predict it alone, or write 0 and 1 and pass task='counts' for a Bernoulli "
                "likelihood"
            )
    return torch.stack([y for y, _, _ in found], 1), found[0][1], None


def _target(
    fields: Fields, name: str, task: Task | None
) -> tuple[Tensor, Task, tuple[str, ...] | None]:
    text = fields.text.get(name, np.array([]))  # none of a column of plain numbers
    is_text = fields.describe(name, are_classes=task == "classification").categories is not None
    are_truths = len(text) > 0 and all(field.lower() in TRUTH_VALUES for field in text)
    task = task or ("classification" if is_text or are_truths else "regression")
    what = f"target {name!r} of {fields.name}"
    if task == "classification":
        if levels := fields.levels.get(name):
            check_several(levels, len(text), what)
            return torch.tensor([levels.index(value) for value in text]), task, levels
        values = text if is_text else fields.numbers(name)
        labels, class_names = encode_labels(values == 1 if are_truths else values, what)
        return labels, task, class_names
    if name in fields.levels:
        raise DataError(
            f"{what} is of dtype category; {task} needs numbers: convert it with astype(float), or "
            "pass task='classification'"
        )
    if is_text:
        raise DataError(f"{what} is text, for instance {shown(text[0])}; regression needs numbers")
    return torch.tensor(fields.numbers(name)), task, None


def number(text: str, words: Mapping[str, float] = TRUTH_VALUES) -> float:
    """The number that a field is, or one of the words for numbers; NaN where it is neither."""
    try:
        return to_number(text)
    except ValueError:
        return words.get(text.lower(), math.nan)
