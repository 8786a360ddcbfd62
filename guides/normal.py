r"""Mean-field Gaussian, :math:`q(z) = \prod_j \mathcal N(z_j \mid m_j, s_j^2)`."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import pyro.distributions as dist
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor
from torch.distributions import biject_to

from pyro_bnn.guides.guide import GaussianGuide
from pyro_bnn.program.terms import EntryNoise
from pyro_bnn.sites import Site


class AutoNormal(GaussianGuide):
    r"""Independent Gaussians over the unconstrained entries of z (Bayes by Backprop).

    .. math::
        z = m + s \circ \epsilon, \quad \epsilon \sim \mathcal N(0, I); \qquad
        \mathrm{KL}\bigl(\mathcal N(m, s^2) \| \mathcal N(l, t^2)\bigr)
        = \log\frac{t}{s} + \frac{s^2 + (m-l)^2}{2 t^2} - \frac12 \text{ per weight}

    Captures the scale of each weight alone; misses every correlation between weights, and is
    therefore too narrow where the posterior is correlated.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial standard deviation of every entry of z, > 0, in its units.
        create_plates: As stock Pyro's guides take it; see :class:`Guide`.

    Raises:
        OptionError: If ``init_scale`` is not positive.

    References:
        Blundell et al., "Weight Uncertainty in Neural Networks", ICML 2015, arXiv:1505.05424.
    """

    contains: ClassVar[tuple[str, ...]] = ("AutoKTiedNormal",)
    has_correlations: bool | None = False

    def transport(self, noise: Tensor) -> Tensor:
        """``loc + scale * noise``, ``[..., P]``."""
        return self.loc + self.scale * noise

    def own_noise(self, draws: Tensor, noise: Tensor) -> EntryNoise | None:  # noqa: ARG002
        """All of it: entries are independent."""
        return EntryNoise(self.loc.unsqueeze(0), self.scale, noise)

    def squared_distance(self, z: Tensor) -> Tensor:
        r""":math:`\sum_j (z_j - m_j)^2 / s_j^2` ``[...]`` of z ``[..., P]``."""
        return ((z - self.loc) / self.scale).square().sum(-1)

    def marginals(self) -> tuple[Tensor, Tensor]:
        """``loc`` and ``scale``, each ``[P]``."""
        return self.loc, self.scale

    def get_posterior(self) -> Distribution:
        """Independent Gaussians over z ``[P]``."""
        self.require_setup()
        return cast(Distribution, dist.Normal(self.loc, self.scale).to_event(1))

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """Sample every site from its own Gaussian, transformed to the site's support.

        There is no auxiliary site: ``pyro.infer.TraceMeanField_ELBO`` finds its closed-form KL.
        """
        self.setup(*args, **kwargs)
        loc, scale = self.loc, self.scale

        def distribution(site: Site) -> Distribution:
            normal = dist.Normal(self.unconstrained(site, loc), self.unconstrained(site, scale))
            event_dim = self.event_dim(site)
            if site.is_real:
                return cast(Distribution, normal.to_event(event_dim))
            transform = biject_to(site.support)
            # no more event dimensions than the transform has: those of plates stay batch
            transformed = dist.TransformedDistribution(
                normal.to_event(transform.domain.event_dim), [transform]
            )
            return cast(Distribution, transformed.to_event(event_dim - transformed.event_dim))

        return self.sample_sites(distribution, *args, **kwargs)
