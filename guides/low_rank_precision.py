r"""Gaussian whose PRECISION is of low rank plus a diagonal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor, nn

from pyro_bnn.guides.guide import GaussianGuide, fixed_noise
from pyro_bnn.guides.parts.capacitance import capacitance_tril
from pyro_bnn.program.handlers import Model


class AutoLowRankPrecision(GaussianGuide):
    r"""Gaussian whose precision is of rank R plus a diagonal, over all of z.

    .. math:: \Sigma^{-1} = \mathrm{diag}(1/s) (I + V V^\top) \mathrm{diag}(1/s)

    It is told by the data in R directions more than a product of Gaussians is, and is narrow there;
    a covariance of low rank is wide in R directions instead. With :math:`K = I + V^\top V` a
    density costs O(P R^2), and so does a draw, of noise of length P + R,

    .. math:: z = m + s \circ (I + V V^\top)^{-1} (\epsilon_1 + V \epsilon_2), \qquad
              (I + V V^\top)^{-1} = I - V K^{-1} V^\top

    which has the covariance :math:`\Sigma` as that of the noise is :math:`I + V V^\top`. Captures
    the R directions that the data determine best; misses correlations in the others.

    The posteriors of :class:`~pyro_bnn.SLANG` are this guide. It obeys the laws of guides and works
    with ``SVI``, but is no method of its own: ``AutoLowRankMultivariateNormal`` is the family of
    low rank to fit by gradients, of which ``auto-low-rank`` on the command line is short.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial s of every entry of z, > 0, in its units: its standard deviation but in
            R random directions, which start with about twice the precision, as the gradient in a
            factor of 0 is 0.
        rank: Rank R.

    Raises:
        OptionError: If ``init_scale`` is not positive.

    References:
        Mishkin et al., "SLANG: Fast Structured Covariance Approximations for Bayesian Deep Learning
        with Natural Gradient", NeurIPS 2018, arXiv:1811.04504. The draw: Papandreou & Yuille,
        "Gaussian Sampling by Local Perturbations", NeurIPS 2010.
    """

    contains = ("AutoNormal",)
    has_correlations = True
    enlarged_by = "rank"

    factor_param = "prec_factor"
    prec_factor: Tensor

    def __init__(
        self,
        model: Model,
        init_loc_fn: Callable[[dict[str, Any]], Tensor] | None = None,
        init_scale: float = 0.01,
        rank: int = 1,
    ) -> None:
        super().__init__(model, init_loc_fn, init_scale)
        self.rank = rank

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [P]``, ``scale [P]`` (s) and ``prec_factor [P, R]`` (V)."""
        super().make_parameters(loc)
        V = fixed_noise(len(loc), self.rank, loc) / math.sqrt(len(loc))
        self.prec_factor = nn.Parameter(V)  # columns of length about 1

    @property
    def noise_dim(self) -> int:
        """P + R."""
        return self.num_latents + self.rank

    def transport(self, noise: Tensor) -> Tensor:
        """Draws z ``[..., P]``; see the class."""
        V = self.prec_factor
        own, of_factor = noise.split([self.num_latents, self.rank], -1)
        w = own + of_factor @ V.mT  # [..., P]
        root = torch.linalg.solve_triangular(capacitance_tril(V), V.mT, upper=False)  # [R, P]
        z: Tensor = self.loc + self.scale * (w - (w @ root.mT) @ root)
        return z

    def squared_distance(self, z: Tensor) -> Tensor:
        """``|u|^2 + |V^T u|^2`` of ``u = (z - loc) / scale``, ``[...]`` of z ``[..., P]``."""
        u = (z - self.loc) / self.scale
        return u.square().sum(-1) + (u @ self.prec_factor).square().sum(-1)

    def half_log_det(self) -> Tensor:
        r""":math:`\sum_j \log s_j - \tfrac12 \log\det K`."""
        return self.scale.log().sum() - capacitance_tril(self.prec_factor).diagonal().log().sum()

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Means and marginal standard deviations, each ``[P]``."""
        V = self.prec_factor
        root = torch.linalg.solve_triangular(capacitance_tril(V), V.mT, upper=False)
        return self.loc, self.scale * (1 - root.square().sum(0)).sqrt()

    def get_posterior(self) -> Distribution:
        """The Gaussian over z ``[P]``, dense."""
        self.require_setup()
        V = self.prec_factor / self.scale.unsqueeze(-1)
        precision = V @ V.mT + self.scale.square().reciprocal().diag()
        return dist.MultivariateNormal(self.loc, precision_matrix=precision)
