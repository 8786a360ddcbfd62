"""NetCDF files that may say anything: looked at before their arrays are read.

A file may declare arrays of any size, packed a thousandfold or not there at all, links to other
files, and groups that hold themselves. What is declared is added up here, and nothing is read.
"""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from pyro_bnn.errors import FileFormatError

FLOOR = 256 << 20  # bytes of arrays that any file may have
PACKED = 1032  # times its own size that a larger file may have: what deflate makes of equal numbers
NUM_OBJECTS = 10_000
DEPTH = 8
NUM_ATTRIBUTES = 50_000
NUM_STRINGS = 250_000  # the names of 100,000 columns stand there twice
STRING_BYTES = 32 << 20
MOST_REFERENCES = 32  # as many dimensions as an array may have
FILTERS = {1, 2, 3}  # deflate, shuffle, Fletcher's checksum: those that need no plugin


def check_netcdf(path: Path) -> None:
    """Look through the directory of a file.

    Args:
        path: A regular file.

    Raises:
        FileFormatError: If it cannot be opened, links to something, declares more than its size
            allows, or holds what NetCDF files of fits do not; says what.
    """
    import h5py

    try:
        with h5py.File(path, "r") as file:
            _Look(path.stat().st_size).at(file, 0)
    except Exception as error:  # of HDF5: whatever a damaged file makes of it
        reason = str(error).strip().splitlines()[:1]
        raise FileFormatError(
            f"{path} is truncated or not NetCDF: {''.join(reason)}; write it again with save_netcdf"
        ) from error


class _Look:
    """One look at a file, which adds up what is declared.

    Args:
        size: Size of the file in bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.bound = max(FLOOR, min(PACKED * size, _memory()))
        self.num_bytes = self.num_attributes = self.num_strings = self.string_bytes = 0
        self.seen: set[int] = set()

    def at(self, node: Any, depth: int) -> None:
        """Look at a group or an array, and at all in it."""
        import h5py

        self._once(node)
        self._attributes(node)
        if not isinstance(node, h5py.Group):
            self._array(node)
            return
        if depth > DEPTH:
            raise ValueError(f"its groups are nested more than {DEPTH} deep")
        for name in node:
            if not isinstance(node.get(name, getlink=True), h5py.HardLink):
                raise ValueError(f"{name!r:.50} is a link to something else")  # noqa: TRY004
            child = node[name]
            if not isinstance(child, h5py.Group | h5py.Dataset):
                raise ValueError(f"{name!r:.50} is neither a group nor an array")  # noqa: TRY004
            self.at(child, depth + 1)

    def _once(self, node: Any) -> None:
        import h5py

        place = h5py.h5o.get_info(node.id).addr
        if place in self.seen:
            raise ValueError(f"{node.name!r:.50} is in it twice")
        self.seen.add(place)
        if len(self.seen) > NUM_OBJECTS:
            raise ValueError(f"it has more than {NUM_OBJECTS} groups and arrays")

    def _array(self, array: Any) -> None:
        import h5py

        plan, where = array.id.get_create_plist(), f"{array.name!r:.50}"
        layout = plan.get_layout()
        if layout == h5py.h5d.VIRTUAL or plan.get_external_count():
            raise ValueError(f"{where} is a link to another file")
        filters = {plan.get_filter(place)[0] for place in range(plan.get_nfilters())}
        if not filters <= FILTERS:
            raise ValueError(f"{where} is packed in a way that is not known")
        is_text = h5py.check_string_dtype(array.dtype) is not None
        if array.dtype.kind not in "biuf" and not is_text:
            raise ValueError(f"{where} holds {array.dtype}, neither numbers nor text")
        if layout == h5py.h5d.CHUNKED:
            num_chunks = math.prod(
                -(-n // part) for n, part in zip(array.shape, array.chunks, strict=True)
            )
            if num_chunks > NUM_OBJECTS + self.size // 16:
                raise ValueError(f"{where} is in {num_chunks} pieces")
            self._fits(math.prod(array.chunks) * array.dtype.itemsize)  # one at a time
        self._add(array.size * array.dtype.itemsize)
        if array.dtype.kind == "O":
            if filters:  # a block would be unpacked for each of its strings
                raise ValueError(f"{where} holds packed text")
            self._texts(array)

    def _texts(self, array: Any) -> None:
        """Read strings of any length a few at a time, as all may be the same long one."""
        self.num_strings += array.size
        if self.num_strings > NUM_STRINGS or array.ndim > 1:
            raise ValueError(f"{array.name!r:.50} holds {array.size} strings")
        step = max(1, FLOOR // self.size)  # none is longer than the file
        for start in range(0, array.size, step):
            for value in array[start : start + step] if array.ndim else [array[()]]:
                self._text(value)

    def _text(self, value: object) -> None:
        self.string_bytes += len(value) if isinstance(value, str | bytes) else 0
        if self.string_bytes > STRING_BYTES:
            raise ValueError(f"its strings have more than {STRING_BYTES >> 20} MiB")

    def _attributes(self, node: Any) -> None:
        """Attributes are numbers, few strings, and references to dimensions."""
        import h5py

        self.num_attributes += len(node.attrs)
        if self.num_attributes > NUM_ATTRIBUTES:
            raise ValueError(f"it has more than {NUM_ATTRIBUTES} attributes")
        for name in node.attrs:
            attribute = node.attrs.get_id(name)
            count = math.prod(attribute.shape or ())
            self._add(count * attribute.dtype.itemsize)
            if attribute.dtype.kind == "O" and count > MOST_REFERENCES:
                raise ValueError(f"the attribute {name!r:.50} holds {count} values")
            if attribute.dtype.kind == "O" and h5py.check_string_dtype(attribute.dtype):
                self._fits(count * self.size)  # read whole, and all may be the same long one
                for value in np.atleast_1d(node.attrs[name]).ravel():
                    self._text(value)

    def _add(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._fits(self.num_bytes)

    def _fits(self, num_bytes: int) -> None:
        if num_bytes > self.bound:
            raise ValueError(
                f"its arrays have more than {self.bound >> 20} MiB, in a file of {self.size} bytes"
            )


def _memory() -> int:
    """Bytes of memory of this machine, or no bound where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize
