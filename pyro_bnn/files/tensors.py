"""Files that may say anything: what is read of them is checked before memory is taken for it.

Tensors are in the archives of ``torch.save``: a zip of a pickle and of one record a storage. The
pickle is not executed but read through first, and holds nothing but dicts and lists of tensors,
numbers, strings and None; each tensor lies in the file as long as it says it is.
"""

from __future__ import annotations

import json
import mmap
import os
import re
import struct
import sys
import zipfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from pyro_bnn import memory
from pyro_bnn.errors import FileFormatError, OutputError
from pyro_bnn.files.atomic import output
from pyro_bnn.files.pickles import PICKLE_BYTES, check_pickle

TEXT_BYTES = 32 << 20  # a JSON of 100,000 named columns has a third of it
NUM_RECORDS = 50_000
DIRECTORY_BYTES = 8 << 20
SHARED = 16  # tensors of one storage, as tied weights are, count once each

_END = struct.Struct("<4sQ2H2I4Q 4sIQI 4s4H2IH")  # of a zip64 archive without a comment
_NAME = re.compile(r"[^/\\]+/(data\.pkl|byteorder|version|data/\d+|\.[A-Za-z_./]+)", re.ASCII)


def read_json(path: Path) -> Any:
    """What a JSON file in UTF-8 holds.

    Raises:
        FileFormatError: If it is missing, no regular file, too large, or no JSON.
    """
    if not path.is_file():  # a pipe would block, a device might never end
        raise FileFormatError(f"{path} does not exist or is not a file")
    try:
        if (size := path.stat().st_size) > TEXT_BYTES:
            raise FileFormatError(
                f"{path} has {memory.readable(size)}, more than the {memory.readable(TEXT_BYTES)} "
                "that are read of a JSON file"
            )
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error
    return parse_json(text, str(path))


def parse_json(text: str, where: str) -> Any:
    """What a JSON text holds, as :func:`json.loads` reads it.

    Raises:
        FileFormatError: If it is too long, nested too deeply, or no JSON.
    """
    if len(text) > TEXT_BYTES:
        raise FileFormatError(f"{where} is longer than {memory.readable(TEXT_BYTES)}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{where} cannot be read: {error}") from error


def write_tensors(document: dict[str, Any], path: Path) -> None:
    """Write a document that :func:`read_tensors` reads, whole or not at all.

    Links are followed, and what is no regular file is written to; see :func:`.files.output`.

    Args:
        document: Dicts and lists of tensors, numbers, strings and None.
        path: The file, in a folder that exists.

    Raises:
        OutputError: If it cannot be written, or holds what would not be read again.
    """
    if not path.name:
        raise OutputError(f"cannot write {str(path)!r}: it names no file")
    crc = torch.serialization.get_crc32_options()
    try:
        torch.serialization.set_crc32_options(True)
        with output(path) as partial:
            with partial.open("xb") as file:
                torch.save(_with(_whole, document), file)
            _records(partial)
    except (OSError, RuntimeError) as error:  # torch makes a RuntimeError of a disk that is full
        cause = error if isinstance(error, OSError) else error.__context__
        if not isinstance(cause, OSError):
            raise
        raise OutputError(f"cannot write {path}: {cause.strerror}") from error
    except FileFormatError as error:
        raise OutputError(f"cannot write {path}: {error}") from error
    finally:
        torch.serialization.set_crc32_options(crc)


def read_tensors(path: Path, *, mapped: Collection[str] = ()) -> dict[str, Any]:
    """Read a document of ``torch.save``; nothing in it is executed.

    Args:
        path: The file.
        mapped: Keys of the document whose tensors stay in the file where it is large; those are
            not read through, and a checksum that is wrong there is not found.

    Returns:
        The document: dicts and lists of tensors on the CPU, numbers, strings and None.

    Raises:
        FileFormatError: If it is missing, no regular file, no such archive, damaged, or declares
            more than it holds.
    """
    if not path.is_file():
        raise FileFormatError(f"{path} does not exist or is not a file")
    try:
        size = path.stat().st_size
        records = _records(path)
        stays = size > memory.STORED_DRAWS and bool(mapped)
        _check_sums(path, records, most=memory.STORED_DRAWS if stays else size)
        document = _mapped(path)
        _check_tensors(document, size)
        return {
            key: value if stays and key in mapped else _in_memory(value)
            for key, value in document.items()
        }
    except FileFormatError:
        raise
    except Exception as error:  # of zipfile, zlib and torch: whatever a damaged file makes of them
        raise FileFormatError(f"{path} cannot be read as tensors: {_first_line(error)}") from error


# The archive


def _records(path: Path) -> list[zipfile.ZipInfo]:
    with path.open("rb") as file:
        return check_archive(path, file)


def check_archive(path: Path, file: IO[bytes]) -> list[zipfile.ZipInfo]:
    """The records of an archive as torch writes it, after its pickle has been looked through.

    The directory stands at the end, nothing is compressed, and no two names could be taken for one
    another, so that torch finds the records that were checked here.

    Args:
        path: The file, for messages.
        file: The same, open to be read.

    Raises:
        FileFormatError: If it is another archive, or its pickle makes anything but dicts and lists
            of tensors, numbers, strings and None.
    """
    foreign = FileFormatError(f"{path} is truncated, or is not a file saved by this package")
    size = file.seek(0, os.SEEK_END)
    if size < _END.size:
        raise foreign
    file.seek(size - _END.size)
    end = _END.unpack(file.read(_END.size))
    count, length, start = end[7], end[8], end[9]
    is_whole = (end[0], end[10], end[14]) == (b"PK\x06\x06", b"PK\x06\x07", b"PK\x05\x06")
    if not is_whole or end[12] != size - _END.size or start + length != end[12]:
        raise foreign
    if count > NUM_RECORDS or length > DIRECTORY_BYTES:
        raise FileFormatError(f"{path} declares {count} records, more than {NUM_RECORDS}")
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            _check_records(path, records, count, start)
            for record in records:
                kind = record.filename.partition("/")[2]
                if kind in ("data.pkl", "byteorder") and record.file_size > PICKLE_BYTES:
                    much = memory.readable(record.file_size)
                    raise FileFormatError(f"{path} has {much} beside its tensors")
                if kind == "data.pkl":
                    check_pickle(path, archive.read(record))
                elif kind == "byteorder" and archive.read(record) != sys.byteorder.encode():
                    raise FileFormatError(f"{path} was written on a machine of other byte order")
    except (zipfile.BadZipFile, ValueError, RuntimeError, NotImplementedError, EOFError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{path} cannot be read as tensors: {_first_line(error)}") from error
    return records


def _check_records(path: Path, records: list[zipfile.ZipInfo], count: int, start: int) -> None:
    names = [record.filename for record in records]
    folder = names[0].partition("/")[0] if names else ""
    is_fine = (
        len(names) == count
        and len({name.lower() for name in names}) == count
        and f"{folder}/data.pkl" in names
        and all(
            _NAME.fullmatch(record.orig_filename)
            and record.orig_filename == record.filename
            and ".." not in record.filename
            and record.filename.startswith(f"{folder}/")
            and record.compress_type == zipfile.ZIP_STORED
            and record.file_size == record.compress_size
            and record.header_offset + record.file_size <= start
            for record in records
        )
        and sum(record.file_size for record in records) <= start
    )
    if not is_fine:
        raise FileFormatError(
            f"{path} is damaged, or is not a file saved by this package: its records are not those "
            "of torch.save"
        )


def _check_sums(path: Path, records: list[zipfile.ZipInfo], *, most: int) -> None:
    """Read records of up to so many bytes through, against their checksums."""
    with zipfile.ZipFile(path) as archive:
        for record in records:
            if record.file_size <= most:
                with archive.open(record) as content:
                    while content.read(1 << 20):
                        pass


# The tensors


def _mapped(path: Path) -> Any:
    """The document as views of the file, which take no memory and cannot grow beyond it."""
    load: Any = torch.load
    try:
        return load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:  # Linux refuses a private map of a file larger than the memory
        if "mmap" not in str(error):
            raise
        with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
            return load(path, map_location="cpu", weights_only=True, mmap=True)


def _check_tensors(document: Any, size: int) -> None:
    if not isinstance(document, dict):
        raise TypeError("it is not a document of this package")
    tensors = list(_tensors(document))
    if any(value.nbytes > value.untyped_storage().nbytes() for value in tensors):  # of stride 0
        raise ValueError("it is damaged, as a tensor in it is longer than its storage")
    if sum(value.nbytes for value in tensors) > SHARED * size:
        raise ValueError("it is damaged, as its tensors are larger than the file")


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _in_memory(value: Any) -> Any:
    """The value with copies of its tensors."""
    return _with(lambda tensor: tensor.detach().clone(), value)


def _whole(value: Tensor) -> Tensor:
    """The tensor, or a copy where it is a part of a larger one, which would be written with it."""
    is_whole = value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
    return (
        value.detach() if is_whole else value.detach().clone(memory_format=torch.contiguous_format)
    )


def _with(fn: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A value with a function of its tensors in their place, and lists and dicts of its own."""
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, dict):
        return {key: _with(fn, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_with(fn, item) for item in value]
        return items if isinstance(value, list) else tuple(items)
    return value


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
