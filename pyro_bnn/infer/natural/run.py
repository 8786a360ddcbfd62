"""One run of a natural-gradient engine: its Gaussian, its steps, and how it goes on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from tqdm.auto import tqdm

from pyro_bnn.errors import DivergenceError
from pyro_bnn.infer.batches import Batches, LoaderBatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.engine import WINDOW
from pyro_bnn.infer.natural.gaussian_prior import Correction, GaussianPrior
from pyro_bnn.infer.natural.precision import Precision
from pyro_bnn.infer.natural.rows import Curvature, RowTerms, RowTermsOf
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch

if TYPE_CHECKING:
    from pyro_bnn.infer.natural.options import NaturalOptions


class NaturalRun(ABC):
    """One run: a Gaussian q, updated at each step by what a batch says at draws of it.

    A subclass names the tensors it is made of in ``STATE``, makes the precision of q of them, and
    updates them.

    Args:
        engine: The options.
        program: The model as tensor functions.
        prior: Its prior.
        start: Where the means start ``[P]``.
        batches: The data.
        seed: Of the noise.
        compile_path: How the run that is resumed computes; None for a new one.

    Attributes:
        mean: Means of q ``[P]``.
        q: Its precision.
        step: Number of steps done.
        losses: Minus the ELBO of each, estimated before its update.
    """

    STATE: ClassVar[tuple[str, ...]] = ("mean",)

    def __init__(
        self,
        engine: NaturalOptions,
        program: Program,
        prior: GaussianPrior,
        start: Tensor,
        batches: Batches,
        seed: int,
        compile_path: str | None = None,
    ) -> None:
        self.engine, self.program, self._batches = engine, program, batches
        self.dtype = self.state_dtype
        loc, precision, is_exact = prior
        self.prior = GaussianPrior(loc.to(self.dtype), precision.to(self.dtype), is_exact)
        self.num_data = float(program.num_data)
        curvature, is_full = self.needs()
        self._rows = RowTermsOf(
            program,
            curvature,
            batches.whole,
            self._num_points,
            is_full=is_full,
            rows_vary=isinstance(batches, LoaderBatches),
            is_captured=compile_path != "eager",
        )
        self._correction = None
        if not is_exact:
            self._correction = Correction(
                program,
                prior,
                has_hessian=curvature == "hessian",
                is_full=is_full,
                is_captured=compile_path != "eager",
            )
        self._generator = torch.Generator(program.device).manual_seed(seed + 1)
        self.step = 0
        self.losses: list[float] = []
        self.mean = start.detach().clone().to(self.dtype)
        self.start()
        self.q = self.precision()
        self._last_good = (0, self._snapshot())

    # To be written by a subclass

    @property
    def state_dtype(self) -> torch.dtype:
        """Of the state."""
        return self.program.dtype

    @abstractmethod
    def needs(self) -> tuple[Curvature, bool]:
        """Which curvature of the likelihood a step needs, and whether as a matrix."""

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
    def weight(self) -> float:
        """Weight of the likelihood beside the KL in this step."""
        warmup = self.engine.kl_warmup
        share = 1.0 if warmup == 0 else min(1.0, (self.step + 1) / warmup)
        return self.engine.data_factor / (self.engine.temperature * share)

    @property
    def rate(self) -> float:
        """Learning rate of the mean in this step."""
        return self.engine.learning_rate * self.engine.decay(self.step)

    @property
    def precision_rate(self) -> float:
        """Learning rate of the precision in this step."""
        rate = self.engine.rate_of_precision
        return rate * self.engine.decay(self.step) if self.engine.schedule == "power" else rate

    # Steps

    def train(self, checkpoint: Checkpoint, *, progress: bool) -> None:
        """Do the steps that are left.

        Raises:
            DivergenceError: If the loss, a mean or the precision is not finite or not positive.
            Interrupted: If Ctrl-C came.
            OutputError: If the checkpoint cannot be written.
        """
        num_steps, title = self.engine.num_steps, type(self.engine).__name__
        bar = tqdm(
            total=num_steps, initial=self.step, disable=not progress, desc=title, unit="step"
        )
        with bar, checkpoint.watch():
            while self.step < num_steps:
                self.advance(next(self._batches))
                if self.step == num_steps or self.step % WINDOW == 0:
                    recent = self.losses[-WINDOW:]
                    bar.update(self.step - bar.n)
                    bar.set_postfix_str(f"ELBO {-sum(recent) / len(recent):.1f}")
                checkpoint.step(self)
            checkpoint.finish(self)

    def advance(self, batch: Batch) -> None:
        """One step.

        Raises:
            DivergenceError: See :meth:`train`.
        """
        if self.step % WINDOW == 0:
            self._last_good = (self.step, self._snapshot())
        draws = self.draws(self._noise())  # [S, P]
        if self.engine.takes_draws:
            terms = self._terms(draws, batch)
            nll = terms.nll
        else:
            terms = self._terms(self.mean.unsqueeze(0), batch)
            nll = self._nll(draws.to(self.program.dtype), batch)
        loss = float(nll.mean()) + float(self.kl())
        if not math.isfinite(loss):
            self._diverged("the loss is not finite")
        weight = self.weight
        try:
            self.update(terms)
        except DivergenceError as error:
            self._diverged(str(error))
        if not bool(self.mean.isfinite().all()):
            self._diverged("the means are not finite")
        self.losses.append(loss)
        self.step += 1
        if self.weight != weight:
            self.q = self.precision()

    def draws(self, noise: Tensor) -> Tensor:
        """Draws of q ``[S, P]`` of noise ``[S, M]``."""
        return self.mean + self.q.deviations(noise)

    def kl(self) -> Tensor:
        """KL(q || prior) in nats, ``[]``."""
        return self.prior.kl(self.mean, self.q.variance(), self.q.log_det())

    @property
    def _num_points(self) -> int:
        """At how many points a step takes gradients."""
        return self.engine.num_particles if self.engine.takes_draws else 1

    def _terms(self, z: Tensor, batch: Batch) -> RowTerms:
        at = z.to(self.program.dtype)
        _, nll, gradient, curvature = self._rows(at, batch)
        if self._correction is not None:  # of the prior: not weighted, as the likelihood is
            more, slope, bend = self._correction(at)
            nll, gradient = nll + more, gradient + slope / self.weight
            if bend is not None and curvature is not None:
                curvature = curvature + bend / self.weight
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

    def _snapshot(self) -> dict[str, Tensor]:
        return {name: getattr(self, name).clone() for name in self.STATE}

    def _go_to(self, values: Mapping[str, Tensor]) -> None:
        for name in self.STATE:
            setattr(self, name, values[name].clone())
        self.q = self.precision()

    def _diverged(self, what: str) -> None:
        failed, (good, values) = self.step, self._last_good
        self._go_to(values)
        raise DivergenceError(
            f"{what} at step {failed}; the state of step {good} is kept in error.posterior. "
            f"{self.engine.remedy}"
        )

    # A checkpoint's two methods

    def state(self) -> dict[str, Any]:
        """All that the next steps depend on; see ``Resumable``."""
        good, values = self._last_good
        return {
            "place": f"step {self.step} of {self.engine.num_steps}",
            "compile_path": self._rows.compile_path,
            "step": self.step,
            "values": {name: getattr(self, name) for name in self.STATE},
            "generator": self._generator.get_state(),
            "batches": self._batches.state(),
            "losses": torch.tensor(self.losses, dtype=torch.float64),
            "last_good": {"step": good, "values": values},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to a state; see ``Resumable``.

        Raises:
            ValueError: If it is of another run.
        """
        step, losses, good = state["step"], state["losses"], state["last_good"]
        if not 0 <= step <= self.engine.num_steps or losses.shape != (step,):
            raise ValueError(f"{losses.numel()} losses of {step} steps")
        values, kept = (self._checked(some) for some in (state["values"], good["values"]))
        self._generator.set_state(state["generator"])
        self._batches.restore(state["batches"])
        self.step, self.losses = step, losses.tolist()
        self._last_good = (int(good["step"]), kept)
        try:
            self._go_to(values)
        except DivergenceError as error:
            raise ValueError(str(error)) from error

    def _checked(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Values of the state, checked to be its own."""
        ours = {name: getattr(self, name) for name in self.STATE}
        theirs = {name: (value.shape, value.dtype) for name, value in values.items()}
        if theirs != {name: (value.shape, value.dtype) for name, value in ours.items()}:
            raise ValueError(f"its tensors are {', '.join(theirs)}")
        return {name: values[name].to(ours[name].device) for name in self.STATE}
