r"""One y from each draw of the posterior by noise that is the same at all rows.

.. math:: y_{sn} = F_{sn}^{-1}(u_s), \qquad u_s = \frac{\pi(s) + \frac12}{S}

with F the distribution function of y given a draw, and :math:`\pi` an order of 0 .. S - 1 by the
seed. Their quantiles at a row are those of the mixture over draws, with less noise than those of
independent ones, and do not depend on which other rows are predicted. Over rows they are no joint
draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyro.distributions as dist
import torch
from jaxtyping import Float
from pyro.distributions.torch_distribution import TorchDistributionMixin as Distribution
from torch import Tensor

from pyro_bnn.priors.prior import tensors_of
from pyro_bnn.program.random_state import seeded

MOST_STEPS = 60  # from counts that are near; rates above 2^53 have no neighbours
Inverse = Callable[[Any], tuple[tuple[Tensor, ...], Tensor | float, Tensor | float]]
INVERSES: Mapping[Any, tuple[str, Inverse]] = {
    dist.StudentT: ("t", lambda y: ((y.df,), y.scale, y.loc)),
    dist.Gamma: ("gamma", lambda y: ((y.concentration,), 1 / y.rate, 0.0)),
    dist.Beta: ("beta", lambda y: ((y.concentration1, y.concentration0), 1.0, 0.0)),
    dist.NegativeBinomial: ("nbinom", lambda y: ((y.total_count, 1 - y.probs), 1.0, 0.0)),
    dist.Binomial: ("binom", lambda y: ((y.total_count, y.probs), 1.0, 0.0)),
    dist.Bernoulli: ("bernoulli", lambda y: ((y.probs,), 1.0, 0.0)),
}
"""Names that SciPy has of distributions whose inverse torch does not have; shapes, scale, place."""


def levels_of_draws(num_draws: int, seed: int) -> Float[Tensor, " S"]:
    """The levels u of S draws: the middles of S equal parts of 0 to 1, in an order by the seed."""
    order = torch.randperm(num_draws, generator=seeded(seed))
    return (order.double() + 0.5) / num_draws


def at_levels(y: Distribution, levels: Float[Tensor, " s"]) -> Tensor | None:
    """Quantiles of distributions of numbers ``[s, N]`` or ``[s, N, O]``, each draw at its level.

    Args:
        y: The distribution of y at s draws.
        levels: Level of each draw.

    Returns:
        The quantiles; None where neither torch nor SciPy has the inverse, or the numbers of a row
        depend on each other.
    """
    fn: Any = y
    while isinstance(fn, dist.MaskedDistribution | torch.distributions.Independent):
        fn = fn.base_dist
    if fn.event_shape:
        return None
    at = levels.reshape(-1, *[1] * (len(fn.batch_shape) - 1))
    if isinstance(fn, dist.Poisson):
        return _of_counts(fn.rate, at)
    for family, (name, parameters) in INVERSES.items():
        if isinstance(fn, family):
            shapes, scale, loc = parameters(fn)
            return (loc + scale * _by_scipy(name, shapes, at)).expand(fn.batch_shape)
    try:
        quantiles: Tensor = fn.icdf(at.to(tensors_of(fn)[0]))
    except NotImplementedError:
        return None
    return quantiles.expand(fn.batch_shape)


def _by_scipy(name: str, shapes: tuple[Tensor, ...], levels: Tensor) -> Tensor:
    """Quantiles of scale 1, once where shapes are those of many rows: SciPy's inverses are slow."""
    from scipy import stats

    arguments: list[np.ndarray[Any, Any]] = [
        _of_one(value).detach().cpu().double().numpy() for value in shapes
    ]
    quantiles = getattr(stats, name).ppf(levels.numpy(), *arguments)
    return torch.as_tensor(quantiles).to(shapes[0])


def _of_one(value: Tensor) -> Tensor:
    """A tensor without its copies along dimensions in which it was expanded."""
    return value[tuple(slice(None, None if stride else 1) for stride in value.stride())]


def _of_counts(rate: Tensor, levels: Tensor) -> Tensor:
    """Quantiles of Poisson counts: SciPy's inverse takes ten times as long.

    The start is that of Cornish and Fisher, which is hardly ever off by more than one.
    """
    from scipy import special

    of, u = np.broadcast_arrays(rate.detach().cpu().double().numpy(), levels.numpy())
    z = special.ndtri(u)
    count = np.floor(np.maximum(of + z * np.sqrt(of) + (z * z - 1) / 6, 0)).ravel()
    left, of, u = np.arange(count.size), of.ravel(), u.ravel()
    for _ in range(MOST_STEPS):
        at, own, level = count[left], of[left], u[left]
        step = (special.pdtr(at, own) < level).astype(float)
        step -= (at > 0) & (special.pdtr(at - 1, own) >= level)
        count[left] += step
        left = left[step != 0]
        if not left.size:
            break
    return torch.as_tensor(count.reshape(z.shape)).to(rate)
