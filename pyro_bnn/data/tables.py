"""Text files, bounded before they are read; those of numbers alone, white space between columns.

`numpy.loadtxt` and pandas unpack whatever a file unpacks to, and read a line without an end.
"""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import itertools
import mmap
import re
import sys
import tempfile
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Float

from pyro_bnn.data import on_disk
from pyro_bnn.data.arrays import EXACT
from pyro_bnn.errors import DataError
from pyro_bnn.files.atomic import is_stream

STANDARD = Path("-")  # input or output
BLOCK = 1 << 24  # bytes that are read at once
OTHER_KINDS = {
    b"PK\x03\x04": "an archive or a spreadsheet: unpack it, or save the table in it as CSV",
    b"\x1f\x8b": "packed by gzip: give it a name that ends in .gz",
    b"PAR1": "a Parquet file: give it a name that ends in .parquet",
}
"""What files that are no text begin with, and what to do with them."""
PACKED = 200  # bytes of text, or numbers, for each byte of a packed file, at most
LONGEST_LINE = 1 << 26  # bytes; a row of a million numbers takes a third of this


def read_text(path: Path, *, once: bool = False) -> str:
    """Read a text file.

    Args:
        path: The file, packed by gzip where it ends in ``.gz``.
        once: As in :func:`read_large`.

    Raises:
        DataError: As :func:`read_large`.
    """
    return read_large(path, once=once)[:].decode()


def read_large(path: Path, *, once: bool = False) -> bytes | mmap.mmap:
    """Read the bytes of a text file in UTF-8, without a byte order mark; many lie on the disk.

    Args:
        path: The file, packed by gzip where it ends in ``.gz``.
        once: Whether a pipe or device is read too, which can be read only once, and standard input
            where the path is ``-``.

    Raises:
        DataError: If it is missing, cannot be read, is empty, is not UTF-8 text, or has a line of
            more than 64 Mi bytes, which ends the reading.
    """
    is_standard = once and path == STANDARD
    if not (is_standard or path.is_file() or (once and is_stream(path))):
        raise DataError(f"no file {str(path)!r}; check the path")
    try:
        is_packed = path.suffix.lower() == ".gz"
        with (
            contextlib.nullcontext(sys.stdin.buffer)
            if is_standard
            else gzip.open(path)
            if is_packed
            else path.open("rb")
        ) as stream:
            data = _joined(_checked(_blocks(stream, path, is_packed), path))
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{str(path)!r} is truncated or not of gzip: {error}") from error
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    if not re.search(rb"\S", data):
        raise DataError(f"{str(path)!r} is empty")
    return data


def _joined(blocks: Iterator[bytes]) -> bytes | mmap.mmap:
    """All blocks: in memory, or in a file that ends with the process where they are many."""
    buffer = io.BytesIO()  # a join would hold all blocks beside the whole
    for block in blocks:
        buffer.write(block)
        if on_disk.is_large(buffer.tell()):
            break
    else:
        return buffer.getvalue()
    with tempfile.TemporaryFile(buffering=0) as file:
        for block in itertools.chain([buffer.getvalue()], blocks):
            with on_disk.refused("the text of a table"):
                file.write(block)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _checked(blocks: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """The blocks of a text in UTF-8, without its byte order mark.

    Raises:
        DataError: If it is of another kind.
    """
    decoder, start = codecs.getincrementaldecoder("utf-8")(), 0
    for number, block in enumerate(itertools.chain(blocks, [b""])):
        if not number:
            for beginning, kind in OTHER_KINDS.items():
                if block.startswith(beginning):
                    raise DataError(f"{str(path)!r} is {kind}")
        text = block if number else block.removeprefix(codecs.BOM_UTF8)
        pending = len(decoder.getstate()[0])  # of a letter that the block before begins
        try:
            if pending or not text.isascii():
                decoder.decode(text, final=not text)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{str(path)!r} is not UTF-8 text (byte {start - pending + error.start}); save it "
                "as UTF-8"
            ) from error
        start += len(text)
        yield text


def check_packing(
    num_fields: int, path: Path, remedy: str = "unpack it or write it as CSV"
) -> None:
    """Refuse a packed file that declares far more than such files hold.

    Args:
        num_fields: Numbers or bytes of text that it holds.
        path: The file.
        remedy: What to do with one that holds them all the same.

    Raises:
        DataError: If they are more than 200 for each of its bytes, and many.
    """
    if num_fields > max(BLOCK, PACKED * path.stat().st_size):
        raise DataError(
            f"{str(path)!r} unpacks to more than {PACKED} times its size: it is no table; if it "
            f"is one, {remedy}"
        )


def _blocks(stream: BinaryIO | gzip.GzipFile, path: Path, is_packed: bool) -> Iterator[bytes]:
    length = total = 0  # bytes of the line so far, and of all
    while block := stream.read(BLOCK):
        total += len(block)
        if is_packed:
            check_packing(total, path)
        end = max(block.rfind(b"\n"), block.rfind(b"\r"))
        length = length + len(block) if end < 0 else len(block) - end - 1
        if length > LONGEST_LINE:
            raise DataError(
                f"{str(path)!r} has a line of more than {LONGEST_LINE:,} bytes: it is no table "
                "with a row a line"
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
    numbers, num_columns = array("d"), 0
    for line, row in enumerate(io.StringIO(read_text(path), newline=None), start=1):
        fields = row.split()
        num_columns = num_columns or len(fields)
        if fields and len(fields) != num_columns:
            raise DataError(
                f"{str(path)!r}, line {line}: expected {num_columns} columns as in the lines "
                f"above, got {len(fields)}; is the file truncated?"
            )
        try:
            numbers.extend(map(to_number, fields))
        except ValueError as error:
            raise DataError(f"{str(path)!r}, line {line}: {error}") from error
    return np.array(numbers).reshape(-1, num_columns)


def to_number(text: str) -> float:
    """The number that a field is; ``1_000`` is one to Python alone.

    Raises:
        ValueError: If it is none.
    """
    try:
        return float(text.replace("_", "?"))
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def read_rows(path: Path, below: int = EXACT) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Read whole numbers >= 0, one or more a line: an index file.

    Args:
        path: Text file.
        below: The least number that is too large: that of the rows or columns there are.

    Returns:
        int64 ``[n]``.

    Raises:
        DataError: As :func:`read_table`, or if a number is out of range or not whole.
    """
    table = read_table(path).ravel()
    bad = np.flatnonzero(~((table >= 0) & (table < below) & (table == np.round(table))))
    if len(bad):
        limit = f" .. {below - 1}" if below < EXACT else ""
        raise DataError(
            f"{str(path)!r} must hold whole numbers from 0{limit}, got {table[bad[0]]:.17g} "
            f"(number {bad[0] + 1})"
        )
    return table.astype(np.int64)
