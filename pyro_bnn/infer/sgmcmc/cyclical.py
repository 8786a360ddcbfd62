r"""Cyclical stochastic-gradient MCMC: large steps to find modes, small ones to sample each.

.. math:: \epsilon_k = \tfrac{\epsilon_0}{2} [\cos(\pi r) + 1], \qquad
          r = \mathrm{mod}(k - 1, \lceil n/M \rceil) / \lceil n/M \rceil

for step k of n in M cycles. While r < beta the steps have no noise and explore; draws are kept of
the rest alone. The weights of modes are those of the starts of cycles, not of the posterior.

References:
    Zhang, Li, Zhang, Chen & Wilson, "Cyclical Stochastic Gradient MCMC for Bayesian Deep Learning",
    ICLR 2020, arXiv:1902.03932.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pyro_bnn.checks import check_positive_int, check_share
from pyro_bnn.errors import OptionError
from pyro_bnn.infer.call_problem import CallProblem
from pyro_bnn.infer.engine import DrawCounts, Engine, Start
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.sgmcmc.baoab import BAOAB
from pyro_bnn.infer.sgmcmc.engine import SGMCMC
from pyro_bnn.infer.sgmcmc.schedule import Cycles, StepSchedule
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.nature import Fault, PosteriorKind


@dataclass(frozen=True)
class Cyclical(Engine[DrawsPosterior]):
    """Cycles of a stochastic-gradient method.

    Args:
        engine: The method, with its options, ``BAOAB`` from the command line. Its step is that at
            the start of a cycle. Cycles begin after its warm-up, and together have its ``thin``
            times ``num_samples`` steps.
        num_cycles: Number of cycles M.
        exploration: Share beta of a cycle that explores, in [0, 1).

    Raises:
        OptionError: If an option is out of its range, or the engine is another one.

    Example:
        >>> import torch
        >>> from pyro_bnn import models
        >>> from pyro_bnn.infer import SGLD
        >>> x = torch.linspace(-1, 1, 20).unsqueeze(-1)
        >>> cycles = Cyclical(SGLD(warmup_steps=10, num_samples=5, thin=8), num_cycles=2)
        >>> posterior = cycles.run(models.MLP(1, hidden=(3,)), (x, x[:, 0]), progress=False)
        >>> posterior.options["engine"]
        'SGLD'
    """

    inner: ClassVar[type[Engine[Any]]] = BAOAB  # from the command line

    posterior_kind: ClassVar[PosteriorKind | None] = "biased chains"

    engine: SGMCMC
    num_cycles: int = 4
    exploration: float = 0.5

    def __post_init__(self) -> None:
        if not isinstance(self.engine, SGMCMC):
            raise OptionError(
                "engine is SGLD, SGHMC, SGNHT, BAOAB or PSGLD with its options, not "
                f"{self.engine!r}"
            )
        if type(self.engine.schedule) is not StepSchedule:
            raise OptionError(
                "power would have no effect, as cycles set the step: leave it at None"
            )
        check_positive_int("num_cycles", self.num_cycles)
        check_share("exploration", self.exploration)

    @property
    def batch_size(self) -> int | None:
        """Of the engine."""
        return self.engine.batch_size

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        own = SGMCMC.remedies(options).items()
        return {fault: f"{words} of its engine" for fault, words in own}

    @property
    def draw_counts(self) -> DrawCounts:
        """As :attr:`Engine.draw_counts`."""
        return self.engine.draw_counts

    def start(self, problem: Problem) -> Start:
        """Find where the chains start; see the base class."""
        return self.engine.start_on(problem, self.schedule, self._options)

    def start_call(self, problem: CallProblem) -> Start:
        """The same of any model; see the base class."""
        return self.engine.start_call_on(problem, self.schedule, self._options)

    @property
    def schedule(self) -> Cycles:
        """Of the step after the warm-up."""
        return Cycles(self.num_cycles, self.exploration)

    @property
    def _options(self) -> dict[str, Any]:
        own = {"num_cycles": self.num_cycles, "exploration": self.exploration}
        return {"engine": type(self.engine).__name__, **asdict(self.engine), **own}
