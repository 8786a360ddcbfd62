"""Runs of variational engines, looked at after every epoch: the ELBO of q by the same draws."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

import pyro_bnn as bnn
from pyro_bnn.errors import DivergenceError
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior
from pyro_bnn.infer.natural.engine import NaturalEngine
from pyro_bnn.infer.problem import Problem
from pyro_bnn.infer.svi.training import Training
from pyro_bnn.program import Batch, Program


class Steps(Protocol):
    """A run that was not begun."""

    guide: Any

    def advance(self) -> None:
        """One step."""

    def look(self) -> None:
        """Make the guide the Gaussian that the run has now."""


class SVISteps:
    """Steps of SVI.

    Args:
        engine: Its options.
        problem: Model, data and seed.
        start: Means at the start ``[P]``.
    """

    def __init__(self, engine: bnn.SVI, problem: Problem, start: Tensor) -> None:
        make: Any = engine.guide
        program, self._batches = problem.program, problem.batches(engine.batch_size)
        self.guide = make(problem.model)
        self.guide.setup(program.example.x[:1])
        program.prepare(self.guide)
        self.guide.move_to(start)
        self._run = Training(engine, program, self.guide, problem.seed, batches=self._batches)

    def advance(self) -> None:
        """One step."""
        self._run._advance(self._run.step, next(self._batches))
        self._run.step += 1

    def look(self) -> None:
        """The guide is what is trained."""


class NaturalSteps:
    """Steps of a natural-gradient engine; arguments as of :class:`SVISteps`."""

    def __init__(self, engine: NaturalEngine, problem: Problem, start: Tensor) -> None:
        program, self._batches = problem.program, problem.batches(engine.batch_size)
        prior = GaussianPrior.of(program, problem.engine)
        saves = Checkpoint(device=program.device, start=time.perf_counter())
        self._run = engine._make_run()(engine, problem, prior, start, 0, saves)
        self.guide: Any = self._run.q.make_guide(problem.model)
        self.guide.setup(program.example.x[:1])
        program.prepare(self.guide)

    def advance(self) -> None:
        """One step."""
        self._run.advance(next(self._batches))

    def look(self) -> None:
        """Set the guide."""
        self._run.q.set(self.guide, self._run.mean)


class ELBO:
    """The ELBO of guides on all rows: the same draws of noise each time, KL in closed form.

    Args:
        program: The model.
        data: All rows.
        num_draws: S.
    """

    def __init__(self, program: Program, data: Batch, num_draws: int) -> None:
        self._program, self._data, self._num_draws = program, data, num_draws
        self._noise: Tensor | None = None

    def __call__(self, guide: Any) -> float:
        """In nats."""
        if self._noise is None:
            generator = torch.Generator().manual_seed(12345)
            self._noise = guide.draw_noise(self._num_draws, generator)
        with torch.no_grad():
            z = guide.transport(self._noise)
            rows = self._program.log_likelihood(z, self._data).double()  # [S, N]
        kl, is_exact = guide.kl()
        assert is_exact
        return float(rows.sum(-1).mean()) - float(kl)


@dataclass
class Trajectory:
    """What was seen of a run at its start and after every epoch.

    Attributes:
        elbo: ELBO a row, in nats.
        seconds: Time of the steps until then, without set-up and without looking.
        has_diverged: Whether it ended in an error.
    """

    elbo: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    has_diverged: bool = False

    def step_seconds(self, per_epoch: int) -> list[float]:
        """Time of a step, of each epoch but the first, in which graphs are made."""
        pairs = itertools.pairwise(self.seconds)
        return [(after - before) / per_epoch for before, after in pairs][1:]


def watch(
    engine: Any,
    model: Any,
    train: bnn.Dataset,
    *,
    epochs: int,
    seed: int,
    num_draws: int,
) -> Trajectory:
    """Run an engine and look at it after every epoch.

    For one seed every engine starts at the same means, a draw from the prior, and meets the same
    batches.

    Args:
        engine: SVI or a natural-gradient engine, with a ``batch_size``.
        model: The network.
        train: The rows.
        epochs: How many.
        seed: Of the start, the batches and the noise.
        num_draws: Of the ELBO.
    """
    torch.manual_seed(seed)
    problem = Problem(model, train, train, None, seed, type(engine).__name__)
    make = NaturalSteps if isinstance(engine, NaturalEngine) else SVISteps
    run: Steps = make(engine, problem, problem.program.initial)
    elbo, seen, seconds = ELBO(problem.program, problem.rows, num_draws), Trajectory(), 0.0
    per_epoch = math.ceil(len(train.x) / engine.batch_size)
    for epoch in range(epochs + 1):
        run.look()
        seen.elbo.append(elbo(run.guide) / len(train.x))
        seen.seconds.append(seconds)
        if epoch == epochs:
            break
        begin = time.perf_counter()
        try:
            for _ in range(per_epoch):
                run.advance()
        except DivergenceError:
            seen.has_diverged = True
            break
        seconds += time.perf_counter() - begin
    return seen
