"""Text files of numbers: white space between columns, no header, one row a line."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from jaxtyping import Float

from pyro_bnn.data.arrays import EXACT
from pyro_bnn.errors import DataError
from pyro_bnn.files.atomic import is_stream

STANDARD = Path("-")  # input or output
BLOCK = 1 << 24  # characters that are read at once
LONGEST_LINE = 1 << 26  # characters; a row of a million numbers has a third of them


def read_text(path: Path, *, once: bool = False) -> str:
    """Read a text file.

    Args:
        path: The file.
        once: Whether a pipe or device is read too, which can be read only once, and standard input
            where the path is ``-``.

    Raises:
        DataError: If it is missing, cannot be read, is empty, is not UTF-8 text, or has a line of
            more than 64 Mi characters, which ends the reading.
    """
    is_standard = once and path == STANDARD
    if not (is_standard or path.is_file() or (once and is_stream(path))):
        raise DataError(f"no file {str(path)!r}; check the path")
    try:
        source = contextlib.nullcontext(sys.stdin.buffer) if is_standard else path.open("rb")
        with source as stream:
            file = io.TextIOWrapper(stream, encoding="utf-8-sig", newline="")
            text = "".join(_blocks(file, path))
            file.detach()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{str(path)!r} is not UTF-8 text (byte {error.start}); save it as UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    if not text.strip():
        raise DataError(f"{str(path)!r} is empty")
    return text


def _blocks(file: TextIO, path: Path) -> Iterator[str]:
    length = 0  # of the line so far
    while block := file.read(BLOCK):
        end = max(block.rfind("\n"), block.rfind("\r"))
        length = length + len(block) if end < 0 else len(block) - end - 1
        if length > LONGEST_LINE:
            raise DataError(
                f"{str(path)!r} has a line of more than {LONGEST_LINE:,} characters: it is no "
                "table with a row a line"
            )
        yield block


def read_table(path: Path) -> Float[np.ndarray[Any, Any], "N columns"]:
    """Read a table of numbers.

    Args:
        path: Text with N rows and white space between columns; blank lines are skipped.

    Returns:
        float64 ``[N, columns]``.

    Raises:
        DataError: If the file is missing, empty or no text, a line has another number of columns
            than the first (as in a truncated file), or a field is not a number; names the line.
    """
    text = read_text(path)
    try:
        return np.loadtxt(io.StringIO(text), ndmin=2, comments=None)
    except ValueError as error:
        raise DataError(_what_is_wrong(text, path) or f"{str(path)!r}: {error}") from error


def read_rows(path: Path) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Read whole numbers >= 0, one or more a line: an index file.

    Args:
        path: Text file.

    Returns:
        int64 ``[n]``.

    Raises:
        DataError: As :func:`read_table`, or if a number is negative or not whole.
    """
    table = read_table(path).ravel()
    is_whole = np.isfinite(table) & (table == np.round(table)) & (table <= EXACT)
    bad = np.flatnonzero(~(is_whole & (table >= 0)))
    if len(bad):
        raise DataError(
            f"{str(path)!r} must hold whole numbers >= 0, got {table[bad[0]]} (number {bad[0] + 1})"
        )
    return table.astype(np.int64)


def _what_is_wrong(text: str, path: Path) -> str | None:
    expected = None
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split()
        if not fields:
            continue
        expected = expected or len(fields)
        if len(fields) != expected:
            return (
                f"{str(path)!r}, line {number}: expected {expected} columns as in the lines above, "
                f"got {len(fields)}; is the file truncated?"
            )
        for column, field in enumerate(fields):
            try:
                float(field)
            except ValueError:
                return f"{str(path)!r}, line {number}, column {column}: {field!r} is not a number"
    return None  # a number to Python, such as 1_000, but not to NumPy
