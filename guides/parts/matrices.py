r"""Matrix-variate Gaussians over the matrices in z, independent Gaussians over its other entries.

.. math:: W = M + A E B^\top, \quad E_{ij} \sim \mathcal N(0, 1); \qquad
          z_j = m_j + s_j \epsilon_j \text{ outside the matrices}

Matrices of equal shape are one batch ``[G, O, I]``. A draw or a density costs O(O^2 I + O I^2) a
matrix.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """Where the matrices stand in z.

    Attributes:
        stretches: Length of each stretch of z, and its shape (O, I) where it is a matrix; filters
            ``[O, I, ...]`` are one ``[O, I ...]``.
        groups: How many matrices there are of each shape.
    """

    stretches: tuple[tuple[int, tuple[int, ...] | None], ...]
    groups: dict[tuple[int, ...], int]

    @classmethod
    def of(cls, sites: Sequence[tuple[str, list[int], int]], matrices: Sequence[str]) -> Layout:
        """The layout of sites (name, shape, length), of which some are matrices."""
        stretches: list[tuple[int, tuple[int, ...] | None]] = []
        for name, shape, length in sites:
            if name in matrices:
                stretches.append((length, (shape[0], length // shape[0])))
            elif stretches and stretches[-1][1] is None:
                stretches[-1] = (stretches[-1][0] + length, None)
            else:
                stretches.append((length, None))
        groups = Counter(shape for _, shape in stretches if shape is not None)
        return cls(tuple(stretches), dict(groups))

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
        others: list[Tensor] = []
        matrices: dict[tuple[int, ...], list[Tensor]] = {shape: [] for shape in self.groups}
        parts = z.split([length for length, _ in self.stretches], -1)
        for part, (_, shape) in zip(parts, self.stretches, strict=True):
            if shape is None:
                others.append(part)
            else:
                matrices[shape].append(part.unflatten(-1, shape))
        independent = torch.cat(others, -1) if others else z[..., :0]
        return independent, [torch.stack(m, -3) for m in matrices.values()]

    def join(self, others: Tensor, matrices: Sequence[Tensor]) -> Tensor:
        """Z ``[..., P]`` of what ``split`` returns."""
        parts: dict[tuple[int, ...] | None, Iterator[Tensor]] = {
            shape: iter(m.flatten(-2).unbind(-2))
            for shape, m in zip(self.groups, matrices, strict=True)
        }
        lengths = [length for length, shape in self.stretches if shape is None]
        parts[None] = iter(others.split(lengths, -1))
        return torch.cat([next(parts[shape]) for _, shape in self.stretches], -1)


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
        squared = self.noise_of(z).square().sum(-1)
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
