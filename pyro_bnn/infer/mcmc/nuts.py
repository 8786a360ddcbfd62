"""No-U-Turn sampling of the exact posterior."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyro_bnn.checks import check_positive_int
from pyro_bnn.errors import OptionError
from pyro_bnn.infer.mcmc import nuts_kernel
from pyro_bnn.infer.mcmc.hamiltonian import MetropolisSampler
from pyro_bnn.infer.mcmc.kernel import Kernel
from pyro_bnn.posterior.nature import Fault


@dataclass(frozen=True, kw_only=True)
class NUTS(MetropolisSampler):
    """No-U-Turn sampler: draws from the exact posterior, up to convergence of the chains.

    Up to 64 chains on a processor move by a step in C, on as many threads as torch has
    (``torch.set_num_threads``), with the same draws for each number of them. More chains, those on
    a GPU, and models with an operation that is not written in C move together, as one batch through
    one captured step: more of them cost less than their share. Step sizes adapt chain by chain, and
    end as one where they differ by chance; the mass matrix adapts from all draws. It misses
    modes that no chain visits: look at R-hat of the function, not of single weights, which are
    exchangeable. All rows of the data enter every gradient. Point-estimated parameters of the model
    are held fixed at their values, and one logged line names them.

    Args:
        num_chains: Number of chains C.
        warmup_steps: Draws of a chain that adapt step size and mass matrix and are dropped, on
            average over the chains.
        num_samples: Draws S of each chain that are kept.
        target_accept: Mean acceptance rate that the step size aims at, in (0, 1); raise it where
            draws diverge.
        max_tree_depth: A trajectory has fewer than 2 to this power leapfrog steps; at most 20.
        mass_matrix: ``"diagonal"``, or ``"low_rank"`` with up to ten directions beside it, for
            posteriors with strong correlations.
        compile: Whether the step is compiled: ``"auto"`` where the run is long enough to gain
            from it, True always, an error where that cannot be, False never. Uncompiled it is
            replayed as a graph of operations.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Hoffman & Gelman, "The No-U-Turn Sampler: Adaptively Setting Path Lengths in Hamiltonian
        Monte Carlo", JMLR 2014, arXiv:1111.4246.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> model = models.MLP(1, hidden=(3,))
        >>> nuts = NUTS(num_chains=2, warmup_steps=5, num_samples=5)
        >>> posterior = nuts.run(model, (x, x[:, 0]), progress=False)
        >>> posterior.sample_stats["lp"].shape
        (2, 5)
    """

    max_tree_depth: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive_int("max_tree_depth", self.max_tree_depth)
        if self.max_tree_depth > nuts_kernel.MAX_DEPTH:
            raise OptionError(
                f"max_tree_depth is at most {nuts_kernel.MAX_DEPTH}, not {self.max_tree_depth}"
            )

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        trees: dict[Fault, str] = {"saturated": "raise max_tree_depth"}
        return super().remedies(options) | trees

    @property
    def _kernel(self) -> Kernel:
        return nuts_kernel

    @property
    def _limit(self) -> int:
        return 1 << self.max_tree_depth
