"""A lock of a checkpoint's folder, so that two runs do not save to one."""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path

from pyro_bnn.errors import OptionError

try:
    import fcntl
except ImportError:  # of Windows, where runs are not told apart
    fcntl = None  # type: ignore[assignment]

NAME = "pyro-bnn.lock"


class FolderLock:
    """Held from its making until :meth:`release`, or until the process ends, however it does.

    The file that carries the lock is removed with it; one that a killed process left means nothing.
    Where the folder cannot be written, or its disk knows no locks, nothing is held.

    Args:
        folder: The folder, which exists.

    Raises:
        OptionError: If another run holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        handle = None if fcntl is None else self._locked()
        # in whatever way a run ends, a second one in the same process is not refused
        self._release = (
            None
            if handle is None
            else weakref.finalize(self, _free, handle, self._path, os.getpid())
        )

    def release(self) -> None:
        """Give it up; a second call does nothing."""
        if self._release is not None:
            self._release()

    def _locked(self) -> int | None:
        while True:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
            try:
                handle = os.open(self._path, flags, 0o666)
            except OSError:
                return None
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                raise OptionError(
                    f"another run is saving to {self._path.parent}: wait for its end, or pass "
                    "another folder"
                ) from None
            except OSError:
                os.close(handle)
                return None
            if _is_at(handle, self._path):
                return handle
            os.close(handle)  # its run ended and removed it between the two calls


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except OSError:
        return False


def _free(handle: int, path: Path, process: int) -> None:
    """Remove the file while it is locked, then unlock it, which reaches forked children too."""
    if os.getpid() != process:  # one of these
        return
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
