"""Files of a checkpoint: written whole or not at all, and read without trust."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from pyro_bnn.errors import FileFormatError, OptionError, OutputError
from pyro_bnn.files.atomic import whole
from pyro_bnn.files.tensors import check_archive

LIMIT = 1 << 20  # bytes of a file of JSON
BLOCK = 1 << 20  # bytes that are read at once


class Written(NamedTuple):
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


# Writing


def write_state(state: dict[str, Any], path: Path) -> Written:
    """Write nested dicts and lists of tensors and plain values, as ``torch.save`` does.

    Raises:
        OptionError: If the state holds something else, which could not be read back safely.
        OSError: If the file cannot be written; what was there is as it was.
    """
    plain = _plain(state, "state")
    return _write(path, lambda file: torch.save(plain, file))


def write_json(values: dict[str, Any], path: Path) -> None:
    """Write a dictionary of JSON with a checksum of itself.

    Raises:
        OSError: If the file cannot be written, or would be too large to be read; what was there is
            as it was.
    """
    text = json.dumps({**values, "checksum": _checksum(values)}, indent=1).encode()
    if len(text) > LIMIT:
        raise OutputError(
            f"{path} would have {len(text)} bytes, and a manifest has at most {LIMIT}: run a model "
            "with so many sites or outputs without checkpoint"
        )
    _write(path, lambda file: file.write(text))


def _write(path: Path, save: Callable[[Any], object]) -> Written:
    with whole(path) as partial, partial.open("xb") as file:
        sink = _Sink(file)
        save(sink)
        if sink.error is not None:
            raise sink.error
    return Written(sink.size, sink.hash.hexdigest())


class _Sink:
    """A file that counts what is written to it, and keeps an error for later.

    ``torch.save`` turns an error of its file, such as a full disk, into one that does not name it.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.hash, self.size = file, hashlib.sha256(), 0
        self.error: BaseException | None = None

    def write(self, data: bytes) -> int:
        if self.error is None:
            try:
                self.file.write(data)
                self.hash.update(data)
            except BaseException as error:
                self.error = error
        self.size += len(data)
        return len(data)

    def flush(self) -> None:
        pass


def _plain(value: Any, where: str) -> Any:
    """The same without autograd, and without the rest of a tensor of which there is a part."""
    if isinstance(value, Tensor):
        value = value.detach()
        is_whole = value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
        return value if is_whole else value.clone(memory_format=torch.contiguous_format)
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, dict) and all(type(key) in (int, str) for key in value):
        return {key: _plain(entry, f"{where}[{key!r}]") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        entries = [_plain(entry, f"{where}[{i}]") for i, entry in enumerate(value)]
        return tuple(entries) if isinstance(value, tuple) else entries
    raise OptionError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot hold, as nothing in it is "
        "pickled: run without checkpoint, or with an optimizer whose state is tensors and numbers"
    )


# Reading


def read_json(path: Path) -> dict[str, Any] | None:
    """What :func:`write_json` wrote; None if there is no such file.

    Raises:
        FileFormatError: If the file is damaged, or is none that this package wrote.
    """
    if not os.path.lexists(path):
        return None
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LIMIT:
            raise FileFormatError(f"{path} has {size} bytes, and a manifest at most {LIMIT}")
        text = file.read(LIMIT)
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileFormatError(
            f"{path} is truncated, or is no manifest of a checkpoint: {error}"
        ) from error
    if not isinstance(values, dict):
        raise FileFormatError(f"{path} is no manifest of a checkpoint")
    return values


def check_json(values: dict[str, Any], path: Path) -> None:
    """Compare a dictionary with its own checksum.

    Raises:
        FileFormatError: If it differs.
    """
    if values.get("checksum") != _checksum(values):
        raise FileFormatError(f"{path} is damaged: its checksum is not that of its contents")


def read_state(path: Path, expected: Written) -> Any:
    """What :func:`write_state` wrote, on the CPU; no code in the file is run.

    Raises:
        FileFormatError: If the file is missing, or is not the one that is expected.
    """
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != expected.size:
            raise FileFormatError(
                f"{path} is damaged: it has {size} bytes, and its manifest names {expected.size}"
            )
        digest = hashlib.sha256()
        while block := file.read(BLOCK):
            digest.update(block)
        if digest.hexdigest() != expected.sha256:
            raise FileFormatError(f"{path} is damaged: its checksum is not that of its manifest")
        file.seek(0)
        try:
            _check_sizes(file, size)
            check_archive(path, file)
            file.seek(0)
            state = torch.load(file, map_location="cpu", weights_only=True)
            _check_tree(state)
        except Exception as error:
            reason = str(error).strip().splitlines()[:1]
            raise FileFormatError(
                f"{path} cannot be read as a checkpoint's state: {''.join(reason)}"
            ) from error
    return state


def _open(path: Path) -> IO[bytes]:
    """A regular file, open to be read."""
    flags = os.O_RDONLY
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):  # no links, no waiting for a pipe
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags)
    except OSError as error:
        what = "is a link" if path.is_symlink() else f"cannot be read: {error.strerror}"
        raise FileFormatError(f"{path} {what}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileFormatError(f"{path} is not a file")
    return os.fdopen(handle, "rb")


def _check_sizes(file: IO[bytes], size: int) -> None:
    """Refuse an archive that unpacks to more than it is, which ``torch.save`` never writes."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
    is_packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
    if is_packed or sum(entry.file_size for entry in entries) > size:
        raise ValueError("it is packed, or its parts are larger than the file")


def _check_tree(state: Any) -> None:
    """Refuse what :func:`write_state` never writes and what may grow when it is used.

    That are views, whose size need not be that of their storage, and entries of several parents.
    """
    left, seen = [state], set()
    while left:
        value = left.pop()
        if isinstance(value, Tensor):
            if value.untyped_storage().nbytes() != value.numel() * value.element_size():
                raise ValueError("it holds a view of a tensor")
        elif isinstance(value, dict | list | tuple) and value:
            if id(value) in seen:
                raise ValueError("it holds an entry twice")
            seen.add(id(value))
            left += value.values() if isinstance(value, dict) else value


def _checksum(values: dict[str, Any]) -> str:
    text = json.dumps({k: v for k, v in values.items() if k != "checksum"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
