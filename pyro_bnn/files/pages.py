"""Maps of files whose pages leave the process's memory once they have been read."""

from __future__ import annotations

import mmap
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


def mapped(descriptor: int, num_bytes: int, *, is_writable: bool = True) -> mmap.mmap:
    """A shared map of a whole file, which :func:`let_go` knows; private where it is read alone."""
    access = mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_COPY
    made = mmap.mmap(descriptor, num_bytes, access=access)
    _maps.add(made)
    return made


def let_go(values: NDArray[Any]) -> None:
    """Take the pages of the file that an array views, if it views one, out of the memory in use.

    The system keeps them in a cache of its own while it has room, and they come back when they are
    read. An array in memory stays as it is.

    Args:
        values: Any array; where it is of a file of :func:`mapped`, all pages of that file go.
    """
    for made in _maps_of(values):
        if hasattr(mmap, "MADV_DONTNEED"):
            made.madvise(mmap.MADV_DONTNEED)


def is_mapped(values: NDArray[Any]) -> bool:
    """Whether an array views a file of :func:`mapped`."""
    return bool(_maps_of(values))


def _maps_of(values: NDArray[Any]) -> list[mmap.mmap]:
    address = _address(values)
    return [
        made
        for made in list(_maps)
        if 0 <= address - _address(np.frombuffer(made, np.uint8)) < len(made)
    ]


def _address(values: NDArray[Any]) -> int:
    return int(values.__array_interface__["data"][0])
