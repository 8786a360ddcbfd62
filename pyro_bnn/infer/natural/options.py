"""Options that the natural-gradient engines share: checked, and the rates of each step."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from pyro_bnn.checks import (
    check_choice,
    check_not_negative,
    check_positive,
    check_positive_int,
    check_share,
)
from pyro_bnn.errors import OptionError
from pyro_bnn.infer.curvature.rows import NewtonCurvature
from pyro_bnn.infer.steps.rounds import (
    AUTO,
    Length,
    NumSteps,
    ends_of_rounds,
    step_size_factor,
)

MAX_STEPS, DESCENT_STEPS = 16_000, 2_000  # of q, and of Adam before it
POWER = 0.55  # of the schedule "power", as SLANG's authors have it

Schedule: TypeAlias = Literal["rounds", "constant", "cosine", "power"]
Expectation: TypeAlias = Literal["sample", "mean"]
Covariance: TypeAlias = Literal["diagonal", "full"]

OPTIONAL = (
    "max_steps", "batch_size", "precision_learning_rate", "init_scale", "clip_radius",
    "descent_steps",
)  # fmt: skip
COUNTS = ("max_steps", "num_particles", "batch_size", "rank")
RATES = ("learning_rate", "precision_learning_rate", "data_factor", "temperature")
SIZES = ("init_scale", "init_curvature", "clip_radius")
CHOICES: Mapping[str, Any] = {
    "schedule": Schedule,
    "expectation": Expectation,
    "covariance": Covariance,
    "curvature": NewtonCurvature,
}
CHECKS: Mapping[str, Callable[[str, object], None]] = {
    **dict.fromkeys(COUNTS, check_positive_int),
    **dict.fromkeys(RATES + SIZES, check_positive),
    **{name: functools.partial(check_choice, kinds=kinds) for name, kinds in CHOICES.items()},
    "kl_warmup": functools.partial(check_positive_int, minimum=0),
    "descent_steps": functools.partial(check_positive_int, minimum=0),
    "momentum": check_share,
    "damping": check_not_negative,
}
"""Of each option that an engine may have."""


@dataclass(frozen=True, kw_only=True)
class NaturalOptions(Length):
    """What every run of a natural-gradient engine reads; see ``NaturalEngine`` for each option."""

    most_steps_of_all: ClassVar[int] = MAX_STEPS

    num_steps: NumSteps = AUTO
    max_steps: int | None = None
    learning_rate: float = 0.1
    precision_learning_rate: float | None = None
    schedule: Schedule = "rounds"
    batch_size: int | None = None
    num_particles: int = 1
    antithetic: bool = False
    data_factor: float = 1.0
    temperature: float = 1.0
    kl_warmup: int = 0
    descent_steps: int | None = None

    has_log_prob: ClassVar[bool] = True  # posteriors of this engine have a density
    remedy: ClassVar[str] = "Lower learning_rate, or standardise the data"

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in CHECKS and not (value is None and name in OPTIONAL):
                CHECKS[name](name, value)
        self._check_length()
        if self.rate_of_precision > 1:
            raise OptionError(
                f"the precision would be moved beyond its target by a rate of "
                f"{self.rate_of_precision}: set precision_learning_rate to at most 1"
            )
        if self.antithetic and self.num_particles % 2:
            raise OptionError(
                f"antithetic draws come in pairs: take an even num_particles, not "
                f"{self.num_particles}"
            )
        if self.kl_warmup > self.planned_steps:
            raise OptionError(
                f"kl_warmup={self.kl_warmup} is longer than the run of {self.length}: "
                "the KL would never have its whole weight"
            )

    def _check_length(self) -> None:
        """Check what says how long the run is."""
        if not self.ends_by_itself:
            check_positive_int("num_steps", self.num_steps)
            if self.max_steps is not None:
                raise OptionError(
                    f"max_steps={self.max_steps} would have no effect beside num_steps="
                    f"{self.num_steps}: leave one of the two out"
                )
        elif self.schedule == "cosine":
            raise OptionError(
                'schedule="cosine" falls to 0 at a number of steps that is known before: pass '
                'num_steps, or leave schedule at "rounds"'
            )

    @property
    def planned_descent(self) -> int:
        """Steps of Adam before them, where the means start at random."""
        if self.descent_steps is not None:
            return self.descent_steps
        return min(DESCENT_STEPS, self.planned_steps) if self.ends_by_itself else self.planned_steps

    @functools.cached_property
    def ends(self) -> tuple[int, ...]:
        """Steps of q at which rounds end, whose gains are compared."""
        return () if self.schedule == "cosine" else ends_of_rounds(self.planned_steps)

    @property
    def rate_of_precision(self) -> float:
        """Learning rate of the precision at the start."""
        own = self.precision_learning_rate
        return self.learning_rate if own is None else own

    @property
    def takes_draws(self) -> bool:
        """Whether gradients are taken at draws of q, and not at its mean."""
        return getattr(self, "expectation", "sample") == "sample"

    def decay(self, step: int) -> float:
        """Factor of the learning rate at a step, from 0."""
        if self.schedule == "rounds":
            return step_size_factor(step, self.ends)
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * step / self.planned_steps))
        return (step + 1) ** -POWER if self.schedule == "power" else 1.0
