"""Where compiled code is kept for the next process: a folder to which nobody but this user writes.

It is loaded and run. Inductor's own default has a name that anyone may take first, in the folder
for temporary files of all users.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from pyro_bnn.errors import OutputError
from pyro_bnn.files.private import private_folder

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"  # Inductor's
STEPS = "pyro_bnn"  # folder of steps in C in that of Inductor
ELF = struct.Struct("<4s36xQ10xHH2x")  # its mark; place, item size and number of section headers

logger = logging.getLogger("pyro_bnn")


def cache_folder() -> Path:
    """The folder that ``TORCHINDUCTOR_CACHE_DIR`` names, else one of the user's cache directory.

    Of one to which others can write a warning says so, and code is kept until the process ends.
    """
    named = os.environ.get(VARIABLE)
    try:
        own = named or platformdirs.user_cache_path("pyro_bnn") / "compiled"
    except RuntimeError as error:  # a user without a name, as in a container
        return _until_the_end(str(error))
    folder = Path(own).absolute()
    try:
        for part in (folder, folder / STEPS):
            with private_folder(part):
                pass
    except OutputError as error:
        return _until_the_end(str(error))
    return folder


@functools.cache
def _until_the_end(reason: str) -> Path:
    """A folder of this process, and why there is no other."""
    logger.warning(
        "compiled code is not kept for the next run: %s; set %s to a folder of your own, to which "
        "nobody else can write",
        reason,
        VARIABLE,
    )
    folder = tempfile.TemporaryDirectory(prefix="pyro-bnn-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def use_for_inductor() -> None:
    """Let Inductor keep its code there, and drop libraries that a stopped compiler left cut."""
    folder = cache_folder()
    os.environ[VARIABLE] = str(folder)
    for path in folder.glob("*/*.main.so"):
        lock = folder / "locks" / f"{path.name.partition('.')[0]}.lock"
        with suppress(OSError, Timeout), FileLock(lock, timeout=0):  # one being written is cut too
            if _is_cut(path):
                path.unlink()


def _is_cut(path: Path) -> bool:
    """Whether a library of Linux lacks its end, where its section headers stand."""
    with path.open("rb") as file:
        head = file.read(ELF.size)
    if len(head) < ELF.size:
        return True
    mark, start, size, count = ELF.unpack(head)
    return bool(mark == b"\x7fELF" and path.stat().st_size < start + size * count)
