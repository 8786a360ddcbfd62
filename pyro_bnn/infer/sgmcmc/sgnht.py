r"""Stochastic gradient Nosé-Hoover thermostats: a friction that follows the temperature.

.. math:: p \leftarrow p - h \widehat{\nabla U}(z), \quad z \leftarrow z + \tfrac h2 p, \quad
          p \leftarrow c\, p + \sqrt{a T (1 - c^2) / \zeta}\, \xi, \quad
          z \leftarrow z + \tfrac h2 p, \quad
          \zeta \leftarrow \zeta + h (|p|^2 / P - T), \qquad c = e^{-\zeta h}

BAOAB with a state zeta as its friction, one for each chain: it rises until the momenta have
temperature T, whatever noise the batches add. Of noise with one variance V in all directions its
mean is :math:`a + h V / (2 T)`, to first order in h, and the noise is undone; of noise that differs
between directions their mean temperature is right, and not that of each.

References:
    Ding et al., "Bayesian Sampling Using Stochastic Gradient Thermostats", NeurIPS 2014.
    Leimkuhler & Shang, "Adaptive Thermostats for Noisy Gradient Systems", SIAM Journal on
    Scientific Computing 2016, arXiv:1505.06889.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from pyro_bnn.infer.sgmcmc.dynamics import ChainState, StepInputs
from pyro_bnn.infer.sgmcmc.engine import WithMomenta

NO_FRICTION = 1e-6  # below which (1 - c^2) / zeta is its limit, 2 h


@dataclass(frozen=True, kw_only=True)
class SGNHT(WithMomenta):
    """Langevin dynamics with momenta, and a thermostat against the noise of the batches.

    Args:
        num_chains, warmup_steps, num_samples, thin, step_size, batch_size, control, temperature, \
compile: As of :class:`BAOAB`.
        friction: a, the friction without the noise of batches, at which thermostats start, > 0.

    Raises:
        OptionError: If an option is out of its range.
    """

    undoes_noise: ClassVar[bool] = True

    def begin(self, z: Tensor, normal: Tensor, curvature: Tensor) -> ChainState:
        """Chains with momenta, thermostats at the target; see the base class."""
        own = {"thermostat": torch.full_like(z[:, :1], self.friction)}
        return {**super().begin(z, normal, curvature), **own}

    def step(
        self, state: ChainState, slope: Tensor, noise: Tensor, inputs: StepInputs
    ) -> ChainState:
        """One step; see the base class."""
        z, p, zeta, h = state["z"], state["p"], state["thermostat"], inputs.step_size
        safe = torch.where(zeta.abs() > NO_FRICTION, zeta, torch.full_like(zeta, NO_FRICTION))
        spread = -self.friction * torch.expm1(-2 * safe * h) / safe
        p = p - h * slope
        z = z + h / 2 * p
        p = torch.exp(-zeta * h) * p + (inputs.temperature * spread).sqrt() * noise
        z = z + h / 2 * p
        excess = p.square().mean(-1, keepdim=True) - inputs.temperature
        moves = (inputs.temperature > 0).to(zeta)  # where a cycle explores there is no target
        return {"z": z, "p": p, "thermostat": zeta + h * moves * excess}
