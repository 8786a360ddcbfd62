"""What the engines of this room share: how a run of a method starts."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.sgmcmc.dynamics import Dynamics
from pyro_bnn.infer.sgmcmc.run import Chains
from pyro_bnn.infer.sgmcmc.schedule import Constant, Schedule
from pyro_bnn.posterior.posterior import DrawsPosterior


@dataclass(frozen=True, kw_only=True)
class SGMCMC(Dynamics, Engine[DrawsPosterior]):
    """Base of the methods; a subclass writes its state and its step."""

    @property
    def schedule(self) -> Schedule:
        """Of the step after the warm-up."""
        return Constant()

    def start(self, problem: Problem) -> Start:
        """Find where the chains start; see the base class."""
        problem.warn_of_held_parameters()
        options = asdict(self)
        return Start(
            problem,
            options,
            lambda saves: Chains(self, problem, saves, self.schedule, options),
        )
