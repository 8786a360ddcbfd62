r"""Components of a mixture, each a product of Gaussians and Cauchys over the entries of z.

.. math:: q(z) = \sum_k \pi_k \prod_j q_{kj}(z_j), \qquad
          q_{kj} = \mathcal N(m_{kj}, s_{kj}^2) \text{ or } \mathrm{Cauchy}(m_{kj}, s_{kj})
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pyro_bnn.guides.parts.bisection import root


class Components(NamedTuple):
    """The components of a mixture.

    Attributes:
        loc: Means, or medians of Cauchys, ``[K, P]``.
        scale: Standard deviations, or half interquartile ranges of Cauchys, ``[K, P]``.
        is_cauchy: Which entries are Cauchy, ``[P]``; None where all are Gaussian.
        log_weights: Logs of the weights, ``[K]``, which sum to 1; None for equal ones.
    """

    loc: Float[Tensor, "K P"]
    scale: Float[Tensor, "K P"]
    is_cauchy: Bool[Tensor, " P"] | None = None
    log_weights: Float[Tensor, " K"] | None = None

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

    def joint_log_prob(self, z: Float[Tensor, "*S P"]) -> Float[Tensor, "*S K"]:
        """Log density of z and each component: their sum over components is the mixture's."""
        own = self.log_prob(z)
        return own - math.log(len(self.loc)) if self.log_weights is None else own + self.log_weights

    def sampled_entropy(self, members: Float[Tensor, "*S K P"]) -> Float[Tensor, "*S"]:
        r"""Entropy of the mixture, out of a draw of every component, without bias.

        By :math:`H(z) = H(k) + H(z \mid k) - H(k \mid z)`, of which the last alone is sampled: it
        is 0 where components are apart, and H(k) where they are the same.
        """
        log_weights, K = self.log_weights, len(self.loc)
        if log_weights is None:
            log_weights = self.loc.new_full((K,), -math.log(K))
        log_posterior = self.joint_log_prob(members).log_softmax(-1)  # [..., K, K], of k given z
        own = log_posterior.diagonal(dim1=-2, dim2=-1)  # [..., K]
        return ((self.entropy() - log_weights + own) * log_weights.exp()).sum(-1)

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
        if self.log_weights is None:
            return cdf.mean(-2)
        return (self.log_weights.exp().unsqueeze(-1) * cdf).sum(-2)

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
        return root(lambda z: self.cdf(z) - levels, own.amin(-2), own.amax(-2))


def component_of(noise: Float[Tensor, "*S"], num_components: int) -> Int[Tensor, "*S"]:
    """Number of one of K components of equal weight, by a standard normal number."""
    u: Tensor = torch.special.ndtr(noise)
    return (u * num_components).long().clamp(max=num_components - 1)


def pick(members: Float[Tensor, "*S K n"], component: Int[Tensor, "*S"]) -> Float[Tensor, "*S n"]:
    """The draws of the components of given numbers."""
    index = component[..., None, None].expand(*component.shape, 1, members.shape[-1])
    return members.gather(-2, index).squeeze(-2)
