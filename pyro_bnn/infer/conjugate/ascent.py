"""The base of engines of conjugate models, whose posterior is a Gaussian known exactly."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor

from pyro_bnn.errors import OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.handled import model_name
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State
from pyro_bnn.infer.engine import Engine, Start
from pyro_bnn.infer.inputs import new_guide
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import Run
from pyro_bnn.infer.starting_points import starting_points
from pyro_bnn.models.linear_regression import ExactPosterior, LinearRegression
from pyro_bnn.posterior.guide_posterior import GuidePosterior


class Ascent(Run[GuidePosterior]):
    """One run on an exact posterior: each step is a sweep over the entries of z.

    Args:
        exact: The posterior.
        start: Where the means start, ``[P]`` float64.

    Attributes:
        mean: Means ``[P]`` float64.
        losses: Minus the ELBO after each sweep, nats.
        guide: Guide of the posterior's family; the engine sets it and ``options``.
    """

    unit: ClassVar[str] = "sweep"
    guide: Guide
    options: dict[str, Any]

    def __init__(self, exact: ExactPosterior, start: Tensor) -> None:
        self.exact, self.mean = exact, start
        self.losses: list[float] = []

    @abstractmethod
    def set(self, guide: Any) -> None:
        """Give a guide the Gaussian that was reached."""

    def reached(self) -> tuple[int, float | None]:
        """Number of sweeps done, and the ELBO after the last."""
        return self.step, -self.losses[-1] if self.losses else None

    def show(self, bar: Any) -> None:
        """The ELBO after each sweep."""
        bar.set_postfix_str(f"ELBO {-self.losses[-1]:.4f}", refresh=False)
        super().show(bar)

    def posterior(self, problem: Problem, saves: Checkpoint) -> GuidePosterior:
        """The Gaussian that was reached; its options hold the log evidence, in nats."""
        guide = copy.deepcopy(self.guide)
        self.set(guide)
        reached = {"sweeps": self.step, "log_evidence": self.exact.log_evidence}
        return problem.guide_posterior(guide, saves, self.options | reached, losses=self.losses)

    def state(self) -> State:
        """See :class:`pyro_bnn.infer.checkpoints.checkpoint.Resumable`."""
        return {
            "mean": self.mean,
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "place": f"sweep {self.step}",
            "compile_path": "eager",
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """See :class:`pyro_bnn.infer.checkpoints.checkpoint.Resumable`."""
        if state["mean"].shape != self.mean.shape or state["mean"].dtype != self.mean.dtype:
            raise ValueError(f"its means are {tuple(state['mean'].shape)}, {state['mean'].dtype}")
        self.mean, self.losses = state["mean"], state["losses"].tolist()
        self.step = len(self.losses)


class ConjugateEngine(Engine[GuidePosterior]):
    """Base of the engines of conjugate models, whose posterior is a Gaussian known exactly.

    They are for a :class:`pyro_bnn.models.LinearRegression` with Gaussian priors and fixed Gaussian
    noise; the options of the posterior hold the log evidence, in nats.
    """

    _guide: ClassVar[type[Guide]]
    _has_start: ClassVar[bool] = True

    @abstractmethod
    def _ascent(self, exact: ExactPosterior, start: Tensor) -> Ascent:
        """The run of these options."""

    @classmethod
    def family(cls, options: Mapping[str, Any]) -> str:  # noqa: ARG003
        """Name of the guide that posteriors of these options are."""
        return cls._guide.__name__

    def start(self, problem: Problem) -> Start:
        """Find the posterior, and where the means start; see the base class.

        Raises:
            ModelError: If the model is not conjugate.
            OptionError: If the model is no linear regression, or ``init`` has no effect.
        """
        model = problem.model
        if not isinstance(model, LinearRegression):
            raise OptionError(
                f"{problem.engine} is for models.LinearRegression, whose posterior has a closed "
                f"form, not {model_name(model)}: take SVI or NUTS"
            )
        if problem.is_led and not self._has_start:
            raise OptionError(
                f"init would have no effect on {problem.engine}, which has no start: leave it"
            )
        exact, program = model.exact_posterior(problem.dataset), problem.program
        guide = new_guide(self._guide, program)
        z = starting_points(program, problem.init, 1, problem.seed, default=guide.centre())
        run = self._ascent(exact, z[0].cpu().double())
        run.guide, run.title = guide, problem.engine
        run.options = asdict(self)  # type: ignore[call-overload]  # every engine is a dataclass
        return Start(problem, run.options, lambda saves: run)  # noqa: ARG005
