"""Small networks under every kind of prior, with the log prior written out by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pyro_bnn import likelihoods, priors
from pyro_bnn.models import MLP
from tests.laws import Problem, one

d = torch.distributions
WEIGHTS = (
    4,
    2,
    2,
    1,
)  # lengths of layers.0.weight [2, 2] and bias, layers.1.weight [1, 2] and bias

# of scales that are the same numbers in float32, in which priors keep theirs
PRIORS: dict[str, Any] = {
    "normal": priors.Normal(scale=0.75),
    "laplace": priors.Laplace(scale=0.5),
    "student-t": priors.StudentT(df=4.0, scale=0.5),
    "scale mixture": priors.ScaleMixture(mixing=0.25, scale1=1.25, scale2=0.25),
    "half-Cauchy scale": priors.HalfCauchyScale(scale=0.5),
    "horseshoe": priors.Horseshoe(scale=0.5),
}


def entries(density: torch.distributions.Distribution) -> Callable[[Tensor], Tensor]:
    """Of independent weights."""
    return lambda z: density.log_prob(z).sum(-1)


def scale_mixture(z: Tensor) -> Tensor:
    wide, narrow = d.Normal(one(0.0), one(1.25)), d.Normal(one(0.0), one(0.25))
    parts = (wide.log_prob(z) + one(0.25).log(), narrow.log_prob(z) + one(0.75).log())
    return torch.logaddexp(*parts).sum(-1)


def log_half_cauchy(log_value: Tensor, scale: float) -> Tensor:
    """Density of the logarithm of a half-Cauchy value, summed over its entries."""
    density = 2 / (torch.pi * scale * (1 + (log_value.exp() / scale) ** 2))
    return (density.log() + log_value).sum(-1)


def half_cauchy_scale(z: Tensor) -> Tensor:
    """One scale, then as many standard normal entries, for each weight."""
    total = torch.zeros_like(z[..., 0])
    for length, (scale, raw) in _groups(z, lambda n: (1, n)):
        assert raw.shape[-1] == length
        total = total + log_half_cauchy(scale, 0.5) + d.Normal(0.0, 1.0).log_prob(raw).sum(-1)
    return total


def horseshoe(z: Tensor) -> Tensor:
    """A global scale, a local one of each entry, then the entries, for each weight."""
    total = torch.zeros_like(z[..., 0])
    for length, (common, local, raw) in _groups(z, lambda n: (1, n, n)):
        assert raw.shape[-1] == length
        total = total + log_half_cauchy(common, 0.5) + log_half_cauchy(local, 1.0)
        total = total + d.Normal(0.0, 1.0).log_prob(raw).sum(-1)
    return total


LOG_PRIORS: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": entries(d.Normal(one(0.0), one(0.75))),
    "laplace": entries(d.Laplace(one(0.0), one(0.5))),
    "student-t": entries(d.StudentT(one(4.0), one(0.0), one(0.5))),
    "scale mixture": scale_mixture,
    "half-Cauchy scale": half_cauchy_scale,
    "horseshoe": horseshoe,
}


def _groups(
    z: Tensor, lengths: Callable[[int], tuple[int, ...]]
) -> Iterator[tuple[int, tuple[Tensor, ...]]]:
    sizes = [lengths(n) for n in WEIGHTS]
    parts = iter(z.split([size for group in sizes for size in group], -1))
    for n, group in zip(WEIGHTS, sizes, strict=True):
        yield n, tuple(next(parts) for _ in group)


def prior_problem(name: str) -> Problem:
    """A network 2-2-1 with tanh units under a prior, on eight rows."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, 2, dtype=torch.float64, generator=generator)
    y = torch.sin(2 * x[:, :1]) + 0.3 * torch.randn(8, 1, dtype=torch.float64, generator=generator)
    model = MLP(
        2,
        hidden=(2,),
        activation="tanh",
        prior=PRIORS[name],
        likelihood=likelihoods.Normal(scale=0.3),
    )
    return Problem(name, model.double(), x, y, LOG_PRIORS[name])
