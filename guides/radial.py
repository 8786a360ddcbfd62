r"""Radial posterior, :math:`w = \mu + \sigma \circ \frac{\epsilon}{\|\epsilon\|} \, r`."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import ClassVar, cast

import numpy as np
import torch
from pyro.distributions import TorchDistribution, constraints
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.guides.guide import ScaledGuide
from pyro_bnn.guides.parts.bisection import root
from pyro_bnn.program.closed_forms import Marginal

NODES = 400  # of the integral over directions in a marginal cdf


class AutoRadial(ScaledGuide):
    r"""Radial distribution over each site: a uniform direction, and one Gaussian radius.

    .. math:: w = \mu + \sigma \circ \frac{\epsilon}{\|\epsilon\|} \, r, \quad
              \epsilon \sim \mathcal N(0, I_D), \; r \sim \mathcal N(0, 1); \qquad
              \mathrm{Var}\, w_i = \sigma_i^2 / D

    for each site of D entries, such as a weight matrix. A Gaussian in D dimensions has nearly all
    its mass in a thin shell at :math:`\|\epsilon\| \approx \sqrt D`, far from its most probable
    point; here the distance from the mean is that of one Gaussian number, whatever D, and draws
    come near the mean. Captures that weights of one site are far from their means together; misses
    every correlation between weights, as ``AutoNormal`` does (the covariance is diagonal), and the
    radius at which the mass of a high-dimensional posterior lies.

    With :math:`\rho = \|(w - \mu) / \sigma\|` and the surface :math:`2 \pi^{D/2} / \Gamma(D/2)` of
    the unit sphere, the density and the entropy of one site are

    .. math::
        \log q(w) &= -\sum_i \log\sigma_i - \tfrac12 \log 2\pi - \tfrac12 \rho^2
            - (D - 1) \log\rho - \tfrac D2 \log\pi + \log\Gamma(\tfrac D2) \\
        H &= \sum_i \log\sigma_i + \tfrac12 \log 2\pi + \tfrac12
            - \tfrac{D-1}2 (\gamma + \log 2) + \tfrac D2 \log\pi - \log\Gamma(\tfrac D2)

    A site of one entry is Gaussian. Of every other, the density is infinite at the mean and smooth
    elsewhere, and its gradient at draws is of infinite variance; the ELBO takes that of the entropy
    instead. The KL from Gaussian priors is in closed form, as these ask for the moments of q only;
    from other priors it is a Monte Carlo average. The entropy is below that of a Gaussian with the
    same moments by about :math:`(\gamma + \log 2) / 2 = 0.64` nats an entry, and so is the ELBO
    where the log joint is nearly quadratic: judge this family by held-out scores.

    Args:
        model: Pyro model.
        init_loc_fn: Start of the means; default a draw from the prior.
        init_scale: Initial standard deviation of every entry of z, > 0, in its units.

    Attributes:
        scale: Standard deviations ``[P]`` of the entries of z, as in all guides: they are trained,
            and the paper's :math:`\sigma` is sqrt(D) times as large.

    Raises:
        OptionError: If ``init_scale`` is not positive.

    References:
        Farquhar, Osborne & Gal, "Radial Bayesian Neural Networks: Beyond Discrete Support In
        Large-Scale Bayesian Deep Learning", AISTATS 2020, arXiv:1907.00865.
    """

    marginal_family: Marginal = "moments"
    has_correlations = False

    @property
    def _sizes(self) -> list[int]:
        """Number of entries D of each site."""
        return [length for _, _, length in self._shapes]

    @property
    def noise_dim(self) -> int:
        """P + K: directions of all K sites, then their radii."""
        return self.num_latents + len(self._shapes)

    def transport(self, noise: Tensor) -> Tensor:
        """``loc + sigma * eps / |eps| * r``, ``[..., P]``, of noise (eps, r) ``[..., P + K]``."""
        return self._q.draws(noise)

    def log_prob(self, z: Tensor) -> Tensor:
        """Log q(z) ``[...]`` of z ``[..., P]``; infinite at the mean of a site with D > 1."""
        return self._q.log_prob(z)

    def entropy(self) -> Tensor:
        """The sum of H over the sites, ``[]``."""
        return self._q.entropy()

    def marginals(self) -> tuple[Tensor, Tensor]:
        """``loc`` and ``scale``, each ``[P]``."""
        return self.loc, self.scale

    def z_quantiles(self, levels: Tensor) -> Tensor:
        """Marginal quantiles ``[Q, P]`` of z, which are not Gaussian."""
        of_size = {D: standard_quantiles(levels.double().cpu(), D) for D in set(self._sizes)}
        standard = torch.cat([of_size[D].unsqueeze(-1).expand(-1, D) for D in self._sizes], -1)
        return self.loc + self._q.scale * standard.to(self.loc)

    def get_posterior(self) -> Distribution:
        """The distribution over z ``[P]``."""
        return self._q

    @property
    def _q(self) -> Radial:
        self.require_setup()
        sizes = self._sizes
        parts = zip(self.scale.split(sizes), sizes, strict=True)
        return Radial(self.loc, torch.cat([s * math.sqrt(D) for s, D in parts]), sizes)


class Radial(TorchDistribution):
    """Independent radial distributions over stretches of a vector; see ``AutoRadial``.

    Args:
        loc: Means ``[P]``.
        scale: Scales ``[P]``, > 0; the standard deviations are 1/sqrt(D) of them.
        sizes: Length D of each stretch, P together.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, loc: Tensor, scale: Tensor, sizes: Sequence[int]) -> None:
        self.loc, self.scale, self.sizes = loc, scale, list(sizes)
        super().__init__(torch.Size(), loc.shape, validate_args=False)

    @property
    def mean(self) -> Tensor:
        """``loc [P]``."""
        return self.loc

    @property
    def stddev(self) -> Tensor:
        """``scale / sqrt(D)``, ``[P]``."""
        parts = self.scale.split(self.sizes)
        return torch.cat([s / math.sqrt(D) for s, D in zip(parts, self.sizes, strict=True)])

    @property
    def variance(self) -> Tensor:
        """``scale^2 / D``, ``[P]``."""
        return self.stddev.square()

    def draws(self, noise: Tensor) -> Tensor:
        """Draws ``[..., P]`` of standard normal noise ``[..., P + K]``: directions, then radii."""
        *directions, radii = noise.split([*self.sizes, len(self.sizes)], -1)
        tiny = torch.finfo(noise.dtype).tiny  # a direction of zeros stays where it is
        standard = [
            eps * (r / eps.square().sum(-1, keepdim=True).sqrt().clamp_min(tiny))
            for eps, r in zip(directions, radii.split(1, -1), strict=True)
        ]
        return self.loc + self.scale * torch.cat(standard, -1)

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draws ``[*sample_shape, P]``."""
        size = (*sample_shape, len(self.loc) + len(self.sizes))
        return self.draws(torch.randn(size, dtype=self.loc.dtype, device=self.loc.device))

    def log_prob(self, value: Tensor) -> Tensor:
        """Log density ``[...]`` of values ``[..., P]``."""
        u = (value - self.loc) / self.scale
        squared = [part.square().sum(-1) for part in u.split(self.sizes, -1)]  # rho^2 of each
        log_prob = -0.5 * torch.stack(squared).sum(0) - self._log_normaliser()
        for rho2, D in zip(squared, self.sizes, strict=True):
            if D > 1:  # else there is no such term, and 0 times an infinite one at the mean
                log_prob = log_prob - 0.5 * (D - 1) * rho2.log()
        return log_prob

    def entropy(self) -> Tensor:
        """Entropy ``[]``."""
        squared = len(self.sizes)  # E rho^2, summed
        logs = sum(D - 1 for D in self.sizes) * (np.euler_gamma + math.log(2))  # -2 (D-1) E log rho
        return self._log_normaliser() + 0.5 * (squared - logs)

    def _log_normaliser(self) -> Tensor:
        """Minus what of the log density depends on no value, ``[]``."""
        surfaces = sum(0.5 * D * math.log(math.pi) - math.lgamma(0.5 * D) for D in self.sizes)
        return self.scale.log().sum() + surfaces + 0.5 * len(self.sizes) * math.log(2 * math.pi)


def standard_cdf(x: Tensor, size: int) -> Tensor:
    r"""Marginal cdf ``[...]`` of one entry at loc 0 and scale 1, in a stretch of D entries.

    The entry is r times the first coordinate :math:`\sin\phi` of a direction, of density
    proportional to :math:`\cos^{D-2}\phi`: a mixture of Gaussians of sd :math:`|\sin\phi|`.

    Args:
        x: Values ``[...]``, float64.
        size: D.
    """
    if size == 1:
        return cast(Tensor, torch.special.ndtr(x))
    sds, weights = _directions(size)
    cdf: Tensor = torch.special.ndtr(x.unsqueeze(-1) / sds)
    return cdf @ weights


@functools.cache
def _directions(size: int) -> tuple[Tensor, Tensor]:
    r"""Nodes :math:`\sin\phi` and weights of the integral over directions in D dimensions."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    end = min(math.pi / 2, 12 / math.sqrt(size))  # beyond it is nothing that a float64 shows
    phi = torch.from_numpy(0.5 * end * (nodes + 1))
    density = torch.from_numpy(weights) * phi.cos() ** (size - 2)
    return phi.sin(), density / density.sum()


def standard_quantiles(levels: Tensor, size: int) -> Tensor:
    """Marginal quantiles ``[Q]`` of one entry at loc 0 and scale 1, by bisection of the cdf.

    Args:
        levels: Levels ``[Q]``, float64, 0 to 1.
        size: Number D of entries of the stretch.
    """
    normal: Tensor = torch.special.ndtri(levels)  # which is as far from 0, or farther
    ends = normal.clamp(max=0), normal.clamp(min=0)
    return root(lambda x: standard_cdf(x, size) - levels, *ends)
