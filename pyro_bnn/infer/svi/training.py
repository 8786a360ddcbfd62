"""One training run of SVI: parameters, steps, losses, and how it goes on."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from pyro_bnn.capture.captured import Captured
from pyro_bnn.capture.compilers import compiler_of
from pyro_bnn.errors import BNNWarning, DivergenceError
from pyro_bnn.guides import Guide
from pyro_bnn.handled import model_name
from pyro_bnn.infer.batches import Batches, Minibatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State, users_code
from pyro_bnn.infer.compiling import C_TIME, is_compiled
from pyro_bnn.infer.problem import Facts
from pyro_bnn.infer.run import WINDOW, GradientRun, weight_of_kl
from pyro_bnn.infer.steps.rounds import Rounds, ends_of_rounds
from pyro_bnn.infer.svi.estimators.by_name import AUTO, WEIGHT_SAMPLING
from pyro_bnn.infer.svi.gap_by_draws import bound_gap
from pyro_bnn.infer.svi.judge import most_pairs, objective_of
from pyro_bnn.infer.svi.starts import Starts
from pyro_bnn.infer.svi.step_loss import StepLoss
from pyro_bnn.infer.svi.training_step import StepInParts, WholeStep
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.guide_draws import GuideDraws
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.terms import Batch

if TYPE_CHECKING:
    from pyro_bnn.infer.svi.options import SVIOptions

NUM_GRAPHS = 2  # graphs made when a run is resumed: minibatches, and a smaller last one


class Training(GradientRun[GuideDraws]):
    """One training run.

    Compiled, the whole step is one graph, the optimiser's update in it; else the gradient is, and
    the optimiser does its update.

    Args:
        svi: The options.
        program: The model as tensor functions.
        guide: The guide, trained in place.
        seed: Of the noise.
        batches: The data.
        loc_warmup: Steps in which the means alone are trained.
        compile_path: How the run that is resumed computes; by default what the options say.
        num_starts: How many starts there are, of which after each round the better half goes on.
        start_values: Makes the values of the guide's parameters at a start, from number 1 on.

    Attributes:
        step: Number of steps done, of all starts.
        position: Number of steps done from the start that the run is at.
        losses: Minus the ELBO of each of these.
        method: What the posterior is told to be of.
        compile_path: ``"compiled"``, ``"captured"`` or ``"eager"``, as the first step was; None
            before it.
    """

    updates_apart: ClassVar[bool] = False  # whether the update has to wait for what is outside

    def __init__(
        self,
        svi: SVIOptions,
        program: Joint,
        guide: Guide,
        seed: int,
        *,
        batches: Batches,
        loc_warmup: int = 0,
        compile_path: str | None = None,
        num_starts: int = 1,
        start_values: Callable[[int], dict[str, Tensor]] | None = None,
    ) -> None:
        self.method = type(guide).__name__
        super().__init__(svi.planned_steps, self.method, batches)
        self.rounds = Rounds(() if svi.schedule == "cosine" else ends_of_rounds(svi.planned_steps))
        self.position = 0
        self.svi, self.program, self.guide, self.objective = svi, program, guide, guide.objective
        self.loc_warmup, self.seed, self.batches = loc_warmup, seed, batches
        named: dict[str, Tensor] = {f"guide.{k}": v for k, v in guide.named_parameters()}
        trained = (k for k, v in program.params.items() if v.requires_grad)
        # member parameters are the guide's
        of_model = [k for k in trained if k not in guide.member_params]
        named |= {f"model.{k}": program.params[k] for k in of_model}
        self.names, self.parameters = list(named), list(named.values())
        means = [f"guide.{name}" for name in guide.mean_params]
        self._held = {n for n in named if n.startswith("guide.") and n not in means}
        self._best, self._best_step = -math.inf, 0
        self.loss = self._make_loss()
        self.descent = svi.descent(self.parameters)
        self.starts = Starts(num_starts, self.rounds.ends, start_values)
        self.num_steps += self.starts.num_extra
        self._judge = objective_of(
            self.loss.at,
            program,
            guide,
            batches.whole,
            seed,
            self.loss.estimator,
            needs_all_rows=self.needs_all_rows,
        )
        self.compile_path: str | None = None
        self._row_counts: list[int] = []  # in the order in which graphs were made for them
        self._make_steps(compile_path)

    def _make_steps(self, path: str | None) -> None:
        svi = self.svi
        num_numbers = sum(parameter.numel() for parameter in self.parameters)
        of_sizes = functools.partial(is_compiled, svi.compile, svi.likely_steps, num_numbers)
        compiled = of_sizes(C_TIME) if path is None else path == "compiled"
        knows_rows = isinstance(self._batches, Minibatches)  # else Inductor's graph serves all
        compiler = compiler_of(is_long=of_sizes()) if knows_rows else None
        compiled &= knows_rows or of_sizes()
        is_whole = compiled and not self.updates_apart and self.descent.make_pure()
        if is_whole:
            self._lay_out(by_column=True)
        captured = functools.partial(
            Captured,
            name=f"{type(self.guide).__name__} on {model_name(self.program.model)}",
            strict=svi.compile is True,
            compiler=compiler,
        )
        of_a_step = self.loss, self.parameters, self.descent, captured
        rows_vary = self._batches.rows_vary
        self._parts = self._make_parts(
            *of_a_step, compiled=compiled and not is_whole, rows_vary=rows_vary
        )
        whole = self._batches.whole
        self._whole = WholeStep(*of_a_step, whole, rows_vary=rows_vary) if is_whole else None
        if path == "eager":
            self._parts.graph.is_captured = False

    # What some runs have otherwise

    def _make_loss(self) -> StepLoss:
        """What a step minimises."""
        return StepLoss(self.svi, self.program, self.guide, self.names, self.seed)

    def _make_parts(self, *args: Any, **options: Any) -> StepInParts:
        """A step whose update is outside its graph; arguments as of ``StepInParts``."""
        return StepInParts(*args, **options)

    # Memory

    def _lay_out(self, *, by_column: bool) -> None:
        """Put the guide's tall matrices, and their moments, into memory by columns or by rows.

        A product along a few columns that are side by side takes three times as long. Pyro's
        parameter store takes rows.
        """
        n, tall = len(self.names), {f"guide.{name}" for name in self.guide.tall_params}
        moments = [] if self.descent.adam is None else self.descent.adam.moments
        for i, value in enumerate((*self.parameters, *moments)):
            if value.ndim == 2 and self.names[i % n] in tall:
                rows = value.data.contiguous()
                value.data = rows.mT.contiguous().mT if by_column else rows

    @property
    def is_compiled(self) -> bool:
        """Whether steps are compiled."""
        return (self._whole or self._parts).graph.path == "compiled"

    @property
    def needs_all_rows(self) -> bool:
        """Whether the objective is defined over the whole data set only."""
        return self.guide.needs_all_rows

    # How it is driven

    def begin(self) -> None:
        """Note where the starts begin."""
        self.starts.begin(self._snapshot())

    def go(self) -> None:
        """One step.

        Raises:
            DivergenceError: If the loss or a parameter becomes NaN or infinite, at each start.
        """
        try:
            self._advance(self.position, next(self._batches))
        except DivergenceError as error:
            if not self.starts.has_others:
                raise
            what, count = str(error).partition(";")[0], self.starts.count
            warnings.warn(f"one of {count} starts is left out: {what}", BNNWarning, stacklevel=2)
            self._take_next_start()
            return
        self.position += 1
        self.step += 1
        if self.is_done or self.position % WINDOW == 0:
            self._look_back()
        if self.position in self.rounds.ends:
            self._end_round()

    def finish(self) -> None:
        """Check the parameters of the last step."""
        if names := [n for n, value in self.values().items() if not bool(value.isfinite().all())]:
            self.diverged(f"parameters {', '.join(names)} are not finite after the last step")
        self._lay_out(by_column=False)

    def _look_back(self) -> None:
        """After a window of steps: see whether the objective still rises."""
        svi, last, smoothed = self.svi, self.position - 1, self.smoothed
        # of another objective, or before the scales are trained
        if self.position - min(WINDOW, self.position) < max(svi.kl_warmup, self.loc_warmup):
            self._best_step = last
        elif smoothed > self._best:
            self._best, self._best_step = smoothed, last
        if svi.patience is not None and last - self._best_step >= svi.patience:
            self.num_steps = self.step

    # Rounds and starts

    def _end_round(self) -> None:
        """After a round: the next start's, or what the round gained."""
        if self.starts.are_several:
            self.starts.park(
                self._snapshot(), self.descent.parked(), self.losses, self.rounds.before
            )
            self._take_next_start()
        else:
            self._judge_round()

    def _take_next_start(self) -> None:
        """Go to the start whose turn it is; of the last one that is left, judge the round."""
        following, is_last = self.starts.next(self._ranked)
        self.position, self.rounds.before = following.position, following.before
        self._go_to({**self.starts.first_values, **following.values})
        self.descent.take(following.optimizer)
        self.losses = list(following.losses)
        if is_last:
            self._see_end()
            self._judge_round()

    def _see_end(self) -> None:
        """Where the run ends, once one start is left: earlier where others were left out."""
        if not self.starts.are_several:
            self.num_steps = self.step + self.svi.planned_steps - self.position

    def _judge_round(self) -> None:
        """What the round gained, and whether another one follows."""
        values = self._snapshot()
        if self.rounds.before is not None:
            self.doubling = self._compared(self.rounds.before, values)
            begin = self.rounds.begin_of(self.position)
            is_whole = begin >= max(self.svi.kl_warmup, self.loc_warmup)
            in_rounds = self.svi.schedule == "rounds"
            is_free = self.svi.ends_by_itself and in_rounds and is_whole
            if is_free and self.doubling.is_falling:
                values = self._taken_back(self.rounds.before)
            elif in_rounds and self.rounds.is_noisy(self.losses, self.position, self.doubling.gain):
                self.descent.peak *= 0.5
            if self.svi.ends_by_itself and is_whole and not self.doubling.is_unfinished:
                self.num_steps = self.step
        self.rounds.before = values

    def _taken_back(self, before: dict[str, Tensor]) -> dict[str, Tensor]:
        """After a round that lost: where it began, for a next one of half the step size."""
        self._go_to(before)
        self.descent.take(None)
        self.descent.peak *= 0.5
        return before

    def _compared(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Doubling:
        """What the last round gained, on all rows."""
        most = most_pairs(self.program, self.batches, self.step)
        gain, error = self._judge.gain(list(before.values()), list(after.values()), most)
        return Doubling(gain, error, self.position)

    def _ranked(self, snapshots: Sequence[Mapping[str, Tensor]], count: int) -> list[int]:
        """Which starts are the best, at most ``count``."""
        return self._judge.best([list(values.values()) for values in snapshots], count)

    def _end_of_round(self) -> int:
        if not self.svi.ends_by_itself or self.is_done:
            return self.num_steps
        return self.step + self.rounds.next_end(self.position) - self.position

    def show(self, bar: Any) -> None:
        """After a window of steps: the smoothed objective, and what the last doubling gained."""
        if self.svi.ends_by_itself:
            bar.total = self._end_of_round()
        super().show(bar)
        if self.doubling is not None and self.losses and (self.is_done or self.step % WINDOW == 0):
            gained = f"{self.doubling.gain:.1f} ± {self.doubling.error:.1f}"
            bar.set_postfix_str(f"{self.objective} {self.smoothed:.1f}, doubling gained {gained}")

    def posterior(self, problem: Facts, saves: Checkpoint) -> GuideDraws:
        """The guide as it is."""
        self._lay_out(by_column=False)
        return problem.guide_posterior(
            copy.deepcopy(self.guide),
            saves,
            self.described(),
            method=self.method,
            num_parameters=sum(p.numel() for p in self.parameters),
            losses=self.losses,
            doubling=self.doubling_here(self.position),
            bound_gap=bound_gap(self.loss, self.values(), self.batches.whole, self.seed),
        )

    def described(self) -> dict[str, Any]:
        """The options, and what became of those that were left open."""
        rate, loc_warmup = self.descent.learning_rate, self.loc_warmup
        described = self.svi.describe(self.guide, rate, loc_warmup, is_compiled=self.is_compiled)
        if self.svi.ends_by_itself:
            described |= {"num_steps": self.position, "num_starts": self.starts.count}
        if self.svi.estimator == AUTO:
            estimator = None if self.svi.per_example_draws else self.loss.estimator
            described["estimator"] = WEIGHT_SAMPLING if estimator is None else estimator.name
        if isinstance(self._batches, Minibatches) and not self._batches.are_all:
            described["batch_size"] = self._batches.size
        return described

    # A checkpoint's two methods

    def values(self) -> dict[str, Tensor]:
        """The parameters, by name."""
        return dict(zip(self.names, self.parameters, strict=True))

    def state(self) -> State:
        """All that the next steps depend on; see ``Resumable``."""
        return super().state() | {
            "compile_path": self.compile_path,
            "is_done": self.is_done,
            "loc_warmup": self.loc_warmup,
            "row_counts": self._row_counts,
            "generator": self.loss.generator.get_state(),
            "best": self._best,
            "best_step": self._best_step,
            "position": self.position,
            "starts": self.starts.state(),
            "before": self.rounds.before,
            "doubling": None if self.doubling is None else list(astuple(self.doubling)),
        }

    def _num_losses(self, state: Mapping[str, Any]) -> int:
        return int(state["position"])

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; see ``Resumable``.

        Raises:
            OptionError: If the optimiser has other options.
            ValueError: If parameters have other names or shapes.
        """
        super().restore(state)
        self.loc_warmup, self.position = state["loc_warmup"], int(state["position"])
        self.starts.restore(state["starts"], self._checked)
        self._see_end()
        before, doubling = state["before"], state["doubling"]
        self.rounds.before = None if before is None else self._checked(before)
        self.doubling = None
        if doubling is not None:
            self.doubling = Doubling(doubling[0], doubling[1], int(doubling[2]))
        if state["is_done"]:  # no steps are left, so no graphs are needed
            self.num_steps, self.compile_path = self.step, state["compile_path"]
            self._row_counts = list(state["row_counts"])
        else:  # make the graphs that the run made at its start
            firsts = [self._batches.first(n) for n in state["row_counts"][:NUM_GRAPHS]]
            with users_code():
                for batch in firsts:
                    self._make_graph(batch)
        self.loss.generator.set_state(state["generator"])
        self._best, self._best_step = float(state["best"]), int(state["best_step"])

    # A step

    def _advance(self, step: int, batch: Batch) -> None:
        noise = self.loss.draw(step, len(batch.x))
        held = [step < self.loc_warmup and name in self._held for name in self.names]
        self.keep()
        kl_weight = weight_of_kl(step, self.svi.kl_warmup)
        values = (self._whole or self._parts).advance(step, noise, batch, held, kl_weight)
        self._see_failure()
        if not all(map(math.isfinite, values)):
            is_known = math.isfinite(values[2])
            sites = [] if is_known else self.loss.non_finite_sites(noise[0], batch)
            where = f"at {', '.join(map(repr, sites))}" if sites else "in the KL"
            self.diverged(f"the loss is not finite at step {step}, {where}")
        self.losses.append(values[1])  # minus the ELBO, with the whole KL
        if len(batch.x) not in self._row_counts:
            self._note_graph(len(batch.x))

    def _note_graph(self, num_rows: int) -> None:
        self._row_counts.append(num_rows)
        if self.compile_path is None:
            self.compile_path = (self._whole or self._parts).graph.path

    def _make_graph(self, batch: Batch) -> None:
        """The graph of a step with so many rows, without the step."""
        noise = self.loss.draw(0, len(batch.x))
        if self._whole is not None:
            self._whole.make_graph(noise, batch)
            self._see_failure()
        if self._whole is None:
            self._parts.make_graph(noise, batch)
        self._note_graph(len(batch.x))

    def _see_failure(self) -> None:
        """Go on with steps in parts where the whole step could not be compiled."""
        if self._whole is None or self._whole.graph.is_compiled:
            return
        self._lay_out(by_column=False)
        # then the gradient, a part of the step, cannot be captured either
        if not self._whole.graph.is_captured:
            self._parts.graph.is_captured = False
        self._whole = None
