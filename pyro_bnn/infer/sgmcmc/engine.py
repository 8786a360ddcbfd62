"""What the engines of this room share: how a run of a method starts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from torch import Tensor

from pyro_bnn.checks import check_positive
from pyro_bnn.infer.call_problem import CallProblem
from pyro_bnn.infer.engine import DrawCounts, Engine, Start
from pyro_bnn.infer.problem import Facts, Problem
from pyro_bnn.infer.sgmcmc.dynamics import HEAT, ChainState, Dynamics
from pyro_bnn.infer.sgmcmc.run import Chains
from pyro_bnn.infer.sgmcmc.schedule import StepSchedule
from pyro_bnn.posterior.draws_posterior import DrawsPosterior
from pyro_bnn.posterior.nature import Fault, PosteriorKind


@dataclass(frozen=True, kw_only=True)
class SGMCMC(Dynamics, Engine[DrawsPosterior]):
    """Base of the methods; a subclass writes its state and its step."""

    posterior_kind: ClassVar[PosteriorKind | None] = "biased chains"

    @classmethod
    def remedies(cls, options: Mapping[str, Any]) -> dict[Fault, str]:
        """What mends each fault; see the base class."""
        cooler = ["lower step_size"]
        if options.get("batch_size") is not None:
            cooler.append("raise batch_size")
            if options.get("control") is None:
                cooler.append('set control="svrg"')
        *most, last = cooler
        longer = "raise warmup_steps and num_samples"
        return {
            "settling": longer,
            "cold": longer,
            "few draws": "raise num_samples",
            "asked temperature": "set temperature=1",
            "heat": f"{', '.join(most)} or {last}" if most else last,
        }

    @property
    def schedule(self) -> StepSchedule:
        """Of the step after the warm-up."""
        return StepSchedule()

    @property
    def draw_counts(self) -> DrawCounts:
        """As :attr:`Engine.draw_counts`."""
        return DrawCounts(self.num_chains, self.num_chains * self.num_samples)

    def start(self, problem: Problem) -> Start:
        """Find where the chains start; see the base class."""
        return self.start_on(problem, self.schedule, asdict(self))

    def start_call(self, problem: CallProblem) -> Start:
        """The same of any model; see the base class."""
        return self.start_call_on(problem, self.schedule, asdict(self))

    def start_call_on(
        self, problem: CallProblem, schedule: StepSchedule, options: dict[str, Any]
    ) -> Start:
        """The same of any model, whose plate may take some of its rows.

        Raises:
            ModelError, OptionError, SiteError: As :meth:`.CallProblem.check_batches`.
        """
        problem.check_batches(self.batch_size)
        return self.start_on(problem, schedule, options)

    def start_on(self, problem: Facts, schedule: StepSchedule, options: dict[str, Any]) -> Start:
        """A run that is ready, of steps on a schedule; the options are for its provenance."""
        problem.warn_of_held_parameters()
        return Start(
            problem, options, lambda saves: Chains(self, problem, saves, schedule, options)
        )


@dataclass(frozen=True, kw_only=True)
class WithMomenta(SGMCMC):
    """Base of the methods whose chains have momenta, which a friction forgets."""

    friction: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("friction", self.friction)

    def begin(self, z: Tensor, normal: Tensor, curvature: Tensor) -> ChainState:
        """Chains with momenta; see the base class."""
        del curvature
        return {"z": z, "p": normal}

    def largest_step(self, curvature: float, variance: float) -> float:
        r"""Half of what is stable, at which the noise of batches heats by at most ``HEAT``.

        By :math:`h V / (2 \gamma T)`, to first order in h.
        """
        stable = 1 / math.sqrt(curvature)
        return stable if variance == 0 else min(stable, 2 * self.friction * HEAT / variance)


@dataclass(frozen=True, kw_only=True)
class WithoutMomenta(SGMCMC):
    """Base of the methods whose step is of positions alone."""

    step_power: ClassVar[float] = 1.0

    def largest_step(self, curvature: float, variance: float) -> float:
        """One that adds a ninth to the stiffest variance, and by batches ``HEAT`` on average."""
        stable = 0.2 / curvature
        return stable if variance == 0 else min(stable, 2 * HEAT / variance)
