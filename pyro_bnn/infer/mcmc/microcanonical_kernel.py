r"""Microcanonical samplers as state machines: isokinetic trajectories, with a test and without.

**Adjusted** (MAMS): a velocity is drawn evenly from the sphere, N steps are taken, and the end is
accepted with probability

.. math:: \min\{1, \exp(-\textstyle\sum \Delta E)\}

of the steps' energy errors. Exact at every step size. N is drawn as in
:mod:`~pyro_bnn.infer.mcmc.hmc_kernel`.

**Unadjusted** (MCLMC): every end is a draw, and the velocity goes on, forgotten in part. With a
memory of N steps, :math:`L = N \epsilon`, draws are N/4 steps apart, or N/8 where the memory is
found, in which a velocity loses no more than :math:`1 - e^{-1/4}` of itself: one refresh there
serves for one at each step, at a fraction of the random numbers. The draws are biased by the step
size alone, and the energy errors tell by how much (:mod:`pyro_bnn.diagnostics.energy_error`).

**How long a memory, and how far apart.** In many dimensions a Gaussian direction of frequency
:math:`\omega` moves as under Langevin's equation of friction :math:`\gamma`, which is 1/L in the
units of :math:`\omega`, and has the integrated autocorrelation times

.. math:: 2 \int_0^\infty \rho = \frac{2 \gamma}{\omega^2} \text{ of } x, \qquad
          2 \int_0^\infty \rho^2 = \frac1\gamma + \frac{\gamma}{\omega^2} \text{ of } x^2

by :math:`\rho'' + \gamma \rho' + \omega^2 \rho = 0`. Of x the longest memory is best, of its square
:math:`1 / \omega`, near the length :math:`1.3 / \omega` that is best for trajectories with a
velocity of their own each (:mod:`~pyro_bnn.infer.mcmc.length_search`). Twice that length has half
the time of x, and 1.4 times that of squares. It is also nearer to what the slow directions need,
whose :math:`\omega` is smaller than that of most, and these are what an output of a network forgets
last: on two moons, 2-20-20-1, memories of 8, 16, 32 and 64 steps had 0.035, 0.049, 0.055 and 0.054
effective draws of it a gradient, where 8 to 11 were found, and those of squared weights fell from
0.047 with 8 to 0.036 with 16. On diabetes, 10-50-1, these four differ by a tenth, a gradient and
unit of step size.

What loses there is to keep too few draws. With all four, draws 5 steps apart, a quarter of the
length found, had 0.063 to 0.070 effective draws a gradient, and 8 apart, a quarter of a memory of
32, 0.045 to 0.049. So draws stay a quarter of the length found apart, while the memory is twice
that. What is measured here are the smallest bulk ESS over outputs, by minimal norm.

References:
    Robnik, Cohn-Gordon & Seljak, "Metropolis Adjusted Microcanonical Hamiltonian Monte Carlo",
    2025, arXiv:2503.01707. Robnik, De Luca, Silverstein & Seljak, "Microcanonical Hamiltonian Monte
    Carlo", JMLR 2023, arXiv:2212.08549.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pyro_bnn.infer.mcmc import hmc_kernel
from pyro_bnn.infer.mcmc.hmc_kernel import choose, drawn_length
from pyro_bnn.infer.mcmc.isokinetic import INTEGRATORS, refresh, unit
from pyro_bnn.infer.mcmc.leapfrog import MAX_ENERGY_ERROR, Start
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.potentials import Potential

PARTS = 4  # draws of the unadjusted sampler within the memory of a velocity, which is given
STRETCH = 2  # memory over the length that is found, of which draws are a quarter apart


class Flight(NamedTuple):
    """Where every chain stands in its trajectory.

    Attributes:
        z: Positions ``[C, P]``; likewise velocities ``v``, gradients ``grad``.
        potential: U at z ``[C]``.
        start_z: Where the trajectory started, ``[C, P]``, with ``start_grad``, ``start_potential``.
        error_sum: Sum of the energy errors of the steps ``[C]``; of their squares ``square_sum``.
        accept_sum: Of the adjusted sampler the acceptance probability of the newest point ``[C]``;
            of the other the mean square of the energy errors so far, a dimension.
        num_steps: Steps so far ``[C]``.
        length: Steps of the whole trajectory ``[C]``, drawn at the first of them.
        parts: Draws within the memory of a velocity ``[C]``; 1 where it is drawn anew for each.
        ended: Whether the last step ended a trajectory ``[C]``.
        stats: Of the last trajectory that ended ``[C, len(STATISTICS)]``.
    """

    z: Tensor
    v: Tensor
    grad: Tensor
    potential: Tensor
    start_z: Tensor
    start_grad: Tensor
    start_potential: Tensor
    error_sum: Tensor
    square_sum: Tensor
    accept_sum: Tensor
    num_steps: Tensor
    length: Tensor
    parts: Tensor
    ended: Tensor
    stats: Tensor


@dataclass(frozen=True)
class _Microcanonical(ABC):
    """What both have in common.

    Args:
        integrator: Name of the step, one of ``INTEGRATORS``.
    """

    integrator: str

    STATISTICS: ClassVar[tuple[str, ...]]
    AIM: ClassVar[str]
    ORDER: ClassVar[int | None]
    UNIFORMS: ClassVar[int] = 2  # acceptance, length of a trajectory that begins

    def begin(self, start: Start, momentum: Tensor, uniform: Tensor, limit: int) -> Flight:
        """Trajectories of one point, of velocities in the directions of the momenta ``[C, P]``."""
        del uniform, limit  # of the form of all kernels
        z, potential, grad = start
        none = torch.zeros_like(potential)
        zero = torch.zeros(z.shape[0], dtype=torch.int64, device=z.device)
        return Flight(
            z=z.clone(),
            v=unit(momentum),
            grad=grad.clone(),
            potential=potential.clone(),
            start_z=z.clone(),
            start_grad=grad.clone(),
            start_potential=potential.clone(),
            error_sum=none,
            square_sum=none.clone(),
            accept_sum=none.clone(),
            num_steps=zero,
            length=zero.clone(),
            parts=torch.ones_like(zero),
            ended=zero > 0,
            stats=z.new_zeros(z.shape[0], len(self.STATISTICS)),
        )

    def is_possible(self, state: Flight, limit: int) -> bool:
        """Whether trajectories of so many steps in the mean can be there between two steps."""
        parts = set(state.parts.tolist())
        return hmc_kernel.is_possible(state, limit) and parts <= {1, PARTS, STRETCH * PARTS}

    def position(self, state: Flight, chains: Tensor) -> Start:
        """Latest draws of some chains."""
        return state.start_z[chains], state.start_potential[chains], state.start_grad[chains]

    def step(
        self,
        state: Flight,
        potential: Potential,
        mass: Mass,
        step_size: Tensor,
        momentum: Tensor,
        uniform: Tensor,
        limit: Tensor,
    ) -> Flight:
        """One step of every chain, and what is drawn where a trajectory is over.

        Args:
            state: Where the chains stand; not changed.
            potential: U and its gradient.
            mass: The mass matrix.
            step_size: Of each chain ``[C]``.
            momentum: Standard normal ``[C, P]``, used by chains that start a trajectory.
            uniform: In [0, 1), ``[C, UNIFORMS]``.
            limit: Mean number of steps of trajectories that begin, ``[]``; where ``parts`` is not
                1, steps N of a velocity's memory.
        """
        integrator, num_latents = INTEGRATORS[self.integrator], state.z.shape[-1]
        new = integrator.step(
            state.z, state.v, state.grad, state.potential, step_size, potential, mass
        )
        error = torch.where(new.error.isfinite(), new.error, torch.inf)
        first = self._length(state.parts, uniform[:, 1], limit)
        length = torch.where(state.num_steps == 0, first, state.length)
        num_steps = state.num_steps + 1
        error_sum, square_sum = state.error_sum + error, state.square_sum + error.square()
        variance = square_sum / (num_steps * num_latents)
        diverging = error.abs() > MAX_ENERGY_ERROR
        diverging, is_good, aim = self._judged(diverging, error_sum, variance, uniform[:, 0])
        ended = diverging | (num_steps >= length)
        is_kept = ended & is_good
        z = choose(is_kept, new.z, state.start_z)
        grad = choose(is_kept, new.grad, state.start_grad)
        value = choose(is_kept, new.potential, state.start_potential)
        columns = {
            "lp": -value,
            "energy_error": error_sum,
            "energy_variance": variance,
            "n_steps": num_steps,
            "n_gradients": num_steps * integrator.num_gradients,
            "diverging": diverging,
            self.AIM: aim,
        }
        stats = torch.stack([columns[name].to(value.dtype) for name in self.STATISTICS], -1)
        v = self._velocity(state.parts, new.v, momentum, num_steps.to(z.dtype) / limit, diverging)
        return Flight(
            z=choose(ended, z, new.z),
            v=choose(ended, v, new.v),
            grad=choose(ended, grad, new.grad),
            potential=choose(ended, value, new.potential),
            start_z=z,
            start_grad=grad,
            start_potential=value,
            error_sum=torch.where(ended, 0.0, error_sum),
            square_sum=torch.where(ended, 0.0, square_sum),
            accept_sum=aim,
            num_steps=torch.where(ended, 0, num_steps),
            length=length,
            parts=state.parts,
            ended=ended,
            stats=choose(ended, stats, state.stats),
        )

    @abstractmethod
    def _length(self, parts: Tensor, uniform: Tensor, limit: Tensor) -> Tensor:
        """How many steps trajectories that begin have ``[C]``."""

    @abstractmethod
    def _judged(
        self, diverging: Tensor, error_sum: Tensor, variance: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Which diverge, whose ends would be draws, and what ``AIM`` is ``[C]``."""

    @abstractmethod
    def _velocity(
        self, parts: Tensor, v: Tensor, normal: Tensor, share: Tensor, diverging: Tensor
    ) -> Tensor:
        """Velocities ``[C, P]`` after trajectories that end with some, over a share of memory."""


class Adjusted(_Microcanonical):
    """MAMS: draws of the density itself."""

    STATISTICS = (
        "lp", "energy_error", "energy_variance", "n_steps", "n_gradients", "acceptance_rate",
        "diverging",
    )  # fmt: skip
    AIM = "acceptance_rate"
    ORDER = None

    def _length(self, parts: Tensor, uniform: Tensor, limit: Tensor) -> Tensor:
        del parts
        return drawn_length(uniform, limit)

    def _judged(
        self, diverging: Tensor, error_sum: Tensor, variance: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        del variance
        diverging = diverging | (error_sum > MAX_ENERGY_ERROR)
        accept = torch.where(diverging, 0.0, (-error_sum).clamp(max=0).exp())
        return diverging, uniform < accept, accept

    def _velocity(
        self, parts: Tensor, v: Tensor, normal: Tensor, share: Tensor, diverging: Tensor
    ) -> Tensor:
        del parts, v, share, diverging
        return unit(normal)


class Unadjusted(_Microcanonical):
    r"""MCLMC: draws whose bias the step size sets.

    The draw is where a trajectory ends, unless it diverges. Step sizes are tuned by the variance of
    a step's energy error a dimension, which grows as :math:`\epsilon^6`. While ``parts`` is 1 each
    trajectory has a velocity of its own, as of the adjusted sampler.
    """

    STATISTICS = (
        "lp", "energy_error", "energy_variance", "n_steps", "n_gradients", "diverging",
    )  # fmt: skip
    AIM = "energy_variance"
    ORDER = 6

    def _length(self, parts: Tensor, uniform: Tensor, limit: Tensor) -> Tensor:
        apart = (limit // parts).clamp(min=1)
        return torch.where(parts == 1, drawn_length(uniform, limit), apart)

    def _judged(
        self, diverging: Tensor, error_sum: Tensor, variance: Tensor, uniform: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        del error_sum, uniform
        return diverging, ~diverging, variance

    def _velocity(
        self, parts: Tensor, v: Tensor, normal: Tensor, share: Tensor, diverging: Tensor
    ) -> Tensor:
        return choose((parts == 1) | diverging, unit(normal), refresh(v, normal, share))
