"""Hamiltonian Monte Carlo with trajectories whose length the warm-up finds, or a given one."""

from __future__ import annotations

from dataclasses import dataclass

from pyro_bnn.infer.mcmc import hmc_kernel
from pyro_bnn.infer.mcmc.hamiltonian import MetropolisSampler, SamplerOfLength
from pyro_bnn.infer.mcmc.kernel import Kernel


@dataclass(frozen=True, kw_only=True)
class HMC(MetropolisSampler, SamplerOfLength):
    r"""Hamiltonian Monte Carlo: draws from the exact posterior, trajectories of about L steps.

    A step is cheaper than one of ``NUTS``, every one of which looks whether to turn back, and no
    step is spent on a tree that ends in the middle. In return one mean length serves everywhere:
    that of the largest expected squared jumps a gradient, in whitened coordinates y and in their
    distance from the mean m,

    .. math:: \max_L \; \frac1L \sqrt{E\, |y' - y|^2 \cdot
              E\, \bigl(|y' - m|^2 - |y - m|^2\bigr)^2}

    over a few lengths in every window of the warm-up but the first. Where scales differ from place
    to place, as in funnels, ``NUTS`` is safer. Chains, mass matrix, step sizes and what to look at
    are as there.

    Args:
        num_chains: Number of chains C.
        warmup_steps: Draws of a chain that adapt step size, mass matrix and length and are dropped,
            on average over the chains. The length is found with 45 or more; with fewer it is 16.
        num_samples: Draws S of each chain that are kept.
        num_steps: Mean number of leapfrog steps L of a trajectory, if it is to be kept; each draws
            its own, evenly between half and one and a half times that. None finds it, up to 512.
        target_accept: Mean acceptance rate that the step size aims at, in (0, 1).
        mass_matrix: ``"diagonal"``, or ``"low_rank"`` with up to ten directions beside it.
        compile: As in ``NUTS``.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Neal, "MCMC Using Hamiltonian Dynamics", 2011, arXiv:1206.1901. Pasarica & Gelman,
        "Adaptively Scaling the Metropolis Algorithm Using Expected Squared Jumped Distance",
        Statistica Sinica 2010.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> hmc = HMC(num_chains=2, warmup_steps=5, num_samples=5, num_steps=8)
        >>> posterior = hmc.run(models.MLP(1, hidden=(3,)), (x, x[:, 0]), progress=False)
        >>> posterior.sample_stats["n_steps"].max() <= 12
        np.True_
    """

    @property
    def _kernel(self) -> Kernel:
        return hmc_kernel
