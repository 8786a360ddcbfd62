r"""Low-rank plus diagonal Gaussian, :math:`\Sigma = F F^\top + \mathrm{diag}(d^2)`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor, nn

from pyro_bnn.effects import Model
from pyro_bnn.errors import OptionError
from pyro_bnn.guides.guide import Guide, check_init_scale, positive_parameter


class AutoLowRankMultivariateNormal(Guide):
    r"""Gaussian whose covariance is of rank R plus a diagonal.

    .. math:: z = m + d \circ (C \epsilon_1 + \epsilon_2), \qquad
              \Sigma = F F^\top + \mathrm{diag}(d^2), \; F = \mathrm{diag}(d) C

    With the matrix determinant lemma and Woodbury's identity every density costs O(P R^2). It
    captures the R strongest directions of correlation; misses the others. ``rank=0`` is the
    mean-field family, ``rank=P`` the full covariance.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial standard deviation of every entry of z, > 0, in its units.
        rank: Rank R; default the square root of P, rounded.

    Raises:
        OptionError: If ``rank`` is negative or ``init_scale`` is not positive.

    References:
        Ong, Nott & Smith, "Gaussian Variational Approximation With a Factor Covariance
        Structure", JCGS 2018, arXiv:1701.03208.
    """

    loc: Tensor
    scale: Tensor
    cov_factor: Tensor

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        init_scale: float = 0.01,
        rank: int | None = None,
    ) -> None:
        super().__init__(model, init_loc_fn=init_loc_fn)
        if rank is not None and (not isinstance(rank, int) or rank < 0):
            raise OptionError(f"rank is an integer of at least 0, not {rank!r}")
        self.init_scale = check_init_scale(init_scale)
        self.rank = rank

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [P]``, ``scale [P]`` (the sds d) and ``cov_factor [P, R]`` (C)."""
        if self.rank is None:
            self.rank = round(len(loc) ** 0.5)
        # half of the initial variance in the diagonal, half in the factor
        share = 1.0 if self.rank == 0 else math.sqrt(0.5)
        generator = torch.Generator(loc.device).manual_seed(0)
        factor = torch.randn(
            len(loc), self.rank, generator=generator, dtype=loc.dtype, device=loc.device
        )
        self.loc = nn.Parameter(loc)
        self.scale = positive_parameter(torch.full_like(loc, share * self.init_scale))
        self.cov_factor = nn.Parameter(factor / math.sqrt(max(self.rank, 1)))

    def options(self) -> dict[str, Any]:
        """``init_scale`` and ``rank``."""
        return {"init_scale": self.init_scale, "rank": self.rank}

    @property
    def noise_dim(self) -> int:
        """R + P."""
        return self.cov_factor.shape[1] + self.num_latents

    def transport(self, noise: Tensor) -> Tensor:
        """``loc + scale * (cov_factor eps1 + eps2)``, ``[..., P]``."""
        rank = self.cov_factor.shape[1]
        u = noise[..., :rank] @ self.cov_factor.mT + noise[..., rank:]
        return self.loc + self.scale * u

    def log_prob(self, z: Tensor) -> Tensor:
        """Log q(z) ``[...]`` of z ``[..., P]``, at O(P R^2)."""
        self.require_setup()
        C = self.cov_factor
        u = (z - self.loc) / self.scale
        chol = self._capacitance_tril()
        v = torch.linalg.solve_triangular(chol.mT, (u @ C).unsqueeze(-2), upper=True, left=False)
        squared: Tensor = u.square().sum(-1) - v.squeeze(-2).square().sum(-1)
        half_log_det = self._half_log_det(chol)
        return -0.5 * squared - half_log_det - 0.5 * self.num_latents * math.log(2 * math.pi)

    def entropy(self) -> Tensor:
        r""":math:`\tfrac12 \log\det\Sigma + \tfrac P2 (1 + \log 2\pi)`."""
        half_log_det = self._half_log_det(self._capacitance_tril())
        return half_log_det + 0.5 * self.num_latents * (1 + math.log(2 * math.pi))

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Means and marginal standard deviations, each ``[P]``."""
        return self.loc, self.scale * (1 + self.cov_factor.square().sum(-1)).sqrt()

    def get_posterior(self) -> Distribution:
        """The Gaussian over z ``[P]``."""
        self.require_setup()
        scale = self.scale
        return dist.LowRankMultivariateNormal(
            self.loc, scale.unsqueeze(-1) * self.cov_factor, scale.square()
        )

    def _capacitance_tril(self) -> Tensor:
        """Cholesky factor ``[R, R]`` of I + C^T C."""
        C = self.cov_factor
        eye = torch.eye(C.shape[1], dtype=C.dtype, device=C.device)
        chol: Tensor = torch.linalg.cholesky(eye + C.mT @ C)
        return chol

    def _half_log_det(self, chol: Tensor) -> Tensor:
        return self.scale.log().sum() + chol.diagonal().log().sum()
