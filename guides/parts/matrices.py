r"""Where weight matrices stand in z, those of equal shape as one batch ``[G, O, I]``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from pyro_bnn.guides.parts.blocks import Blocks


class Layout(NamedTuple):
    """Where the matrices stand in z.

    Attributes:
        blocks: The matrices of one shape are one block, and the other entries are one.
        shapes: The shape (O, I) of each block of matrices, and None; filters ``[O, I, ...]`` are
            one ``[O, I ...]``.
    """

    blocks: Blocks
    shapes: tuple[tuple[int, int] | None, ...]

    @classmethod
    def of(cls, sites: Sequence[tuple[str, list[int], int]], matrices: Sequence[str]) -> Layout:
        """The layout of sites (name, shape, length), of which some are matrices."""
        labels = [
            (shape[0], length // shape[0]) if name in matrices else None
            for name, shape, length in sites
        ]
        blocks = Blocks.of([length for _, _, length in sites], labels)
        return cls(blocks, tuple(dict.fromkeys(labels)))

    @property
    def groups(self) -> dict[tuple[int, int], int]:
        """How many matrices there are of each shape."""
        pairs = zip(self.shapes, self.blocks.sizes, strict=True)
        return {shape: size // math.prod(shape) for shape, size in pairs if shape is not None}

    @property
    def num_others(self) -> int:
        """Number of entries outside the matrices."""
        pairs = zip(self.shapes, self.blocks.sizes, strict=True)
        return sum(size for shape, size in pairs if shape is None)

    @property
    def rows(self) -> list[tuple[int, int]]:
        """G and O of each group."""
        return [(count, shape[0]) for shape, count in self.groups.items()]

    @property
    def columns(self) -> list[tuple[int, int]]:
        """G and I of each group."""
        return [(count, shape[1]) for shape, count in self.groups.items()]

    def split(self, z: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Entries ``[..., Q]`` outside the matrices, and each group ``[..., G, O, I]`` of them."""
        parts = dict(zip(self.shapes, self.blocks.split(z), strict=True))
        others = parts.pop(None, z[..., :0])
        return others, [part.unflatten(-1, (-1, *shape)) for shape, part in parts.items() if shape]

    def join(self, others: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """Z ``[..., P]`` of what ``split`` returns."""
        rest = iter(matrices)
        parts = [others if shape is None else next(rest).flatten(-3) for shape in self.shapes]
        return self.blocks.join(parts)


def total(sizes: Sequence[tuple[int, int]]) -> int:
    """Length of a flat tensor of pieces."""
    return sum(count * n for count, n in sizes)


def pieces(flat: Tensor, sizes: Sequence[tuple[int, int]]) -> list[Tensor]:
    """Tensors ``[G, n]`` that stand one after another in a flat one."""
    parts = flat.split([count * n for count, n in sizes])
    return [part.reshape(size) for part, size in zip(parts, sizes, strict=True)]


def fit_scales(sds: Tensor, A: Tensor, B: Tensor, num_sweeps: int = 200) -> tuple[Tensor, Tensor]:
    r"""Positive factors whose product is near given standard deviations, for all matrices at once.

    .. math:: \min_{A, B} \; \mathrm{KL}\Bigl(\prod_{ij} \mathcal N(0, \sigma_{ij}^2) \Bigm\|
              \prod_{ij} \mathcal N(0, s_{ij}^2)\Bigr), \quad \sigma = A B^\top

    This direction of the KL is that of the ELBO: where a product cannot be all of the sds, it
    widens none of the small ones by much. Each sweep lowers it, by the larger roots of bounds that
    separate the entries (as in non-negative matrix factorisation).

    Args:
        sds: The standard deviations s ``[G, O, I]``, > 0.
        A: Start ``[G, O, R]``, > 0.
        B: Start ``[G, I, R]``, > 0.
        num_sweeps: Updates of each factor.
    """
    A, B, s = A.double(), B.double(), sds.double()
    for _ in range(num_sweeps):
        sigma = A @ B.mT
        A = A * ((sigma.reciprocal() @ B) / ((sigma / s.square()) @ B)).sqrt()
        sigma = A @ B.mT
        B = B * ((sigma.reciprocal().mT @ A) / ((sigma / s.square()).mT @ A)).sqrt()
    return A.to(sds), B.to(sds)
