r"""Point estimate, :math:`q(z) = \delta(z - m)`: maximum a posteriori (MAP)."""

from __future__ import annotations

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor, nn

from pyro_bnn.guides.guide import LOG_JOINT, Guide, KLKind


class AutoDelta(Guide):
    r"""Maximum a posteriori estimate of the sites' values.

    .. math:: \hat\theta = \arg\max_\theta \; \log p(y \mid x, \theta) + \log p(\theta)

    The maximum is that of the density of the values themselves, without the Jacobian of the
    unconstrained coordinates. Under flat priors (``pyro_bnn.priors.Flat``) it is maximum
    likelihood. It captures no uncertainty: all draws are equal, and there is no ELBO.

    Args:
        model: Pyro model.
        init_loc_fn: Start of each site; default a draw from the prior.
    """

    has_log_prob: bool = False
    kl_kind: KLKind = "none"
    objective: str = LOG_JOINT
    has_correlations = False

    loc: Tensor

    def make_parameters(self, loc: Tensor) -> None:
        """Create ``loc [P]``, the unconstrained estimate."""
        self.loc = nn.Parameter(loc)

    @property
    def noise_dim(self) -> int:
        """No noise: 0."""
        return 0

    def transport(self, noise: Tensor) -> Tensor:
        """The estimate, ``[..., P]`` for noise ``[..., 0]``."""
        return self.loc.expand((*noise.shape[:-1], self.num_latents))

    def atoms(self) -> Tensor:
        """The estimate, ``[1, P]``."""
        return self.loc.unsqueeze(0)

    def get_posterior(self) -> Distribution:
        """A point mass at ``loc``."""
        self.require_setup()
        return dist.Delta(self.loc, event_dim=1)

    def z_quantiles(self, levels: Tensor) -> Tensor:
        """The estimate at every level, ``[Q, P]``."""
        return self.loc.expand(len(levels), -1)

    def sample_z(self) -> Tensor:
        """The estimate, ``[P]``, without a Pyro sample statement."""
        return self.loc
