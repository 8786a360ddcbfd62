r"""Mass matrix of Hamiltonian Monte Carlo, diagonal or diagonal plus low rank, for all chains.

.. math:: M^{-1} = L L^\top, \qquad L = \mathrm{diag}(s)\,(I + B\,\mathrm{diag}(t - 1)\,B^\top)

with scales s, a few orthonormal directions B and their stretches t. It is estimated from draws z
*and* their gradients: for a Gaussian with covariance :math:`\Sigma` the gradients of
:math:`U = -\log p` are :math:`\Sigma^{-1} (z - \mu)`, so the noise of a few draws is common to
both and cancels in their ratio. These are the minimisers of the Fisher divergence between the
whitened posterior and N(0, I).

Chains share one matrix, but **variances are within chains**. Chains of a network sit in different
modes, equal up to symmetries. The total variance of z would be the distance between modes, that of
the gradients, which are local, still the width of one; their ratio makes steps far too long in
every weight whose sign or place differs between chains.

References:
    Seyboldt, Carlson & Carpenter, "Preconditioning Hamiltonian Monte Carlo by Minimizing Fisher
    Divergence", 2026, arXiv:2603.18845 (the estimators of nutpie).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

SMALLEST, LARGEST = 1e-10, 1e10  # bounds of scale^2
MAX_ROWS = 512  # draws that the directions are estimated from


class Mass(NamedTuple):
    r"""Inverse mass matrix by its factor L, and products with it.

    With whitened momenta :math:`p = L^\top r \sim \mathcal N(0, I)` a leapfrog step of size
    :math:`\epsilon` is

    .. math:: p \leftarrow p - \tfrac\epsilon2 L^\top \nabla U(z), \quad
              z \leftarrow z + \epsilon L p, \quad
              p \leftarrow p - \tfrac\epsilon2 L^\top \nabla U(z)

    Attributes:
        scale: Scales s ``[P]``, > 0, in the units of z; ``[C, P]`` where each chain has its own.
        basis: Directions B ``[P, R]``, orthonormal columns or zero ones; None for a diagonal.
        stretch: Stretches t ``[R]``, > 0; 1 where the direction is zero.
    """

    scale: Tensor
    basis: Tensor | None = None
    stretch: Tensor | None = None

    def velocity(self, p: Tensor) -> Tensor:
        """L p for whitened momenta ``[..., P]``."""
        return self.scale * self._stretched(p)

    def force(self, grad: Tensor) -> Tensor:
        """Transposed L times gradients ``[..., P]``."""
        return self._stretched(self.scale * grad)

    def whitened(self, z: Tensor) -> Tensor:
        """Differences y ``[..., P]`` of which those of positions z are L y."""
        y = z / self.scale
        if self.basis is None or self.stretch is None:
            return y
        return y + ((y @ self.basis) * (1 / self.stretch - 1)) @ self.basis.mT

    def padded(self, rank: int) -> Mass:
        """The diagonal part with ``rank`` zero directions: the shapes of a low-rank matrix."""
        basis = self.scale.new_zeros(self.scale.numel(), rank)
        return Mass(self.scale, basis, self.scale.new_ones(rank))

    def _stretched(self, p: Tensor) -> Tensor:
        if self.basis is None or self.stretch is None:
            return p
        return p + ((p @ self.basis) * (self.stretch - 1)) @ self.basis.mT


def from_gradients(grad: Tensor, *, each: bool = False) -> Mass:
    r"""Diagonal matrix before there are draws: :math:`s_j^2 = (\frac1C \sum_c g_{cj}^2)^{-1/2}`.

    At one standard deviation sd from the mode of a Gaussian this is sd: half-way between no scaling
    and the right one, sd^2. The rule of nutpie, with a root mean square over chains.

    Args:
        grad: Gradients at the chains' starts ``[C, P]``; an entry that is 0 in all chains or not
            finite in one gets scale 1.
        each: Whether each chain gets a scale of its own.
    """
    squares = grad.double().square()
    inverse_mass = (squares if each else squares.mean(0)).rsqrt().to(grad.dtype)
    known = inverse_mass.isfinite() & (inverse_mass > 0)
    return Mass(torch.where(known, inverse_mass, 1.0).clamp(SMALLEST, LARGEST).sqrt())


def diagonal(z: Tensor, grad: Tensor, previous: Mass, chains: Tensor) -> Mass:
    r"""Diagonal matrix from draws and their gradients.

    .. math:: s_j^2 = \sqrt{ \mathrm{Var}(z_j) / \mathrm{Var}(\partial_j U) }

    Variances are within chains, pooled over them (see above); with one chain index for all rows
    they are total variances. Modes of different widths get the geometric mean of the extremes.
    Where the previous scale is ``[C, P]``, chains of densities that have nothing to do with each
    other, each has a matrix of its own, by its own variances.

    Args:
        z: Draws ``[n, P]``.
        grad: Gradients of U at the draws ``[n, P]``.
        previous: Its scale stays where no chain moved, or a variance is not finite.
        chains: Index of each row's chain ``[n]``; rows in any order, chains of any length.
    """
    squares = _centred(z, chains).square(), _centred(grad, chains).square()
    if previous.scale.ndim == 1:
        return Mass(_scale(squares[0].sum(0), squares[1].sum(0), previous)[0])
    none = torch.zeros_like(previous.scale)
    x, g = (none.index_add(0, chains, values) for values in squares)
    return Mass(_scale(x, g, previous)[0])


def of_draws(z: Tensor, grad: Tensor, previous: Mass, chains: Tensor) -> Mass:
    """A matrix of the kind of the previous one; see :func:`diagonal` and :func:`low_rank`."""
    if previous.basis is None:
        return diagonal(z, grad, previous, chains)
    return low_rank(z, grad, previous, chains, rank=previous.basis.shape[1])


def low_rank(
    z: Tensor,
    grad: Tensor,
    previous: Mass,
    chains: Tensor,
    *,
    rank: int,
    cutoff: float = 2.0,
    gamma: float = 1e-5,
) -> Mass:
    r"""Diagonal plus low-rank matrix from draws and their gradients.

    With X and G the draws and gradients scaled by the diagonal estimate, an orthonormal Q
    ``[P, 2 rank]`` spans the directions in which the scaled posterior is farthest from N(0, I),
    by the rows' share of the Fisher divergence: the first singular vectors of X - G. On it

    .. math:: \Sigma\, C_G\, \Sigma = C_X, \qquad
              C_X = \mathrm{Cov}(X Q) + \gamma I, \quad C_G = \mathrm{Cov}(G Q) + \gamma I

    so that :math:`\Sigma` is the geometric mean of :math:`C_X` and :math:`C_G^{-1}`. Its
    eigenvectors with the eigenvalues farthest from 1 become the directions.

    nutpie's Q spans all rows of X and G. With fewer draws than weights the covariances on it are
    singular; X - G needs few draws, because a direction that the diagonal explains cancels in it.

    Never forms ``[P, P]``: takes at most 512 rows n, evenly from every chain, and works with
    ``[n, n]`` products of rows and ``[2 rank, 2 rank]`` covariances.

    Args:
        z: Draws ``[n, P]``.
        grad: Gradients of U at the draws ``[n, P]``.
        previous: As in :func:`diagonal`; a weight that keeps its scale takes no part in B.
        chains: Index of each row's chain ``[n]``.
        rank: Columns of the basis; those not needed are zero, with stretch 1.
        cutoff: Eigenvalues between 1 / cutoff and cutoff, cutoff > 1, count as 1.
        gamma: Regularisation of the covariances, in units of the scaled weights.
    """
    x, g = _centred(z, chains), _centred(grad, chains)
    scale, known = _scale(x.square().sum(0), g.square().sum(0), previous)
    rows = _thinned(chains)
    freedom = len(rows) - len(chains.unique())  # of the covariances within chains
    width = min(2 * rank, freedom // 2, scale.numel())
    if width < 1:
        return Mass(scale).padded(rank)
    if len(rows) < len(chains):
        x, g = _centred(z[rows], chains[rows]), _centred(grad[rows], chains[rows])
    x, g = torch.where(known, x / scale, 0.0), torch.where(known, g * scale, 0.0)
    q = torch.linalg.qr(_first_singular_vectors(x - g, width))[0]  # [P, 2 rank]
    values, vectors = torch.linalg.eigh(
        _geometric_mean(_covariance(x @ q, freedom, gamma), _covariance(g @ q, freedom, gamma))
    )
    size = values.log().abs()
    order = size.argsort(descending=True)[:rank]
    far = size[order] > math.log(cutoff)
    stretch = torch.where(far, values[order].sqrt(), 1.0).to(scale.dtype)
    basis = (q @ vectors[:, order].to(q.dtype)) * far
    missing = rank - len(order)
    return Mass(
        scale,
        torch.nn.functional.pad(basis, (0, missing)),
        torch.nn.functional.pad(stretch, (0, missing), value=1.0),
    )


def _centred(rows: Tensor, chains: Tensor) -> Tensor:
    """Rows ``[n, P]`` less the mean of their chain; exactly 0 where a chain stood still."""
    names, chain = chains.unique(return_inverse=True)
    positions = torch.arange(len(chain), device=chain.device)
    first = torch.full_like(names, len(chain)).scatter_reduce(0, chain, positions, "amin")
    rows = rows - rows[first][chain]  # less the first row of each chain
    sums = rows.new_zeros(len(names), rows.shape[1]).index_add(0, chain, rows)  # [C, P]
    rows -= (sums / chain.bincount().unsqueeze(-1))[chain]
    return rows


def _scale(z: Tensor, grad: Tensor, previous: Mass) -> tuple[Tensor, Tensor]:
    """Scale by sums of squares, and which entries they determine, ``[P]`` or ``[C, P]`` each."""
    ratio = (z / grad).sqrt()
    known = ratio.isfinite() & (ratio > 0)
    new = ratio.clamp(SMALLEST, LARGEST).sqrt()
    return torch.where(known, new, previous.scale), known


def _thinned(chains: Tensor) -> Tensor:
    """Indices of at most MAX_ROWS rows, evenly from every chain."""
    by_chain = chains.argsort(stable=True)
    n = len(chains)
    if n <= MAX_ROWS:
        return by_chain
    even: Tensor = by_chain[torch.arange(MAX_ROWS, device=chains.device) * n // MAX_ROWS]
    return even


def _first_singular_vectors(rows: Tensor, width: int) -> Tensor:
    """Right singular vectors ``[P, width]`` of rows ``[n, P]``, up to their lengths."""
    _, vectors = torch.linalg.eigh(rows @ rows.mT)
    return torch.nn.functional.normalize(rows.mT @ vectors[:, -width:], dim=0)


def _covariance(rows: Tensor, freedom: int, gamma: float) -> Tensor:
    """Regularised covariance of centred rows, in double precision."""
    rows = rows.double()
    eye = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    return rows.mT @ rows / freedom + gamma * eye


def _geometric_mean(a: Tensor, b: Tensor) -> Tensor:
    """The positive definite solution S of S b S = a."""
    values, vectors = torch.linalg.eigh(b)
    root = (vectors * values.sqrt()) @ vectors.mT
    inverse_root = (vectors / values.sqrt()) @ vectors.mT
    values, vectors = torch.linalg.eigh(root @ a @ root)
    mean: Tensor = inverse_root @ (vectors * values.sqrt()) @ vectors.mT @ inverse_root
    return mean
