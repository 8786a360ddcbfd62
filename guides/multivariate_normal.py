r"""Full-covariance Gaussian, :math:`q(z) = \mathcal N(z \mid m, \Sigma)`."""

from __future__ import annotations

import math

import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor, nn

from pyro_bnn.guides.guide import GaussianGuide


class AutoMultivariateNormal(GaussianGuide):
    r"""One Gaussian with a dense covariance over all entries of z.

    .. math:: z = m + s \circ (L \epsilon), \qquad
              \Sigma = \mathrm{diag}(s) L L^\top \mathrm{diag}(s)

    with L lower triangular and of unit diagonal. Captures every linear correlation; misses
    curvature and other modes. It has P(P+1)/2 covariance parameters: for P up to some thousands.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial standard deviation of every entry of z, > 0, in its units.
    """

    contains = ("AutoLowRankMultivariateNormal", "AutoLowRankPrecision", "AutoMatrixNormal")
    has_correlations = True

    factor_param = "tril_times_root"
    tril_times_root: Tensor

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [P]``, ``scale [P]`` and ``tril_times_root [P, P]``."""
        super().make_parameters(loc)
        self.tril_times_root = nn.Parameter(loc.new_zeros(len(loc), len(loc)))

    def set_moments(self, mean: Tensor, covariance: Tensor) -> None:
        """Make q the Gaussian of a given mean ``[P]`` and covariance ``[P, P]``."""
        self.require_setup()
        tril = torch.linalg.cholesky(covariance)  # in the dtype that is given
        scale = tril.diagonal()
        with torch.no_grad():
            self.loc.copy_(mean)
            self.tril_times_root.copy_(torch.tril(tril / scale[:, None], -1) * self._root)
        self.scale = scale.to(self.loc)

    @property
    def scale_tril(self) -> Tensor:
        r"""L ``[P, P]``: unit diagonal, below it the trained entries over :math:`4 \sqrt P`.

        A row of L has up to P noisy entries; with this factor one step of Adam changes its norm by
        a quarter of the learning rate, whatever P.
        """
        below = torch.tril(self.tril_times_root, -1) / self._root
        eye = torch.eye(self.num_latents, dtype=below.dtype, device=below.device)
        return below + eye

    @property
    def _root(self) -> float:
        """What the trained entries are divided by."""
        return 4 * math.sqrt(self.num_latents)

    def transport(self, noise: Tensor) -> Tensor:
        """``loc + scale * (L noise)``, ``[..., P]``."""
        below = torch.tril(self.tril_times_root, -1)  # the only P x P copy
        return self.loc + self.scale * (noise @ below.mT / self._root + noise)

    def squared_distance(self, z: Tensor) -> Tensor:
        """``|L^-1 ((z - loc) / scale)|^2``, ``[...]`` of z ``[..., P]``."""
        u = (z - self.loc) / self.scale
        rows = u.reshape(-1, self.num_latents)  # one solve for all, in place of one each
        rows = torch.linalg.solve_triangular(self.scale_tril.mT, rows, upper=True, left=False)
        squared: Tensor = rows.square().sum(-1).reshape(u.shape[:-1])
        return squared

    def marginals(self) -> tuple[Tensor, Tensor]:
        """Means and marginal standard deviations, each ``[P]``."""
        below = torch.tril(self.tril_times_root, -1) / self._root
        return self.loc, self.scale * (1 + below.square().sum(-1)).sqrt()

    def get_posterior(self) -> Distribution:
        """The Gaussian over z ``[P]``."""
        self.require_setup()
        scale_tril = self.scale.unsqueeze(-1) * self.scale_tril
        return dist.MultivariateNormal(self.loc, scale_tril=scale_tril)
