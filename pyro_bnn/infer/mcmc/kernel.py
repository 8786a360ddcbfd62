"""What :class:`~pyro_bnn.infer.mcmc.lockstep.Lockstep` asks of a sampler."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from pyro_bnn.infer.mcmc.leapfrog import Start
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.potentials import Potential


class Kernel(Protocol):
    """A sampler as a state machine, such as :mod:`~pyro_bnn.infer.mcmc.nuts_kernel`.

    Its state is a named tuple of tensors with a row a chain, among them ``ended [C]``, whether the
    last step ended a trajectory, ``stats [C, len(STATISTICS)]`` of the last trajectory that ended,
    and ``accept_sum [C]``, after a trajectory's first point what ``AIM`` is of that one alone.
    """

    @property
    def STATISTICS(self) -> tuple[str, ...]:  # noqa: N802 - a constant of a module
        """Names of the columns of ``stats``."""

    @property
    def AIM(self) -> str:  # noqa: N802
        """Which of these step sizes are tuned by."""

    @property
    def ORDER(self) -> int | None:  # noqa: N802
        """Power of the step size that ``AIM`` grows as; None of a rate in [0, 1], which falls."""

    @property
    def UNIFORMS(self) -> int:  # noqa: N802
        """How many uniform numbers a step takes for each chain."""

    def begin(self, start: Start, momentum: Tensor, uniform: Tensor, limit: int) -> Any:
        """State of chains that start a trajectory."""

    def step(
        self,
        state: Any,
        potential: Potential,
        mass: Mass,
        step_size: Tensor,
        momentum: Tensor,
        uniform: Tensor,
        limit: Tensor,
    ) -> Any:
        """The state after one leapfrog step of every chain."""

    def is_possible(self, state: Any, limit: int) -> bool:
        """Whether chains can be in a state, which comes from a file, between two steps.

        From another one a step may read beyond its tensors, or a trajectory never end.
        """

    def position(self, state: Any, chains: Tensor) -> Start:
        """Latest draws of some chains, where their next trajectories start."""
