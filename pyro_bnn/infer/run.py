"""A run of an engine: all that changes from step to step, and how it is driven to its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, TypeVar

from tqdm.auto import tqdm

from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State
from pyro_bnn.infer.problem import Problem
from pyro_bnn.posterior.posterior import Posterior

WINDOW = 100  # steps over which an objective is smoothed, and after which a state is kept

P = TypeVar("P", bound=Posterior)


class Run(ABC, Generic[P]):
    """What an engine does for one problem, a step at a time.

    Between two steps it can be stopped, and another run of the same options go on from its
    :meth:`state`, bit for bit: so all randomness is of generators in the state.

    Attributes:
        step: Number of steps done.
        num_steps: Number of steps in all; None where it is not known before the end.
        unit: What a step is called.
        title: Name of the run in front of its bar.
    """

    unit: ClassVar[str] = "step"
    num_steps: int | None = None
    title: str = ""
    step: int = 0

    @property
    def is_done(self) -> bool:
        """Whether no step is left."""
        return self.step == self.num_steps

    def begin(self) -> None:
        """Before the first step of a run that does not go on from a state."""

    @abstractmethod
    def go(self) -> None:
        """One step.

        Raises:
            DivergenceError: If something is not finite; the run is then at its last good state.
        """

    def finish(self) -> None:
        """After the last step; raises as :meth:`go` does."""

    @abstractmethod
    def state(self) -> State:
        """All that the next steps depend on; see :class:`~.checkpoints.checkpoint.Resumable`."""

    @abstractmethod
    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state of a run of the same options; see ``Resumable``."""

    @abstractmethod
    def posterior(self, problem: Problem, saves: Checkpoint) -> P | None:
        """The posterior by what the run has reached; None where there is none yet."""

    def bar(self, *, show: bool) -> AbstractContextManager[Any]:
        """The progress bar, from the step that the run is at."""
        bar: AbstractContextManager[Any] = tqdm(
            total=self.num_steps,
            initial=self.step,
            disable=not show or self.is_done,
            desc=self.title,
            unit=self.unit,
        )
        return bar

    def show(self, bar: Any) -> None:
        """Move the bar to where the run is."""
        bar.update(self.step - bar.n)


def drive(run: Run[Any], saves: Checkpoint, *, progress: bool = False) -> None:
    """Do the steps that are left, from where the checkpoint stands; Ctrl-C stops after a step.

    Raises:
        DivergenceError: If a step raises it.
        FileFormatError: If the checkpoint is damaged.
        Interrupted: If Ctrl-C came.
        OutputError: If the checkpoint cannot be written.
    """
    with saves.watch():
        if not saves.restore(run):
            run.begin()
        with run.bar(show=progress) as bar:
            while not run.is_done:
                run.go()
                run.show(bar)
                saves.step(run)
            run.finish()
            saves.finish(run)
