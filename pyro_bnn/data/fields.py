"""The columns of a table, read from a file or a data frame, and the errors of unusable ones.

Encoders of scikit-learn would name neither the column nor the line of a field, and hold each text
of each row: here each different text stands once, and is looked at once.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pyro_bnn.data.arrays import EXACT, count_rows, listed, shown
from pyro_bnn.data.on_disk import Numbers, is_large_table, pieces
from pyro_bnn.data.split import Column
from pyro_bnn.data.tables import to_number
from pyro_bnn.data.written import are_dates, marks, padded_codes
from pyro_bnn.errors import DataError

WHOLE = re.compile(r"[-+]?(\d+)(?:\.0*)?")
COMMAS = (
    "commas in its numbers,",
    "write decimals with a point, 1.5, and thousands without a separator, 1500",
)
TRUTH_VALUES = {"true": 1.0, "false": 0.0}
MISSING = frozenset({
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null",
})  # fmt: skip
"""Fields that are no value, those of ``pandas.read_csv``."""


@dataclass(frozen=True, eq=False)
class TextColumn:
    """A column of text: each different field once, and which of them stands in each row.

    Attributes:
        values: The V different fields.
        codes: Where among these the field of each row is, ``[N]``.
        categories: The categories in order, where a data frame declares them; else None.
    """

    values: Sequence[str]
    codes: Int[np.ndarray[Any, Any], " N"]
    categories: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, row: int) -> str:
        return self.values[int(self.codes[row])]

    def rows(self, values: Collection[str]) -> Int[np.ndarray[Any, Any], " n"]:
        """The rows whose field is one of these."""
        return np.flatnonzero(self.each(value in values for value in self.values))

    def each(self, properties: Iterable[Any]) -> np.ndarray[Any, Any]:
        """Properties of the V different fields, repeated for the rows ``[N]``."""
        return np.asarray(np.array(list(properties))[self.codes])

    def without_blanks(self) -> TextColumn:
        """The same without blanks around the fields, which may make some equal."""
        (values,) = text_columns(zip(self.values, strict=True), [0])
        return TextColumn(values.values, values.codes[self.codes])

    def places(self, categories: Sequence[str]) -> Int[np.ndarray[Any, Any], " N"]:
        """Where among the categories the field of each row is."""
        places = {category: place for place, category in enumerate(categories)}
        return self.each(places[value] for value in self.values)


def text_columns(rows: Iterable[Sequence[str]], places: Collection[int]) -> list[TextColumn]:
    """The columns at some places of rows of text, without blanks around the fields."""
    known: list[dict[str, int]] = [{} for _ in places]
    codes = [array("i") for _ in places]
    for row in rows:
        for place, values, of_column in zip(places, known, codes, strict=True):
            of_column.append(values.setdefault(row[place].strip(), len(values)))
    return [TextColumn(tuple(v), np.asarray(c)) for v, c in zip(known, codes, strict=True)]


class TextRows(Protocol):
    """The rows of a table as text, made anew each time that they are asked for."""

    def __iter__(self) -> Iterator[list[str]]:
        """The fields of each row."""
        ...

    def lines(self) -> Iterator[str]:
        """Each row as a line of a CSV file, without its end."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Fields:
    """The columns of a table, of numbers or of text.

    Attributes:
        source: What errors call the table.
        name: The same, shorter.
        separator: Between fields of a file: comma, semicolon or tab, as the header has them.
        header: Names of the columns.
        numeric: Columns of numbers ``[N]``, of any dtype that NumPy has for them.
        text: All other columns.
        rows: All rows as text.
        place: Where a row stands, as errors say it: the line of a file that it ends in.
    """

    source: str
    name: str
    header: list[str]
    numeric: Mapping[str, np.ndarray[Any, Any]]
    text: Mapping[str, TextColumn]
    rows: TextRows
    place: Callable[[int], str]
    separator: str = ","

    def __len__(self) -> int:
        columns: Mapping[str, Sized] = self.numeric or self.text
        return len(next(iter(columns.values()), ()))

    def check_header(self, min_columns: int) -> None:
        """Check that there are as many columns, with names that can be used, and a row.

        Raises:
            DataError: If there are not.
        """
        no_rows = "" if len(self) else "a header but no rows"
        if fault := _fault(self.header, min_columns) or no_rows:
            raise DataError(f"{self.source} has {fault}")

    def as_text(self, name: str) -> TextColumn:
        """A column as text, also where it is of numbers."""
        if name in self.text:
            return self.text[name]
        return text_columns(self.rows, [self.header.index(name)])[0]

    def refuse(self, name: str, rows: Collection[int], what: str, hint: str) -> None:
        """Refuse a column if there are rows with values that cannot be used.

        Raises:
            DataError: Names the column, the number of rows, and the first field with its place.
        """
        if len(rows):
            first = next(iter(rows))
            raise DataError(
                f"{self.source}: column {name!r} holds {what} in {count_rows(len(rows))}, "
                f"first {shown(self.as_text(name)[first])} in {self.place(first)}; {hint}"
            )

    def check_missing(self, names: Sequence[str]) -> None:
        """Refuse missing values.

        Raises:
            DataError: If there is one; names columns, counts rows, and names the first place.
        """
        missing = {name: rows for name in names if len(rows := self._missing(name))}
        if missing:
            parts = [f"{name!r} in {count_rows(len(rows))}" for name, rows in missing.items()]
            more = f" and {len(parts) - 5} more columns" if len(parts) > 5 else ""
            first = self.place(min(rows[0] for rows in missing.values()))
            raise DataError(
                f"{self.source} has missing values: {', '.join(parts[:5])}{more} of "
                f"{len(self)}, first in {first}; fill them or drop these rows or columns"
            )

    def _missing(self, name: str) -> Int[np.ndarray[Any, Any], " n"]:
        """The rows in which a column has no value."""
        if name in self.numeric:
            return np.flatnonzero(np.isnan(self.numeric[name]))
        return self.text[name].rows(MISSING)

    def describe(self, name: str, *, are_classes: bool = False) -> Column:
        """What a column is: numbers, or text, which is to be that of categories.

        Args:
            name: Of the column.
            are_classes: Whether text may be numbers in most rows.

        Raises:
            DataError: If it holds text among numbers, commas in numbers, or free text.
        """
        if name in self.numeric:
            return Column(name)
        text = self.text[name]
        if text.categories is not None:
            return Column(name, text.categories)
        if codes := padded_codes(text.values):
            return self._categories(
                name, f"of codes with leading zeros, such as {shown(codes[0])},"
            )
        words = {value for value in text.values if math.isnan(number(value, {}))}
        if all(word.lower() in TRUTH_VALUES for word in words):
            return Column(name)
        other, commas = text.rows(words), text.rows(set(filter(_has_commas, words)))
        if 2 * (len(text) - len(other) + len(commas)) > len(text):
            self.refuse(name, commas, *COMMAS)
        if not are_classes:
            self._check_written(name, words)
            if 2 * len(other) < len(text):
                self.refuse(name, other, "numbers, but not", "mend these fields")
        return self._categories(name, "text")

    def _check_written(self, name: str, words: Collection[str]) -> None:
        """Refuse numbers with a mark, and dates, which would be categories.

        Args:
            name: Of the column.
            words: Those of its fields that are no plain numbers.

        Raises:
            DataError: Names the mark, or says that they are dates.
        """
        text = self.text[name]
        mark_of = marks(text.values)
        other, marked = text.rows(words), text.rows(mark_of.keys() & words)
        if 2 * (len(text) - len(other) + len(marked)) > len(text) and len(marked):
            hint = (
                "write plain numbers, all in one unit, such as -1500.5; categories begin with a "
                "letter, and a target of classes has task='classification'"
            )
            self.refuse(name, marked, f"numbers with {mark_of[text[marked[0]]]!r},", hint)
        if are_dates(words):
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
        categories = tuple(sorted(self.text[name].values))
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
        x = Numbers(shape, torch.float64, is_large=is_large_table(shape))
        values = [self._values(column) for column in columns]
        for piece in pieces(*shape[:1], shape[1:]):
            parts = [
                of_column[piece, None]
                if column.categories is None
                else of_column[piece, None] == np.arange(len(column.categories))
                for column, of_column in zip(columns, values, strict=True)
            ]
            x.append(torch.from_numpy(np.concatenate(parts, 1, dtype=np.float64)))
        return x.whole()

    def _values(self, column: Column) -> np.ndarray[Any, Any]:
        """Numbers ``[N]``, or the places of categories."""
        if column.categories is None:
            return self.numbers(column.name)
        text = self.as_text(column.name)
        self.refuse(
            column.name,
            text.rows(set(text.values).difference(column.categories)),
            "values that the fit has not seen,",
            f"known are {listed(column.categories)}",
        )
        return text.places(column.categories)

    def numbers(self, name: str) -> np.ndarray[Any, Any]:
        """The numbers ``[N]`` of a column, of any dtype; True and False are 1 and 0.

        Raises:
            DataError: If a field is no finite number, or a whole number that float64 lacks.
        """
        text = self.text.get(name)
        if text is None:
            values = self.numeric[name]
        else:
            hint = "the fit had numbers there: write them without zeros in front"
            codes = text.rows(padded_codes(text.values))
            self.refuse(name, codes, "codes with leading zeros", hint)
            self.refuse(name, text.rows(set(filter(_has_commas, text.values))), *COMMAS)
            values = text.each(map(number, text.values))
        bad = np.flatnonzero(~np.isfinite(values))
        self.refuse(name, bad, "something else than finite numbers,", "mend these fields")
        hint = (
            "different ones would become equal: subtract an offset, drop an identifier, or write "
            "floating numbers as 1.5e16"
        )
        lost = _beyond(values) if text is None else text.rows(set(filter(_is_lost, text.values)))
        self.refuse(name, lost, "whole numbers beyond 2^53, which float64 does not all have,", hint)
        return values


def number(text: str, words: Mapping[str, float] = TRUTH_VALUES) -> float:
    """The number that a field is, or one of the words for numbers; NaN where it is neither."""
    try:
        return to_number(text)
    except ValueError:
        return words.get(text.lower(), math.nan)


def _has_commas(word: str) -> bool:
    """Whether a field is a number only once its commas are points, or are dropped."""
    return "," in word and any(
        not math.isnan(number(word.replace(",", to), {})) for to in (".", "")
    )


def _is_lost(text: str) -> bool:
    """Whether a finite number is written as a whole one that float64 may not have."""
    digits = WHOLE.fullmatch(text) if abs(number(text)) >= EXACT else None
    return digits is not None and int(digits[1]) > EXACT


def _beyond(values: np.ndarray[Any, Any]) -> Int[np.ndarray[Any, Any], " n"]:
    """The rows with whole numbers that float64 may not have; floating numbers are what they are."""
    is_whole = values.dtype.kind in "iu"
    return np.flatnonzero((values > EXACT) | (values < -EXACT)) if is_whole else np.array([], int)


def _fault(header: list[str], min_columns: int) -> str:
    """The fault of a header, in words; empty where the header can be used."""
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
