"""A lock of a checkpoint's folder, so that two runs do not save to one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_bnn.errors import OptionError

if sys.platform != "win32":
    import fcntl


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder, which exists, until the end of the block or of the process, however it ends.

    The folder itself is locked, so that no end of a run leaves a file of it. On a network file
    system that tells apart runs of one machine. Where the disk knows no locks, nothing is held.

    Raises:
        OptionError: If another run holds it.
    """
    if sys.platform == "win32":  # where runs are not told apart
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OptionError(
                    f"another run is saving to {folder}: wait for its end, or pass another folder"
                ) from None
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)  # which reaches forked children too
        os.close(handle)
