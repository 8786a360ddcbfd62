r"""Preconditioned Langevin dynamics, whose preconditioner stays as it is after the warm-up.

.. math:: v \leftarrow \beta v + (1 - \beta)\, \widehat{\nabla U}(z)^2 \text{ in the warm-up}, \quad
          G = (\delta + \sqrt v)^{-1}, \quad
          z \leftarrow z - h\, G \widehat{\nabla U}(z) + \mathcal N(0, 2 h T G)

With G that goes on changing with z, the step lacks the term
:math:`\Gamma_i = \sum_j \partial_j G_{ij}`, and its draws are of another density, of
:math:`\pi / G` in one dimension, even as h falls to 0. Frozen it is Langevin dynamics in
coordinates divided by :math:`G^{1/2}`, exact in that limit, with the biases of ``SGLD`` at
curvature :math:`G \lambda`. The averages v start at the curvature along each coordinate, which is
the mean square of the gradient of a Gaussian.

References:
    Li, Chen, Carlson & Carin, "Preconditioned Stochastic Gradient Langevin Dynamics for Deep Neural
    Networks", AAAI 2016, arXiv:1512.07666. Ma, Chen & Fox, "A Complete Recipe for Stochastic
    Gradient MCMC", NeurIPS 2015, arXiv:1506.04696, for the missing term.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from pyro_bnn.checks import check_positive, check_share
from pyro_bnn.infer.sgmcmc.dynamics import ChainState, StepInputs
from pyro_bnn.infer.sgmcmc.engine import WithoutMomenta


@dataclass(frozen=True, kw_only=True)
class PSGLD(WithoutMomenta):
    """Langevin dynamics with a step for each coordinate, by the size of its gradient.

    Args:
        num_chains, warmup_steps, num_samples, thin, step_size, batch_size, control, temperature, \
compile: As of :class:`BAOAB`; the step h is as of :class:`SGLD`.
        decay: beta, the share of the averages that a step of the warm-up keeps, in [0, 1).
        damping: delta, > 0, in units of the gradient.

    Raises:
        OptionError: If an option is out of its range.
    """

    decay: float = 0.99
    damping: float = 1e-5

    has_own_scale: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_share("decay", self.decay)
        check_positive("damping", self.damping)

    def begin(self, z: Tensor, normal: Tensor, curvature: Tensor) -> ChainState:
        """Chains, and averages v of the squared gradient; see the base class."""
        del normal
        return {"z": z, "square": curvature.expand_as(z)}

    def step(
        self, state: ChainState, slope: Tensor, noise: Tensor, inputs: StepInputs
    ) -> ChainState:
        """One step; see the base class."""
        z, v, h = state["z"], state["square"], inputs.step_size
        v = v + inputs.adapts * (1 - self.decay) * (slope * slope - v)
        g = 1 / (self.damping + v.sqrt())
        z = z - h * g * slope + (2 * h * inputs.temperature * g).sqrt() * noise
        return {"z": z, "square": v}

    def scale(self, state: ChainState) -> Tensor:
        """The root of G ``[C, P]``; see the base class."""
        return (self.damping + state["square"].sqrt()).rsqrt()
