"""Numbers in files that are mapped into memory: written plainly, read as tensors.

`numpy.memmap` and `torch.from_file` take no room before they are written, so that a disk that is
full ends the process and not the run.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from pyro_bnn.errors import FileFormatError, OutputError
from pyro_bnn.memory import readable


class MappedFile:
    """A file of known size, whose room is taken at once, so that a run ends in no full disk.

    It is written by plain writes, as the pages of a map that are written count as the process's
    own memory until they reach the disk. Without a path it has no name: nothing is left of it when
    the process ends, even if it is killed.

    Args:
        num_bytes: Size of the file; what is not written yet is zero.
        path: Where the file is or is to be; None for one without a name in the folder for
            temporary files (``TMPDIR``).
        is_whole: Whether there is a file that holds all its numbers: no room is taken, and one
            that may not be written is read.
        what: What the numbers are, in messages.

    Attributes:
        folder: Where the file is.
        num_bytes: Its size.

    Raises:
        FileFormatError: If there is a larger file at ``path``.
        OutputError: If the file cannot be made or opened, or the disk has no room for it.

    Example:
        >>> file = MappedFile(8)
        >>> file.write(torch.tensor([3.0]), 4)
        >>> file.map(torch.float32).tolist()
        [0.0, 3.0]
    """

    def __init__(
        self,
        num_bytes: int,
        path: Path | None = None,
        *,
        is_whole: bool = False,
        what: str = "draws",
    ) -> None:
        self.folder = tempfile.gettempdir() if path is None else str(path.parent)
        self.num_bytes = num_bytes
        self._path, self._what = path, what
        with self._refused():
            self._file: IO[bytes] = _opened(path, is_whole)
            weakref.finalize(self, self._file.close)
            if not is_whole:
                self._reserve()

    def _reserve(self) -> None:
        held = os.fstat(self._file.fileno())
        if held.st_size > self.num_bytes:
            raise FileFormatError(
                f"{self._path} holds {held.st_size} bytes, but {self.num_bytes} of {self._what} "
                "belong there: it is another file"
            )
        taken = held.st_blocks * 512 if hasattr(held, "st_blocks") else held.st_size
        if shutil.disk_usage(self.folder).free < self.num_bytes - taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._file.truncate(self.num_bytes)
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(self._file.fileno(), 0, self.num_bytes)
            except OSError as error:
                # this file system cannot do it
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise

    def write(self, values: Tensor, start: int) -> None:
        """Write numbers ``[...]`` from a byte on.

        Raises:
            OutputError: If the disk takes no more.
        """
        left = bytes_of(values)
        with self._refused():
            self._file.seek(start)
            while left:
                left = left[self._file.write(left) :]

    def sync(self) -> None:
        """Return when the disk has all that was written.

        Raises:
            OutputError: If it could not be written.
        """
        if self._file.writable():
            with self._refused():
                os.fsync(self._file.fileno())

    def map(self, dtype: torch.dtype) -> Tensor:
        """All numbers ``[n]`` of the file, which lives as long as a view of this tensor."""
        access = mmap.ACCESS_WRITE if self._file.writable() else mmap.ACCESS_COPY
        content = mmap.mmap(self._file.fileno(), self.num_bytes, access=access)
        return torch.frombuffer(content, dtype=dtype)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Errors of the system as one that says what cannot be written, and what to do."""
        try:
            yield
        except OSError as error:
            try:
                free = readable(shutil.disk_usage(self.folder).free)
            except OSError:
                free = "an unknown number"
            remedy = (
                "set TMPDIR to a folder with more room before Python starts"
                if self._path is None
                else "choose a folder with more room"
            )
            fewer = "or take fewer rows"
            if self._what == "draws":
                fewer = "keep fewer draws, or raise the bound on memory"
            raise OutputError(
                f"cannot write {readable(self.num_bytes)} of {self._what} to "
                f"{self._path or self.folder}, which has {free} free: {error.strerror or error}; "
                f"{remedy}, {fewer}"
            ) from error


def bytes_of(values: Tensor) -> memoryview:
    """The bytes of numbers ``[...]``, copied only where they do not stand one after the other."""
    flat = values.detach().cpu().flatten()
    if flat.stride() != (1,):  # torch takes a single number of any stride as contiguous
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat.view(torch.uint8).numpy().data


def _opened(path: Path | None, is_whole: bool) -> IO[bytes]:
    """Open a file, made where there is none; a complete one that may not be written, to read."""
    if path is None:
        return tempfile.TemporaryFile(buffering=0)
    if not is_whole:
        path.touch()
    try:
        return path.open("r+b", buffering=0)
    except OSError as error:
        if not is_whole or error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return path.open("rb", buffering=0)
