"""Files of unknown origin: their contents are checked before memory is allocated for them.

Tensors are in files of `safetensors`, which have no code: a header that says where each tensor
lies, checked against the file's size, and the tensors. The metadata of the header hold the rest of
a document as JSON, in which each tensor stands as its name and CRC-32.
"""

from __future__ import annotations

import json
import math
import mmap
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import safe_open
from torch import Tensor

from pyro_bnn import memory
from pyro_bnn.errors import FileFormatError, OutputError
from pyro_bnn.files.atomic import output
from pyro_bnn.files.mapped import bytes_of

TEXT_BYTES = 32 << 20  # names of 100,000 columns take a third of this
HEADER_BYTES = 16 << 20  # 50,000 tensors take about half of this
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_TENSOR, _TUPLE, _DICT = "$tensor", "$tuple", "$dict"


def read_json(path: Path) -> Any:
    """Read a JSON file in UTF-8.

    Raises:
        FileFormatError: If it is missing, no regular file, too large or too deep, or no JSON.
    """
    if not path.is_file():  # a pipe would block, a device might never end
        raise FileFormatError(f"{path} does not exist or is not a file")
    try:
        size = path.stat().st_size
        if size <= TEXT_BYTES:
            return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} cannot be read: {error}") from error
    raise FileFormatError(
        f"{path} has {memory.readable(size)}, more than the {memory.readable(TEXT_BYTES)} that are "
        "read of a JSON file"
    )


def write_tensors(document: dict[str, Any], path: Path) -> None:
    """Write a document that :func:`read_tensors` reads, whole or not at all.

    Links are followed, and devices and pipes are written to directly; see :func:`.files.output`.

    Args:
        document: Dicts, lists and tuples of tensors, numbers, strings and None.
        path: The file, in a folder that exists.

    Raises:
        OutputError: If it cannot be written, or holds a value that `read_tensors` refuses.
    """
    if not path.name:
        raise OutputError(f"cannot write {str(path)!r}: it names no file")
    try:
        with output(path) as partial, partial.open("xb") as file:
            pour(document, file)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    except (TypeError, UnicodeEncodeError) as error:
        raise OutputError(f"cannot write {path}: {error}") from error


def pour(document: dict[str, Any], file: IO[bytes]) -> None:
    """Write a document to an open file.

    Raises:
        OSError: If the file takes no more.
        OutputError: If the document beside its tensors is larger than `read_tensors` allows.
        TypeError, UnicodeEncodeError: If a value is neither a tensor nor plain.
    """
    tensors: dict[str, Tensor] = {}
    text = json.dumps({key: _flat(value, key, tensors) for key, value in document.items()})
    header: dict[str, Any] = {"__metadata__": {"document": text, "crc32": _sum(text)}}
    # largest items first, so that each tensor starts at a multiple of its item size
    names = sorted(tensors, key=lambda name: -tensors[name].itemsize)
    end = 0
    for name in names:
        value, start = tensors[name], end
        end += value.nbytes
        kind, shape = _NAMES[value.dtype], list(value.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    head = json.dumps(header, ensure_ascii=False).encode()  # fails on names that are no Unicode
    head += b" " * (-len(head) % 8)
    if len(head) > HEADER_BYTES:
        much = memory.readable(len(head))
        raise OutputError(f"the document has {much} beside its tensors, more than would be read")
    file.write(len(head).to_bytes(8, "little") + head)
    for name in names:
        file.write(bytes_of(tensors[name]))


def read_tensors(path: Path, *, mapped: Collection[str] = ()) -> dict[str, Any]:
    """Read a document of :func:`write_tensors`; nothing in it is executed.

    Args:
        path: The file.
        mapped: Keys of the document whose tensors stay in the file if it is large. Their
            numbers are not read, so a wrong checksum is not noticed.

    Returns:
        The document: dicts, lists and tuples of tensors on the CPU, numbers, strings and None.

    Raises:
        FileFormatError: If it is missing, no regular file, of another format, damaged, or
            declares more than it holds.
    """
    if not path.is_file():
        raise FileFormatError(f"{path} does not exist or is not a file")
    try:
        return _read(path, mapped)
    except FileFormatError:
        raise
    except Exception as error:  # a damaged file can raise any error in the readers
        raise FileFormatError(f"{path} cannot be read as tensors: {_first_line(error)}") from error


def _read(path: Path, mapped: Collection[str]) -> dict[str, Any]:
    size = path.stat().st_size
    text, tensors = _views(path, size)

    def stays(entry: tuple[str, int]) -> Tensor:
        return tensors.pop(entry[0])

    def copied(entry: tuple[str, int]) -> Tensor:
        value = tensors.pop(entry[0])
        if _crc32(value) != entry[1]:
            raise ValueError(f"the checksum of {entry[0]} is not that of its numbers")
        return value.clone()

    large = mapped if size > memory.STORED_DRAWS else ()
    document = {
        key: _nested(value, stays if key in large else copied)
        for key, value in json.loads(text).items()
    }
    if tensors:
        raise ValueError(f"nothing in it names {', '.join(list(tensors)[:5])}")
    return document


def _views(path: Path, size: int) -> tuple[str, dict[str, Tensor]]:
    """The JSON of a file, and its tensors as views of the file, which take no memory."""
    with path.open("rb") as file:
        head = file.read(8)
    if head[:4] == b"PK\x03\x04":
        raise FileFormatError(
            f"{path} is of torch.save, as an earlier version of this package or another program "
            "wrote it: read it with the version that wrote it, or fit again"
        )
    length = int.from_bytes(head, "little")
    if not 0 < length <= min(HEADER_BYTES, size - 8):
        raise FileFormatError(f"{path} is truncated, or is not a file saved by this package")
    tensors: dict[str, Tensor] = {}
    with safe_open(path, "np") as file:
        metadata, content, end = file.metadata() or {}, _mapped(path, size), 8 + length
        for name in file.offset_keys():
            part, start = file.get_slice(name), end
            dtype, shape = DTYPES[part.get_dtype()], part.get_shape()
            end += math.prod(shape) * dtype.itemsize
            tensors[name] = content[start:end].view(dtype).view(shape)
    if metadata.keys() != {"document", "crc32"}:
        raise FileFormatError(f"{path} is not a file saved by this package")
    if metadata["crc32"] != _sum(metadata["document"]):
        raise ValueError("the checksum of its document is wrong")
    return metadata["document"], tensors


def _mapped(path: Path, size: int) -> Tensor:
    """The bytes of a file as a private memory map: writes to it do not reach the file."""
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)
    except OSError:  # Linux refuses a private map of a file larger than the memory
        with path.open("r+b") as file:
            content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE)
    return torch.frombuffer(content, dtype=torch.uint8)


def _flat(value: Any, where: str, tensors: dict[str, Tensor]) -> Any:
    """A document as JSON, whose tensors go into a dictionary and stand as name and checksum."""
    if isinstance(value, Tensor) and value.dtype in _NAMES and value.layout == torch.strided:
        while where in tensors:
            where += "'"
        tensors[where] = plain = value.detach().cpu().contiguous()
        return {_TENSOR: [where, _crc32(plain)]}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple):
        items = [_flat(item, f"{where}/{place}", tensors) for place, item in enumerate(value)]
        return items if isinstance(value, list) else {_TUPLE: items}
    if isinstance(value, dict) and all(type(key) in (int, str) for key in value):
        pairs = [(key, _flat(item, f"{where}/{key}", tensors)) for key, item in value.items()]
        is_plain = all(isinstance(key, str) and key[:1] != "$" for key in value)
        return dict(pairs) if is_plain else {_DICT: pairs}
    raise TypeError(f"{where!r} is a {type(value).__name__}, neither plain nor a plain tensor")


def _nested(value: Any, tensor: Callable[[Any], Tensor]) -> Any:
    """The inverse of :func:`_flat`."""
    if isinstance(value, list):
        return [_nested(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    if _TENSOR in value:
        return tensor(value[_TENSOR])
    if _TUPLE in value:
        return tuple(_nested(value[_TUPLE], tensor))
    pairs = value[_DICT] if _DICT in value else value.items()
    return {key: _nested(item, tensor) for key, item in pairs}


def _crc32(value: Tensor) -> int:
    return zlib.crc32(bytes_of(value), zlib.crc32(f"{value.dtype}{list(value.shape)}".encode()))


def _sum(text: str) -> str:
    return str(zlib.crc32(text.encode()))


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
