r"""The leapfrog integrator on whitened momenta, for a batch of chains.

.. math:: p \leftarrow p - \tfrac\epsilon2 L^\top \nabla U(z), \quad
          z \leftarrow z + \epsilon L p, \quad
          p \leftarrow p - \tfrac\epsilon2 L^\top \nabla U(z), \qquad M^{-1} = L L^\top

It is reversible, keeps volumes, and its energy error over a trajectory is of order
:math:`\epsilon^2`. Neal, "MCMC Using Hamiltonian Dynamics", 2011, arXiv:1206.1901.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.potentials import Potential

Start: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Where trajectories start: z ``[C, P]``, U there ``[C]``, its gradient ``[C, P]``."""

MAX_ENERGY_ERROR = 1_000.0  # nats above the start at which a trajectory counts as diverging


class Point(NamedTuple):
    """Points of all chains.

    Attributes:
        z: Positions ``[C, P]``.
        p: Whitened momenta ``[C, P]``.
        grad: Gradients of the potential ``[C, P]``.
        potential: U at z ``[C]``.
        energy: U plus the kinetic energy ``[C]``.
    """

    z: Tensor
    p: Tensor
    grad: Tensor
    potential: Tensor
    energy: Tensor


def leapfrog(
    z: Tensor, p: Tensor, grad: Tensor, epsilon: Tensor, potential: Potential, mass: Mass
) -> Point:
    """One step.

    Args:
        z: Positions ``[C, P]``.
        p: Whitened momenta ``[C, P]``.
        grad: Gradients at z ``[C, P]``.
        epsilon: Step sizes ``[C]``; negative ones go back in time.
        potential: U and its gradient.
        mass: The mass matrix.
    """
    epsilon = epsilon.unsqueeze(-1)
    half = p - 0.5 * epsilon * mass.force(grad)
    z = z + epsilon * mass.velocity(half)
    value, grad = potential(z)
    p = half - 0.5 * epsilon * mass.force(grad)
    return Point(z, p, grad, value, value + kinetic(p))


def kinetic(p: Tensor) -> Tensor:
    """Kinetic energy ``[C]`` of whitened momenta ``[C, P]``."""
    return 0.5 * p.square().sum(-1)


def energy_error(energy: Tensor, start: Tensor) -> Tensor:
    """Energy above that at the start ``[C]``; infinite where it is not a number."""
    error = energy - start
    return torch.where(error.isfinite(), error, torch.inf)
