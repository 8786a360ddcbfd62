r"""Matrix-variate Gaussian over each weight matrix, :math:`q(W) = \mathcal{MN}(W \mid M, U, V)`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pyro_bnn.guides.guide import GaussianGuide, positive_parameter
from pyro_bnn.guides.matrix_sites import MatrixGuide
from pyro_bnn.guides.parts.matrices import Layout, fit_scales, pieces, total


class AutoMatrixNormal(MatrixGuide, GaussianGuide):
    r"""Matrix-variate Gaussian over each weight matrix.

    .. math:: W = M + A E B^\top, \quad E_{ij} \sim \mathcal N(0, 1); \qquad
              \mathrm{Cov}(\mathrm{vec}\,W) = V \otimes U, \quad U = A A^\top, \; V = B B^\top

    with A ``[O, O]`` and B ``[I, I]`` lower triangular and of positive diagonals, and vec stacking
    columns: :math:`\mathrm{Cov}(W_{ij}, W_{kl}) = U_{ik} V_{jl}`. Captures correlations between the
    rows and between the columns of one matrix; misses those across matrices, and pays for what it
    captures with standard deviations that are a product :math:`\sqrt{U_{ii}} \sqrt{V_{jj}}`, so
    that it does not contain the mean-field family. No [P, P] matrix is ever made: a draw or a
    density costs O(O^2 I + O I^2) a matrix.

    It covers every real site whose value is a matrix ``[O, I]`` with O and I above 1; all other
    sites (biases, the one row of a single output, scales) are independent Gaussians, as in
    ``AutoNormal``. As (c U, V / c) is the same q for every c > 0, V has determinant 1: U is in the
    units of the weights, squared, and V is without unit.

    Args:
        model: Pyro model with at least one such matrix.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial standard deviation of every entry of z, > 0, in its units.

    Raises:
        OptionError: If ``init_scale`` is not positive.
        SiteError: If the model has no such matrix; names the sites that it has.

    References:
        Louizos & Welling, "Structured and Efficient Variational Deep Learning with Matrix
        Gaussian Posteriors", ICML 2016, arXiv:1603.04733.

    Example:
        >>> from pyro_bnn.models import MLP
        >>> guide = AutoMatrixNormal(MLP(3, hidden=(8,)))
        >>> guide.setup(torch.zeros(1, 3))
        >>> {name: (A.shape, B.shape) for name, (A, B) in guide.scale_trils().items()}
        {'layers.0.weight': (torch.Size([8, 8]), torch.Size([3, 3]))}
    """

    has_correlations = True
    instead = "AutoNormal, or AutoMultivariateNormal for correlations within a vector"

    row_scale: Tensor
    row_entries: Tensor
    log_column_scale: Tensor
    column_entries: Tensor

    # Parameters

    def make_parameters(self, loc: Tensor) -> None:
        r"""Create the means, the independent sds, and the factors of all matrices.

        ``loc [P]``; ``scale`` of the entries outside matrices; and for each matrix,
        grouped by shape: ``row_scale`` (diagonal of A), ``log_column_scale`` (log
        diagonal of B, whose mean has no effect), ``row_entries`` and ``column_entries`` (below
        the diagonals).
        """
        self._layout = layout = Layout.of(self._shapes, self._matrices)
        self.loc = nn.Parameter(loc)
        self.scale = positive_parameter(loc.new_full((layout.num_others,), self.init_scale))
        row_scale = loc.new_full((total(layout.rows),), self.init_scale)
        self.row_scale = positive_parameter(row_scale)
        self.row_entries = nn.Parameter(loc.new_zeros(total(_below(layout.rows))))
        self.log_column_scale = nn.Parameter(loc.new_zeros(total(layout.columns)))
        self.column_entries = nn.Parameter(loc.new_zeros(total(_below(layout.columns))))

    def set_sds(self, sds: Tensor) -> None:
        """Make A and B diagonal with products near ``sds [P]``; other entries get these sds."""
        self.require_setup()
        others, matrices = self._layout.split(sds.to(self.loc))
        rows, columns = [self.loc.new_zeros(0)], [self.loc.new_zeros(0)]
        for S in matrices:
            a, b = fit_scales(S, S.mean(-1, keepdim=True), torch.ones_like(S[:, 0]).unsqueeze(-1))
            logs = b.squeeze(-1).log()  # [G, I]
            columns.append(logs.flatten())
            rows.append((a.squeeze(-1) * logs.mean(-1, keepdim=True).exp()).flatten())
        with torch.no_grad():
            self.log_column_scale.copy_(torch.cat(columns))
            self.row_entries.zero_()
            self.column_entries.zero_()
        self.scale, self.row_scale = others, torch.cat(rows)

    def _factors(self) -> list[tuple[Tensor, Tensor]]:
        """A ``[G, O, O]`` and B ``[G, I, I]`` of each group of matrices."""
        return self.once("factors", self._make_factors)

    def _make_factors(self) -> list[tuple[Tensor, Tensor]]:
        self.require_setup()
        rows, columns = self._layout.rows, self._layout.columns
        logs = pieces(self.log_column_scale, columns)
        column_scales = [(v - v.mean(-1, keepdim=True)).exp() for v in logs]  # of product 1
        A = map(_tril, pieces(self.row_scale, rows), pieces(self.row_entries, _below(rows)))
        B = map(_tril, column_scales, pieces(self.column_entries, _below(columns)))
        return list(zip(A, B, strict=True))

    def scale_trils(self) -> dict[str, tuple[Tensor, Tensor]]:
        """A ``[O, O]`` and B ``[I, I]`` of each matrix by the name of its site, detached."""
        return self.by_site(self._factors())

    # Draws and densities

    def transport(self, noise: Tensor) -> Tensor:
        """``loc + A E B^T`` of each matrix, ``loc + scale * noise`` elsewhere; ``[..., P]``."""
        factors = self._factors()
        others, matrices = self._layout.split(noise)
        deviations = [
            torch.einsum("...gik,gjk->...gij", torch.einsum("gik,...gkj->...gij", A, E), B)
            for E, (A, B) in zip(matrices, factors, strict=True)
        ]  # a product over all draws at once, with no copy of A or B for each
        return self.loc + self._layout.join(self.scale * others, deviations)

    def squared_distance(self, z: Tensor) -> Tensor:
        """Squared length ``[...]`` of the noise that transport sends to z ``[..., P]``."""
        factors = self._factors()
        others, matrices = self._layout.split(z - self.loc)
        noise = [_solve(B, _solve(A, D).mT).mT for D, (A, B) in zip(matrices, factors, strict=True)]
        return self._layout.join(others / self.scale, noise).square().sum(-1)

    def half_log_det(self) -> Tensor:
        r""":math:`\sum \log s_j + \sum_W I \log\det A`."""
        half = self.scale.log().sum()
        row_scales = pieces(self.row_scale, self._layout.rows)
        for (_, num_columns), value in zip(self._layout.groups, row_scales, strict=True):
            half = half + num_columns * value.log().sum()
        return half

    def log_q(self, noise: Tensor) -> Tensor:
        """Log density ``[...]`` of the draws made of noise ``[..., P]``, without a solve."""
        return self.log_density_at(noise.square().sum(-1))

    def marginals(self) -> tuple[Tensor, Tensor]:
        r"""Means and marginal standard deviations :math:`\sqrt{U_{ii} V_{jj}}`, each ``[P]``."""
        matrices = [
            A.square().sum(-1).sqrt().unsqueeze(-1) * B.square().sum(-1).sqrt().unsqueeze(-2)
            for A, B in self._factors()
        ]  # [G, O, I] each
        return self.loc, self._layout.join(self.scale, matrices)


def _below(sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """G and n (n - 1) / 2, the entries below the diagonal, of each (G, n)."""
    return [(count, n * (n - 1) // 2) for count, n in sizes]


def _tril(scale: Tensor, entries: Tensor) -> Tensor:
    r"""Lower triangular ``[G, n, n]``: ``scale [G, n]`` times rows of a unit diagonal.

    Below it stand the entries ``[G, n (n - 1) / 2]`` over :math:`4 \sqrt n`: a row has up to n
    noisy ones, and with this factor one step of Adam changes its norm by a quarter of the learning
    rate, whatever n.
    """
    n = scale.shape[-1]
    i, j = torch.tril_indices(n, n, -1, device=entries.device)
    flat = entries.new_zeros(len(entries), n * n)
    flat = flat.scatter(-1, (i * n + j).expand_as(entries), entries / (4 * math.sqrt(n)))
    eye = torch.eye(n, dtype=entries.dtype, device=entries.device)
    tril: Tensor = scale.unsqueeze(-1) * (flat.unflatten(-1, (n, n)) + eye)
    return tril


def _solve(tril: Tensor, values: Tensor) -> Tensor:
    """L^-1 D of L ``[G, n, n]`` and D ``[..., G, n, m]``, in one solve for all draws."""
    columns = values.movedim((-3, -2), (0, 1))  # [G, n, ..., m]
    solved: Tensor = torch.linalg.solve_triangular(tril, columns.flatten(2), upper=False)
    return solved.reshape(columns.shape).movedim((0, 1), (-3, -2))
