"""Files are written whole or not at all, and what is no file is written to."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_bnn.errors import OutputError


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A file to be written, which takes the place of another at the end of the block.

    What was there stays until then, and after an error. A link is replaced and not followed. At the
    end the disk has the contents and the name, so that a reader finds the old or the new even after
    a power cut. A process that is killed leaves ``.NAME.xxxxxxxx.tmp`` beside it.

    Args:
        path: The file, in a folder that exists.

    Yields:
        A path of the same folder, where nothing is yet.

    Raises:
        OSError: If it cannot be written.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield partial
        with partial.open("r+b") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink()
    _sync_folder(path.parent)


@contextlib.contextmanager
def output(path: Path, *, follow: bool = True) -> Iterator[Path]:
    """A file to be written, whose contents are at the end of the block where a path leads.

    Links are followed. A regular file is replaced, see :func:`whole`; a device or pipe stays what
    it is and gets the contents, a pipe when somebody reads it.

    Args:
        path: The file, in a folder that exists.
        follow: Whether the user chose this name. One of the package's own, in an output folder, is
            replaced whatever it is: others may have put a link there.

    Yields:
        A path where nothing is yet.

    Raises:
        OSError: If it cannot be written.
    """
    if not follow or not is_stream(path):
        with whole(followed(path) if follow else path) as partial:
            yield partial
        return
    with tempfile.TemporaryDirectory() as folder:
        partial = Path(folder, path.name)
        yield partial
        sink = os.fdopen(os.open(path, os.O_WRONLY), "wb")
        with partial.open("rb") as source, sink:
            shutil.copyfileobj(source, sink)


def is_stream(path: Path) -> bool:
    """Whether a path leads to what is neither a file nor a folder: a device, a pipe.

    Raises:
        OSError: If it cannot be looked up, as a link to itself.
    """
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def followed(path: Path) -> Path:
    """The path itself, or where it leads if it is a link, be there something or not."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _sync_folder(folder: Path) -> None:
    """Wait until the folder's names are on the disk, where folders can be opened."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def check_writable(folder: str | Path) -> None:
    """Checks that files can be written to a folder; call it BEFORE a long fit.

    A folder that does not exist is not made: its first parent that does is checked.

    Args:
        folder: Folder of the output.

    Raises:
        OutputError: If it cannot be made or written; says why.

    Example:
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     check_writable(Path(scratch) / "report")
        ...     (Path(scratch) / "report").exists()
        False
    """
    there = Path(folder).absolute()
    while not os.path.lexists(there):
        there = there.parent
    with _refused(f"to the folder {str(folder)!r}", "folder"), tempfile.TemporaryFile(dir=there):
        pass


def made_folder(folder: str | Path) -> Path:
    """A folder of the output, made with its parents where it does not exist.

    Raises:
        OutputError: If it cannot be made or written; says why.

    Example:
        >>> with tempfile.TemporaryDirectory() as scratch:
        ...     made_folder(Path(scratch) / "report").is_dir()
        True
    """
    folder = Path(folder)
    with _refused(f"to the folder {str(folder)!r}", "folder"):
        folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder)
    return folder


@contextmanager
def _refused(what: str, choose: str) -> Iterator[None]:
    """Errors of the system as one that says what cannot be written, and what to choose anew."""
    try:
        yield
    except OutputError:  # which says it already
        raise
    except OSError as error:
        raise OutputError(
            f"cannot write {what}: {error.strerror or error}; choose another output {choose}"
        ) from error


def check_file(path: Path) -> None:
    """Checks that a file can be written, as `check_writable` does its folder; or a device or pipe.

    Raises:
        OutputError: If it cannot; says why.
    """
    with _refused(repr(str(path)), "path"):
        if is_stream(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        folder = followed(path).parent
    check_writable(folder)


def write_text(path: Path, text: str, *, follow: bool = True) -> None:
    r"""Writes a text file in UTF-8; an old file stays until the new one is complete.

    Args:
        path: The file; see `files.atomic.output`.
        text: Its contents. Bytes of names of files that are no text are written as ``\udcff``.
        follow: As of `output`.

    Raises:
        OutputError: If it cannot be written; says why.
    """
    with written(path, follow=follow) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextmanager
def written(path: Path, *, follow: bool = True) -> Iterator[Path]:
    """A path to write to, whose contents are at ``path`` in the end; its folder is made.

    Links are followed, and what is no regular file is written to, but with ``follow=False``; see
    `files.atomic.output`.

    Raises:
        OutputError: If it cannot be written; says why.
    """
    with _refused(repr(str(path)), "path"):
        if follow and not is_stream(path):
            followed(path).parent.mkdir(parents=True, exist_ok=True)
        with output(path, follow=follow) as partial:
            yield partial
