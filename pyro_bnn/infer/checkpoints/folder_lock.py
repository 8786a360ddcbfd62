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


class FolderLock:
    """Held from its making until :meth:`release`, or until the process ends, however it does.

    The folder itself is locked, so that no end of a run leaves a file of it. On a network file
    system that tells apart runs of one machine. Where the disk knows no locks, nothing is held.

    Args:
        folder: The folder, which exists.

    Raises:
        OptionError: If another run holds it.
    """

    def __init__(self, folder: Path) -> None:
        handle = None if fcntl is None else _locked(folder)
        # in whatever way a run ends, a second one in the same process is not refused
        self._release = (
            None if handle is None else weakref.finalize(self, _free, handle, os.getpid())
        )

    def release(self) -> None:
        """Give it up; a second call does nothing."""
        if self._release is not None:
            self._release()


def _locked(folder: Path) -> int | None:
    """An open handle of the folder that holds its lock; None where it cannot have one."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise OptionError(
            f"another run is saving to {folder}: wait for its end, or pass another folder"
        ) from None
    except OSError:
        os.close(handle)
        return None
    return handle


def _free(handle: int, process: int) -> None:
    """Unlock, which reaches forked children too."""
    if os.getpid() != process:  # one of these
        return
    with contextlib.suppress(OSError):
        fcntl.flock(handle, fcntl.LOCK_UN)
    os.close(handle)
