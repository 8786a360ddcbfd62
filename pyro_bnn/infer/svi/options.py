"""Options of stochastic variational inference: checked, described, and what they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, ClassVar, Literal, TypeAlias

from pyro.nn import PyroModule
from torch import Tensor

from pyro_bnn.checks import check_choice, check_positive, check_positive_int
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import Guide
from pyro_bnn.infer.compiling import check_compile
from pyro_bnn.infer.problem import Facts
from pyro_bnn.infer.steps.descent import (
    LEARNING_RATE,
    Descent,
    MakeOptimizer,
    Schedule,
    takes_learning_rate,
)
from pyro_bnn.infer.steps.rounds import AUTO, FIRST_ROUND, Length, NumSteps, ends_of_rounds
from pyro_bnn.infer.svi.estimators.by_name import EstimatorName, check_estimator
from pyro_bnn.program.handlers import Model

MAX_STEPS = 64 * FIRST_ROUND  # 8 seconds of a small network
LARGE, MAX_STEPS_OF_LARGE = 100_000, 16 * FIRST_ROUND  # parameters of a guide; half a minute
LIKELY_STEPS = 16 * FIRST_ROUND  # of a run that ends by itself; decides whether steps are compiled
ROWS_A_STEP, MOST_ROWS = 256, 1_024  # of a batch that nobody chose, and rows that need none
NUM_STARTS, LARGEST_OF_MANY = 4, 10_000  # starts of a run, and parameters of a guide that has them
GuideSpec: TypeAlias = type[Guide] | Callable[[Model], Any] | Guide | PyroModule


@dataclass(frozen=True)
class SVIOptions(Length):
    """What every training run of SVI reads; see ``SVI`` for each option."""

    most_steps_of_all: ClassVar[int] = MAX_STEPS

    guide: GuideSpec
    _: KW_ONLY
    num_steps: NumSteps = AUTO
    max_steps: int | None = None
    learning_rate: float = LEARNING_RATE
    optimizer: MakeOptimizer | None = None
    batch_size: int | None = None
    num_particles: int = 1
    per_example_draws: bool = False
    estimator: EstimatorName = "auto"
    kl_warmup: int = 0
    loc_warmup: int | None = None
    patience: int | None = None
    schedule: Schedule = "rounds"
    clip_norm: float | None = None
    compile: Literal["auto"] | bool = "auto"

    def __post_init__(self) -> None:
        self._check_length()
        check_positive_int("num_particles", self.num_particles)
        check_positive_int("kl_warmup", self.kl_warmup, minimum=0)
        if self.kl_warmup > self.planned_steps:
            raise OptionError(
                f"kl_warmup={self.kl_warmup} is longer than the run of {self.length}: "
                "the KL would never have its whole weight"
            )
        if self.loc_warmup is not None:
            check_positive_int("loc_warmup", self.loc_warmup, minimum=0)
            if self.loc_warmup >= self.planned_steps:
                raise OptionError(
                    f"loc_warmup={self.loc_warmup} takes the whole run of "
                    f"{self.length}: the scales of the guide would never be trained"
                )
        check_positive("learning_rate", self.learning_rate)
        if self.learning_rate != LEARNING_RATE and not takes_learning_rate(self.optimizer):
            raise OptionError(
                f"learning_rate={self.learning_rate} would have no effect, as this optimizer sets "
                "its own step size: set it there, or pass the torch.optim class"
            )
        if self.batch_size is not None:
            check_positive_int("batch_size", self.batch_size)
        if self.patience is not None:
            check_positive_int("patience", self.patience)
        if self.clip_norm is not None:
            check_positive("clip_norm", self.clip_norm)
        check_choice("schedule", self.schedule, Schedule)
        check_compile(self.compile)
        check_estimator(
            self.estimator,
            per_example_draws=self.per_example_draws,
            num_particles=self.num_particles,
        )

    def _check_length(self) -> None:
        """Check what says how long the run is."""
        if self.max_steps is not None:
            check_positive_int("max_steps", self.max_steps)
        if not self.ends_by_itself:
            check_positive_int("num_steps", self.num_steps)
            if self.max_steps is not None:
                raise OptionError(
                    f"max_steps={self.max_steps} would have no effect beside num_steps="
                    f'{self.num_steps}: leave one of the two out, as num_steps="auto" goes on '
                    "until there is nothing more to gain, or max_steps are done"
                )
            return
        if self.schedule == "cosine":
            raise OptionError(
                'schedule="cosine" falls to 0 at a number of steps that is known before: pass '
                'num_steps, or leave schedule at "rounds"'
            )
        if self.patience is not None:
            check_positive_int("patience", self.patience)
            raise OptionError(
                f"patience={self.patience} is a rule of its own on when to stop: pass num_steps "
                'beside it, as num_steps="auto" ends where another doubling gains nothing'
            )

    def most_steps(self, guide: Guide) -> int | None:
        """``max_steps``, of the guide's size where nobody gave it."""
        if not self.ends_by_itself or self.max_steps is not None:
            return self.max_steps
        size = sum(p.numel() for p in guide.parameters())
        return MAX_STEPS if size <= LARGE else MAX_STEPS_OF_LARGE

    @property
    def likely_steps(self) -> int:
        """How many steps to expect, where it has to be known before."""
        return min(self.planned_steps, LIKELY_STEPS) if self.ends_by_itself else self.planned_steps

    def rows_a_step(self, guide: object, problem: Facts) -> int | None:
        """Rows of a step; None for all of them.

        A step on 10,000 rows of a small network takes ten times as long as one on 256, and a run
        needs as many of these.
        """
        num_rows = problem.num_rows
        takes_all = isinstance(guide, Guide) and guide.needs_all_rows
        if self.batch_size is not None or takes_all or problem.has_own_order:
            return self.batch_size
        if problem.own_batch_size is not None:
            return problem.own_batch_size
        return ROWS_A_STEP if num_rows > MOST_ROWS else None

    def starts_of(self, guide: Guide, *, is_new: bool) -> int:
        """Number of starts, of which the best goes on: several of a small guide that is made anew.

        The optimum that a fit ends in is that of its start; the steps of a large guide cost more
        than its starts differ by.
        """
        size = sum(p.numel() for p in guide.parameters())
        many = is_new and self.ends_by_itself and size <= LARGEST_OF_MANY
        return NUM_STARTS if many and self.planned_steps >= 4 * FIRST_ROUND else 1

    def identity(self, guide: object) -> dict[str, Any]:
        """What must be equal for a run to go on from the checkpoint of another."""
        options = self.describe(guide, float(self.learning_rate))
        del options["compiled"]
        return options | {"loc_warmup": self.loc_warmup}

    def check_rows(self, guide: Guide, problem: Facts) -> None:
        """Refuse minibatches and draws for each row where the objective has no such estimate."""
        if self.per_example_draws and guide.atoms() is not None:
            raise OptionError(
                f"per_example_draws=True would have no effect, as the draws of {name_of(guide)} do "
                "not differ: leave it at False"
            )
        if not guide.needs_all_rows:
            return
        objective = f"the {guide.objective} of {type(guide).__name__}"
        if self.batch_size is not None or problem.has_own_order:
            raise OptionError(
                f"{objective} is defined over the whole data set, and has no unbiased estimate "
                "from a minibatch: leave batch_size at None and pass the data set"
            )
        if self.per_example_draws:
            raise OptionError(
                f"{objective} is not linear in the rows' likelihoods: leave per_example_draws at "
                "False"
            )

    def warmup_of(self, guide: object, *, is_new: bool = False) -> int:
        """Steps in which the means alone are trained; refused where they would have no effect."""
        named = dict(guide.named_parameters()) if isinstance(guide, Guide) else {}
        means = guide.mean_params if isinstance(guide, Guide) else ()
        has_scales = 0 < len(means) < len(named)
        if self.loc_warmup is None:
            if not (has_scales and is_new and self.patience is None):
                return 0
            return min(self.planned_steps // 10, ends_of_rounds(self.planned_steps)[0] // 2)
        if self.loc_warmup and not has_scales:
            raise OptionError(
                f"loc_warmup={self.loc_warmup} would have no effect, as {name_of(guide)} has no "
                "means loc [P] to train before its other parameters: leave it at None"
            )
        return self.loc_warmup

    def descent(self, parameters: Sequence[Tensor]) -> Descent:
        """The optimiser and schedule of these options."""
        return Descent(
            parameters,
            optimizer=self.optimizer,
            learning_rate=float(self.learning_rate),
            schedule=self.schedule,
            num_steps=self.planned_steps,
            clip_norm=self.clip_norm,
        )

    def describe(
        self,
        guide: object,
        learning_rate: float,
        loc_warmup: int = 0,
        *,
        is_compiled: bool = False,
    ) -> dict[str, Any]:
        """The options as JSON-able values, and what became of those that were left open."""
        options: dict[str, Any] = {
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "learning_rate": learning_rate,
            "loc_warmup": loc_warmup,
            "compiled": is_compiled,
            "optimizer": "Adam" if self.optimizer is None else name_of(self.optimizer),
            "guide": name_of(guide),
        }
        if not self.ends_by_itself:
            del options["max_steps"]
        if isinstance(guide, Guide):
            options |= guide.options()
        return options


def name_of(made: object) -> str:
    """The name of a class or function, or of the class of an object."""
    return getattr(made, "__name__", type(made).__name__)
