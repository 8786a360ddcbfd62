"""Hamiltonian Monte Carlo with trajectories of a given length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from pyro_bnn.infer.engine import check_positive_int
from pyro_bnn.infer.mcmc import hmc_kernel
from pyro_bnn.infer.mcmc.hamiltonian import HamiltonianSampler


@dataclass(frozen=True, kw_only=True)
class HMC(HamiltonianSampler):
    """Hamiltonian Monte Carlo: draws from the exact posterior, trajectories of about L steps.

    Cheaper a step than ``NUTS``, which looks for the length by itself; worth it where a good length
    is known, such as from the ``n_steps`` of a run of NUTS. Chains, mass matrix, step sizes and
    what to look at are as there.

    Args:
        num_chains: Number of chains C.
        warmup_steps: Draws of a chain that adapt step size and mass matrix and are dropped, on
            average over the chains.
        num_samples: Draws S of each chain that are kept.
        num_steps: Mean number of leapfrog steps L of a trajectory; each draws its own, evenly
            between half and one and a half times that.
        target_accept: Mean acceptance rate that the step size aims at, in (0, 1).
        mass_matrix: ``"diagonal"``, or ``"low_rank"`` with up to ten directions beside it.
        compile: As in ``NUTS``.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Neal, "MCMC Using Hamiltonian Dynamics", 2011, arXiv:1206.1901.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> hmc = HMC(num_chains=2, warmup_steps=5, num_samples=5, num_steps=8)
        >>> posterior = hmc.run(models.MLP(1, hidden=(3,)), (x, x[:, 0]), progress=False)
        >>> posterior.sample_stats["n_steps"].max() <= 12
        np.True_
    """

    num_steps: int = 32

    _kernel: ClassVar[Any] = hmc_kernel

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive_int("num_steps", self.num_steps)

    @property
    def _limit(self) -> int:
        return self.num_steps
