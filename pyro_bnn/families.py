r"""Prior families with closed forms on the flat vector z: log density and its Gaussian expectation.

All entries of z whose prior is of one family are treated as one vector operation, whatever number
of sites they come from. For :math:`z \sim \mathcal N(m, v)`:

.. math::
    E \log \mathcal N(z \mid l, s) &= -\log s - \tfrac12 \log 2\pi - \frac{(m-l)^2 + v}{2 s^2} \\
    E \log \mathrm{Laplace}(z \mid l, s) &= -\log 2s - \frac1s \Bigl[ \sqrt{\tfrac{2v}{\pi}}
        e^{-d^2/2v} + d \,\mathrm{erf}\bigl(d/\sqrt{2v}\bigr) \Bigr], \quad d = m - l
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyro.distributions as dist
import torch
from torch import Tensor


@dataclass(frozen=True)
class Family:
    """A location-scale family of priors.

    Attributes:
        log_prob: Log density of z, elementwise, given loc and scale.
        expected_log_prob: Its expectation under a Gaussian of given mean and sd, elementwise.
    """

    log_prob: Callable[[Tensor, Tensor, Tensor], Tensor]
    expected_log_prob: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _normal_log_prob(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -0.5 * ((z - loc) / scale) ** 2 - scale.log() - 0.5 * math.log(2 * math.pi)


def _normal_expected(mean: Tensor, sd: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return _normal_log_prob(mean, loc, scale) - 0.5 * (sd / scale) ** 2


def _laplace_log_prob(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -(z - loc).abs() / scale - (2 * scale).log()


def _laplace_expected(mean: Tensor, sd: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    d = mean - loc
    folded = sd * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (d / sd) ** 2) + d * torch.erf(
        d / (sd * math.sqrt(2))
    )  # E|z - loc|
    return -folded / scale - (2 * scale).log()


FAMILIES: Mapping[type, Family] = {
    dist.Normal: Family(_normal_log_prob, _normal_expected),
    dist.Laplace: Family(_laplace_log_prob, _laplace_expected),
}


@dataclass(frozen=True)
class Block:
    """All entries of z whose prior is of one family with constant parameters.

    Attributes:
        family: The family.
        index: Where the entries stand in z: a slice where they are contiguous.
        loc: Locations ``[n]``.
        scale: Scales ``[n]``, > 0.
    """

    family: Family
    index: slice | Tensor
    loc: Tensor
    scale: Tensor

    def log_prob(self, z: Tensor) -> Tensor:
        """Summed log density ``[...]`` of z ``[..., P]``."""
        return self.family.log_prob(z[..., self.index], self.loc, self.scale).sum(-1)

    def expected_log_prob(self, mean: Tensor, sd: Tensor) -> Tensor:
        """Summed expectation under independent Gaussians of mean and sd ``[..., P]``."""
        return self.family.expected_log_prob(
            mean[..., self.index], sd[..., self.index], self.loc, self.scale
        ).sum(-1)


def make_index(slices: list[slice], device: torch.device) -> slice | Tensor:
    """One index for several slices: a slice where they touch, else positions ``[n]``."""
    slices = sorted(slices, key=lambda s: s.start)
    if all(a.stop == b.start for a, b in itertools.pairwise(slices)):
        return slice(slices[0].start, slices[-1].stop)
    return torch.cat([torch.arange(s.start, s.stop, device=device) for s in slices])
