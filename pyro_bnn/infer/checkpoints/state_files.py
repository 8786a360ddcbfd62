"""Files of a checkpoint: written whole or not at all, and read without trust."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, NamedTuple

from pyro_bnn.errors import FileFormatError, OptionError, OutputError
from pyro_bnn.files.atomic import whole
from pyro_bnn.files.tensors import pour, read_tensors

LIMIT = 1 << 20  # bytes of a file of JSON
BLOCK = 1 << 20  # bytes that are read at once


class Written(NamedTuple):
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


# Writing


def write_state(state: dict[str, Any], path: Path) -> Written:
    """Write nested dicts and lists of tensors and plain values; see :func:`pour`.

    Raises:
        OptionError: If the state holds something else, which could not be read back safely.
        OSError: If the file cannot be written; what was there is as it was.
    """
    try:
        return _write(path, lambda file: pour(state, file))
    except (TypeError, UnicodeEncodeError) as error:
        raise OptionError(
            f"a checkpoint cannot hold this state, as nothing in it is pickled: {error}; run "
            "without checkpoint, or with an optimizer whose state is tensors and numbers"
        ) from error


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
    return Written(sink.size, sink.hash.hexdigest())


class _Sink:
    """A file that counts and hashes what is written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.hash, self.size = file, hashlib.sha256(), 0

    def write(self, content: bytes | memoryview) -> None:
        self.file.write(content)
        self.hash.update(content)
        self.size += len(content)


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


def read_state(path: Path, expected: Written) -> dict[str, Any]:
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
    return read_tensors(path)


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


def _checksum(values: dict[str, Any]) -> str:
    text = json.dumps({k: v for k, v in values.items() if k != "checksum"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
