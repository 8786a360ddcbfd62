r"""Gaussian of independent entries in a basis of its own for the rows and columns of each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pyro_bnn.guides.guide import GaussianGuide


class Layer(NamedTuple):
    """Where a weight ``[O, I]`` and its bias ``[O]`` stand in z.

    Attributes:
        name: Name of the module that owns them.
        entries: Their entries ``[O, I + 1]``, the bias as the last column.
    """

    name: str
    entries: Tensor


def layers_with_bias(sites: Sequence[tuple[str, Sequence[int], int]]) -> list[Layer]:
    """The fully connected layers whose weight and bias are sites (name, shape, first entry)."""
    starts = {name: (tuple(shape), start) for name, shape, start in sites}
    found = []
    for name, (shape, start) in starts.items():
        owner, _, own = name.rpartition(".")
        bias = starts.get(f"{owner}.bias" if owner else "bias")
        if own != "weight" or len(shape) != 2 or bias is None or bias[0] != shape[:1]:
            continue
        weight = torch.arange(start, start + math.prod(shape)).reshape(shape)
        column = torch.arange(bias[1], bias[1] + shape[0]).unsqueeze(-1)
        found.append(Layer(owner, torch.cat([weight, column], -1)))
    return found


class AutoKroneckerBasis(GaussianGuide):
    r"""Independent Gaussians in a basis of the rows and one of the columns of each layer.

    .. math:: [W, b] = M + U (S \circ E) B^\top, \quad E_{ij} \sim \mathcal N(0, 1); \qquad
              \mathrm{Cov}(\mathrm{vec}) = (B \otimes U)\, \mathrm{diag}(S^2)\, (B \otimes U)^\top

    for each layer with a weight ``[O, I]`` and a bias ``[O]``, U ``[O, O]`` and B
    ``[I + 1, I + 1]`` of full rank. All other entries are independent. It is the family of a
    Kronecker-factored curvature plus that of a prior, whose sum is no Kronecker product. It
    captures the correlations that the two bases turn away; misses those across layers.

    The posteriors of ``Laplace(structure="kron")`` are this guide. It works with ``SVI``, but is no
    method of its own.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial standard deviation of every entry of z, > 0, in its units.

    References:
        Ritter, Botev & Barber, "A Scalable Laplace Approximation for Neural Networks", ICLR 2018.
        George et al., "Fast Approximate Natural Gradient Descent in a Kronecker-factored
        Eigenbasis", NeurIPS 2018, arXiv:1806.03884.
    """

    has_correlations = True

    rows: Tensor
    columns: Tensor

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [P]``, ``scale [P]`` (S, in the order of z), and U and B of all layers."""
        super().make_parameters(loc)
        eyes = [(torch.eye(len(i)), torch.eye(i.shape[1])) for _, i in self.layers]
        for name, side in (("rows", 0), ("columns", 1)):
            values = torch.cat([loc.new_zeros(0), *(pair[side].flatten().to(loc) for pair in eyes)])
            setattr(self, name, nn.Parameter(values))

    @property
    def layers(self) -> list[Layer]:
        """The layers that have bases."""
        starts, start = [], 0
        for name, shape, length in self._shapes:
            starts.append((name, shape, start))
            start += length
        return layers_with_bias(starts)

    def bases(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Entries ``[O, I + 1]``, U and B of each layer."""
        layers = self.layers
        U = self.rows.split([len(index) ** 2 for _, index in layers])
        B = self.columns.split([index.shape[1] ** 2 for _, index in layers])
        return [
            (index.to(self.loc.device), u.reshape(len(index), -1), b.reshape(index.shape[1], -1))
            for (_, index), u, b in zip(layers, U, B, strict=True)
        ]

    def set_sds(self, sds: Tensor) -> None:
        """Make ``scale`` these values ``[P]``, and the bases the entries' own."""
        with torch.no_grad():
            for _, U, B in self.bases():
                U.copy_(torch.eye(len(U)))
                B.copy_(torch.eye(len(B)))
        self.scale = sds.to(self.loc)

    def transport(self, noise: Tensor) -> Tensor:
        """Draws z ``[..., P]``; see the class."""
        scaled = self.scale * noise
        for index, U, B in self.bases():
            turned = U @ scaled[..., index] @ B.mT  # [..., O, I + 1]
            scaled = scaled.index_copy(-1, index.flatten(), turned.flatten(-2))
        return self.loc + scaled

    def squared_distance(self, z: Tensor) -> Tensor:
        """That of the noise which is sent to z, ``[...]`` of z ``[..., P]``."""
        u = z - self.loc
        for index, U, B in self.bases():
            left = torch.linalg.solve(U, u[..., index])
            turned = torch.linalg.solve(B, left.mT).mT
            u = u.index_copy(-1, index.flatten(), turned.flatten(-2))
        return (u / self.scale).square().sum(-1)

    def half_log_det(self) -> Tensor:
        r""":math:`\log|\det|` of the map from noise to z."""
        total = self.scale.log().sum()
        for index, U, B in self.bases():
            num_rows, num_columns = index.shape
            total = total + num_columns * torch.linalg.slogdet(U)[1]
            total = total + num_rows * torch.linalg.slogdet(B)[1]
        return total

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Means and marginal standard deviations, each ``[P]``."""
        variance = self.scale.square()
        for index, U, B in self.bases():
            own = U.square() @ variance[index] @ B.square().mT
            variance = variance.index_copy(-1, index.flatten(), own.flatten())
        return self.loc, variance.sqrt()
