r"""Kronecker-factored curvature of layers, with the prior's added to the products.

Of a row, the Jacobian of a fully connected layer is :math:`g a^\top`, g that of its outputs and a
its inputs with a 1 for the bias. Summed over rows that one factor at a time stands for both,

.. math:: \sum_i (a_i a_i^\top) \otimes (g_i g_i^\top) \approx A \otimes G / N, \qquad
          A = \sum_i a_i a_i^\top, \quad G = \sum_i g_i g_i^\top

exact where g is the same for all rows, as of a linear model. With a prior precision d for each
column the sum is diagonal in the eigenvectors of G and of :math:`D^{-1/2} A D^{-1/2}`.

References:
    Martens & Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate Curvature",
    ICML 2015, arXiv:1503.05671. Ritter, Botev & Barber, ICLR 2018.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_bnn.errors import SiteError
from pyro_bnn.guides.kronecker import AutoKroneckerBasis, Layer

TOLERANCE = 1e-3  # of a layer's Jacobian, in float32
TINY = 1e-300  # where no row of a layer counts


class Factors(NamedTuple):
    """Curvature of the data.

    Attributes:
        diagonal: Of each entry ``[P]``.
        layers: Entries ``[O, I + 1]`` of each layer, its G ``[O, O]`` and the mean A of its inputs'
            products over the rows.
    """

    diagonal: Tensor
    layers: list[tuple[Tensor, Tensor, Tensor]]


def factors_of(
    layers: Sequence[Layer], roots: Iterable[Tensor], weights: Tensor | None = None
) -> Factors:
    """Factors of the roots ``[B, K, P]`` of all rows.

    Args:
        layers: The layers.
        roots: Of some rows after others, times the roots of the rows' weights.
        weights: Weights ``[N]`` of all rows; None for equal ones.

    Raises:
        SiteError: If there is no such layer, or a weight is not of a layer that is applied once.
    """
    if not layers:
        raise SiteError(
            'structure="kron" takes layers with a weight [O, I] and a bias [O], and the model has '
            'none: take "full", "low_rank" or "diagonal"'
        )
    diagonal: Tensor | float = 0.0
    sums: dict[str, list[Any]] = {layer.name: [0.0, 0.0, 0] for layer in layers}
    start = 0
    for some in roots:
        R = some.double()
        w = R.new_ones(len(R)) if weights is None else weights[start : start + len(R)].to(R)
        start += len(R)
        diagonal = diagonal + R.square().sum((0, 1))
        for name, index in layers:
            J = R[..., index.to(R.device)]  # [B, K, O, I + 1]
            g = J[..., -1]  # [B, K, O]
            squared = g.square().sum((1, 2))  # [B]
            seen = squared > 0
            a = torch.einsum("bko,bkoi->bi", g, J)[seen] / squared[seen].unsqueeze(-1)
            gap = (J[seen] - g[seen].unsqueeze(-1) * a[:, None, None, :]).abs().amax()
            if float(gap) > TOLERANCE * float(J.abs().amax()):
                raise SiteError(
                    f"{name}.weight is not of a fully connected layer that is applied once to each "
                    'row, so that its curvature has no Kronecker factors: take "full", "low_rank" '
                    'or "diagonal"'
                )
            own = sums[name]
            own[0] = own[0] + torch.einsum("bko,bkp->op", g, g)
            own[1] = own[1] + (a.mT * w[seen]) @ a
            own[2] += float(w[seen].sum())
    found = [(layer.entries, *sums[layer.name]) for layer in layers]
    assert isinstance(diagonal, Tensor)
    return Factors(diagonal, [(i.to(diagonal.device), G, A / max(n, TINY)) for i, G, A, n in found])


class _OfColumns(NamedTuple):
    """Eigenvalues and eigenvectors of the products A of a layer's inputs over the prior's roots."""

    A: Tensor
    root: Tensor
    values: Tensor
    vectors: Tensor


class Kronecker:
    """A precision of Kronecker factors plus that of a prior, and of other entries a diagonal.

    Args:
        of_data: The factors.
        prior: Precisions ``[P]`` of the prior, the same for all rows of a layer.
        known: What was computed of the inputs' products of earlier ones, by the number of a layer,
            and is of these where the products and the prior are the same; it is brought up to date.

    Raises:
        SiteError: If the prior of a layer differs between its rows.
    """

    def __init__(
        self, of_data: Factors, prior: Tensor, known: dict[int, _OfColumns] | None = None
    ) -> None:
        self.noise_dim = len(prior)
        self._diagonal = of_data.diagonal + prior
        self._layers = []
        known = {} if known is None else known
        for number, (index, G, A) in enumerate(of_data.layers):
            own = prior[index]
            if not torch.allclose(own, own[:1].expand_as(own), rtol=1e-6):
                raise SiteError(
                    'structure="kron" takes a prior with the same scale for all rows of a layer: '
                    'take "full", "low_rank" or "diagonal"'
                )
            root = own[0].sqrt()
            of_rows, U = torch.linalg.eigh(G)
            columns = known.get(number)
            if columns is None or columns.A is not A or not torch.equal(columns.root, root):
                scaled = A / root / root.unsqueeze(-1)
                columns = known[number] = _OfColumns(A, root, *torch.linalg.eigh(scaled))
            of_columns, V = columns.values, columns.vectors
            products = of_rows.clamp(min=0).unsqueeze(-1) * of_columns.clamp(min=0)
            self._layers.append((index, U, V / root.unsqueeze(-1), 1 + products, root))

    def deviations(self, noise: Tensor) -> Tensor:
        """Draws less their mean, ``[S, P]``, of noise ``[S, P]``."""
        out = noise * self._diagonal.rsqrt()
        for index, U, B, values, _ in self._layers:
            own = U @ (noise[:, index] * values.rsqrt()) @ B.mT
            out = out.index_copy(-1, index.flatten(), own.flatten(1))
        return out

    def solve(self, values: Tensor) -> Tensor:
        """The inverse of the precision times values ``[P]``."""
        out = values / self._diagonal
        for index, U, B, own, _ in self._layers:
            turned = U @ ((U.mT @ values[index] @ B) / own) @ B.mT
            out = out.index_copy(-1, index.flatten(), turned.flatten())
        return out

    def variance(self) -> Tensor:
        """Marginal variances ``[P]``."""
        out = self._diagonal.reciprocal()
        for index, U, B, values, _ in self._layers:
            own = U.square() @ values.reciprocal() @ B.square().mT
            out = out.index_copy(-1, index.flatten(), own.flatten())
        return out

    def log_det(self) -> Tensor:
        """Log determinant of the precision, ``[]``."""
        logs = self._diagonal.log()
        for index, _, _, values, root in self._layers:
            own = values.log() + 2 * root.log()  # [O, I + 1]
            logs = logs.index_copy(-1, index.flatten(), own.flatten())
        return logs.sum()

    def make_guide(self, model: Any) -> AutoKroneckerBasis:
        """A guide of this family."""
        return AutoKroneckerBasis(model)

    def set(self, guide: Any, mean: Tensor) -> None:
        """Make such a guide the Gaussian of this precision."""
        scale = self._diagonal.rsqrt()
        with torch.no_grad():
            guide.loc.copy_(mean)
            for (index, U, B, values, _), (_, rows, columns) in zip(
                self._layers, guide.bases(), strict=True
            ):
                scale = scale.index_copy(-1, index.flatten(), values.rsqrt().flatten())
                rows.copy_(U)
                columns.copy_(B)
        guide.scale = scale.to(guide.loc)
