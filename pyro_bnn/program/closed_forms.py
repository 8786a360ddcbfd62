r"""Prior families with closed forms on the flat vector z: log density and its expectation under q.

All entries of z whose prior is of one family are treated as one vector operation, whatever number
of sites they come from. For :math:`z \sim \mathcal N(m, v)`:

.. math::
    E \log \mathcal N(z \mid l, s) &= -\log s - \tfrac12 \log 2\pi - \frac{(m-l)^2 + v}{2 s^2} \\
    E \log \mathrm{Laplace}(z \mid l, s) &= -\log 2s - \frac1s \Bigl[ \sqrt{\tfrac{2v}{\pi}}
        e^{-d^2/2v} + d \,\mathrm{erf}\bigl(d/\sqrt{2v}\bigr) \Bigr], \quad d = m - l

and for :math:`z \sim \mathrm{Cauchy}(m, g)`, whose KL from a Gaussian is infinite:

.. math::
    E \log \mathrm{Cauchy}(z \mid l, s) = \log s - \log\pi - \log\bigl((g + s)^2 + d^2\bigr)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyro.distributions as dist
import torch
from torch import Tensor

Marginal: TypeAlias = Literal["normal", "cauchy", "moments"]
"""Family of the marginals of an approximation q; of "moments" only the mean and sd are known."""


@dataclass(frozen=True)
class Family:
    """A location-scale family of priors.

    Attributes:
        log_prob: Log density of z, elementwise, given loc and scale.
        expected_log_prob: Its expectation under a q of given loc and scale, elementwise, by the
            family of q; absent where it has no closed form or is infinite.
    """

    log_prob: Callable[[Tensor, Tensor, Tensor], Tensor]
    expected_log_prob: Mapping[Marginal, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]]


def _normal_log_prob(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    # in a graph the reciprocal is a constant, and no division remains
    u = (z - loc) * scale.reciprocal()
    return -0.5 * u**2 - scale.log() - 0.5 * math.log(2 * math.pi)


def _normal_expected(mean: Tensor, sd: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    r = scale.reciprocal()
    u, v = (mean - loc) * r, sd * r
    return -0.5 * (u**2 + v**2) - (scale.log() + 0.5 * math.log(2 * math.pi))


def _laplace_log_prob(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -(z - loc).abs() / scale - (2 * scale).log()


def _laplace_expected(mean: Tensor, sd: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    d = mean - loc
    folded = sd * math.sqrt(2 / math.pi) * torch.exp(-0.5 * (d / sd) ** 2) + d * torch.erf(
        d / (sd * math.sqrt(2))
    )  # E|z - loc|
    return -folded / scale - (2 * scale).log()


def _cauchy_log_prob(z: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    return -torch.log1p(((z - loc) / scale) ** 2) - scale.log() - math.log(math.pi)


def _cauchy_expected(q_loc: Tensor, q_scale: Tensor, loc: Tensor, scale: Tensor) -> Tensor:
    spread = (q_scale + scale) ** 2 + (q_loc - loc) ** 2
    return scale.log() - spread.log() - math.log(math.pi)


FAMILIES: Mapping[type, Family] = {
    dist.Normal: Family(
        _normal_log_prob,
        {"normal": _normal_expected, "moments": _normal_expected},  # quadratic: of moments alone
    ),
    dist.Laplace: Family(_laplace_log_prob, {"normal": _laplace_expected}),
    dist.Cauchy: Family(_cauchy_log_prob, {"cauchy": _cauchy_expected}),
}


@dataclass(frozen=True)
class PriorBlock:
    """All entries of z whose prior is of one family with constant parameters.

    Attributes:
        family: The family.
        index: Where the entries stand in z: a slice where they are contiguous.
        loc: Locations ``[n]``, or ``[]`` where they are all the same.
        scale: Scales ``[n]``, or ``[]``, > 0.
    """

    family: Family
    index: slice | Tensor
    loc: Tensor
    scale: Tensor

    def log_prob(self, z: Tensor) -> Tensor:
        """Summed log density ``[...]`` of z ``[..., P]``."""
        return self.family.log_prob(self._of(z), self.loc, self.scale).sum(-1)

    def expected_log_prob(self, q_loc: Tensor, q_scale: Tensor, marginal: Marginal) -> Tensor:
        """Summed expectation ``[...]`` under q's marginals of loc and scale ``[..., P]``."""
        return self.family.expected_log_prob[marginal](
            self._of(q_loc), self._of(q_scale), self.loc, self.scale
        ).sum(-1)

    def _of(self, z: Tensor) -> Tensor:
        """The block's entries ``[..., n]`` of z ``[..., P]``."""
        if not isinstance(self.index, slice):
            return z[..., self.index]
        start, stop = self.index.start, self.index.stop
        # a split, whose gradient is a concatenation; a slice's is a sum over all of z
        own: Tensor = z.split([start, stop - start, z.shape[-1] - stop], -1)[1]
        return own


def make_index(slices: list[slice], device: torch.device) -> slice | Tensor:
    """One index for several slices: a slice where they touch, else positions ``[n]``."""
    slices = sorted(slices, key=lambda s: s.start)
    if all(a.stop == b.start for a, b in itertools.pairwise(slices)):
        return slice(slices[0].start, slices[-1].stop)
    return torch.cat([torch.arange(s.start, s.stop, device=device) for s in slices])
