"""Metropolis-adjusted microcanonical sampling."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_bnn.infer.mcmc.hamiltonian import IsokineticSampler, MetropolisSampler
from pyro_bnn.infer.mcmc.kernel import Kernel
from pyro_bnn.infer.mcmc.microcanonical_kernel import Adjusted


@dataclass(frozen=True, kw_only=True)
class MAMS(MetropolisSampler, IsokineticSampler):
    r"""Metropolis-adjusted microcanonical sampler: draws from the exact posterior.

    As ``HMC``, with velocities of constant length in place of momenta: trajectories follow

    .. math:: \dot y = v, \qquad
              \dot v = -\tfrac{1}{P - 1} (I - v v^\top) \nabla U(y), \qquad |v| = 1

    so that a steep place turns a velocity and does not quicken it. A trajectory starts in a
    direction drawn evenly and its end is accepted with probability
    :math:`\min\{1, e^{-\sum \Delta E}\}`, by the energy errors of its steps. Chains, mass matrix,
    step sizes, lengths and what to look at are as in ``HMC``; of ``MCLMC``, which is the same
    without the test, it gives the unbiased answer.

    Args:
        num_chains: Number of chains C.
        warmup_steps: Draws of a chain that adapt step size, mass matrix and length and are dropped,
            on average over the chains. The length is found with 45 or more; with fewer it is 16.
        num_samples: Draws S of each chain that are kept.
        num_steps: Mean number of steps of a trajectory, if it is to be kept; each draws its own,
            evenly between half and one and a half times that. None finds it, up to 512.
        integrator: ``"leapfrog"``, or ``"minimal_norm"`` with two gradients a step.
        target_accept: Mean acceptance rate that the step size aims at, in (0, 1).
        mass_matrix: ``"diagonal"``, or ``"low_rank"`` with up to ten directions beside it.
        compile: As in ``NUTS``.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Robnik, Cohn-Gordon & Seljak, "Metropolis Adjusted Microcanonical Hamiltonian Monte Carlo",
        2025, arXiv:2503.01707.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> mams = MAMS(num_chains=2, warmup_steps=5, num_samples=5, num_steps=8)
        >>> posterior = mams.run(models.MLP(1, hidden=(3,)), (x, x[:, 0]), progress=False)
        >>> sorted(posterior.sample_stats)  # doctest: +NORMALIZE_WHITESPACE
        ['acceptance_rate', 'diverging', 'energy_error', 'energy_variance', 'lp', 'n_gradients',
         'n_steps', 'step_size']
    """

    @property
    def _kernel(self) -> Kernel:
        return Adjusted(self.integrator)
