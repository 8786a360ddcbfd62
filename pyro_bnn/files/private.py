"""Files whose contents are run: nobody but this user can write them, and none is damaged."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_bnn.errors import OutputError
from pyro_bnn.files.atomic import whole

NUM_SUM = 32  # bytes of the checksum at the end of a file, which loaders of programs skip


@contextmanager
def private_folder(folder: Path) -> Iterator[Path]:
    """A folder to which nobody but this user writes, made where there is none.

    Args:
        folder: Where it is.

    Yields:
        A path that leads to it during the block, whatever becomes of the folders that it is in.

    Raises:
        OutputError: If it cannot be made or written, is a link, belongs to another user, or others
            can write to it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        is_link = os.path.islink(folder)  # noqa: PTH114 - pathlib's fails for names too long
        reason = "is a link" if is_link else f"is no folder: {error.strerror}"
        raise OutputError(f"{folder} {reason}") from error
    try:
        if reason := _unsafe(os.fstat(handle)):
            raise OutputError(f"{folder} {reason}")
        if not os.access(folder, os.W_OK):
            raise OutputError(f"{folder} cannot be written to")
        opened = Path(f"/proc/self/fd/{handle}")
        yield opened if opened.exists() else folder
    finally:
        os.close(handle)


def keep(path: Path, content: bytes, key: str) -> None:
    """Write a file that :func:`is_kept` knows again, whole or not at all.

    Args:
        path: The file, in a private folder.
        content: What is run.
        key: What it was made of.

    Raises:
        OSError: If it cannot be written.
    """
    with whole(path) as partial:
        handle = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o700)
        with os.fdopen(handle, "wb") as file:
            file.write(content + _sum(content, key))


def is_kept(path: Path, key: str) -> bool:
    """Whether a file is this user's alone, no link, and holds all that was written for a key."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if _unsafe(status) or not stat.S_ISREG(status.st_mode):
            return False
        content = file.read()
    return content[-NUM_SUM:] == _sum(content[:-NUM_SUM], key)


def _unsafe(status: os.stat_result) -> str:
    """Why others may have written to something, or nothing."""
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written to by others" if status.st_mode & 0o022 else ""


def _sum(content: bytes, key: str) -> bytes:
    return hashlib.sha256(hashlib.sha256(key.encode()).digest() + content).digest()
