"""Output files: checked before the work, written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import tempfile
import warnings
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyro_bnn.errors import BNNWarning, OutputError
from pyro_bnn.files import followed, is_stream, output

OF_A_RUN = ("*.nc", "split-*-seed-*/")


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
    with _refused(folder), tempfile.TemporaryFile(dir=there):
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
    with _refused(folder):
        folder.mkdir(parents=True, exist_ok=True)
    check_writable(folder)
    return folder


@contextmanager
def _refused(folder: str | Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write to the folder {str(folder)!r}: {error.strerror or error}; "
            "choose another output folder"
        ) from error


def check_file(path: Path) -> None:
    """Checks that a file can be written, as `check_writable` does its folder; or a device or pipe.

    Raises:
        OutputError: If it cannot; says why.
    """
    try:
        if is_stream(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return
        folder = followed(path).parent
    except OSError as error:
        raise OutputError(
            f"cannot write {str(path)!r}: {error.strerror or error}; choose another output path"
        ) from error
    check_writable(folder)


def write_text(path: Path, text: str) -> None:
    """Writes a text file in UTF-8; an old file stays until the new one is complete.

    Raises:
        OutputError: If it cannot be written; says why.
    """
    with written(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """A path to write to, whose contents are at ``path`` in the end; its folder is made.

    Links are followed, and what is no regular file is written to; see `pyro_bnn.files.output`.

    Raises:
        OutputError: If it cannot be written; says why.
    """
    try:
        if not is_stream(path):
            followed(path).parent.mkdir(parents=True, exist_ok=True)
        with output(path) as partial:
            yield partial
    except OSError as error:
        raise OutputError(
            f"cannot write {str(path)!r}: {error.strerror or error}; choose another output path"
        ) from error


def warn_of_others(folder: Path, own: Collection[str]) -> None:
    """Warns of posteriors and reports in a folder that are not of the run that wrote to it.

    Args:
        folder: Folder of the output.
        own: Names of the NetCDF files and of the folders of single runs that the run has written.
    """
    found = {path.name for pattern in OF_A_RUN for path in folder.glob(pattern)}
    if others := sorted(found.difference(own)):
        warnings.warn(
            f"the folder {str(folder)!r} also holds {', '.join(others)}, which this run did not "
            "write: left from an earlier one, and mixed into what reads the whole folder, as "
            "'pyro-bnn report FOLDER/*.nc' does; delete them, or choose another output folder",
            BNNWarning,
            stacklevel=3,
        )


def file_names(names: Iterable[str]) -> dict[str, str]:
    """File names (without suffix) of methods: kebab-case, letters and digits, all different.

    Example:
        >>> file_names(["AutoLowRankMultivariateNormal", "NUTS", "mean field", "mean/field"])
        {'AutoLowRankMultivariateNormal': 'auto-low-rank-multivariate-normal', 'NUTS': 'nuts', \
'mean field': 'mean-field', 'mean/field': 'mean-field-2'}
    """
    found: dict[str, str] = {}
    for name in names:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", name)
        stem = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "method"
        unique, count = stem, 1
        while unique in found.values():
            count += 1
            unique = f"{stem}-{count}"
        found[name] = unique
    return found
