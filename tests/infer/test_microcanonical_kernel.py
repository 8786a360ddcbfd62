"""Microcanonical state machines against trajectories of one chain, and against exact draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_bnn.infer.mcmc.isokinetic import INTEGRATORS, refresh, unit
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.mcmc.microcanonical_kernel import PARTS, Adjusted, Unadjusted
from tests.infer.densities import Density, banana, gaussian, rotated, scales, with_gradient
from tests.infer.drive import (
    Run,
    assert_invariant,
    diagonal,
    low_rank,
    normal,
    trajectories,
    uniform,
)

EVERY_INTEGRATOR = pytest.mark.parametrize("integrator", INTEGRATORS)
CASES: dict[str, tuple[Density, Mass, list[float], int]] = {
    "sphere": (scales(1, 1, 1), diagonal(1, 1, 1), [0.1, 0.5, 1.5, 3.0, 5.0], 7),
    "one step": (scales(0.3, 1), diagonal(1, 1), [0.1, 0.4, 0.8, 1.5], 1),
    "low rank": (
        gaussian(rotated(torch.tensor([0.1, 0.5, 1, 2, 9], dtype=torch.float64))),
        low_rank(5),
        [0.05, 0.1, 0.3, 0.5, 1.0],
        10,
    ),
    "banana": (banana(0.2), diagonal(1, 1), [0.05, 0.1, 0.2, 0.4, 0.8], 12),
}


def naively(run: Run, density: Density, mass: Mass, kernel: Any, size: float, mean: int) -> Any:
    """z and the statistics of the adjusted sampler, with a length from half to 3/2 of the mean."""
    lengths = [n for n in range(1, 2 * mean + 1) if mean <= 2 * n <= 3 * mean]
    length = lengths[int(run.uniforms[1, 1] * len(lengths))]
    integrator = INTEGRATORS[kernel.integrator]
    z, v = run.z[None], unit(run.p[None])
    value, grad = density.potential(z)
    errors: list[float] = []
    while len(errors) < length and sum(errors) <= 1_000:
        new = integrator.step(
            z, v, grad, value, torch.tensor([size]).double(), density.potential, mass
        )
        z, v, grad, value = new[:4]
        errors.append(float(new.error))
    rate = math.exp(-max(sum(errors), 0.0)) if sum(errors) <= 1_000 else 0.0
    drawn = z[0] if run.uniforms[-1, 0] < rate else run.z
    assert len(run.uniforms) == len(errors) + 1
    num_steps, diverging = len(errors), sum(errors) > 1_000
    lp = -float(density.potential(drawn[None])[0])
    square = float(np.square(errors).mean() / z.shape[1])
    gradients = num_steps * integrator.num_gradients
    return [*drawn.tolist(), lp, sum(errors), square, num_steps, gradients, rate, diverging]


@EVERY_INTEGRATOR
@pytest.mark.parametrize("name", CASES)
def test_adjusted_trajectories_are_those_of_one_chain(name: str, integrator: str) -> None:
    """Chains side by side that end at different times, with lengths of their own."""
    density, mass, sizes, mean = CASES[name]
    kernel = Adjusted(integrator)
    runs = trajectories(
        kernel,
        density.potential,
        mass,
        density.draws(len(sizes), seed=1),
        torch.tensor(sizes).double(),
        num_steps=300,
        limit=mean,
        seed=2,
    )
    found = [[*run.drawn.tolist(), *run.stats.values()] for run in runs]
    expected = [naively(run, density, mass, kernel, sizes[run.chain], mean) for run in runs]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)
    assert {bool(torch.equal(run.z, run.drawn)) for run in runs} == {False, True}


@EVERY_INTEGRATOR
def test_adjusted_draws_stay_draws_of_the_density(integrator: str) -> None:
    """With steps so long that a part of the trajectories is rejected."""
    assert_invariant(
        Adjusted(integrator),
        banana(0.7),
        diagonal(0.9, 1.4),
        step_size=0.7 if integrator == "leapfrog" else 0.9,
        limit=4,
        num_chains=10_000,
        num_draws=2,
        least_moved=0.4,
    )


@EVERY_INTEGRATOR
@pytest.mark.parametrize("memory", [3, 8, 10])
def test_unadjusted_draws_are_a_quarter_of_the_memory_apart(integrator: str, memory: int) -> None:
    """Two draws by hand: steps, the velocity's refresh by their share of the memory, steps."""
    density, mass = banana(0.4), diagonal(0.9, 1.4)
    kernel = Unadjusted(integrator)
    z, p, noise = density.draws(6, seed=1), normal(6, 2, seed=2), normal(6, 2, seed=3)
    size, apart = torch.linspace(0.05, 0.3, 6).double(), max(1, memory // PARTS)
    state = kernel.begin((z, *density.potential(z)), p, uniform(6, 2, seed=4), memory)
    state = state._replace(parts=torch.full_like(state.parts, PARTS))
    v, (value, grad) = unit(p), density.potential(z)
    for draw in range(2):
        errors = []
        for i in range(apart):
            given = uniform(6, 2, seed=10 * draw + i), torch.tensor(memory)
            state = kernel.step(state, density.potential, mass, size, noise, *given)
            assert bool(state.ended.all()) == (i == apart - 1)
            new = INTEGRATORS[integrator].step(z, v, grad, value, size, density.potential, mass)
            z, v, grad, value = new[:4]
            errors.append(new.error)
        v = refresh(v, noise, torch.full((6,), apart / memory, dtype=torch.float64))
        found = kernel.position(state, torch.arange(6))
        for mine, theirs in zip(found, (z, value, grad), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
        every = torch.stack(errors)
        expected = [
            -value,
            every.sum(0),
            every.square().mean(0) / 2,
            torch.full_like(value, apart),
            torch.full_like(value, apart * INTEGRATORS[integrator].num_gradients),
            torch.zeros_like(value),
        ]
        torch.testing.assert_close(state.stats, torch.stack(expected, -1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernel", [Adjusted("leapfrog"), Unadjusted("minimal_norm")])
@pytest.mark.parametrize("beyond", [math.nan, math.inf, -math.inf, 5_000.0])
def test_divergence_ends_the_trajectory_and_keeps_the_point(kernel: Any, beyond: float) -> None:
    start = normal(4, 3, seed=0)

    def cliff(z: Tensor) -> Tensor:
        return 0 * z.sum(-1) + torch.where((z == start).all(-1), 0.0, beyond)

    runs = trajectories(
        kernel,
        with_gradient(cliff),
        diagonal(1, 1, 1),
        start,
        torch.full((4,), 0.1).double(),
        num_steps=5,
        limit=10,
        seed=1,
    )
    assert len(runs) == 20
    for run in runs:
        square = beyond**2 / 3 if math.isfinite(beyond) else math.inf
        worst = {"acceptance_rate": 0, "energy_variance": square}[kernel.AIM]
        expected = {"lp": 0, "n_steps": 1, kernel.AIM: worst, "diverging": 1}
        assert {name: run.stats[name] for name in expected} == expected
        assert torch.equal(run.drawn, start[run.chain])


@pytest.mark.parametrize("kernel", [Adjusted("leapfrog"), Unadjusted("minimal_norm")])
def test_a_step_changes_nothing_that_it_is_given(kernel: Any) -> None:
    z, potential = normal(3, 2, seed=0), banana(0.5).potential
    sizes = torch.tensor([0.1, 0.3, 0.6]).double()
    state = kernel.begin((z, *potential(z)), normal(3, 2, seed=1), uniform(3, 2, seed=2), 3)
    for i in range(6):
        before = [value.clone() for value in state]
        numbers = normal(3, 2, seed=i), uniform(3, 2, seed=i)
        new = kernel.step(state, potential, diagonal(1, 1), sizes, *numbers, torch.tensor(3))
        assert all(map(torch.equal, state, before))
        assert torch.allclose(new.v.norm(dim=-1), torch.ones(3).double(), rtol=0, atol=1e-14)
        state = new


def test_possible_states() -> None:
    kernel = Unadjusted("leapfrog")
    z, potential = normal(3, 2, seed=0), banana(0.5).potential
    state = kernel.begin((z, *potential(z)), z, uniform(3, 2, seed=2), 3)
    assert kernel.is_possible(state, 4)
    under_way = state._replace(num_steps=state.num_steps + 2, length=state.length + 6)
    assert kernel.is_possible(under_way, 4)
    assert not kernel.is_possible(under_way, 3)  # lengths of at most 4
    assert not kernel.is_possible(under_way._replace(num_steps=under_way.length), 4)
    assert not kernel.is_possible(state._replace(parts=state.parts + 1), 4)
