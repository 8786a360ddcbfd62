"""Nothing that a command has made is lost: fits are saved as they end, results somewhere else."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_bnn.errors import OutputError
from pyro_bnn.files.atomic import made_folder
from pyro_bnn.infer.checkpoints.folder_lock import locked
from pyro_bnn.report.output.names import FITS, file_names

logger = logging.getLogger("pyro_bnn")

PARTIAL = f".*.{'[0-9a-f]' * 8}.tmp"  # files that are being written
PREFIX = "pyro-bnn-kept-"  # of folders in place of those that cannot be written to


@contextmanager
def locked_folder(out: Path, *, can_go_on: bool = False) -> Iterator[Path]:
    """Keep other commands from a folder of the output until the end of the block or the process.

    The folder of fits in it is locked. Both folders are removed at the end if they are empty. A
    note says where fits are that have ended, after an error or Ctrl-C.

    Args:
        out: The folder.
        can_go_on: Whether a command that Ctrl-C stopped goes on from a checkpoint, which has them.

    Yields:
        The folder of fits in it, which is locked.

    Raises:
        OptionError: If another command writes to it.
        OutputError: If it cannot be made.
    """
    is_new, fits, refusal = not out.exists(), out / FITS, _refusal(out)
    while True:
        with locked(made_folder(fits), refusal) as handle:
            if not _is_still(handle, fits):  # the command before removed it as it ended
                continue
            for path in (*fits.glob(PARTIAL), *out.glob(PARTIAL)):  # of one that was killed
                path.unlink(missing_ok=True)
            try:
                yield fits
            except BaseException as error:
                goes_on = can_go_on and isinstance(error, KeyboardInterrupt)
                if not goes_on and any(fits.iterdir()):
                    logger.warning("fits that have ended are in the folder %r", str(fits))
                raise
            finally:
                for folder in (fits, out) if is_new else (fits,):
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            return


def _refusal(out: Path) -> str:
    return (
        f"another command is writing to the folder {str(out)!r}: wait for its end, or choose "
        "another --out"
    )


def _is_still(handle: int, folder: Path) -> bool:
    """Whether an open folder has its name; what is open on Windows is a file in it, which stays."""
    try:
        return os.name == "nt" or os.path.samestat(os.fstat(handle), folder.stat())
    except FileNotFoundError:
        return False


class EndedFits:
    """Fits on disk from their ends on, until what a command makes of them is written.

    Args:
        out: Folder of the output. They are in its folder ``fits``; one that cannot be written there
            is in another folder, which a note names.
        methods: All names of the methods, but for that of a reference that is yet to be found.
        prefix: Of their files.

    Attributes:
        paths: Where each fit is that has ended.
    """

    def __init__(self, out: Path, methods: Iterable[str], prefix: str = "") -> None:
        self._folder, self._prefix, self._stems = out / FITS, prefix, file_names(methods)
        self.paths: dict[str, Path] = {}

    def keep(self, name: str, write: Callable[[Path], object]) -> None:
        """Write the fit of a method, which has just ended.

        Args:
            name: The method.
            write: Writes its file.
        """
        if name not in self._stems:
            self._stems |= file_names([*self._stems, name])
        file = f"{self._prefix}{self._stems[name]}.safetensors"
        folder, why = write_or_rescue(self._folder, lambda folder: write(folder / file))
        if folder is not None:  # else it is in memory alone
            self.paths[name] = folder / file
        if why:
            logger.warning("the fit of %s: %s", name, why)

    def forget(self, names: Iterable[str]) -> None:
        """Remove the fits of methods whose results are written, and folders that then hold none."""
        for name in names:
            path = self.paths.pop(name, None)
            if path is not None:
                path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # there are others
                    path.parent.rmdir()


def write_or_rescue(folder: Path, write: Callable[[Path], object]) -> tuple[Path | None, str]:
    """Write to a folder, or to one for temporary files, or of the user, where that fails.

    Args:
        folder: Made where it does not exist.
        write: Writes all to the folder that it gets.

    Returns:
        The folder with all of it, None if each of them fails, and why it is another one; empty if
        it is not.
    """
    try:
        write(made_folder(folder))
    except OutputError as error:
        why = str(error)
    else:
        return folder, ""
    for place in (tempfile.gettempdir, Path.cwd, Path.home):
        other = None
        try:
            other = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place()))
            write(other)
        except (OSError, RuntimeError):  # OutputError too; no home
            if other is not None:
                shutil.rmtree(other, ignore_errors=True)
            continue
        return other, f"{why}. It is in the folder {str(other)!r} instead"
    return None, f"{why}. Folders for temporary files take it neither"
