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

POWER = 0.55  # of the schedule "power", as SLANG's authors have it

Schedule: TypeAlias = Literal["constant", "cosine", "power"]
Expectation: TypeAlias = Literal["sample", "mean"]
Covariance: TypeAlias = Literal["diagonal", "full"]
NewtonCurvature: TypeAlias = Literal["ggn", "hessian"]

OPTIONAL = (
    "batch_size", "precision_learning_rate", "init_scale", "clip_radius", "descent_steps"
)  # fmt: skip
COUNTS = ("num_steps", "num_particles", "batch_size", "rank")
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
class NaturalOptions:
    """What every run of a natural-gradient engine reads; see ``NaturalEngine`` for each option."""

    num_steps: int = 2_000
    learning_rate: float = 0.1
    precision_learning_rate: float | None = None
    schedule: Schedule = "cosine"
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
        if self.kl_warmup > self.num_steps:
            raise OptionError(
                f"kl_warmup={self.kl_warmup} is longer than the run of num_steps={self.num_steps}: "
                "the KL would never have its whole weight"
            )

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
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * step / self.num_steps))
        return (step + 1) ** -POWER if self.schedule == "power" else 1.0
