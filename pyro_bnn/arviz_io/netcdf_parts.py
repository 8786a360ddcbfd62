"""NetCDF files of trees whose large arrays lie in mapped files: copied a part at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyro_bnn.files.pages import is_mapped, let_go

if TYPE_CHECKING:
    from xarray import DataArray, DataTree

PART_BYTES = 16 << 20  # copied at once
DRAWS_TOGETHER = 64  # in one block of the file, so that all draws of a row are read from few
BLOCK_BYTES = 1 << 20


def write_tree(
    tree: DataTree, path: Path, encoding: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> None:
    """Write a tree; what is in memory as xarray does, and arrays of mapped files by parts.

    Args:
        tree: The tree.
        path: The new file.
        encoding: How to store the variables of each group, as ``DataTree.to_netcdf`` takes it.
    """
    from xarray import DataTree

    large = {node.path: _of_files(node) for node in tree.subtree}
    if not any(large.values()):
        tree.to_netcdf(path, engine="h5netcdf", encoding=encoding)
        return
    rest = DataTree.from_dict(
        {
            node.path: node.to_dataset(inherit=False).drop_vars(list(large[node.path]))
            for node in tree.subtree
        }
    )
    of_rest = {
        group: {name: how for name, how in names.items() if name not in large[group]}
        for group, names in encoding.items()
    }
    rest.to_netcdf(path, engine="h5netcdf", encoding=of_rest)
    _append(path, large)


def _of_files(node: DataTree) -> dict[str, DataArray]:
    """The variables of a group that are views of mapped files."""
    return {
        str(name): array
        for name, array in node.data_vars.items()
        if array.dtype.kind in "iuf" and array.ndim > 1 and is_mapped(array.values)
    }


def _append(path: Path, large: Mapping[str, Mapping[str, DataArray]]) -> None:
    import h5netcdf

    with h5netcdf.File(path, "a") as file:
        for group, arrays in large.items():
            for name, array in arrays.items():
                node, values = file[group], array.values
                for dim, size in zip(array.dims, values.shape, strict=True):
                    if dim not in node.dimensions:
                        node.dimensions[dim] = size
                block = _block(values)
                variable = node.create_variable(
                    name,
                    array.dims,
                    values.dtype,
                    chunks=block,
                    compression="gzip",
                    compression_opts=1,
                    shuffle=True,
                )
                variable.attrs.update(array.attrs)
                for part in _parts(values, block):
                    variable[part] = np.ascontiguousarray(values[part])
                    let_go(values)


def _block(values: NDArray[Any]) -> tuple[int, ...]:
    """Shape of one block of the file ``[1, s, n, ...]``."""
    _, num_draws, *rows = values.shape
    draws = min(num_draws, DRAWS_TOGETHER)
    if not rows:
        return (1, num_draws)
    of_row = values.itemsize * draws * int(np.prod(rows[1:]))
    return (1, draws, max(1, min(rows[0], BLOCK_BYTES // of_row)), *rows[1:])


def _parts(values: NDArray[Any], block: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Parts of whole blocks, each of which is written once."""
    per_block = values.itemsize * int(np.prod(block))
    steps = list(block)
    if len(steps) > 2:
        steps[2] *= max(1, PART_BYTES // per_block)
    starts = np.ndindex(*(-(-size // step) for size, step in zip(values.shape, steps, strict=True)))
    for start in starts:
        yield tuple(slice(i * step, (i + 1) * step) for i, step in zip(start, steps, strict=True))
