"""Trees as NetCDF files: written whole, and looked through before anything of them is read.

A file may declare arrays of any size, packed a thousandfold or not there at all, links to other
files, and groups that hold themselves. What it declares is added up as bytes of memory, within a
bound that its size and the machine set. Behind the last byte of NetCDF, where its readers do not
look, stands a checksum of all bytes before it: a file without one is of another program, or older.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from pyro_bnn.arviz_io.tree import PLAIN_GROUPS, SAMPLE_GROUPS
from pyro_bnn.errors import DataError, FileFormatError, OutputError
from pyro_bnn.files.atomic import output
from pyro_bnn.files.machine import machine_bytes

if TYPE_CHECKING:
    from xarray import DataTree

VARIABLE_BYTES = 1 << 16  # bytes of a variable's header in a file
FLOOR = 256 << 20  # bytes that any file may declare
LARGEST_PIECE = 256 << 20  # bytes of a chunk, unpacked
PACKED = 1032  # a larger file may declare its size times this, the most that deflate compresses
MARK = b"\npyro_bnn CRC-32 "
BLOCK = 1 << 20  # bytes that are read at once
PIECE_BYTES = 1 << 10  # bytes added for each string or chunk of an array


def save_netcdf(tree: DataTree, path: str | os.PathLike[str], *, follow: bool = True) -> None:
    """Write a tree to one NetCDF file, compressed without loss, whole or not at all.

    A failure leaves what was there before.

    Args:
        tree: The tree; :func:`load_netcdf` returns its values, dtypes, dims, coords and attributes.
        path: The file, in a folder that exists.
        follow: Whether a link is followed, and not replaced.

    Raises:
        OutputError: If the file cannot be written there.
        DataError: If the tree holds something NetCDF cannot.
    """
    path = Path(path)
    try:
        with output(path, follow=follow) as partial:
            _require_room(partial, tree)
            tree.to_netcdf(partial, engine="h5netcdf", encoding=_compression(tree))
            with partial.open("r+b") as file:
                file.write(_seal(file, partial.stat().st_size))
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error}; give a file name in a folder that exists and is "
            "writable, on a disk that is not full"
        ) from error
    except (TypeError, ValueError) as error:
        raise DataError(f"the tree holds what NetCDF cannot store: {error}") from error


def _require_room(path: Path, tree: DataTree) -> None:
    """Take the room that a file may need and give it back: HDF5 crashes where a disk is full.

    Raises:
        OSError: If there is no such room.
    """
    num_variables = sum(len(node.variables) + 1 for node in tree.subtree)
    with path.open("xb") as file:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, int(tree.nbytes) + num_variables * VARIABLE_BYTES)
    path.unlink()


def _compression(tree: DataTree) -> dict[str, dict[str, dict[str, Any]]]:
    """How to write the numbers of each group: a quick pass of zlib, bytes of one rank together."""
    settings = {"zlib": True, "complevel": 1, "shuffle": True}
    return {
        node.path: {
            str(name): dict(settings)
            for name, array in node.data_vars.items()
            if array.ndim and array.size and array.dtype.kind in "iuf"
        }
        for node in tree.children.values()
    }


def load_netcdf(path: str | os.PathLike[str]) -> DataTree:
    """Read a tree from NetCDF into memory; the file is closed again.

    Args:
        path: A file of :func:`save_netcdf` or another ArviZ file.

    Returns:
        The tree, equal to the one that was saved.

    Raises:
        FileFormatError: If the file is missing, damaged, not NetCDF, declares far more than its
            size, links to another file, or has no ArviZ group.
    """
    import h5py
    import xarray as xr

    path = Path(path)
    if not path.is_file():
        if path.is_dir():
            raise FileFormatError(f"{path} is a folder: name its files, such as {path / '*.nc'}")
        raise FileFormatError(
            f"there is no file {path}; expected a NetCDF file of pyro-bnn compare or save_netcdf"
        )
    try:
        _check_seal(path)
        with h5py.File(path, "r") as file:
            _Look(path.stat().st_size).at(file)
        with xr.open_datatree(
            path, engine="h5netcdf", decode_times=False, decode_timedelta=False
        ) as opened:
            tree: DataTree = opened.load().map_over_datasets(lambda data: data.drop_encoding())
    except FileFormatError:
        raise
    except Exception as error:  # of xarray and HDF5: whatever a damaged file makes of them
        reason = str(error).strip().splitlines()[:1]
        raise FileFormatError(
            f"{path} is truncated or not NetCDF: {''.join(reason)}; write it again with pyro-bnn "
            "compare or save_netcdf"
        ) from error
    if not set(tree.children) & {*SAMPLE_GROUPS, *PLAIN_GROUPS}:
        raise FileFormatError(
            f"{path} has no group of ArviZ, such as 'posterior'; it has "
            f"{sorted(map(str, tree.children)) or 'none'}"
        )
    return tree


def _seal(file: IO[bytes], size: int) -> bytes:
    """The mark and CRC-32 of so many first bytes of a file, which is then at their end."""
    found = 0
    for start in range(0, size, BLOCK):
        found = zlib.crc32(file.read(min(BLOCK, size - start)), found)
    return MARK + found.to_bytes(4, "little")


def _check_seal(path: Path) -> None:
    """Checks the checksum of a file that has one.

    Raises:
        FileFormatError: If it is not that of what stands before it.
    """
    size = path.stat().st_size - len(MARK) - 4
    with path.open("rb") as file:
        file.seek(max(0, size))
        end = file.read()
        file.seek(0)
        if end.startswith(MARK) and end != _seal(file, size):
            raise FileFormatError(
                f"{path} is damaged, as its checksum is not that of its contents: take a copy of "
                "it, or write it again"
            )


class _Look:
    """Adds up what a file of some size declares, and reads nothing of it but its strings.

    Attributes:
        bound: Bytes that it may declare.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.bound = max(FLOOR, min(PACKED * size, machine_bytes()))
        self.num_bytes = 0
        self.seen: set[int] = set()

    def at(self, node: Any) -> None:
        """Look at a group or an array, and at all in it.

        Raises:
            ValueError: If they declare more than the bound, link to something, or are of a kind
                that no NetCDF file of a fit has; says what.
        """
        import h5py

        place = h5py.h5o.get_info(node.id).addr
        if place in self.seen:
            raise ValueError(f"{node.name!r:.50} is in it twice")
        self.seen.add(place)
        for name in node.attrs:
            self._attribute(node, name)
        if isinstance(node, h5py.Dataset):
            self._array(node)
            return
        for name in node:
            if not isinstance(node.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"{name!r:.50} is a link to something else")  # noqa: TRY004
            if not isinstance(node[name], h5py.Group | h5py.Dataset):
                raise ValueError(f"{name!r:.50} is neither a group nor an array")  # noqa: TRY004
            self.at(node[name])

    def _attribute(self, node: Any, name: str) -> None:
        import h5py

        attribute = node.attrs.get_id(name)
        count = math.prod(attribute.shape or ())
        self._add(count * attribute.dtype.itemsize)
        if attribute.dtype.kind == "O":  # strings of any length; many may point at one
            self._fits(count * self.size)
            if h5py.check_string_dtype(attribute.dtype):
                self._texts([np.ravel(node.attrs[name])])

    def _array(self, array: Any) -> None:
        import h5py

        where = f"{array.name!r:.50}"
        if array.is_virtual or array.external:
            raise ValueError(f"{where} is a link to another file")
        is_text = h5py.check_string_dtype(array.dtype) is not None
        if array.dtype.kind not in "biuf" and not is_text:
            raise ValueError(f"{where} holds {array.dtype}, neither numbers nor text")
        if is_text and (array.chunks or array.ndim > 1):  # HDF5 unpacks a chunk for each string
            raise ValueError(f"{where} holds text in pieces")
        if array.chunks:
            pieces = (-(-n // part) for n, part in zip(array.shape, array.chunks, strict=True))
            self._add(math.prod(pieces) * PIECE_BYTES)
            if math.prod(array.chunks) * array.dtype.itemsize > LARGEST_PIECE:
                raise ValueError(f"{where} is in pieces of more than {LARGEST_PIECE >> 20} MiB")
        self._add(array.size * array.dtype.itemsize)
        if array.dtype.kind == "O":
            step = max(1, FLOOR // self.size)  # no string is longer than the file
            starts = range(0, array.size, step)
            self._texts(array[i : i + step] if array.ndim else [array[()]] for i in starts)

    def _texts(self, blocks: Iterable[Any]) -> None:
        """Strings, which xarray makes as wide as the longest, of four bytes a character."""
        longest = count = 0
        for block in blocks:
            longest, count = max(longest, *map(len, block)), count + len(block)
            self._fits(count * (PIECE_BYTES + 4 * longest))
        self._add(count * (PIECE_BYTES + 4 * longest))

    def _add(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._fits(self.num_bytes)

    def _fits(self, num_bytes: int) -> None:
        if num_bytes > self.bound:
            raise ValueError(
                f"it declares more than {self.bound >> 20} MiB, in a file of {self.size} bytes"
            )
