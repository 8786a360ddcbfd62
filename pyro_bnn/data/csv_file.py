"""A CSV file: its rows one after the other, for messages and copies, or its columns at once.

pandas alone reads the numbers of a large file fast enough, but neither names the line of a fault
nor sees all of them; what it is not sure of is read by Python's ``csv``, which does.
"""

from __future__ import annotations

import csv
import io
import itertools
import mmap
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import torch

from pyro_bnn.data.arrays import plain_numbers
from pyro_bnn.data.fields import Fields, TextColumn, text_columns
from pyro_bnn.data.on_disk import Bytes, Numbers
from pyro_bnn.data.tables import BLOCK, read_large
from pyro_bnn.errors import DataError

ROWS_AT_ONCE = 100_000  # of a file, by pandas
SEPARATOR_LINE = re.compile(rb'"?sep=([,;\t])"?[ ,;\t]*(?:\r\n|\n|\r)', re.IGNORECASE)

OTHER_SEPARATOR_LINE = re.compile(rb'"?sep=([!-~ ])"?[ ,;\t]*(?:\r\n|\n|\r)', re.IGNORECASE)
OTHER_SEPARATORS = "|^~"
SEPARATE = "Save the file with commas, semicolons or tabs between them"


def csv_fields(path: Path, *, once: bool = False) -> Fields:
    """Read a CSV file.

    The first line is the header; the separator is a comma, semicolon or tab, whichever the header
    has most outside quotes. Columns of which every field is a number, finite and below 2^53, are
    numbers, and all others are text.

    Args:
        path: The file, UTF-8.
        once: As in :func:`pyro_bnn.data.tables.read_text`.

    Raises:
        DataError: If it is missing, no text or no CSV, or a row has another length (names the
            line).
    """
    file = CSVText(path, read_large(path, once=once))
    header = [name.strip() for name in file.header]
    plain, text = file.columns()
    return Fields(
        source=repr(str(path)),
        name=path.name,
        header=header,
        numeric={name: plain[i] for i, name in enumerate(header) if i in plain},
        text={name: text[i] for i, name in enumerate(header) if i in text},
        rows=file,
        place=lambda row: f"line {file.line(row)}",
        separator=file.separator,
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
        if not named and (other := OTHER_SEPARATOR_LINE.match(data)):
            raise DataError(
                f"{str(path)!r} has fields separated by {other[1].decode()!r}: {SEPARATE}"
            )
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
        """Each row below the header as `lines_of` writes it, or, without quotes, as it stands."""
        blank = (self.separator.encode() + b" ", b"\n ", b"\r ")  # before a field
        begin = self._data[self._begin : self._begin + 1]
        if begin == b" " or any(map(self._holds, (b'"', *blank))):
            return lines_of(self, self.separator)
        file = io.TextIOWrapper(self._opened(), encoding="utf-8")
        return itertools.islice(filter(None, (line.rstrip("\n") for line in file)), 1, None)

    def line(self, row: int) -> int:
        """The line in which a row ends."""
        return next(itertools.islice(self._lines(), row + 1, None))[0]

    def columns(self) -> tuple[dict[int, np.ndarray[Any, Any]], dict[int, TextColumn]]:
        """Those of plain numbers, and the text of all others, by place.

        Raises:
            DataError: If it is no CSV, or a row has another length.
        """
        plain = self._plain()
        if len(plain) == len(self.header) and not self._holds(b'"'):
            return plain, {}
        text = self._text([i for i in range(len(self.header)) if i not in plain])
        num_rows = {*map(len, plain.values()), *map(len, text.values())}
        if len(num_rows) > 1:  # pandas skips lines that csv reads, such as blanks alone
            return {}, self._text(range(len(self.header)))
        return plain, text

    def _text(self, places: Sequence[int]) -> dict[int, TextColumn]:
        return dict(zip(places, text_columns(self, places), strict=True))

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
                        f"in the header, got {len(row)}; {self._why(length, num_rows, row)}"
                    )
                yield reader.line_num + self._above, row
                num_rows += 1
        except csv.Error as error:
            raise DataError(f"{self._at(reader.line_num)}: {error}") from error

    def _at(self, line: int) -> str:
        return f"{str(self._path)!r}, line {line + self._above}"

    def _why(self, length: int, num_rows: int, row: Sequence[str]) -> str:
        """A likely reason for a row of another length than the header, after so many good rows."""
        line = self.separator.join(row)
        for mark in OTHER_SEPARATORS if re.search("[^\\W\\d_]", line) else OTHER_SEPARATORS + " :":
            if 0 < self._first.count(mark) == line.count(mark):
                return f"are fields separated by {mark!r}? {SEPARATE}"
        if num_rows == 1 and (length == 1 or self._first.startswith("#")):
            return f"is the first line, {self._first[:40]!r}, a comment or title? Delete it"
        return "is the file truncated?"

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
            columns = {place: numbers for place, numbers in columns.items() if place not in whole}
        return {
            place: numbers.whole().numpy() for place, numbers in columns.items() if len(numbers)
        }

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
        """Whether a field begins with a zero and another digit."""
        starts = (self.separator.encode(), b"\n", b"\r", b'"', b" ")  # a set of them is slower
        return any(re.compile(start + rb"0\d").search(self._data, self._begin) for start in starts)


def lines_of(rows: Iterable[Sequence[str]], separator: str) -> Iterator[str]:
    """Each row as a line of a CSV file, without its end; quotes are where they are needed."""
    written: list[str] = []
    file: Any = SimpleNamespace(write=written.append)  # called once for each row
    writer = csv.writer(file, delimiter=separator, lineterminator="\r\n")  # both are quoted
    for row in rows:
        writer.writerow(row)
        yield written.pop().removesuffix("\r\n")


def _split(line: str, separator: str) -> list[str]:
    """The fields of a line; what is in quotes is one."""
    return next(csv.reader([line], delimiter=separator, skipinitialspace=True))
