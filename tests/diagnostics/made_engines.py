"""Engines that sample closed-form posteriors, right or wrong in a known way."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.diagnostics import SimulationRanks, simulation_based_calibration
from pyro_bnn.diagnostics.simulation.simulations import Simulations, simulate
from pyro_bnn.errors import DivergenceError
from pyro_bnn.posterior import DrawsPosterior, Posterior, Provenance
from pyro_bnn.program import Program
from pyro_bnn.program.handlers import Model
from tests.oracle import LinearModel, design

X = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(1)
LINEAR = LinearModel(1, noise=0.5, prior_scale=1.3)
NAMES = (
    *("f(x[0])", "f(x[2])", "f(x[5])", "f(x[7])"),
    *("log likelihood", "log joint", "w", "b"),
)


@dataclass(frozen=True)
class Conjugate:
    """The exact posterior of `LINEAR` for each data set, or one that is wrong in a known way.

    Attributes:
        width: Factor of its standard deviations.
        shift: What is added to b, in its standard deviations.
        correlation: Of one draw with the next.
        from_prior: Whether it samples the prior, whatever the data.
        mean_field: Whether it is the Gaussian without correlations that is closest to it.
        num_diverging: Draws of each chain that it says diverge.
        limit: It fails where the mean of any y is above it.
    """

    num_samples: int = 99
    width: float = 1.0
    shift: float = 0.0
    correlation: float = 0.0
    from_prior: bool = False
    mean_field: bool = False
    num_diverging: int = 0
    limit: float = math.inf

    def run_each(
        self, model: Model, x: Tensor, ys: Tensor, *, seed: int = 0, progress: bool = True
    ) -> tuple[Tensor, Mapping[str, NDArray[Any]]]:
        assert isinstance(model, LinearModel)
        if (ys.flatten(1).mean(1) > self.limit).any():
            raise DivergenceError("made to fail")
        a, eye = design(x), torch.eye(2, dtype=torch.float64)
        rows = 0.0 if self.from_prior else 1.0
        covariance = torch.linalg.inv(rows * a.T @ a / model.noise**2 + eye / model.prior_scale**2)
        mean = rows * ys.flatten(1) @ a @ covariance / model.noise**2  # [C, P]
        if self.mean_field:  # by KL(q, p) its variances are the inverse of the precision's diagonal
            covariance = torch.linalg.inv(covariance).diagonal().reciprocal().diag()
        mean[:, 1] += self.shift * covariance[1, 1].sqrt()
        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(len(ys), self.num_samples, 2, generator=generator, dtype=torch.float64)
        fresh = math.sqrt(1 - self.correlation**2)
        for s in range(1, self.num_samples if self.correlation else 0):
            noise[:, s] = self.correlation * noise[:, s - 1] + fresh * noise[:, s]
        factor = torch.linalg.cholesky(covariance)
        diverging = np.arange(self.num_samples) < np.full((len(ys), 1), self.num_diverging)
        z = mean.unsqueeze(1) + self.width * noise @ factor.T
        return z, {"diverging": diverging}


@dataclass(frozen=True)
class OneByOne:
    """The same through ``run``, a data set at a time."""

    conjugate: Conjugate

    def run(
        self, model: Model, data: tuple[Tensor, Tensor], *, seed: int = 0, progress: bool = True
    ) -> Posterior:
        x, y = data
        z, stats = self.conjugate.run_each(model, x, y.unsqueeze(0), seed=seed)
        return DrawsPosterior(
            Program(model, x, y), z, Provenance("Conjugate", "OneByOne"), sample_stats=stats
        )


def calibrate(engine: Any, num_simulations: int = 120, **options: Any) -> SimulationRanks:
    with simulating_once():
        return simulation_based_calibration(
            LINEAR, X, engine, num_simulations=num_simulations, progress=False, **options
        )


@contextlib.contextmanager
def simulating_once() -> Iterator[None]:
    """Of one model, x and seed, data are simulated once for all tests; fewer are the first ones.

    That takes as long as engines that are a formula. Seed 0 alone: others are of tests of seeds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pyro_bnn.diagnostics.simulation.simulations.simulate", _simulate_once)
        yield


def _simulate_once(program: Program, x: Tensor, num_simulations: int, seed: int) -> Simulations:
    if seed != 0:
        return simulate(program, x, num_simulations, seed)
    found = _SIMULATED.get((program.model, x))
    if found is None or len(found.ys) < num_simulations:
        found = simulate(program, x, num_simulations, seed)
        _SIMULATED[program.model, x] = found
    assert found.num_redrawn == 0
    return found._replace(z=found.z[:num_simulations], ys=found.ys[:num_simulations])


_SIMULATED: dict[tuple[Model, Tensor], Simulations] = {}  # by identity, as both are hashed


class Prior:
    """Draws of the prior, whatever the model and the data."""

    def run_each(
        self, model: Model, x: Tensor, ys: Tensor, *, seed: int = 0, progress: bool = True
    ) -> tuple[Tensor, Mapping[str, NDArray[Any]]]:
        z = Program(model, x, ys[0]).prior_draws(19, x, seed)
        return z.expand(len(ys), -1, -1), {"lp": np.random.default_rng(seed).random((len(ys), 19))}
