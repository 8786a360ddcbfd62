r"""Matrix-variate Gaussians over the matrices in z, independent Gaussians over its other entries.

.. math:: W = M + A E B^\top, \quad E_{ij} \sim \mathcal N(0, 1); \qquad
          z_j = m_j + s_j \epsilon_j \text{ outside the matrices}

Matrices of equal shape are one batch ``[G, O, I]``. A draw or a density costs O(O^2 I + O I^2) a
matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
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


class MatrixNormals(NamedTuple):
    """Matrix normals over some entries of z, independent Gaussians over the others.

    Attributes:
        layout: Which entries are which.
        loc: Means ``[P]``.
        scale: Standard deviations ``[Q]`` of the independent entries.
        factors: A ``[G, O, O]`` and B ``[G, I, I]`` of each group of matrices.
        half_log_det: Half the log determinant of the covariance of z, ``[]``.
    """

    layout: Layout
    loc: Tensor
    scale: Tensor
    factors: Sequence[tuple[Tensor, Tensor]]
    half_log_det: Tensor

    def draws(self, noise: Tensor) -> Tensor:
        """Z ``[..., P]`` of noise ``[..., P]``."""
        others, matrices = self.layout.split(noise)
        deviations = [
            torch.einsum("...gik,gjk->...gij", torch.einsum("gik,...gkj->...gij", A, E), B)
            for E, (A, B) in zip(matrices, self.factors, strict=True)
        ]  # a product over all draws at once, with no copy of A or B for each
        return self.loc + self.layout.join(self.scale * others, deviations)

    def noise_of(self, z: Tensor) -> Tensor:
        """The noise ``[..., P]`` of draws z ``[..., P]``."""
        others, matrices = self.layout.split(z - self.loc)
        noise = [
            _solve(B, _solve(A, D).mT).mT for D, (A, B) in zip(matrices, self.factors, strict=True)
        ]
        return self.layout.join(others / self.scale, noise)

    def log_prob(self, z: Tensor) -> Tensor:
        """Log density ``[...]`` of z ``[..., P]``."""
        return self.log_prob_of_noise(self.noise_of(z))

    def log_prob_of_noise(self, noise: Tensor) -> Tensor:
        """Log density ``[...]`` of the draws of noise ``[..., P]``."""
        squared = noise.square().sum(-1)
        return -0.5 * squared - self.half_log_det - 0.5 * len(self.loc) * math.log(2 * math.pi)

    def entropy(self) -> Tensor:
        """Entropy ``[]``."""
        return self.half_log_det + 0.5 * len(self.loc) * (1 + math.log(2 * math.pi))

    def sds(self) -> Tensor:
        """Marginal standard deviations ``[P]``."""
        matrices = [
            A.square().sum(-1).sqrt().unsqueeze(-1) * B.square().sum(-1).sqrt().unsqueeze(-2)
            for A, B in self.factors
        ]  # [G, O, I] each
        return self.layout.join(self.scale, matrices)


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


def _solve(tril: Tensor, values: Tensor) -> Tensor:
    """L^-1 D of L ``[G, n, n]`` and D ``[..., G, n, m]``, in one solve for all draws."""
    columns = values.movedim((-3, -2), (0, 1))  # [G, n, ..., m]
    solved: Tensor = torch.linalg.solve_triangular(tril, columns.flatten(2), upper=False)
    return solved.reshape(columns.shape).movedim((0, 1), (-3, -2))
