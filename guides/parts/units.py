"""Where the weights whose input units are dropped stand in z, and a model's own noise of masks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """A weight, a site of noise, or neighbouring sites that are neither.

    Attributes:
        length: Number of its entries of z.
        weight: Number of the weight among the weights; None of the others.
        shape: O, I and the number of entries of the kernel, of a weight.
        is_spatial: Whether the weight has a kernel, as that of a convolution.
        is_noise: Whether it is a site of noise.
    """

    length: int
    weight: int | None = None
    shape: tuple[int, int, int] = (0, 0, 0)
    is_spatial: bool = False
    is_noise: bool = False

    @property
    def num_units(self) -> int:
        """How many numbers a draw of it takes: one an input unit, or one an entry of noise."""
        return self.length if self.is_noise else self.shape[1]


class Units(NamedTuple):
    """The parts of z, in order."""

    parts: tuple[Part, ...]

    @classmethod
    def of(
        cls,
        sites: Sequence[tuple[str, Sequence[int], int]],
        weights: Sequence[str],
        noise: Sequence[str],
        inputs_first: Collection[str] = (),
    ) -> Units:
        """The parts of sites (name, shape, length), of which some are weights, some noise.

        Weights ``[I, O, *kernel]``, named in ``inputs_first``, count as one output of a kernel of O
        times as many entries.
        """
        parts: list[Part] = []
        for name, shape, length in sites:
            if name in weights:
                is_spatial = len(shape) > 2
                O, I, *kernel = (1, *shape) if name in inputs_first else shape  # noqa: E741
                sizes = (O, I, math.prod(kernel))
                parts.append(Part(length, weights.index(name), sizes, is_spatial))
            elif name in noise:
                parts.append(Part(length, is_noise=True))
            elif parts and parts[-1].weight is None and not parts[-1].is_noise:
                parts[-1] = Part(parts[-1].length + length)
            else:
                parts.append(Part(length))
        return cls(tuple(parts))

    @property
    def num_units(self) -> int:
        """How many numbers a draw takes."""
        return sum(part.num_units for part in self.parts)

    @property
    def num_others(self) -> int:
        """Number of entries of z that are neither of a weight nor noise."""
        return sum(p.length for p in self.parts if p.weight is None and not p.is_noise)

    def without_noise(self, z: Tensor) -> Tensor:
        """The entries ``[P - U]`` of z ``[P]`` that are no noise."""
        pieces = z.split([part.length for part in self.parts])
        own = [v for v, part in zip(pieces, self.parts, strict=True) if not part.is_noise]
        return torch.cat([z[:0], *own])

    def pieces(self, own: Tensor) -> Iterator[tuple[Part, Tensor]]:
        """Each part with its entries of ``own [P - U]``; zeros of noise."""
        values = iter(own.split([part.length for part in self.parts if not part.is_noise]))
        for part in self.parts:
            yield part, own.new_zeros(part.length) if part.is_noise else next(values)

    def draws(self, own: Tensor, units: Tensor, mask: Callable[[Part, Tensor], Tensor]) -> Tensor:
        """Z ``[..., P]``: noise as it is, and weights times the masks of their inputs.

        Args:
            own: Entries ``[P - U]`` that are no noise.
            units: Numbers ``[..., M]``, one a unit.
            mask: Maps a weight and the numbers ``[..., I]`` of its inputs to their factors.
        """
        numbers = iter(units.split([p.num_units for p in self.parts if p.num_units], -1))
        drawn = []
        for part, value in self.pieces(own):
            if part.is_noise:
                drawn.append(next(numbers))
            elif part.weight is None:
                drawn.append(value.expand(*units.shape[:-1], -1))
            else:
                factor = mask(part, next(numbers))[..., None, :, None]
                drawn.append((value.view(part.shape) * factor).flatten(-3))
        return torch.cat(drawn, -1)
