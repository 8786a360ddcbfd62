r"""Hamiltonian Monte Carlo with a number of steps that is drawn beforehand, as a state machine.

A trajectory of L leapfrog steps from (z, p) to (z', p') is accepted with probability

.. math:: \min\{1, \exp(H(z, p) - H(z', p'))\}

L is drawn anew for every trajectory, evenly from :math:`\lceil \bar L / 2 \rceil` to
:math:`\lfloor 3 \bar L / 2 \rfloor`: one length for all could be a period of the posterior.

A trajectory that rises on its way by more than `MAX_ENERGY_ERROR` above its start is ended there,
rejected, and counts as divergent. The same way back is held to the energy of the other end. So
detailed balance fails between two ends where a point between them is within the limit of the one
and beyond that of the other, which takes a point some 1,000 nats above both.

Of the form that :mod:`pyro_bnn.infer.mcmc.lockstep` drives: a call of :func:`step` moves every
chain by one leapfrog step, and a chain whose trajectory is over starts the next one at once.

References:
    Neal, "MCMC Using Hamiltonian Dynamics", 2011, arXiv:1206.1901, sections 3 and 4.2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from pyro_bnn.infer.mcmc.leapfrog import (
    MAX_ENERGY_ERROR,
    Start,
    energy_error,
    kinetic,
    leapfrog,
)
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.potentials import Potential

STATISTICS = ("lp", "energy", "n_steps", "acceptance_rate", "diverging")
AIM = "acceptance_rate"
ORDER = None
UNIFORMS = 2  # that a step uses of each chain: acceptance, length of a trajectory that it begins


class Trajectory(NamedTuple):
    """Where every chain stands in its trajectory.

    Attributes:
        z: Positions ``[C, P]``; likewise momenta ``p``, gradients ``grad``.
        start_z: Where the trajectory started, ``[C, P]``, with ``start_grad``.
        start_potential: U there ``[C]``; ``start_energy`` with the kinetic energy.
        num_steps: Leapfrog steps so far ``[C]``.
        length: Steps of the whole trajectory ``[C]``, drawn at the first of them.
        accept_sum: Acceptance probability of the newest point ``[C]``.
        ended: Whether the last step ended a trajectory ``[C]``.
        stats: Of the last trajectory that ended ``[C, 5]``: see ``STATISTICS``.
    """

    z: Tensor
    p: Tensor
    grad: Tensor
    start_z: Tensor
    start_grad: Tensor
    start_potential: Tensor
    start_energy: Tensor
    num_steps: Tensor
    length: Tensor
    accept_sum: Tensor
    ended: Tensor
    stats: Tensor


def begin(start: Start, momentum: Tensor, uniform: Tensor, limit: int) -> Trajectory:
    """Trajectories of one point, whose lengths are not drawn yet.

    Args:
        start: The points.
        momentum: Standard normal ``[C, P]``.
        uniform: Not used.
        limit: Not used.
    """
    del uniform, limit  # of the form of all kernels
    z, potential, grad = start
    zero = torch.zeros(z.shape[0], dtype=torch.int64, device=z.device)
    return Trajectory(
        z=z.clone(),
        p=momentum.clone(),
        grad=grad.clone(),
        start_z=z.clone(),
        start_grad=grad.clone(),
        start_potential=potential.clone(),
        start_energy=potential + kinetic(momentum),
        num_steps=zero,
        length=zero.clone(),
        accept_sum=torch.zeros_like(potential),
        ended=zero > 0,
        stats=z.new_zeros(z.shape[0], len(STATISTICS)),
    )


def is_possible(state: Any, limit: int) -> bool:
    """Whether trajectories of so many steps in the mean can be there between two steps."""
    is_length = (state.length > 0) & (state.length <= 3 * limit // 2)
    is_under_way = is_length & (state.num_steps >= 0) & (state.num_steps < state.length)
    return bool((is_under_way | (state.num_steps == 0)).all())


def position(state: Trajectory, chains: Tensor) -> Start:
    """Latest draws of some chains."""
    return state.start_z[chains], state.start_potential[chains], state.start_grad[chains]


def step(
    state: Trajectory,
    potential: Potential,
    mass: Mass,
    step_size: Tensor,
    momentum: Tensor,
    uniform: Tensor,
    limit: Tensor,
) -> Trajectory:
    """One leapfrog step of every chain, and acceptance where a trajectory is over.

    Args:
        state: Where the chains stand; not changed.
        potential: U and its gradient.
        mass: The mass matrix.
        step_size: Of each chain ``[C]``.
        momentum: Standard normal ``[C, P]``, used by chains that start a trajectory.
        uniform: In [0, 1), ``[C, UNIFORMS]``.
        limit: Mean number of steps of trajectories that begin, ``[]``.
    """
    new = leapfrog(state.z, state.p, state.grad, step_size, potential, mass)
    error = energy_error(new.energy, state.start_energy)
    accept = (-error).clamp(max=0).exp()
    diverging = error > MAX_ENERGY_ERROR
    length = torch.where(state.num_steps == 0, drawn_length(uniform[:, 1], limit), state.length)
    num_steps = state.num_steps + 1
    ended = diverging | (num_steps >= length)
    accepted = ended & (uniform[:, 0] < accept)
    z = choose(accepted, new.z, state.start_z)
    grad = choose(accepted, new.grad, state.start_grad)
    value = choose(accepted, new.potential, state.start_potential)
    energy = choose(accepted, new.energy, state.start_energy)
    stats = torch.stack(
        [-value, energy, num_steps.to(value.dtype), accept, diverging.to(value.dtype)], -1
    )
    return Trajectory(
        z=choose(ended, z, new.z),
        p=choose(ended, momentum, new.p),
        grad=choose(ended, grad, new.grad),
        start_z=z,
        start_grad=grad,
        start_potential=value,
        start_energy=choose(ended, value + kinetic(momentum), state.start_energy),
        num_steps=torch.where(ended, 0, num_steps),
        length=length,
        accept_sum=accept,
        ended=ended,
        stats=choose(ended, stats, state.stats),
    )


def drawn_length(uniform: Tensor, limit: Tensor) -> Tensor:
    """Numbers of steps ``[C]``, even over those from half to one and a half times the mean."""
    low, high = (limit + 1) // 2, 3 * limit // 2
    return torch.minimum(low + (uniform * (high - low + 1)).long(), high)


def choose(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """Rows ``[C, ...]`` of ``yes`` where the condition ``[C]`` holds, else of ``no``."""
    return torch.where(condition.unsqueeze(-1) if yes.ndim == 2 else condition, yes, no)
