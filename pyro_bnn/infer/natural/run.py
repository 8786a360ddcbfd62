"""One run of a natural-gradient engine: its Gaussian, its steps, and how it goes on."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from pyro_bnn.capture.captured import Captured
from pyro_bnn.errors import DivergenceError
from pyro_bnn.guides import Guide
from pyro_bnn.infer.batches import LoaderBatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint, State
from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior, correction_of
from pyro_bnn.infer.curvature.precision import Precision
from pyro_bnn.infer.curvature.rows import Curvature, RowTerms, RowTermsOf
from pyro_bnn.infer.inputs import new_guide
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.run import WINDOW, GradientRun, weight_of_kl
from pyro_bnn.infer.steps.descent import Descent
from pyro_bnn.infer.steps.potentials import potential_of
from pyro_bnn.infer.svi.estimators.estimator import Estimator
from pyro_bnn.infer.svi.judge import most_pairs, objective_of
from pyro_bnn.posterior.doubling import Doubling
from pyro_bnn.posterior.guide_posterior import GuidePosterior
from pyro_bnn.program.terms import Batch

if TYPE_CHECKING:
    from pyro_bnn.infer.natural.options import NaturalOptions

DESCENT_RATE = 0.02  # of Adam at its start


class NaturalRun(GradientRun[GuidePosterior]):
    """One run: a Gaussian q, updated at each step by what a batch says at draws of it.

    A subclass names the tensors it is made of in ``STATE``, makes the precision of q of them, and
    updates them. It says which curvature of the likelihood a step ``needs``, where no option of the
    engine does, and by ``is_full`` whether that is a matrix.

    Args:
        engine: The options.
        problem: Model and data.
        prior: Of the model.
        start: Where the means start ``[P]``.
        num_descent: Steps of Adam towards a mode before the first of q.
        saves: The checkpoint, which says how the run that is resumed computes.

    Attributes:
        mean: Means of q ``[P]``.
        q: Its precision.
        step: Number of steps done, those of Adam included.
        losses: Minus the ELBO of each, estimated before its update; minus the log joint of a step
            of Adam.
    """

    STATE: ClassVar[tuple[str, ...]] = ("mean",)
    in_float64: ClassVar[bool] = False
    is_full: ClassVar[bool] = False
    needs: Curvature = "none"

    def __init__(
        self,
        engine: NaturalOptions,
        problem: Problem,
        prior: GaussianPrior,
        start: Tensor,
        num_descent: int,
        saves: Checkpoint,
    ) -> None:
        batches, program = problem.batches(engine.batch_size), problem.program
        super().__init__(num_descent + engine.planned_steps, type(engine).__name__, batches)
        self.engine, self.program, self.remedy = engine, program, engine.remedy
        is_captured = saves.compile_path != "eager"
        self.dtype = torch.float64 if self.in_float64 else program.dtype
        loc, precision, is_exact = prior
        self.prior = GaussianPrior(loc.to(self.dtype), precision.to(self.dtype), is_exact)
        self.num_data = float(program.num_data)
        self.needs = getattr(engine, "curvature", self.needs)
        self._rows = RowTermsOf(
            program,
            self.needs,
            batches.whole,
            engine.num_particles if engine.takes_draws else 1,
            is_full=self.is_full,
            rows_vary=isinstance(batches, LoaderBatches),
            is_captured=is_captured,
        )
        self._correction = None
        if not is_exact:
            self._correction = correction_of(
                program,
                prior,
                has_hessian=self.needs == "hessian",
                is_full=self.is_full,
                is_captured=is_captured,
            )
        self._generator = torch.Generator(program.device).manual_seed(problem.seed + 1)
        self.num_descent, self._point = num_descent, start.detach().clone().requires_grad_()
        self.descent = Descent([self._point], learning_rate=DESCENT_RATE, num_steps=num_descent)
        name = f"the descent of {self.title}"
        self._slope = Captured(potential_of(program), name, enabled=is_captured)
        self.mean = start.detach().clone().to(self.dtype)
        self.velocity = torch.zeros_like(self.mean)  # of engines with momentum
        self.start()
        self.q = self.precision()
        self._guide: Guide | None = None
        self._before: dict[str, Tensor] | None = None  # the guide's at the end of the last round
        self._seed = problem.seed

    # To be written by a subclass

    @abstractmethod
    def start(self) -> None:
        """Make the tensors of the state but the means."""

    @abstractmethod
    def precision(self) -> Precision:
        """The precision of q.

        Raises:
            DivergenceError: If it is not positive definite.
        """

    @abstractmethod
    def update(self, terms: RowTerms) -> None:
        """Go on, ``q`` included, by what a batch says at draws, or at the mean."""

    # Rates

    @property
    def done(self) -> int:
        """Number of steps of q that are done."""
        return self.step - self.num_descent

    @property
    def weight(self) -> float:
        """Weight of the likelihood beside the KL in this step."""
        temperature = self.engine.temperature * weight_of_kl(
            max(0, self.done), self.engine.kl_warmup
        )
        return self.engine.data_factor / temperature

    @property
    def rate(self) -> float:
        """Learning rate of the mean in this step."""
        return self.engine.learning_rate * self.engine.decay(self.done)

    @property
    def precision_rate(self) -> float:
        """Learning rate of the precision in this step."""
        rate, schedule = self.engine.rate_of_precision, self.engine.schedule
        return rate * self.engine.decay(self.done) if schedule in ("rounds", "power") else rate

    # Steps

    def go(self) -> None:
        """One step.

        Raises:
            DivergenceError: If the loss, a mean or the precision is not finite or not positive.
        """
        batch = next(self._batches)
        if self.step < self.num_descent:
            self.objective = "log joint"
            self.go_down(batch)
        else:
            self.objective = "ELBO"
            self.advance(batch)
            if self.done in self.engine.ends:
                self._end_round()

    # Rounds

    def _end_round(self) -> None:
        """After a round: what it gained, and whether it was the last one."""
        values = self._values_of_guide()
        if self._before is not None:
            self.doubling = self._compared(self._before, values)
            begins = self.done // 2
            if (
                self.engine.ends_by_itself
                and begins >= self.engine.kl_warmup
                and not self.doubling.is_unfinished
            ):
                self.num_steps = self.step
        self._before = values

    def _compared(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> Doubling:
        """What a round gained, on all rows."""
        guide, weight = self._made_guide(), self.weight

        def loss_at(
            values: Sequence[Tensor],
            noise: Sequence[Tensor],
            rows: Batch,
            estimator: Estimator | None,
        ) -> Tensor:
            named = {f"guide.{name}": v for name, v in zip(after, values, strict=True)}
            first, *of_rows = noise
            terms = self.program.elbo(guide, named, first, rows, estimator, of_rows)
            return terms.kl - weight * terms.expected_log_likelihood

        judge = objective_of(loss_at, self.program, guide, self._batches.whole, self._seed)
        most = most_pairs(self.program, self._batches, self.step)
        gain, error = judge.gain(list(before.values()), list(after.values()), most)
        return Doubling(gain, error, self.done)

    def _made_guide(self) -> Guide:
        if self._guide is None:
            self._guide = new_guide(self.q.make_guide, self.program)
        return self._guide

    def _values_of_guide(self) -> dict[str, Tensor]:
        """The parameters of a guide that is q."""
        guide = self._made_guide()
        self.q.set(guide, self.mean)
        return {name: value.detach().clone() for name, value in guide.named_parameters()}

    @property
    def smoothed(self) -> float:
        """The objective, a mean over a window of steps of one kind."""
        recent = (self.losses[self.num_descent :] or self.losses)[-WINDOW:]
        return -sum(recent) / len(recent)

    def go_down(self, batch: Batch) -> None:
        """One step of Adam on the means alone, towards a mode of the log joint.

        Raises:
            DivergenceError: If minus the log joint or its slope is not finite.
        """
        self.keep()
        value, slope = self._slope(self._point.detach().unsqueeze(0), *batch)
        if not bool(torch.cat([value, slope[0]]).isfinite().all()):
            self.remedy = "Standardise the data, or set descent_steps=0"  # it has no rate of theirs
            self.diverged(f"the log joint or its slope is not finite at step {self.step}")
        self._point.grad = slope[0]
        self.descent.step(self.step)
        self.mean = self._point.detach().to(self.dtype, copy=True)
        self.losses.append(float(value))
        self.step += 1

    def posterior(self, problem: Problem, saves: Checkpoint) -> GuidePosterior:
        """The Gaussian as it is."""
        guide: Guide = new_guide(self.q.make_guide, self.program)
        self.q.set(guide, self.mean)
        losses, options = self.losses[self.num_descent :], asdict(self.engine)
        if self.engine.ends_by_itself:
            options |= {"num_steps": self.done, "max_steps": self.engine.planned_steps}
        doubling = self.doubling_here(self.done)
        return problem.guide_posterior(guide, saves, options, losses=losses, doubling=doubling)

    def advance(self, batch: Batch) -> None:
        """One step.

        Raises:
            DivergenceError: See :meth:`go`.
        """
        self.keep()
        draws = self.draws(self._noise())  # [S, P]
        if self.engine.takes_draws:
            terms = self._terms(draws, batch)
            nll = terms.nll
        else:
            terms = self._terms(self.mean.unsqueeze(0), batch)
            nll = self._nll(draws.to(self.program.dtype), batch)
        loss = float(nll.mean()) + float(self.kl())
        if not math.isfinite(loss):
            self.diverged(f"the loss is not finite at step {self.step}")
        weight = self.weight
        try:
            self.update(terms)
        except DivergenceError as error:
            self.diverged(f"{error} at step {self.step}")
        if not bool(self.mean.isfinite().all()):
            self.diverged(f"the means are not finite at step {self.step}")
        self.losses.append(loss)
        self.step += 1
        if self.weight != weight:
            self.q = self.precision()

    def with_momentum(self, gradient: Tensor, momentum: float) -> Tensor:
        """Average a gradient ``[P]`` into ``velocity``; returns that, without the bias of 0."""
        self.velocity = torch.lerp(gradient, self.velocity, momentum)
        return self.velocity / (1 - momentum ** (self.done + 1))

    def draws(self, noise: Tensor) -> Tensor:
        """Draws of q ``[S, P]`` of noise ``[S, M]``."""
        return self.mean + self.q.deviations(noise)

    def kl(self) -> Tensor:
        """KL(q || prior) in nats, ``[]``."""
        return self.prior.kl(self.mean, self.q.variance(), self.q.log_det())

    def _terms(self, z: Tensor, batch: Batch) -> RowTerms:
        at = z.to(self.program.dtype)
        _, nll, gradient, curvature = self._rows(at, batch)
        if self._correction is not None:  # the prior's part has no N/B weight
            more, slope, *bends = self._correction(at)
            nll, gradient = nll + more, gradient + slope / self.weight
            if bends and curvature is not None:
                curvature = curvature + bends[0].mean(0) / self.weight
        if curvature is not None:
            curvature = curvature.to(self.dtype)
        return RowTerms(z, nll, gradient.to(self.dtype), curvature)

    def _nll(self, z: Tensor, batch: Batch) -> Tensor:
        """Minus the log likelihood ``[S]``, with what the prior is more than its Gaussians."""
        nll = self._rows.nll(z, batch)
        return nll if self._correction is None else nll + self._correction(z)[0]

    def _noise(self) -> Tensor:
        count = self.engine.num_particles
        drawn = count // 2 if self.engine.antithetic else count
        noise = torch.randn(
            drawn,
            self.q.noise_dim,
            generator=self._generator,
            dtype=self.dtype,
            device=self.mean.device,
        )
        return torch.cat([noise, -noise]) if self.engine.antithetic else noise

    def values(self) -> dict[str, Tensor]:
        """The tensors that q is made of."""
        return {name: getattr(self, name) for name in self.STATE}

    def _go_to(self, values: Mapping[str, Tensor]) -> None:
        for name in self.STATE:
            setattr(self, name, values[name].clone())
        with torch.no_grad():
            self._point.copy_(self.mean)
        self.q = self.precision()

    # A checkpoint's two methods

    def state(self) -> State:
        """All that the next steps depend on; see ``Resumable``."""
        generator = self._generator.get_state()
        return super().state() | {
            "compile_path": self._rows.compile_path,
            "generator": generator,
            "before": self._before,
            "doubling": None if self.doubling is None else list(astuple(self.doubling)),
            "is_done": self.is_done,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; see ``Resumable``.

        Raises:
            ValueError: If it is of another run.
        """
        self._generator.set_state(state["generator"])
        try:
            super().restore(state)
        except DivergenceError as error:  # the precision is not positive
            raise ValueError(str(error)) from error
        self._before, doubling = state["before"], state["doubling"]
        if doubling is not None:
            self.doubling = Doubling(doubling[0], doubling[1], int(doubling[2]))
        if state["is_done"]:
            self.num_steps = self.step
