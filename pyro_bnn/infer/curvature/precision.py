r"""Gaussians by their precision: diagonal, dense, or of low rank plus a diagonal."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from pyro_bnn.errors import DivergenceError
from pyro_bnn.guides import AutoMultivariateNormal, AutoNormal
from pyro_bnn.guides.low_rank_precision import AutoLowRankPrecision
from pyro_bnn.guides.parts.capacitance import capacitance_tril


class Diagonal:
    """Independent Gaussians.

    Args:
        values: Precisions ``[P]``.

    Raises:
        DivergenceError: If one is not positive.
    """

    def __init__(self, values: Tensor) -> None:
        if not bool((values > 0).all()):
            raise not_positive()
        self.values = values
        self.noise_dim = len(values)

    def deviations(self, noise: Tensor) -> Tensor:
        """Draws less their mean, ``[S, P]``, of noise ``[S, M]``."""
        return noise * self.values.rsqrt()

    def solve(self, values: Tensor, damping: float = 0.0) -> Tensor:
        """The inverse of the precision times values ``[P]``; damping is added to the precision."""
        return values / (self.values + damping)

    def variance(self) -> Tensor:
        """Marginal variances ``[P]``."""
        return self.values.reciprocal()

    def log_det(self) -> Tensor:
        """Log determinant of the precision, ``[]``."""
        return self.values.log().sum()

    def make_guide(self, model: Any) -> AutoNormal:
        """A guide of this family."""
        return AutoNormal(model)

    def set(self, guide: Any, mean: Tensor) -> None:
        """Make such a guide the Gaussian of this precision."""
        with torch.no_grad():
            guide.loc.copy_(mean)
        guide.scale = self.values.double().rsqrt().to(guide.loc)


class Dense:
    """One Gaussian of all correlations.

    Args:
        matrix: Its precision ``[P, P]``.

    Raises:
        DivergenceError: If it is not positive definite.
    """

    def __init__(self, matrix: Tensor) -> None:
        tril, info = torch.linalg.cholesky_ex(matrix)
        self.tril: Tensor = tril
        if int(info) != 0 or not bool(self.tril.isfinite().all()):
            raise not_positive()
        self.matrix = matrix
        self.noise_dim = len(matrix)

    def deviations(self, noise: Tensor) -> Tensor:
        """Draws less their mean, ``[S, P]``, of noise ``[S, M]``."""
        root: Tensor = torch.linalg.solve_triangular(self.tril, noise, upper=False, left=False)
        return root

    def solve(self, values: Tensor, damping: float = 0.0) -> Tensor:
        """The inverse of the precision times values ``[P]``; damping is added to the precision."""
        if damping == 0.0:
            return torch.cholesky_solve(values.unsqueeze(-1), self.tril).squeeze(-1)
        damped = self.matrix + damping * torch.eye(len(values), dtype=values.dtype).to(values)
        solved: Tensor = torch.linalg.solve(damped, values)
        return solved

    def variance(self) -> Tensor:
        """Marginal variances ``[P]``."""
        return torch.cholesky_inverse(self.tril).diagonal()

    def log_det(self) -> Tensor:
        """Log determinant of the precision, ``[]``."""
        return 2 * self.tril.diagonal().log().sum()

    def make_guide(self, model: Any) -> AutoMultivariateNormal:
        """A guide of this family."""
        return AutoMultivariateNormal(model)

    def set(self, guide: Any, mean: Tensor) -> None:
        """Make such a guide the Gaussian of this precision."""
        guide.set_moments(mean, torch.cholesky_inverse(self.tril))


class LowRank:
    r"""Precision :math:`U U^\top + \mathrm{diag}(d)`.

    Args:
        diagonal: d ``[P]``, > 0.
        factor: U ``[P, R]``.

    Raises:
        DivergenceError: If the diagonal is not positive.
    """

    def __init__(self, diagonal: Tensor, factor: Tensor) -> None:
        if not bool((diagonal > 0).all()):
            raise not_positive()
        self.diagonal, self.factor = diagonal, factor
        self._scale = diagonal.rsqrt()
        self._scaled = self._scale.unsqueeze(-1) * factor  # [P, R]
        self._tril = capacitance_tril(self._scaled)
        self.noise_dim = sum(factor.shape)

    def deviations(self, noise: Tensor) -> Tensor:
        """Draws less their mean, ``[S, P]``, of noise ``[S, M]``."""
        own, of_factor = noise.split(list(self.factor.shape), -1)
        return self._scale * self._inverse(own + of_factor @ self._scaled.mT)

    def solve(self, values: Tensor, damping: float = 0.0) -> Tensor:
        """The inverse of the precision times values ``[P]``; damping is added to the precision."""
        if damping != 0.0:
            return LowRank(self.diagonal + damping, self.factor).solve(values)
        return self._scale * self._inverse((self._scale * values).unsqueeze(0)).squeeze(0)

    def _inverse(self, rows: Tensor) -> Tensor:
        """Rows ``[S, P]`` times the inverse of the precision in units of ``scale``."""
        inner = torch.cholesky_solve(self._scaled.mT @ rows.mT, self._tril)  # [R, S]
        return rows - (self._scaled @ inner).mT

    def variance(self) -> Tensor:
        """Marginal variances ``[P]``."""
        root: Tensor = torch.linalg.solve_triangular(self._tril, self._scaled.mT, upper=False)
        return self._scale.square() * (1 - root.square().sum(0))

    def log_det(self) -> Tensor:
        """Log determinant of the precision, ``[]``."""
        return self.diagonal.log().sum() + 2 * self._tril.diagonal().log().sum()

    def make_guide(self, model: Any) -> AutoLowRankPrecision:
        """A guide of this family."""
        return AutoLowRankPrecision(model, rank=self.factor.shape[1])

    def set(self, guide: Any, mean: Tensor) -> None:
        """Make such a guide the Gaussian of this precision."""
        with torch.no_grad():
            guide.loc.copy_(mean)
            guide.prec_factor.copy_(self._scaled)
        guide.scale = self._scale.to(guide.loc)


Precision: TypeAlias = Diagonal | Dense | LowRank


def not_positive() -> DivergenceError:
    """That a precision is not one."""
    return DivergenceError("the precision of q is not positive definite")


def largest(W: Tensor, rank: int) -> Tensor:
    """Eigenvectors of the largest eigenvalues of W W^T, times their roots, ``[P, R]``.

    With W^T W v = c v, W v is an eigenvector of W W^T of length sqrt(c).
    """
    if W.shape[0] < W.shape[1]:
        values, vectors = torch.linalg.eigh(W @ W.mT)
        roots: Tensor = vectors[:, -rank:] * values[-rank:].clamp(min=0).sqrt()
        return roots
    _, vectors = torch.linalg.eigh(W.mT @ W)
    scaled: Tensor = W @ vectors[:, -rank:]
    return scaled
