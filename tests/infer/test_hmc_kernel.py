"""The state machine against trajectories of one chain on the same random numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pyro_bnn.infer.mcmc import hmc_kernel
from pyro_bnn.infer.mcmc.mass import Mass
from tests.infer import naive_nuts
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


def steps(*sizes: float) -> Tensor:
    return torch.tensor(sizes, dtype=torch.float64)


def naively(run: Run, of: naive_nuts.Dynamics, step_size: float, mean: int) -> list[float]:
    """z and the statistics of Neal's algorithm, with a length from half to 3/2 of the mean."""
    lengths = [n for n in range(1, 2 * mean + 1) if mean <= 2 * n <= 3 * mean]
    length = lengths[int(run.uniforms[1, 1] * len(lengths))]
    start = point = of.start(run.z.numpy(), run.p.numpy())
    num_steps, error = 0, 0.0
    while num_steps < length and error <= 1_000:
        point = of.leapfrog(point, step_size)
        num_steps += 1
        error = point.energy - start.energy
        error = error if math.isfinite(error) else math.inf
    rate = math.exp(-max(error, 0.0))
    drawn = point if run.uniforms[-1, 0] < rate else start
    assert len(run.uniforms) == num_steps + 1
    return [*drawn.z, -drawn.potential, drawn.energy, num_steps, rate, error > 1_000]


CASES: dict[str, tuple[Density, Mass, list[float], int]] = {
    "sphere": (scales(1, 1, 1), diagonal(1, 1, 1), [0.05, 0.3, 1.0, 1.9, 2.5], 7),
    "even mean": (scales(0.1, 1), diagonal(0.2, 0.8), [0.05, 0.3, 0.8, 1.0], 6),
    "one step": (scales(0.3, 1), diagonal(1, 1), [0.1, 0.3, 0.6, 0.9], 1),
    "low rank": (
        gaussian(rotated(torch.tensor([0.1, 0.5, 1, 2, 9], dtype=torch.float64))),
        low_rank(5),
        [0.02, 0.05, 0.1, 0.15, 0.5],
        10,
    ),
    "banana": (banana(0.2), diagonal(1, 1), [0.05, 0.1, 0.2, 0.3, 0.4], 12),
}


@pytest.mark.parametrize("name", CASES)
def test_trajectories_are_those_of_one_chain(name: str) -> None:
    """Chains side by side that end at different times, with lengths of their own."""
    density, mass, sizes, mean = CASES[name]
    runs = trajectories(
        hmc_kernel,
        density.potential,
        mass,
        density.draws(len(sizes), seed=1),
        steps(*sizes),
        num_steps=500,
        limit=mean,
        seed=2,
    )
    of = naive_nuts.dynamics(density.potential, mass)
    found = [[*run.drawn.tolist(), *run.stats.values()] for run in runs]
    expected = [naively(run, of, sizes[run.chain], mean) for run in runs]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    lengths = {int(run.stats["n_steps"]) for run in runs}
    assert {-(-mean // 2), 3 * mean // 2} <= lengths
    assert {bool(torch.equal(run.z, run.drawn)) for run in runs} == {False, True}


def test_lengths_are_even_from_half_to_one_and_a_half_times_the_mean() -> None:
    """Of 5: 3, 4, 5, 6, 7, by the uniform number alone."""
    u = (torch.arange(1_000, dtype=torch.float64) + 0.5) / 1_000
    z, potential = torch.zeros(1_000, 1, dtype=torch.float64), scales(1).potential
    uniforms = torch.stack([torch.zeros_like(u), u], -1)
    state = hmc_kernel.begin((z, *potential(z)), z, uniforms, 9)
    state = hmc_kernel.step(
        state, potential, diagonal(1), torch.ones_like(u), z, uniforms, torch.tensor(5)
    )
    assert state.length.bincount().tolist() == [0, 0, 0, 200, 200, 200, 200, 200]


def test_draws_stay_draws_of_the_density() -> None:
    """With steps so long that a part of the trajectories is rejected."""
    assert_invariant(
        hmc_kernel,
        banana(0.7),
        diagonal(0.9, 1.4),
        step_size=0.55,
        limit=5,
        num_chains=10_000,
        num_draws=2,
        least_moved=0.4,
    )


@pytest.mark.parametrize("beyond", [math.nan, math.inf, -math.inf, 5_000.0])
def test_divergence_ends_the_trajectory_and_keeps_the_point(beyond: float) -> None:
    start = normal(4, 3, seed=0)

    def cliff(z: Tensor) -> Tensor:
        return 0 * z.sum(-1) + torch.where((z == start).all(-1), 0.0, beyond)

    runs = trajectories(
        hmc_kernel,
        with_gradient(cliff),
        diagonal(1, 1, 1),
        start,
        steps(0.1, 0.1, 0.1, 0.1),
        num_steps=5,
        limit=10,
        seed=1,
    )
    assert len(runs) == 20
    for run in runs:
        expected = {"lp": 0, "n_steps": 1, "acceptance_rate": 0, "diverging": 1}
        assert {name: run.stats[name] for name in expected} == expected
        assert torch.equal(run.drawn, start[run.chain])
        assert run.stats["energy"] == pytest.approx(0.5 * float(run.p.square().sum()), rel=1e-12)


def test_a_step_changes_nothing_that_it_is_given() -> None:
    z, potential = normal(3, 2, seed=0), banana(0.5).potential
    state = hmc_kernel.begin((z, *potential(z)), normal(3, 2, seed=1), uniform(3, 2, seed=2), 3)
    for i in range(6):
        before = [value.clone() for value in state]
        numbers = normal(3, 2, seed=i), uniform(3, 2, seed=i)
        new = hmc_kernel.step(
            state, potential, diagonal(1, 1), steps(0.1, 0.3, 0.6), *numbers, torch.tensor(3)
        )
        assert all(map(torch.equal, state, before))
        state = new


def test_positions_are_the_latest_draws_while_the_next_trajectory_is_under_way() -> None:
    density = banana(0.5)
    z = density.draws(5)
    value, grad = density.potential(z)
    state = hmc_kernel.begin((z, value, grad), normal(5, 2, seed=1), uniform(5, 2, seed=2), 20)
    chains = torch.tensor([4, 0, 3])
    ended = torch.zeros(5, dtype=torch.bool)
    for i in range(40):
        numbers = normal(5, 2, seed=i), uniform(5, 2, seed=i)
        state = hmc_kernel.step(
            state, density.potential, diagonal(1, 1), steps(*[0.05] * 5), *numbers, torch.tensor(20)
        )
        found = hmc_kernel.position(state, chains)
        torch.testing.assert_close(found[1:], density.potential(found[0]), rtol=1e-12, atol=1e-12)
        ended |= state.ended
        still = ~ended[chains]
        assert torch.equal(found[0][still], z[chains][still])
        assert not still.any() or i < 30
    assert ended.all()
    assert (hmc_kernel.position(state, chains)[0] != z[chains]).any()
