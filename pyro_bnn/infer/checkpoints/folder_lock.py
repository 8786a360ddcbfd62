"""A lock of a folder, so that two runs do not save to one."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_bnn.errors import OptionError

LOCK_FILE = ".lock"
"""On Windows, which locks files only; it stays, and says nothing of a run."""


@contextmanager
def locked(folder: Path, refusal: str | None = None) -> Iterator[int]:
    """Hold a folder, which exists, until the end of the block or of the process, however it ends.

    The folder itself is locked where it can be, so that no end of a run leaves a file of it. On a
    network file system that tells apart runs of one machine. Where the disk knows no locks, nothing
    is held.

    Args:
        folder: The folder.
        refusal: What is said if another run holds it; default that it saves to it.

    Yields:
        A handle of what is locked.

    Raises:
        OptionError: If another run holds it.
    """
    from filelock import lock_descriptor, unlock_descriptor

    if sys.platform == "win32":
        handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    else:
        handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            if not lock_descriptor(handle, blocking=False):
                raise OptionError(
                    refusal
                    or f"another run is saving to {folder}: wait for its end, or pass another "
                    "folder"
                )
        yield handle
    finally:
        with contextlib.suppress(OSError):
            unlock_descriptor(handle)  # which reaches forked children too
        os.close(handle)
