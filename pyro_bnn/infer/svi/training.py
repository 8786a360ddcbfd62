"""One training run of SVI: parameters, captured step, optimiser, losses, and how it goes on."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any, ClassVar, cast

import torch
from torch import Tensor

from pyro_bnn.capture.captured import Captured, value_and_grad
from pyro_bnn.capture.compilers import compiler_of
from pyro_bnn.errors import BNNWarning, DivergenceError
from pyro_bnn.guides import Guide
from pyro_bnn.handled import model_name
from pyro_bnn.infer.batches import Batches, Minibatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State, users_code
from pyro_bnn.infer.compiling import C_TIME, is_compiled
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import WINDOW, GradientRun, weight_of_kl
from pyro_bnn.infer.svi.bound_step import BoundSteps
from pyro_bnn.infer.svi.counted_noise import make_key, normal
from pyro_bnn.infer.svi.estimators.by_name import AUTO, WEIGHT_SAMPLING, make_estimator
from pyro_bnn.infer.svi.estimators.estimator import Estimator
from pyro_bnn.infer.svi.judge import most_pairs, objective_of
from pyro_bnn.infer.svi.rounds import ends_of_rounds
from pyro_bnn.infer.svi.starts import Starts
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch

if TYPE_CHECKING:
    from pyro_bnn.infer.svi.options import SVIOptions

COUNTED_NORMALS = 1 << 15  # normals a step; more are made of the step's number, on all cores
NOISY = 4.0  # times the gain of a round, from which on its noise halves the step size
NUM_GRAPHS = 2  # graphs made when a run is resumed: minibatches, and a smaller last one


class Training(GradientRun[GuidePosterior]):
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
        program: Program,
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
        self.ends = () if svi.schedule == "cosine" else ends_of_rounds(svi.planned_steps)
        self.position = 0
        self._before: dict[str, Tensor] | None = None  # the values at the end of the last round
        self.svi, self.program, self.guide, self.objective = svi, program, guide, guide.objective
        self.loc_warmup, self.seed, self.batches = loc_warmup, seed, batches
        named: dict[str, Tensor] = {f"guide.{k}": v for k, v in guide.named_parameters()}
        trained = (k for k, v in program.params.items() if v.requires_grad)
        # member parameters are the guide's
        own = [k for k in trained if k not in guide.member_params]
        named |= {f"model.{k}": program.params[k] for k in own}
        self.names, self.parameters = list(named), list(named.values())
        means = [f"guide.{name}" for name in guide.mean_params]
        self._held = {n for n in named if n.startswith("guide.") and n not in means}
        self._best, self._best_step = -math.inf, 0
        self._generator = torch.Generator(program.device).manual_seed(seed + 1)
        self._num_normals = svi.num_particles * guide.noise_dim
        self.estimator = make_estimator(
            svi.estimator, program, guide, per_example_draws=svi.per_example_draws
        )
        self._draws_rows = svi.per_example_draws and self.estimator is None
        self._nodes = None if self.estimator is None else self.estimator.nodes
        has_own_noise = self._draws_rows or self._nodes is not None
        self._counts_noise = self._num_normals > COUNTED_NORMALS and not has_own_noise
        self._key = make_key(seed + 1)
        self.descent = svi.descent(self.parameters)
        self.starts = Starts(num_starts, self.ends, start_values)
        self.num_steps += self.starts.num_extra
        self._judge = objective_of(
            self.loss_at,
            program,
            guide,
            batches.whole,
            seed,
            self.estimator,
            needs_all_rows=self.needs_all_rows,
        )
        self.compile_path: str | None = None
        self._row_counts: list[int] = []  # in the order in which graphs were made for them
        self._bound = BoundSteps(batches.whole)
        self._make_steps(compile_path)

    def _make_steps(self, path: str | None) -> None:
        svi, n = self.svi, len(self.parameters)
        num_numbers = sum(parameter.numel() for parameter in self.parameters)
        of_sizes = functools.partial(is_compiled, svi.compile, svi.likely_steps, num_numbers)
        compiled = of_sizes(C_TIME) if path is None else path == "compiled"
        knows_rows = isinstance(self._batches, Minibatches)  # else Inductor's graph serves all
        compiler = compiler_of(is_long=of_sizes()) if knows_rows else None
        compiled &= knows_rows or of_sizes()
        is_whole = compiled and not self.updates_apart and self.descent.make_pure()
        if is_whole:
            self._lay_out(by_column=True)
        model = self.program.model
        name = f"{type(self.guide).__name__} on {model_name(model)}"
        captured = functools.partial(
            Captured, name=name, strict=svi.compile is True, compiler=compiler
        )
        self._step = captured(
            value_and_grad(self._loss, n),
            compiled=compiled and not is_whole,
            rows=self._row_dims(n),
        )
        self._whole_step = captured(
            self._step_and_update,
            enabled=is_whole,
            compiled=is_whole,
            rows=self._row_dims(3 * n),
            num_state=3 * n,
        )
        if path == "eager":
            self._step.is_captured = False

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
        return "compiled" in (self._whole_step.path, self._step.path)

    def _row_dims(self, first: int) -> dict[int, int]:
        """Dimensions of rows of the inputs noise, x and y, of which the noise is number first."""
        if not self._batches.rows_vary:
            return {}
        by_row = {first: 1} if self._draws_rows else {}
        if self.has_row_noise:
            first += 1
            by_row = {first: 1}
        return {**by_row, first + 1: 0, first + 2: 0}

    @property
    def has_row_noise(self) -> bool:
        """Whether rows have noise of their own beside that of the draws of z."""
        return self.estimator is not None and self.estimator.row_numbers > 0

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
        if self.position in self.ends:
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
            self.starts.park(self._snapshot(), self.descent.parked(), self.losses, self._before)
            self._take_next_start()
        else:
            self._judge_round()

    def _take_next_start(self) -> None:
        """Go to the start whose turn it is; of the last one that is left, judge the round."""
        following, is_last = self.starts.next(self._ranked)
        self.position, self._before = following.position, following.before
        self._go_to({**self.starts.own, **following.values})
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
        if self._before is not None:
            self.doubling = self._compared(self._before, values)
            is_whole = self._ends_before_this() >= max(self.svi.kl_warmup, self.loc_warmup)
            is_free = self.svi.ends_by_itself and self.svi.schedule == "rounds" and is_whole
            if is_free and self.doubling.is_falling:
                values = self._taken_back(self._before)
            elif self._is_noisy(self.doubling.gain):
                self.descent.peak *= 0.5
            if self.svi.ends_by_itself and is_whole and not self.doubling.is_unfinished:
                self.num_steps = self.step
        self._before = values

    def _taken_back(self, before: dict[str, Tensor]) -> dict[str, Tensor]:
        """After a round that lost: where it began, for a next one of half the step size."""
        self._go_to(before)
        self.descent.take(None)
        self.descent.peak *= 0.5
        return before

    def _is_noisy(self, gain: float) -> bool:
        """Whether the noise of the steps costs much more than the round has gained.

        It costs what the objective rose by while the step size fell.
        """
        begin = self._ends_before_this()
        length = self.position - begin
        level = self.losses[begin + length // 4 : begin + length // 2]
        last = self.losses[self.position - max(length // 20, 1) :]
        if not level or self.svi.schedule != "rounds":
            return False
        noise = sum(level) / len(level) - sum(last) / len(last)
        return noise > NOISY * max(gain, 0.0)

    def _ends_before_this(self) -> int:
        place = self.ends.index(self.position)
        return self.ends[place - 1] if place else 0

    def _compared(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Doubling:
        """What the last round gained, on all rows."""
        most = most_pairs(self.program.num_latents, self.batches, self.step)
        gain, error = self._judge.gain(list(before.values()), list(after.values()), most)
        return Doubling(gain, error, self.position)

    def _ranked(self, snapshots: Sequence[Mapping[str, Tensor]], count: int) -> list[int]:
        """Which starts are the best, at most ``count``."""
        return self._judge.best([list(values.values()) for values in snapshots], count)

    def _end_of_round(self) -> int:
        if not self.svi.ends_by_itself or self.is_done:
            return self.num_steps
        left = next(end for end in self.ends if end > self.position) - self.position
        return self.step + left

    def show(self, bar: Any) -> None:
        """After a window of steps: the smoothed objective, and what the last doubling gained."""
        if self.svi.ends_by_itself:
            bar.total = self._end_of_round()
        super().show(bar)
        if self.doubling is not None and self.losses and (self.is_done or self.step % WINDOW == 0):
            gained = f"{self.doubling.gain:.1f} ± {self.doubling.error:.1f}"
            bar.set_postfix_str(f"{self.objective} {self.smoothed:.1f}, doubling gained {gained}")

    def posterior(self, problem: Problem, saves: Checkpoint) -> GuidePosterior:
        """The guide as it is."""
        self._lay_out(by_column=False)
        provenance = problem.provenance(
            saves,
            method=self.method,
            options=self.described(),
            num_parameters=sum(p.numel() for p in self.parameters),
            losses=self.losses,
            doubling=self.doubling_here(self.position),
        )
        return GuidePosterior(self.program, copy.deepcopy(self.guide), provenance)

    def described(self) -> dict[str, Any]:
        """The options, and what became of those that were left open."""
        rate, loc_warmup = self.descent.learning_rate, self.loc_warmup
        told = self.svi.describe(self.guide, rate, loc_warmup, is_compiled=self.is_compiled)
        if self.svi.ends_by_itself:
            told |= {"num_steps": self.position, "num_starts": self.starts.count}
        if self.svi.estimator == AUTO:
            own = None if self.svi.per_example_draws else self.estimator
            told["estimator"] = WEIGHT_SAMPLING if own is None else own.name
        if isinstance(self._batches, Minibatches) and not self._batches.are_all:
            told["batch_size"] = self._batches.size
        return told

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
            "generator": self._generator.get_state(),
            "best": self._best,
            "best_step": self._best_step,
            "position": self.position,
            "starts": self.starts.state(),
            "before": self._before,
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
        before, told = state["before"], state["doubling"]
        self._before = None if before is None else self._checked(before)
        self.doubling = None if told is None else Doubling(told[0], told[1], int(told[2]))
        if state["is_done"]:  # no steps are left, so no graphs are needed
            self.num_steps, self.compile_path = self.step, state["compile_path"]
            self._row_counts = list(state["row_counts"])
        else:  # make the graphs that the run made at its start
            firsts = [self._batches.first(n) for n in state["row_counts"][:NUM_GRAPHS]]
            with users_code():
                for batch in firsts:
                    self._make_graph(batch)
        self._generator.set_state(state["generator"])
        self._best, self._best_step = float(state["best"]), int(state["best_step"])

    # A step

    def _advance(self, step: int, batch: Batch) -> None:
        noise = self._draw_noise(step, len(batch.x))
        held = [step < self.loc_warmup and name in self._held for name in self.names]
        self.keep()
        if self._whole_step.is_compiled:
            values = self._advance_whole(step, noise, batch, held)
        else:
            values = self._advance_in_parts(step, noise, batch, held)
        if not all(map(math.isfinite, values)):
            sites = [] if math.isfinite(values[2]) else self._non_finite_sites(noise[0], batch)
            where = f"at {', '.join(map(repr, sites))}" if sites else "in the KL"
            self.diverged(f"the loss is not finite at step {step}, {where}")
        self.losses.append(values[1])  # minus the ELBO, with the whole KL
        if len(batch.x) not in self._row_counts:
            self._note_graph(len(batch.x))

    def _note_graph(self, num_rows: int) -> None:
        self._row_counts.append(num_rows)
        if self.compile_path is None:
            self.compile_path = "compiled" if self.is_compiled else self._step.path

    def _make_graph(self, batch: Batch) -> None:
        """The graph of a step with so many rows, without the step."""
        noise = self._draw_noise(0, len(batch.x))
        if self._whole_step.is_compiled:
            controls = [1.0] * (1 + 3 * len(self.parameters))
            self._whole_step.bind(*self._whole_inputs(noise, batch, controls))
            self._see_failure()
        if not self._whole_step.is_compiled:
            self._step.bind(*self._inputs(noise, batch, 1.0))
        self._note_graph(len(batch.x))

    def _advance_whole(
        self, step: int, noise: Sequence[Tensor], batch: Batch, held: Sequence[bool]
    ) -> Sequence[float]:
        controls = [weight_of_kl(step, self.svi.kl_warmup), *self.descent.controls(step, held)]
        state, inputs = self._state_of_steps(), (*noise, *batch)
        if (found := self._bound.go(state, inputs, controls)) is not None:
            return found
        (values,) = self._whole_step(*self._whole_inputs(noise, batch, controls))
        self._see_failure()
        if self._whole_step.is_compiled:
            self._bound.add(self._whole_step, state, inputs, len(controls))
        return cast(list[float], values.tolist())

    def _state_of_steps(self) -> list[Tensor]:
        assert self.descent.adam is not None
        return [*self.parameters, *self.descent.adam.moments]

    def _whole_inputs(
        self, noise: Sequence[Tensor], batch: Batch, controls: Sequence[float]
    ) -> tuple[Tensor, ...]:
        told = self.program.initial.new_tensor(controls)
        return (*self._state_of_steps(), *noise, *batch, told)

    def _see_failure(self) -> None:
        if not self._whole_step.is_compiled:
            self._lay_out(by_column=False)
        # then the gradient, a part of the step, cannot be captured either
        if not self._whole_step.is_captured:
            self._step.is_captured = False

    def _advance_in_parts(
        self, step: int, noise: Sequence[Tensor], batch: Batch, held: Sequence[bool]
    ) -> Sequence[float]:
        out = self._gradient(*self._inputs(noise, batch, weight_of_kl(step, self.svi.kl_warmup)))
        values = [float(value) for value in out[:3]]
        if not all(map(math.isfinite, values)):
            return values
        for parameter, gradient, is_held in zip(self.parameters, out[3:], held, strict=True):
            if is_held:  # without a gradient an optimiser neither moves nor counts the step
                parameter.grad = None
                continue
            # clipping scales in place, and a graph's gradients may be one tensor
            parameter.grad = gradient if self.svi.clip_norm is None else gradient.clone()
        self.descent.step(step)
        return values

    def _gradient(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Loss, minus the ELBO, the loss's sampled part, and the gradients."""
        return self._step(*inputs)

    def _inputs(
        self, noise: Sequence[Tensor], batch: Batch, kl_weight: float
    ) -> tuple[Tensor, ...]:
        return (*self.parameters, *noise, *batch, self.program.initial.new_tensor(kl_weight))

    def _step_and_update(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Loss, minus the ELBO, the loss's sampled part ``[3]``, then new parameters and moments.

        Args:
            args: The n parameters, their 2n moments, the noise, x, y, and the controls
                ``[1 + 3n]``: the KL's weight, then those of the optimiser.
        """
        n = len(self.parameters)
        parameters, moments, (*noise, x, y, controls) = args[:n], args[n : 3 * n], args[3 * n :]
        weight, *rest = controls.unbind()
        gradient = value_and_grad(self._loss, n)
        value, loss, sampled, *gradients = gradient(*parameters, *noise, x, y, weight)
        with torch.no_grad():
            values = torch.stack([value, loss, sampled])
            state = self.descent.update(parameters, gradients, moments, rest, sampled.isfinite())
        return (values, *state)

    def _loss(
        self, variables: Sequence[Tensor], rest: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        first, *of_rows, x, y, kl_weight = rest
        noise = (self._noise_of(first), *of_rows)
        return self._terms_of_loss(variables, noise, Batch(x, y), kl_weight, self.estimator)

    def loss_at(
        self,
        values: Sequence[Tensor],
        noise: Sequence[Tensor],
        rows: Batch,
        estimator: Estimator | None,
    ) -> Tensor:
        """What is minimised once the KL has its whole weight, ``[]``, at given noise.

        Args:
            values: Of the parameters, in their order.
            noise: Noise ``[S, M]``, and that of an estimator's rows.
            rows: Rows of the data.
            estimator: Of the likelihood term, whichever the steps take.
        """
        loss, _ = self._terms_of_loss(values, noise, rows, 1.0, estimator)
        return loss

    def _terms_of_loss(
        self,
        variables: Sequence[Tensor],
        noise: Sequence[Tensor],
        rows: Batch,
        kl_weight: Tensor | float,
        estimator: Estimator | None,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        params = dict(zip(self.names, variables, strict=True))
        first, *of_rows = noise
        terms = self.program.elbo(self.guide, params, first, rows, estimator, of_rows)
        elbo = terms.expected_log_likelihood - terms.kl
        # The update waits until this part is known to be finite. The closed-form part sums over
        # all parameters: an update that waits for it as well needs a second pass over them.
        sampled = terms.sampled_kl - terms.expected_log_likelihood
        if terms.log_factors is not None:
            sampled = sampled - terms.log_factors
        return terms.loss(kl_weight), (-elbo, sampled)

    def _draw_noise(self, step: int, num_rows: int) -> tuple[Tensor, ...]:
        """All the noise of a step: of the draws of z, then of the estimator's rows, if it has."""
        noise = self._draw_own(step, num_rows)
        if self.estimator is None or not self.has_row_noise:
            return (noise,)
        num_particles = self.svi.num_particles
        return noise, self.estimator.row_noise(num_particles, num_rows, self._generator)

    def _draw_own(self, step: int, num_rows: int) -> Tensor:
        """Noise ``[S, M]``, ``[S, B, M]`` with draws for each row, or the step it is made of."""
        svi, guide = self.svi, self.guide
        if self._nodes is not None:
            return self._nodes
        if self._counts_noise:
            return torch.tensor(step, dtype=torch.int32, device=self.program.device)
        if not self._draws_rows:
            return guide.draw_noise(svi.num_particles, self._generator)
        noise = guide.draw_noise(svi.num_particles * num_rows, self._generator)
        return noise.reshape(svi.num_particles, num_rows, -1)

    def _noise_of(self, step: Tensor) -> Tensor:
        """The noise itself: made of the step's number inside it, or as it was drawn before it."""
        if not self._counts_noise:
            return step
        like = next(self.guide.parameters())
        values = normal(step, self._num_normals, self._key, like.dtype)
        return values.reshape(self.svi.num_particles, -1)

    def _non_finite_sites(self, noise: Tensor, batch: Batch) -> list[str]:
        with torch.no_grad():
            draws = self.guide.make_terms(self._noise_of(noise).flatten(0, -2), density=False).z
            named = (self.program.non_finite_terms(z, batch, self.program.params) for z in draws)
            return next((names for names in named if names), [])
