"""Runs of the natural-gradient engines, and each update written from its equations in NumPy.

The model is a linear regression with a prior of its own for weight and bias, so that gradients of
rows are known: :math:`g_i = -a_i (y_i - a_i^\\top z) / \\sigma^2` with the row :math:`a_i` of the
design matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn import likelihoods, models, priors
from pyro_bnn.data import Dataset
from pyro_bnn.infer.batches import Minibatches
from pyro_bnn.infer.checkpoints.checkpoint import Checkpoint
from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior
from pyro_bnn.infer.natural.engine import NaturalEngine
from pyro_bnn.infer.natural.run import NaturalRun
from pyro_bnn.infer.problem import Problem
from pyro_bnn.program import Program
from tests.oracle import design, linear_gaussian

Array = NDArray[np.float64]
State = dict[str, Array]

ORACLE = linear_gaussian()
NOISE = 0.5
# priors are made in float32
LOC = np.array([0.2, 0.2, 0.2, -0.3], np.float32).astype(np.float64)
PRECISION = np.array([0.7, 0.7, 0.7, 2.0], np.float32).astype(np.float64) ** -2.0
START = np.array([0.4, -0.6, 0.8, 0.3])
SCALE = 0.3  # of q at the start
FIRST = np.maximum(PRECISION, SCALE**-2.0)

DATA = (ORACLE.x, ORACLE.y)  # 20 rows, in batches of 8, 8 and 4
N, STEPS = 20, 5
A, B, BETA, DAMPING = 0.2, 0.3, 0.8, 0.15
COMMON: dict[str, Any] = {
    "num_steps": STEPS,
    "learning_rate": A,
    "precision_learning_rate": B,
    "schedule": "constant",
    "batch_size": 8,
    "num_particles": 3,
}
WEIGHTS = pytest.mark.parametrize(
    "weights", [(1.0, 1.0), (3.0, 0.5)], ids=["plain", "thrice and cold"]
)  # data factor and temperature


def linear() -> models.LinearRegression:
    """The model of the prior above, in float64."""
    return models.LinearRegression(
        3,
        prior={"weight": priors.Normal(0.7, loc=0.2), "bias": priors.Normal(2.0, loc=-0.3)},
        likelihood=likelihoods.Normal(NOISE),
    ).double()


def make_run(
    engine: NaturalEngine, model: Any, data: tuple[Tensor, Tensor], start: Tensor, seed: int = 0
) -> NaturalRun:
    """A run of an engine that was not begun, from means ``[P]``."""
    problem = Problem(model, data, Dataset(*data), None, seed, type(engine).__name__)
    prior = GaussianPrior.of(problem.program, problem.engine)
    saves = Checkpoint(device=problem.program.device, start=0.0)
    return engine._make_run()(engine, problem, prior, start, 0, saves)


def advance(run: NaturalRun, num_steps: int) -> NaturalRun:
    """Do steps of a run."""
    for _ in range(num_steps):
        run.advance(next(run._batches))
    return run


def by_hand(
    engine: NaturalEngine,
    state: State,
    draw: Callable[[State, Array], Array],
    update: Callable[[State, Array, Array, Array, int], State],
    *,
    num_steps: int,
    noise_dim: int = 4,
) -> Iterator[State]:
    """States after each step of a run of the linear model, each made when it is asked for.

    Args:
        engine: Its batches and draws.
        state: At the start.
        draw: Draws z ``[S, P]`` of a state and noise.
        update: A state, gradients ``[S, M, P]`` of rows, the design matrix ``[M, P]``, draws and
            the number of the step, from 1, to a state.
        num_steps: How many.
        noise_dim: Length of the noise of a draw.
    """
    program = Program(linear(), ORACLE.x, ORACLE.y)
    batches = Minibatches(program.batch(ORACLE.x, ORACLE.y), engine.batch_size, 0)
    generator = torch.Generator().manual_seed(1)
    for t in range(1, num_steps + 1):
        x, y = next(batches)
        shape = (engine.num_particles, noise_dim)
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        z, a = draw(state, noise.numpy()), design(x).numpy()
        residual = y.numpy().reshape(-1) - z @ a.T  # [S, M]
        gradients = -residual[:, :, None] * a / NOISE**2  # [S, M, P]
        state = update(state, gradients, a, z, t)
        yield state
