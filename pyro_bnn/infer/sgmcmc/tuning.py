r"""What a warm-up finds of U: the curvature along each coordinate, and the largest of all.

A step is limited by the stiffest direction. The Hessian H of U has rows of length
:math:`D_j = \sqrt{E_v (H v)_j^2}`, v normal; in coordinates times :math:`D_j^{1/2}` they are of
about one length. This equilibration of Dauphin et al. is above 0 where H is indefinite. It is taken
over all chains, which sit in copies of one mode by symmetry; and no entry goes below the mean of
its site, as a unit that is off in one mode has no curvature, until it is on.

References:
    Dauphin, de Vries & Bengio, "Equilibrated adaptive learning rates for non-convex optimization",
    NeurIPS 2015, arXiv:1502.04390.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_bnn.infer.sgmcmc.gradient import hessian_product
from pyro_bnn.sites import Site

NUM_PROBES = 8
NUM_POWERS = 24
LENGTH = 1e-2  # of the differences that give the Hessian
FLAT = 1e-12  # least of the squares D^2, beside the largest

SlopeAt = Callable[[Tensor], Tensor]


def coordinate_curvatures(
    slope_at: SlopeAt, z: Tensor, sites: Sequence[Site], generator: torch.Generator
) -> Tensor:
    """Lengths D ``[P]`` of the rows of the Hessian, above 0.

    Args:
        slope_at: The gradient of U of all rows ``[C, P]`` at z ``[C, P]``.
        z: Where.
        sites: Entries of one site are of one kind.
        generator: Of the probes.
    """
    total = torch.zeros_like(z[0])
    for _ in range(NUM_PROBES):
        v = LENGTH * torch.empty_like(z).normal_(generator=generator)
        total += (hessian_product(slope_at, z, v) / LENGTH).square().mean(0)
    squares = (total / NUM_PROBES).clamp(min=FLAT * float(total.max()) / NUM_PROBES)
    for site in sites:
        own = squares[site.start : site.stop]
        own.clamp_(min=float(own.mean()))
    return squares.sqrt()


def largest_curvature(slope_at: SlopeAt, z: Tensor, generator: torch.Generator) -> float:
    """Largest eigenvalue of the Hessians of U at z ``[C, P]``, by power iteration."""
    v = torch.empty_like(z).normal_(generator=generator)
    largest = z.new_zeros(len(z))
    for _ in range(NUM_POWERS):
        v = v / v.norm(dim=-1, keepdim=True)
        product = hessian_product(slope_at, z, LENGTH * v) / LENGTH
        largest, v = product.norm(dim=-1), product
    return float(largest.max())
