"""A run of an engine: all that changes from step to step, and how it is driven to its end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, NamedTuple, NoReturn, TypeAlias, TypeVar

import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_bnn.errors import DivergenceError
from pyro_bnn.infer.batches import Batches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State
from pyro_bnn.infer.steps.descent import Descent
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.site_posterior import SitePosterior
from pyro_bnn.program.random_state import isolated

WINDOW = 100  # steps over which an objective is smoothed, and after which a state is kept


class Reached(NamedTuple):
    """How far a run is, as ``Engine.run(..., on_step=...)`` tells it.

    Attributes:
        step: Number of steps done; of chains the number of draws that the slowest one has made,
            warm-up included.
        objective: The ELBO in nats, a mean over the last 100 steps (after a sweep of ``CAVI`` its
            value), or what the guide, or a descent before the first step, maximises in its place;
            None of a sampler, which has none.
        seconds: Duration of the run so far, that before it was resumed included.
        gain: What the last doubling of the steps gained, nats; None before there was one, and of
            runs that do not compare.

    A run in TensorBoard::

        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter("runs/diabetes") as writer:
            posterior = svi.run(
                model,
                data,
                on_step=lambda at: writer.add_scalar("ELBO", at.objective, at.step),
            )

    and in MLflow, with the options of the engine::

        import mlflow

        with mlflow.start_run():
            posterior = svi.run(
                model,
                data,
                on_step=lambda at: mlflow.log_metric("ELBO", at.objective, step=at.step),
            )
            mlflow.log_params(posterior.options)

    A sampler has no objective: log ``at.seconds`` by ``at.step``, its draws.
    """

    step: int
    objective: float | None
    seconds: float
    gain: float | None = None


OnStep: TypeAlias = Callable[[Reached], object]

P = TypeVar("P", bound=SitePosterior)


class Run(ABC, Generic[P]):
    """What an engine does for one problem, a step at a time.

    Between two steps it can be stopped, and another run of the same options go on from its
    :meth:`state`, bit for bit: so all randomness is of generators in the state.

    Attributes:
        step: Number of steps done.
        num_steps: Number of steps in all; None where it is not known before the end.
        unit: What a step is called.
        title: Name of the run in front of its bar.
        doubling: What the last doubling of its steps gained, where it compares.
    """

    doubling: Doubling | None = None
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
    def posterior(self, problem: Any, saves: Checkpoint) -> P | None:
        """The posterior by what the run has reached; None where there is none yet.

        Args:
            problem: What the run is about, of the kind that its engine serves.
            saves: Its checkpoint.
        """

    def reached(self) -> tuple[int, float | None]:
        """Number of steps done, and the objective where there is one."""
        return self.step, None

    def doubling_here(self, num_steps: int) -> Doubling | None:
        """What the last doubling gained, if it ended here; a run that was stopped went on since."""
        doubling = self.doubling
        return doubling if doubling is not None and doubling.num_steps == num_steps else None

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


class GradientRun(Run[P]):
    """A run of steps on batches, each with a loss, that goes back where something is not finite.

    A subclass names what it moves in :meth:`values`, and calls :meth:`keep` before each step.

    Attributes:
        descent: The optimiser.
        losses: Minus the objective at each step.
        objective: Its name.
        remedy: What a user can do where it diverges.
    """

    objective: str = "ELBO"
    remedy: str = "Lower learning_rate, set clip_norm, or standardise the data"
    num_steps: int
    descent: Descent

    def __init__(self, num_steps: int, title: str, batches: Batches) -> None:
        self.num_steps, self.title, self._batches = num_steps, title, batches
        self.losses: list[float] = []
        self._last_good: tuple[int, dict[str, Tensor]] = (0, {})

    @abstractmethod
    def values(self) -> dict[str, Tensor]:
        """What the steps move, by name."""

    def _go_to(self, values: Mapping[str, Tensor]) -> None:
        """Go to earlier values."""
        now = self.values()
        with torch.no_grad():
            for name, value in values.items():
                now[name].copy_(value)

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.values().items()}

    def keep(self) -> None:
        """Once in a window of steps, note the values as good ones, if all are finite."""
        if self.step % WINDOW == 0:
            values = self._snapshot()
            if self.step == 0 or all(bool(value.isfinite().all()) for value in values.values()):
                self._last_good = (self.step, values)

    def diverged(self, what: str) -> NoReturn:
        """Go back to the last good values.

        Raises:
            DivergenceError: Always.
        """
        step, values = self._last_good
        self._go_to(values)
        raise DivergenceError(
            f"{what}; the state of step {step} is kept in error.posterior. {self.remedy}"
        )

    @property
    def smoothed(self) -> float:
        """The objective, a mean over a window of steps."""
        recent = self.losses[-WINDOW:]
        return -sum(recent) / len(recent)

    def reached(self) -> tuple[int, float | None]:
        """Number of steps done, and the smoothed objective."""
        return self.step, self.smoothed if self.losses else None

    def show(self, bar: Any) -> None:
        """After a window of steps: the smoothed objective."""
        if self.is_done or self.step % WINDOW == 0:
            super().show(bar)
            if self.losses:
                bar.set_postfix_str(f"{self.objective} {self.smoothed:.1f}")

    def state(self) -> State:
        """What all such runs depend on; see ``Resumable``."""
        step, values = self._last_good
        return {
            "place": f"step {self.step} of {self.num_steps}",
            "step": self.step,
            "values": self.values(),
            "batches": self._batches.state(),
            "optimizer": self.descent.state(),
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "last_good": {"step": step, "values": values},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; see ``Resumable``.

        Raises:
            OptionError: If the optimiser has other options.
            ValueError: If its losses or values are those of another run.
        """
        step, losses, good = state["step"], state["losses"], state["last_good"]
        if not 0 <= step <= self.num_steps or losses.shape != (self._num_losses(state),):
            raise ValueError(f"{losses.numel()} losses of {step} steps")
        values, kept = (self._checked(some) for some in (state["values"], good["values"]))
        self._batches.restore(state["batches"])
        self.step, self.losses = step, losses.tolist()
        self._last_good = (int(good["step"]), kept)
        self._go_to(values)
        self.descent.restore(state["optimizer"])

    def _num_losses(self, state: Mapping[str, Any]) -> int:
        """How many losses a state holds: one a step."""
        return int(state["step"])

    def _checked(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values of a state, checked to be this run's."""
        ours, theirs = (
            {name: (value.shape, value.dtype) for name, value in some.items()}
            for some in (self.values(), values)
        )
        if ours != theirs:
            raise ValueError(f"its tensors are {theirs}, not {ours}")
        return {name: values[name].to(value.device) for name, value in self.values().items()}


def weight_of_kl(step: int, warmup: int) -> float:
    """Weight of the KL at a step, from 0, which grows linearly to 1 over the steps of a warm-up."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def drive(
    run: Run[Any], saves: Checkpoint, *, progress: bool = False, on_step: OnStep | None = None
) -> None:
    """Do the steps that are left, from where the checkpoint stands; Ctrl-C stops after a step.

    Args:
        run: The run.
        saves: Where it is saved.
        progress: Whether to show a bar.
        on_step: Called after each window of steps, and at the end; what it raises ends the run.

    Raises:
        DivergenceError: If a step raises it.
        FileFormatError: If the checkpoint is damaged.
        Interrupted: If Ctrl-C came.
        OutputError: If the checkpoint cannot be written.
    """
    with saves.watch():
        if not saves.restore(run):
            run.begin()
        told = run.reached()[0] // WINDOW
        with run.bar(show=progress) as bar:
            while not run.is_done:
                run.go()
                run.show(bar)
                if on_step is not None:
                    told = _tell(run, saves, on_step, told)
                saves.step(run)
            run.finish()
            saves.finish(run)


def _tell(run: Run[Any], saves: Checkpoint, on_step: OnStep, told: int) -> int:
    """Call ``on_step`` where a window of steps has ended since the last call, or the run has."""
    step, objective = run.reached()
    if step // WINDOW > told or run.is_done:
        with isolated():  # a run of stock Pyro draws from the global generator
            gain = None if run.doubling is None else run.doubling.gain
            on_step(Reached(step, objective, saves.wall_time, gain))
    return step // WINDOW
