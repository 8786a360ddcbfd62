r"""Stochastic gradient Hamiltonian Monte Carlo, as a symplectic Euler step.

.. math:: p \leftarrow (1 - \alpha) p - h \widehat{\nabla U}(z)
          + \mathcal N(0, 2 \alpha T - h^2 \hat V), \quad z \leftarrow z + h p,
          \qquad \alpha = \gamma h

with V the variance of the gradient over batches, estimated in the warm-up, for each entry alone:
the noise of the batches takes the place of as much of the method's own. In a direction of curvature
lambda a Gaussian gets the variance
:math:`(T / \lambda) / (1 - h^2 \lambda / (4 - 2 \alpha))`, times
:math:`1 + h^2 (V - \hat V) / (2 \alpha T)`; the step is stable where
:math:`h^2 \lambda < 4 - 2 \alpha`. Momenta of a free particle have temperature
:math:`T / (1 - \alpha / 2)`. A drift by the old momentum, as in some released codes, is another
method, which diverges at :math:`h \lambda \ge \gamma`.

References:
    Chen, Fox & Guestrin, "Stochastic Gradient Hamiltonian Monte Carlo", ICML 2014,
    arXiv:1402.4102, equation 15, whose eta is :math:`h^2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pyro_bnn.infer.sgmcmc.dynamics import ChainState, StepInputs
from pyro_bnn.infer.sgmcmc.engine import WithMomenta


@dataclass(frozen=True, kw_only=True)
class SGHMC(WithMomenta):
    """Langevin dynamics with momenta, whose noise leaves room for that of the batches.

    A line of warning says where batches are noisier than the friction has room for.

    Args:
        num_chains, warmup_steps, num_samples, thin, step_size, batch_size, control, temperature, \
compile: As of :class:`BAOAB`.
        friction: gamma, > 0; the momentum that is kept in a step is ``1 - friction * h``.

    Raises:
        OptionError: If an option is out of its range.
    """

    uses_variance: ClassVar[bool] = True
    undoes_noise: ClassVar[bool] = True

    def step(
        self, state: ChainState, slope: Tensor, noise: Tensor, inputs: StepInputs
    ) -> ChainState:
        """One step; see the base class."""
        z, p, h = state["z"], state["p"], inputs.step_size
        alpha = self.friction * h
        own = 2 * alpha * inputs.temperature - h * h * inputs.variance
        p = (1 - alpha) * p - h * slope + own.clamp(min=0).sqrt() * noise
        return {"z": z + h * p, "p": p}

    def largest_step(self, curvature: float, variance: float) -> float:
        """As of ``BAOAB``, and at most such that momenta are 5 % too hot; see the base class."""
        return min(super().largest_step(curvature, variance), 0.1 / self.friction)

    def lacks_room(self, step_size: float, variance: Tensor) -> float:
        r"""Where :math:`h V > 2 \gamma T`; see the base class."""
        return float((step_size * variance > 2 * self.friction * self.temperature).float().mean())
