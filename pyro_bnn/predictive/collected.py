"""Results of many draws put together of chunks, in memory or in files, each stored once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from pyro_bnn.files.mapped import MappedFile


class Collected:
    """Tensors ``[S, ...]`` that come in chunks of draws and rows.

    A dimension along which a tensor is expanded stays so, and two that are one tensor stay one.

    Args:
        num_draws: Number of draws S.
        disk: Whether they are written to files without names, which are then read on the CPU.
    """

    def __init__(self, num_draws: int, *, disk: bool = False) -> None:
        self._num_draws, self._disk = num_draws, disk
        self._whole: list[Tensor] = []
        self._files: dict[int, MappedFile] = {}
        self._twins: list[int] = []  # position of the tensor that each one is
        self._shapes: list[torch.Size] = []

    def add(
        self,
        values: Sequence[Tensor],
        start: int,
        *,
        first_row: int = 0,
        num_rows: int = 0,
        axes: Sequence[int | None] = (),
    ) -> None:
        """Take in the tensors ``[s, ...]`` of the draws from ``start`` on.

        Args:
            values: As many each time, alike in all but their number of draws and rows.
            start: Number of the first of these draws.
            first_row: Number of the first of these rows, where they are not all.
            num_rows: Number of all rows N.
            axes: Which dimension of each tensor is that of the rows, None where it has none; left
                out where each chunk has all rows.
        """
        axes = axes or (None,) * len(values)
        if not self._shapes:
            self._make_room(values, num_rows, axes)
        for i, value in enumerate(values):
            if self._twins[i] == i:
                self._put(i, _collapsed(value, self._whole[i]), start, first_row, axes[i])

    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors ``[S, ...]``."""
        full = [
            self._whole[twin].expand(self._num_draws, *shape)
            for twin, shape in zip(self._twins, self._shapes, strict=True)
        ]
        return tuple(full[twin] for twin in self._twins)

    def _make_room(
        self, values: Sequence[Tensor], num_rows: int, axes: Sequence[int | None]
    ) -> None:
        first: dict[object, int] = {}
        for i, (value, axis) in enumerate(zip(values, axes, strict=True)):
            self._twins.append(first.setdefault(identity(value), i))
            shape, stored = list(value.shape), list(collapsed(value).shape)
            if axis is not None:
                stored[axis] = 1 if stored[axis] < shape[axis] else num_rows
                shape[axis] = num_rows
            self._shapes.append(torch.Size(shape[1:]))
            size = (self._num_draws, *stored[1:])
            if self._twins[i] != i:
                self._whole.append(self._whole[self._twins[i]])
            elif self._disk:
                self._files[i] = MappedFile(prod(size) * value.itemsize, what="results")
                self._whole.append(self._files[i].map(value.dtype).view(size))
            else:
                self._whole.append(value.new_empty(size))

    def _put(self, i: int, value: Tensor, start: int, first_row: int, axis: int | None) -> None:
        whole = self._whole[i]
        place = whole[start : start + len(value)]
        if axis is not None and whole.shape[axis] > 1:
            place = place.narrow(axis, first_row, value.shape[axis])
        if not self._disk:
            place.copy_(value)
            return
        cut = 0 if axis is None else axis
        segments = value.flatten(0, cut - 1) if cut > 1 else value
        places = place.flatten(0, cut - 1) if cut > 1 else place
        if place.is_contiguous():
            segments, places = segments.unsqueeze(0), places.unsqueeze(0)
        for segment, at in zip(segments, places, strict=True):
            self._files[i].write(segment, at.storage_offset() * value.itemsize)


def together(
    parts: Iterator[tuple[Tensor, ...]], num_draws: int, *, disk: bool = False
) -> tuple[Tensor, ...]:
    """Chunks ``[s, ...]`` of several tensors as whole tensors ``[S, ...]``."""
    whole, start = Collected(num_draws, disk=disk), 0
    for values in parts:
        whole.add(values, start)
        start += len(values[0])
    return whole.tensors()


def taken(values: Sequence[Tensor], positions: Tensor) -> tuple[Tensor, ...]:
    """The draws ``[s]`` at some positions, of tensors ``[K, ...]`` that stay expanded, and one."""
    made: dict[object, Tensor] = {}
    for value in values:
        if identity(value) not in made:
            some = collapsed(value)[positions]
            made[identity(value)] = some.expand(len(positions), *value.shape[1:])
    return tuple(made[identity(value)] for value in values)


def identity(value: Tensor) -> tuple[object, ...]:
    """What two tensors share that are one."""
    return value.data_ptr(), value.shape, value.stride(), value.dtype


def collapsed(value: Tensor) -> Tensor:
    """One entry of each dimension along which ``[s, ...]`` is expanded."""
    for dim in range(1, value.ndim):
        if value.stride(dim) == 0 and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value


def _collapsed(value: Tensor, like: Tensor) -> Tensor:
    """One entry of each dimension along which ``like`` has one."""
    for dim in range(1, value.ndim):
        if like.shape[dim] == 1 and value.shape[dim] > 1:
            value = value.narrow(dim, 0, 1)
    return value
