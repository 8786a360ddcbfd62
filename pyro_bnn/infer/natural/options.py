"""Options that the natural-gradient engines share: checked, and the rates of each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from pyro_bnn.errors import OptionError
from pyro_bnn.infer.engine import (
    check_positive,
    check_positive_int,
)

POWER = 0.55  # of the schedule "power", as SLANG's authors have it

Schedule: TypeAlias = Literal["constant", "cosine", "power"]
Expectation: TypeAlias = Literal["sample", "mean"]


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

    has_log_prob: ClassVar[bool] = True  # of the posteriors
    remedy: ClassVar[str] = "Lower learning_rate, or standardise the data"

    def __post_init__(self) -> None:
        check_positive_int("num_steps", self.num_steps)
        check_positive_int("num_particles", self.num_particles)
        check_positive_int("kl_warmup", self.kl_warmup, minimum=0)
        if self.batch_size is not None:
            check_positive_int("batch_size", self.batch_size)
        for name in ("learning_rate", "data_factor", "temperature"):
            check_positive(name, getattr(self, name))
        if self.precision_learning_rate is not None:
            check_positive("precision_learning_rate", self.precision_learning_rate)
        if self.rate_of_precision > 1:
            raise OptionError(
                f"the precision would be moved beyond its target by a rate of "
                f"{self.rate_of_precision}: set precision_learning_rate to at most 1"
            )
        if self.schedule not in ("constant", "cosine", "power"):
            raise OptionError(f'schedule is "constant", "cosine" or "power", not {self.schedule!r}')
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


def check_share(name: str, value: object) -> None:
    """Check a number in [0, 1), such as a momentum.

    Raises:
        OptionError: If it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1:  # type: ignore[operator]
        raise OptionError(f"{name} is a number of at least 0 and below 1, not {value!r}")


def check_expectation(value: object) -> None:
    """Check the option ``expectation``.

    Raises:
        OptionError: If it is not one of its two values.
    """
    if value not in ("sample", "mean"):
        raise OptionError(f'expectation is "sample" or "mean", not {value!r}')


def check_damping(value: object) -> None:
    """Check the option ``damping``.

    Raises:
        OptionError: If it is negative, or no number.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:  # type: ignore[operator]
        raise OptionError(f"damping is a number of at least 0, not {value!r}")


def check_init_scale(value: object) -> None:
    """Check the option ``init_scale``.

    Raises:
        OptionError: If it is neither None nor a positive number.
    """
    if value is not None:
        check_positive("init_scale", value)
