r"""Isokinetic dynamics: velocities v of length 1 that turn towards lower U, for a batch of chains.

In whitened coordinates y of P dimensions, z = L y, with the gradient :math:`G = L^\top \nabla U`,

.. math:: \dot y = v, \qquad \dot v = -\frac{1}{P - 1} (I - v v^\top)\, G, \qquad |v| = 1

keeps :math:`e^{-U} dy\, dv` with v even over the sphere. Its speed is 1, where a momentum of
N(0, I) has about :math:`\sqrt P`: a step :math:`\epsilon` here is one of
:math:`\epsilon / \sqrt P` in Hamiltonian Monte Carlo.

With G held fixed for a time t the velocity has a closed form, the **kick**: with the direction
:math:`e = -G / |G|`, :math:`\delta = t |G| / (P - 1)`, :math:`a = v^\top e` and
:math:`w = e^{-\delta}`,

.. math:: v' \propto e\,(1 - w)\,(1 + w + a (1 - w)) + 2 w v, \qquad
          \Delta K = (P - 1) \log(\cosh\delta + a \sinh\delta)

where :math:`\Delta K` is minus the log of the kick's Jacobian, and plays the part of the kinetic
energy: a step's **energy error** is :math:`\Delta E = \Delta U + \sum \Delta K`.

References:
    Robnik, De Luca, Silverstein & Seljak, "Microcanonical Hamiltonian Monte Carlo", JMLR 2023,
    arXiv:2212.08549. Steeg & Galstyan, "Hamiltonian Dynamics with Non-Newtonian Momentum for Rapid
    Sampling", NeurIPS 2021, arXiv:2111.02434. McLachlan, "On the Numerical Integration of Ordinary
    Differential Equations by Symmetric Composition Methods", SIAM J. Sci. Comput. 1995 (minimal
    norm).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.potentials import Potential

MINIMAL_NORM = 0.1931833275037836  # share of a step in its first and in its last kick


class Moved(NamedTuple):
    """Points of all chains after a step.

    Attributes:
        z: Positions ``[C, P]``.
        v: Whitened velocities ``[C, P]``, of length 1.
        grad: Gradients of U at z ``[C, P]``.
        potential: U at z ``[C]``.
        error: Energy error of the step ``[C]``, in nats.
    """

    z: Tensor
    v: Tensor
    grad: Tensor
    potential: Tensor
    error: Tensor


class Integrator(NamedTuple):
    """A reversible step of kicks with a drift between two of them, one gradient each.

    It keeps volumes up to the Jacobian in its energy error.

    Attributes:
        kicks: Shares of the step.
        drifts: Likewise, one fewer.
    """

    kicks: tuple[float, ...]
    drifts: tuple[float, ...]

    @property
    def num_gradients(self) -> int:
        """How many gradients a step takes."""
        return len(self.drifts)

    def step(
        self,
        z: Tensor,
        v: Tensor,
        grad: Tensor,
        value: Tensor,
        epsilon: Tensor,
        potential: Potential,
        mass: Mass,
    ) -> Moved:
        """One step.

        Args:
            z: Positions ``[C, P]``.
            v: Whitened velocities ``[C, P]``.
            grad: Gradients of U at z ``[C, P]``.
            value: U at z ``[C]``.
            epsilon: Step sizes ``[C]``.
            potential: U and its gradient.
            mass: The mass matrix.
        """
        new, (first, *others) = value, self.kicks
        v, change = kick(v, mass.force(grad), first * epsilon)
        changes = [change]
        for drift, share in zip(self.drifts, others, strict=True):
            z = z + drift * epsilon.unsqueeze(-1) * mass.velocity(v)
            new, grad = potential(z)
            v, change = kick(v, mass.force(grad), share * epsilon)
            changes.append(change)
        return Moved(z, v, grad, new, sum(changes, new - value))


INTEGRATORS: Mapping[str, Integrator] = {
    "leapfrog": Integrator(kicks=(0.5, 0.5), drifts=(1.0,)),
    # McLachlan's, whose steps are so much longer at one error that a gradient goes farther
    "minimal_norm": Integrator(
        kicks=(MINIMAL_NORM, 1 - 2 * MINIMAL_NORM, MINIMAL_NORM), drifts=(0.5, 0.5)
    ),
}


def kick(v: Tensor, force: Tensor, time: Tensor | float) -> tuple[Tensor, Tensor]:
    r"""Velocities after a time in a constant gradient, and :math:`\Delta K` ``[C]``.

    Args:
        v: Velocities ``[C, P]`` of length 1, P at least 2.
        force: Whitened gradients G of U ``[C, P]``.
        time: How long ``[C]``, or of all.
    """
    dimensions = v.shape[-1] - 1
    size = force.square().sum(-1).sqrt()
    towards = -force / size.clamp(min=torch.finfo(v.dtype).tiny).unsqueeze(-1)
    delta = (time * size / dimensions).unsqueeze(-1)
    along = (v * towards).sum(-1, keepdim=True)
    rest = (-delta).exp()
    lost = -torch.expm1(-delta)  # 1 - w
    turned = towards * lost * (1 + rest + along * lost) + 2 * rest * v
    # cosh + a sinh = exp(delta) (1 - (1 - a) (1 - w^2) / 2)
    change = delta + torch.log1p(0.5 * (1 - along) * torch.expm1(-2 * delta))
    return unit(turned), dimensions * change.squeeze(-1)


def refresh(v: Tensor, normal: Tensor, share: Tensor) -> Tensor:
    r"""Velocities that are forgotten in part, :math:`v' \propto v + \nu \xi`.

    .. math:: \nu^2 = (e^{2 t / L} - 1) / P, \qquad E\, v^\top v' = e^{-t / L} + O(1 / P)

    Args:
        v: Velocities ``[C, P]``.
        normal: Standard normal :math:`\xi` ``[C, P]``.
        share: Time t since the last refresh over the length L of memory ``[C]``.
    """
    size = (torch.expm1(2 * share) / v.shape[-1]).sqrt()
    return unit(v + size.unsqueeze(-1) * normal)


def unit(v: Tensor) -> Tensor:
    """Vectors ``[..., P]`` at length 1."""
    return v / v.square().sum(-1, keepdim=True).sqrt()
