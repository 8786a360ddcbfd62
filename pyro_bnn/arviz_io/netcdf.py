"""Trees as NetCDF files, written whole, read within a bound of memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyro_bnn.arviz_io.netcdf_checks import check_netcdf
from pyro_bnn.arviz_io.netcdf_parts import write_tree
from pyro_bnn.arviz_io.tree import PLAIN_GROUPS, SAMPLE_GROUPS, VARIABLE_BYTES
from pyro_bnn.errors import (
    DataError,
    FileFormatError,
    OutputError,
)
from pyro_bnn.files.atomic import output

if TYPE_CHECKING:
    from xarray import DataTree


def save_netcdf(tree: DataTree, path: str | os.PathLike[str]) -> None:
    """Write a tree to one NetCDF file, compressed without loss, whole or not at all.

    A failure leaves what was there before; links are followed. Arrays that lie in files are copied
    a part at a time.

    Args:
        tree: The tree; :func:`load_netcdf` returns its values, dtypes, dims, coords and attributes.
        path: The file, in a folder that exists.

    Raises:
        OutputError: If the file cannot be written there.
        DataError: If the tree holds something NetCDF cannot.
    """
    path = Path(path)
    try:
        with output(path) as partial:
            _require_room(partial, tree)
            write_tree(tree, partial, _compression(tree))
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


def load_netcdf(path: str | os.PathLike[str]) -> DataTree:
    """Read a tree from NetCDF into memory; the file is closed again.

    Args:
        path: A file of :func:`save_netcdf` or another ArviZ file.

    Returns:
        The tree, equal to the one that was saved.

    Raises:
        FileFormatError: If the file is missing, truncated, not NetCDF, declares far more than its
            size, links to another file, or has no ArviZ group.
    """
    import xarray as xr

    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"there is no file {path}; expected a NetCDF file of save_netcdf")
    check_netcdf(path)
    try:
        with xr.open_datatree(
            path, engine="h5netcdf", decode_times=False, decode_timedelta=False
        ) as opened:
            tree: DataTree = opened.load().map_over_datasets(lambda data: data.drop_encoding())
    except Exception as error:  # of xarray and HDF5: whatever a damaged file makes of them
        raise FileFormatError(
            f"{path} is truncated or not NetCDF: {error}; write it again with save_netcdf"
        ) from error
    if not set(tree.children) & {*SAMPLE_GROUPS, *PLAIN_GROUPS}:
        raise FileFormatError(
            f"{path} has no group of ArviZ, such as 'posterior'; it has "
            f"{sorted(map(str, tree.children)) or 'none'}"
        )
    return tree


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
