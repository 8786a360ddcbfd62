r"""Components of equal weight, each a product of Gaussians and Cauchys over the entries of z.

.. math:: q(z) = \tfrac1K \sum_k \prod_j q_{kj}(z_j), \qquad
          q_{kj} = \mathcal N(m_{kj}, s_{kj}^2) \text{ or } \mathrm{Cauchy}(m_{kj}, s_{kj})
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

BISECTIONS = 80  # of a quantile; each halves the bracket


class Components(NamedTuple):
    """The components of a mixture.

    Attributes:
        loc: Means, or medians of Cauchys, ``[K, P]``.
        scale: Standard deviations, or half interquartile ranges of Cauchys, ``[K, P]``.
        is_cauchy: Which entries are Cauchy, ``[P]``; None where all are Gaussian.
    """

    loc: Float[Tensor, "K P"]
    scale: Float[Tensor, "K P"]
    is_cauchy: Bool[Tensor, " P"] | None = None

    def draws(self, noise: Float[Tensor, "*S K P"]) -> Float[Tensor, "*S K P"]:
        """A draw of every component, out of standard normal noise."""
        if self.is_cauchy is None:
            return self.loc + self.scale * noise
        # from the nearer tail, whose probability keeps its digits where the other's rounds to 1
        tail = 0.5 * torch.special.erfc(noise.abs() / math.sqrt(2))
        cauchy = noise.sign() / torch.tan(math.pi * tail)
        return self.loc + self.scale * torch.where(self.is_cauchy, cauchy, noise)

    def log_prob(self, z: Float[Tensor, "*S P"]) -> Float[Tensor, "*S K"]:
        """Log density of z under every component."""
        u = (z.unsqueeze(-2) - self.loc) / self.scale  # [..., K, P]
        standard = -0.5 * u.square() - 0.5 * math.log(2 * math.pi)
        if self.is_cauchy is not None:
            cauchy = -torch.log1p(u.square()) - math.log(math.pi)
            standard = torch.where(self.is_cauchy, cauchy, standard)
        return (standard - self.scale.log()).sum(-1)

    def entropy(self) -> Float[Tensor, " K"]:
        """Entropy of every component: log scale plus the entropy at scale 1, over the entries."""
        standard = torch.full_like(self.loc[0], 0.5 * (1 + math.log(2 * math.pi)))
        if self.is_cauchy is not None:
            standard = torch.where(self.is_cauchy, math.log(4 * math.pi), standard)
        return (self.scale.log() + standard).sum(-1)

    def cdf(self, z: Float[Tensor, "*S P"]) -> Float[Tensor, "*S P"]:
        """Marginal cdf of every entry under the mixture."""
        u = (z.unsqueeze(-2) - self.loc) / self.scale  # [..., K, P]
        cdf: Tensor = torch.special.ndtr(u)
        if self.is_cauchy is not None:
            cdf = torch.where(self.is_cauchy, 0.5 + u.atan() / math.pi, cdf)
        return cdf.mean(-2)

    def quantiles(self, levels: Float[Tensor, " Q"]) -> Float[Tensor, "Q P"]:
        """Marginal quantiles of every entry under the mixture.

        Found by bisection of the cdf, between the extreme quantiles of the components.
        """
        levels = levels.reshape(-1, 1)  # [Q, 1]
        standard = torch.special.ndtri(levels).expand(-1, self.loc.shape[-1])
        if self.is_cauchy is not None:
            tail = torch.minimum(levels, 1 - levels)
            cauchy = (levels - 0.5).sign() / torch.tan(math.pi * tail)
            standard = torch.where(self.is_cauchy, cauchy, standard)
        own = self.loc + self.scale * standard.unsqueeze(-2)  # [Q, K, P]
        low: Tensor = own.amin(-2)  # [Q, P]
        high: Tensor = own.amax(-2)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            above = self.cdf(middle) > levels
            low, high = torch.where(above, low, middle), torch.where(above, middle, high)
        return (low + high) / 2
