"""Microcanonical Langevin sampling, without a test of acceptance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pyro_bnn.checks import check_positive
from pyro_bnn.infer.mcmc.hamiltonian import IsokineticSampler
from pyro_bnn.infer.mcmc.isokinetic import INTEGRATORS
from pyro_bnn.infer.mcmc.kernel import Kernel
from pyro_bnn.infer.mcmc.microcanonical_kernel import PARTS, STRETCH, Unadjusted
from pyro_bnn.posterior.nature import Fault


@dataclass(frozen=True, kw_only=True)
class MCLMC(IsokineticSampler):
    r"""Microcanonical Langevin Monte Carlo: draws of a bias that is chosen and shown.

    Velocities of length 1 follow

    .. math:: dy = v\, dt, \qquad dv = -\tfrac{1}{P - 1} (I - v v^\top) \nabla U(y)\, dt
              + \text{noise that forgets } v \text{ over a length } L

    in coordinates y whitened by the mass matrix. No step is rejected: a step can be twice as
    long as one of ``HMC``, and none is wasted; in return variances are off by up to about r, where
    the variance a dimension of a step's energy error is :math:`E = 4 r^3 / (1 + r)^2`. Step sizes
    are tuned until E is ``energy_variance``: 1e-4, 5e-4, 5e-3 and 0.1 mean r of 3, 5, 12 and 36 %
    (:mod:`pyro_bnn.diagnostics.energy_error` derives it for Hamiltonian steps, and says how much
    smaller the bias of isokinetic ones is). On a Gaussian E comes out within a third of that value.
    On networks a few steps contribute most of E, and a run may or may not meet them: by leapfrog E
    is 0.6 to 0.8 times that value, by the minimal norm 0.01 to 10 times. Each draw's E is in
    ``sample_stats["energy_variance"]``, and the report shows the r it implies. Compare with
    ``MAMS`` or ``NUTS`` before you trust a small difference of spreads.

    The memory L is twice the best length of trajectories with a velocity of its own each, which the
    warm-up finds as in ``HMC``. A draw is kept every quarter of that length;
    :mod:`~pyro_bnn.infer.mcmc.microcanonical_kernel` says why. With ``num_steps`` set, draws are a
    quarter of the memory apart.

    Args:
        num_chains: Number of chains C.
        warmup_steps: Draws of a chain that adapt step size, mass matrix and memory and are dropped,
            on average over the chains. The memory is found with 45 or more; with fewer it is 32
            steps.
        num_samples: Draws S of each chain that are kept.
        energy_variance: The variance E of a step's energy error a dimension that step sizes are
            tuned to, in squared nats.
        num_steps: Steps :math:`L / \epsilon` of a velocity's memory, to keep fixed; None
            finds the number, up to 512.
        integrator: ``"minimal_norm"``, with two gradients a step, or ``"leapfrog"`` with one.
        mass_matrix: ``"diagonal"``, or ``"low_rank"`` with up to ten directions beside it.
        compile: As in ``NUTS``.

    Raises:
        OptionError: If an option is out of its range.

    References:
        Robnik, De Luca, Silverstein & Seljak, "Microcanonical Hamiltonian Monte Carlo", JMLR 2023,
        arXiv:2212.08549. Robnik & Seljak, "Fluctuation without Dissipation: Microcanonical Langevin
        Monte Carlo", 2023, arXiv:2303.18221. Robnik, Cohn-Gordon & Seljak, "Black-Box Unadjusted
        Hamiltonian Monte Carlo", 2024, arXiv:2412.08876 (bias by the energy error).

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> mclmc = MCLMC(num_chains=2, warmup_steps=5, num_samples=5, num_steps=8)
        >>> posterior = mclmc.run(models.MLP(1, hidden=(3,)), (x, x[:, 0]), progress=False)
        >>> posterior.sample_stats["n_gradients"].tolist()  # 2 steps of 2
        [[4, 4, 4, 4, 4], [4, 4, 4, 4, 4]]
    """

    energy_variance: float = 5e-4
    integrator: Literal["leapfrog", "minimal_norm"] = "minimal_norm"

    _stretch: ClassVar[int] = STRETCH

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("energy_variance", self.energy_variance)

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        steps: dict[Fault, str] = {
            "step bias": "lower energy_variance, or use MAMS or NUTS",
            "divergent": "lower energy_variance, or use a non-centred prior",
        }
        return super().remedies(options) | steps

    @property
    def _kernel(self) -> Kernel:
        return Unadjusted(self.integrator)

    @property
    def _target(self) -> float:
        return self.energy_variance

    @property
    def _typical_steps(self) -> int:
        return super()._typical_steps * INTEGRATORS[self.integrator].num_gradients

    @property
    def _last(self) -> Mapping[str, float]:
        return {"parts": PARTS * (STRETCH if self._finds_length else 1)}
