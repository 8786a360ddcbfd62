r"""Mean and variance of y given a draw, also of distributions for which torch has none.

Torch has no moments of most transformed and folded distributions, and calls the mean direction of
circular ones their mean, and a circular variance their variance. Where a Gaussian is transformed,

.. math:: E\,T(X)^k = \tfrac1{\sqrt\pi} \sum_j w_j\, T(\mu + \sqrt2\, \sigma t_j)^k

by Gauss-Hermite quadrature. Else they are those of 256 draws, the noise of which is the same for
all draws of the posterior, so that it adds nothing to what these differ by.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pyro.distributions as dist
import torch
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.program.distributions import base_distribution
from pyro_bnn.program.random_state import isolated

NUM_NODES = 64
NUM_DRAWS = 256
CIRCULAR = (dist.VonMises, dist.ProjectedNormal, dist.SineBivariateVonMises, dist.SineSkewed)

Moments = tuple[Tensor, Tensor]


def moments_of_y(y: Distribution, at: Callable[[int], Distribution]) -> Moments:
    """Mean and variance of y at S draws ``[S, N]`` or, of several numbers, ``[S, N, O]``.

    Args:
        y: The distribution of y at all draws.
        at: That at one of them ``[1, N]``.
    """
    base = base_distribution(y)
    if isinstance(base, dist.StudentT):
        return _of_student_t(base)
    if not _is_circular(y):
        try:
            return y.mean, y.variance
        except NotImplementedError:
            pass
    if _is_smooth(base):
        return _by_quadrature(base)
    found = [_by_draws(at(s)) for s in range(y.batch_shape[0])]
    means, variances = (torch.cat(parts) for parts in zip(*found, strict=True))
    return means, variances


def _is_circular(y: Distribution) -> bool:
    base = base_distribution(y)
    mixed = getattr(base, "component_distribution", None)
    return isinstance(base, CIRCULAR) or (mixed is not None and _is_circular(mixed))


def _is_smooth(y: Distribution) -> bool:
    """Whether it is a Gaussian transformed without a kink, such as that of a folded one."""
    return (
        isinstance(y, dist.TransformedDistribution)
        and isinstance(base_distribution(y.base_dist), dist.Normal)
        and all(transform.bijective for transform in y.transforms)
    )


def _of_student_t(y: dist.StudentT) -> Moments:
    """Torch picks entries by their degrees of freedom, which a recording cannot."""
    nan, infinity = (y.df.new_tensor(value) for value in (math.nan, math.inf))
    variance = y.scale.square() * (y.df / (y.df - 2))
    variance = torch.where(y.df > 2, variance, torch.where(y.df > 1, infinity, nan))
    return torch.where(y.df > 1, y.loc, nan), variance


def _by_quadrature(y: dist.TransformedDistribution) -> Moments:
    normal = base_distribution(y.base_dist)
    nodes, weights = (
        torch.as_tensor(part).to(normal.loc) for part in np.polynomial.hermite.hermgauss(NUM_NODES)
    )
    first = (-1, *[1] * normal.loc.ndim)  # a dimension before all others
    values = normal.loc + math.sqrt(2) * normal.scale * nodes.reshape(first)
    for transform in y.transforms:
        values = transform(values)
    shares = weights.reshape(first) / math.sqrt(math.pi)
    mean = (shares * values).sum(0)
    return mean, (shares * (values - mean) ** 2).sum(0)


def _by_draws(y: Distribution) -> Moments:
    with isolated(0):
        draws = y.sample(torch.Size([NUM_DRAWS]))
    return draws.mean(0), draws.var(0)
