r"""Stochastic gradient Langevin dynamics, with a constant step or one that falls.

.. math:: z_{t+1} = z_t - h_t\, \widehat{\nabla U}(z_t) + \sqrt{2 h_t T}\, \xi_t,
          \qquad \xi_t \sim \mathcal N(0, I)

with U minus the log joint, its likelihood estimated from a batch, N/B times that of its rows. No
proposal is rejected, so the draws are biased: by the step, and by the noise of the batches. Of a
Gaussian posterior of precision :math:`\Lambda`, draws have the right mean and, with all rows and a
constant step, the covariance :math:`T (\Lambda - h \Lambda^2 / 2)^{-1}`; a gradient with variance V
over batches multiplies the variance by :math:`1 + h V / (2 T)`. The step diverges above
:math:`2 / \lambda_{\max}(\Lambda)`. Welling and Teh's step is :math:`\epsilon = 2 h`, and falls
as :math:`\epsilon_t = a (b + t)^{-\gamma}`.

References:
    Welling & Teh, "Bayesian Learning via Stochastic Gradient Langevin Dynamics", ICML 2011.
    Vollmer, Zygalakis & Teh, "Exploration of the (Non-)Asymptotic Bias and Variance of Stochastic
    Gradient Langevin Dynamics", JMLR 2016, arXiv:1501.00438. Brosse, Durmus & Moulines, "The
    Promises and Pitfalls of Stochastic Gradient Langevin Dynamics", NeurIPS 2018, arXiv:1811.10072.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pyro_bnn.checks import check_positive
from pyro_bnn.errors import OptionError
from pyro_bnn.infer.sgmcmc.dynamics import ChainState, StepInputs
from pyro_bnn.infer.sgmcmc.engine import WithoutMomenta
from pyro_bnn.infer.sgmcmc.schedule import Decay, StepSchedule


@dataclass(frozen=True, kw_only=True)
class SGLD(WithoutMomenta):
    r"""Langevin dynamics on batches of rows: biased draws, at the price of one gradient a step.

    Compare with NUTS, or with half the step, before the spread is trusted.

    Args:
        num_chains, warmup_steps, num_samples, thin, batch_size, control, temperature, compile: As
            of :class:`BAOAB`.
        step_size: The step h, in units of z squared over a nat; default found in the warm-up, a
            tenth of the largest stable one or less.
        power: gamma of a step that falls as :math:`(1 + t / b)^{-\gamma}` after the warm-up, above
            1/2 and at most 1. Draws are then kept at equal sums of steps, not at equal numbers, so
            that all have the same weight. Default a constant step.
        delay: b, in steps, > 0; of no effect without ``power``.

    Raises:
        OptionError: If an option is out of its range.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> sgld = SGLD(num_chains=2, warmup_steps=10, num_samples=5, thin=2)
        >>> posterior = sgld.run(models.MLP(1, hidden=(3,)), (x, x[:, 0]), progress=False)
        >>> posterior.num_stored_draws
        10
    """

    power: float | None = None
    delay: float = 1_000.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.power is not None and not 0.5 < self.power <= 1:
            raise OptionError(f"power is above 1/2 and at most 1, not {self.power!r}")
        check_positive("delay", self.delay)

    @property
    def schedule(self) -> StepSchedule:
        """A constant step, or Welling and Teh's."""
        return StepSchedule() if self.power is None else Decay(self.power, self.delay)

    def begin(self, z: Tensor, normal: Tensor, curvature: Tensor) -> ChainState:
        """Chains; see the base class."""
        del normal, curvature
        return {"z": z}

    def step(
        self, state: ChainState, slope: Tensor, noise: Tensor, inputs: StepInputs
    ) -> ChainState:
        """One step; see the base class."""
        z, h = state["z"], inputs.step_size
        return {"z": z - h * slope + (2 * h * inputs.temperature).sqrt() * noise}
