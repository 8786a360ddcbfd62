"""The linear-Gaussian oracle with its coefficients in two layers, whose entries alternate in z."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from tests.oracle import LinearGaussian, LinearModel, design, linear_gaussian, with_answers

BLOCKS = ([0, 2], [1, 3])  # entries of z in the layers "a" and "b"


class LayeredModel(LinearModel):
    """f = x w + b of the sites ``a.first``, ``b.first``, ``a.second``, ``b.second`` [1] each."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        prior = dist.Normal(torch.zeros_like(self.prior_scale), self.prior_scale)
        names = ("a.first", "b.first", "a.second", "b.second")
        z = torch.cat([pyro.sample(name, prior.expand([1]).to_event(1)) for name in names])
        f = pyro.deterministic("f", design(x) @ z.unsqueeze(-1))  # [N, 1]
        with pyro.plate("data", x.shape[0]):
            sampled: Tensor = pyro.sample("y", dist.Normal(f, self.noise).to_event(1), obs=y)
        return sampled


def layered(*, independent: bool = False) -> LinearGaussian:
    """The oracle with two layers.

    Args:
        independent: Whether the design makes the layers independent in the posterior.
    """
    plain = linear_gaussian()
    x = plain.x.clone()
    if independent:  # columns of "a" without what those of "b" explain of them
        other = design(x)[:, BLOCKS[1]]
        x[:, BLOCKS[0]] -= other @ torch.linalg.lstsq(other, x[:, BLOCKS[0]]).solution
    return with_answers(x, plain.y, LayeredModel(3, plain.noise, plain.prior_scale))


def best_covariance(oracle: LinearGaussian) -> Tensor:
    """Covariance ``[P, P]`` of the best q of independent layers: the inverse of each block.

    Of the posterior precision, as setting the gradient of the KL by each block to 0 shows.
    """
    covariance = torch.zeros_like(oracle.covariance)
    for block in BLOCKS:
        index = torch.tensor(block)
        inverse = torch.linalg.inv(oracle.precision[index][:, index])
        covariance[index.unsqueeze(-1), index] = inverse
    return covariance
