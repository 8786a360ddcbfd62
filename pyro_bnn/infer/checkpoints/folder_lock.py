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
"""The locked file on Windows, which cannot lock folders. It stays when the run has ended."""


@contextmanager
def locked(folder: Path, refusal: str | None = None) -> Iterator[int]:
    """Lock an existing folder until the block or the process ends, however it ends.

    The folder itself is locked where the system can do that, so that no lock file is left over.
    On a network file system the lock excludes runs on the same machine only. On a disk without
    locks nothing is locked.

    Args:
        folder: The folder.
        refusal: The error's message if another run holds the lock; None for one on saving.

    Yields:
        The descriptor of the locked file or folder.

    Raises:
        OptionError: If another run holds the lock.
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
            unlock_descriptor(handle)  # closing alone would leave the lock to forked children
        os.close(handle)
