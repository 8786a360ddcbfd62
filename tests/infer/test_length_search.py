"""The search for the length of trajectories, on jumps that are made and on Gaussians."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pyro_bnn.errors import FileFormatError
from pyro_bnn.infer.mcmc import hmc_kernel
from pyro_bnn.infer.mcmc.chains import in_lockstep
from pyro_bnn.infer.mcmc.length_search import FIRST, MOST, LengthSearch
from pyro_bnn.infer.mcmc.lockstep import Energy, Graphs
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.mcmc.progress import Progress
from pyro_bnn.infer.mcmc.sampling import Sampling, first_mass
from tests.infer.densities import scales
from tests.infer.drive import low_rank, normal

CHAINS, P = 3, 30
MASS = Mass(torch.linspace(0.5, 2.0, P, dtype=torch.float64))


def fed(search: LengthSearch, num_looks: int, angle: float, seed: int = 0) -> None:
    """Draws of exact trajectories of a standard normal, which turn (y, p) by an angle a step."""
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(CHAINS, P))
    for _ in range(num_looks):
        mean = search.next()
        steps = rng.integers(-(-mean // 2), 3 * mean // 2, CHAINS, endpoint=True).astype(float)
        turn = (steps * angle)[:, None]
        y = np.cos(turn) * y + np.sin(turn) * rng.normal(size=(CHAINS, P))
        z = 7 + torch.from_numpy(y) * MASS.scale
        search.add(np.arange(CHAINS), z, MASS, steps, np.zeros(CHAINS, bool))


def best(angle: float) -> float:
    """The mean number of steps n of the largest jumps a step.

    E |y' - y|^2 is 2 P (1 - E cos), that of |y|^2 is 4 P (1 - E cos^2), of angles from half to 3/2
    of the mean.
    """
    times = np.linspace(0.2, 4, 4_000)
    once, twice = (
        (np.sin(1.5 * k * times) - np.sin(0.5 * k * times)) / (k * times) for k in (1, 2)
    )
    gain = np.sqrt((1 - once) * (0.5 - 0.5 * twice)) / times
    return float(times[gain.argmax()] / angle)


@pytest.mark.parametrize("angle", [0.02, 0.11, 0.4])
def test_it_finds_the_length_of_the_largest_jumps_per_step(angle: float) -> None:
    """Within the half octave of its grid, from 16 steps, a window at a time."""
    search = LengthSearch(torch.zeros(CHAINS, P, dtype=torch.float64))
    assert search.steps == FIRST
    for window in range(5):
        before = search.steps
        fed(search, 400, angle, window)
        search.end_window()
        assert before / 2.01 <= search.steps <= 2.01 * before
    assert abs(math.log2(search.steps / best(angle))) <= 0.5


def test_lengths_take_turns_around_the_best() -> None:
    search = LengthSearch(torch.zeros(CHAINS, P))
    assert sorted({search.next() for _ in range(5)}) == [8, 11, 16, 23, 32]
    search.steps = MOST
    assert max(search.lengths) == MOST
    search.steps = 1
    assert min(search.lengths) == 1


def test_draws_that_diverged_or_stood_still_change_nothing() -> None:
    search = LengthSearch(torch.zeros(CHAINS, P, dtype=torch.float64))
    rows = np.arange(CHAINS)
    for jump in (1.0, 5.0, 2.0):
        z = torch.full((CHAINS, P), jump).double()
        search.add(rows, z, MASS, np.full(CHAINS, 8.0), np.ones(CHAINS, bool))
    search.end_window()
    assert search.steps == FIRST
    for _ in range(3):
        search.add(rows, 0 * MASS.scale.expand(CHAINS, P), MASS, np.full(CHAINS, 8.0), rows < 0)
    search.end_window()
    assert search.steps == FIRST


def test_whitened_differences_are_those_of_the_velocities() -> None:
    mass, y = low_rank(6), normal(4, 6, seed=1)
    torch.testing.assert_close(mass.whitened(mass.velocity(y)), y, rtol=1e-12, atol=1e-12)


def test_it_goes_on_from_a_state() -> None:
    def fresh() -> LengthSearch:
        return LengthSearch(torch.zeros(CHAINS, P, dtype=torch.float64))

    whole, part = fresh(), fresh()
    for search in (whole, part):
        fed(search, 37, 0.1, 1)
    again = fresh()
    again.restore(part.state())
    for search in (whole, again):
        fed(search, 30, 0.1, 2)
        search.end_window()
    assert again.steps == whole.steps
    for wrong in ({"steps": 0}, {"turn": 0.5}, {"last": torch.zeros(1, 2)}):
        with pytest.raises(FileFormatError, match="of another search for the length"):
            fresh().restore({**part.state(), **wrong})


@pytest.mark.slow("samples chains")
def test_on_a_gaussian_the_time_of_a_trajectory_is_that_of_the_closed_form() -> None:
    """Of a standard normal 1.29, whatever the scales, which the mass matrix takes away."""
    density = scales(*torch.logspace(-1, 1, 40).tolist())
    starts = density.draws(32, seed=1)
    chains = in_lockstep(
        hmc_kernel,
        Energy(density.potential),
        starts,
        first_mass(density.potential(starts)[1], "diagonal"),
        limit=MOST,
        target_accept=0.98,  # of steps so short that an energy error does not matter
        seed=0,
        graphs=Graphs("a density", compiled=False, strict=True),
    )
    run = Sampling(
        chains,
        warmup_steps=100,
        num_samples=20,
        limit=MOST,
        progress=Progress("", 32, 120, show=False),
        search=LengthSearch(starts),
    )
    run.begin()
    while not run.is_done:
        run.go()
    stats = run.result().stats
    time = stats[..., chains.columns.index("n_steps")].mean() * stats[..., -1].mean()
    assert best(1.0) / 2**0.75 < time < best(1.0) * 2**0.75
