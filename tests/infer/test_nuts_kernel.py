"""The state machine against a recursive tree on the same random numbers, and what it samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.infer.mcmc import nuts_kernel
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.mcmc.nuts_kernel import turns
from pyro_bnn.infer.steps.potentials import Potential
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

SHORT_TO_LONG = [0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.5]


def steps(*sizes: float) -> Tensor:
    return torch.tensor(sizes, dtype=torch.float64)


# --- the same trajectories as a recursive tree ---------------------------------------------------


def compared(
    density: Density, mass: Mass, sizes: list[float], *, depth: int, num_steps: int = 500
) -> list[Run]:
    """Trajectories of chains with these step sizes side by side, each like its own naive one."""
    runs = trajectories(
        nuts_kernel,
        density.potential,
        mass,
        density.draws(len(sizes), seed=1),
        steps(*sizes),
        num_steps=num_steps,
        limit=1 << depth,
        seed=2,
    )
    of = naive_nuts.dynamics(density.potential, mass)
    naive = []
    for run in runs:
        z, p, rows = run.z.numpy(), run.p.numpy(), run.uniforms.numpy()
        size = sizes[run.chain]
        naive.append(naive_nuts.trajectory(of, z, p, rows, step_size=size, max_depth=depth))
    for name in nuts_kernel.STATISTICS:
        exact = name in ("n_steps", "tree_depth", "diverging")
        found = np.array([run.stats[name] for run in runs])
        expected = np.array([float(getattr(draw, name)) for draw in naive])
        tolerance = 0 if exact else 1e-9
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)
    drawn = np.stack([run.drawn.numpy() for run in runs])
    np.testing.assert_allclose(drawn, np.stack([n.z for n in naive]), rtol=1e-9, atol=1e-9)
    return runs


def count(runs: list[Run], name: str) -> list[int]:
    return [int(run.stats[name]) for run in runs]


def num_cut_short(runs: list[Run]) -> int:
    """How many trajectories turned within their last subtree, or diverged there."""
    return sum(int(r.stats["n_steps"]) != 2 ** int(r.stats["tree_depth"]) - 1 for r in runs)


@pytest.mark.slow("about a second")
def test_trees_of_all_depths_on_a_sphere_and_beyond_its_longest_step() -> None:
    runs = compared(scales(1, 1, 1), diagonal(1, 1, 1), SHORT_TO_LONG, depth=10)
    assert set(range(1, 8)) <= set(count(runs, "tree_depth"))
    assert sum(count(runs, "diverging")) > 20
    assert num_cut_short(runs) > 100


@pytest.mark.slow("about a second")
def test_trees_on_an_ill_conditioned_gaussian() -> None:
    sizes = [0.03, 0.06, 0.1, 0.3, 0.5, 0.7, 0.9, 1.2]
    runs = compared(scales(0.05, 1, 5), diagonal(0.1, 0.8, 2), sizes, depth=10)
    assert set(range(1, 7)) <= set(count(runs, "tree_depth"))
    assert num_cut_short(runs) > 200


@pytest.mark.slow("about a second")
def test_trees_under_a_low_rank_mass_matrix() -> None:
    covariance = rotated(torch.tensor([0.1, 0.5, 1, 2, 9], dtype=torch.float64))
    sizes = [0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.5]
    runs = compared(gaussian(covariance), low_rank(5), sizes, depth=10)
    assert set(range(1, 7)) <= set(count(runs, "tree_depth"))


@pytest.mark.slow("a second or more")
def test_trees_on_a_bent_ridge() -> None:
    sizes = [0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5]
    runs = compared(banana(0.2), diagonal(1, 1), sizes, depth=10)
    assert set(range(6)) <= set(count(runs, "tree_depth"))
    assert sum(count(runs, "diverging")) > 20


@pytest.mark.slow("about a second")
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_trees_that_may_grow_no_further(depth: int) -> None:
    runs = compared(scales(0.3, 1), diagonal(1, 1), SHORT_TO_LONG[:5], depth=depth)
    full = [n == 2**depth - 1 for n in count(runs, "n_steps")]
    assert sum(full) > 100
    assert max(count(runs, "tree_depth")) == depth


# --- what the papers say, without a tree ---------------------------------------------------------


def test_draws_stay_draws_of_the_density() -> None:
    """With steps so long that a quarter of the first draws stay where they are."""
    assert_invariant(
        nuts_kernel,
        banana(0.7),
        diagonal(0.9, 1.4),
        step_size=0.55,
        limit=16,
        num_chains=3_000,
        num_draws=2,
        least_moved=0.7,
    )


def test_one_step_worked_out_by_hand() -> None:
    """A trajectory of one step from (z, p) on U = z^2 / 2, forwards, then backwards in time."""
    z, p, e = 0.4, 0.9, 1.7
    energy = 0.5 * (z**2 + p**2)
    start = torch.full((4, 1), z, dtype=torch.float64)
    momentum = torch.full((4, 1), p, dtype=torch.float64)
    potential = scales(1).potential
    direction = torch.tensor([0.4999, 0.5, 0.4999, 0.5], dtype=torch.float64)
    first = torch.stack([direction, direction, direction], -1)
    tree = nuts_kernel.begin((start, *potential(start)), momentum, first, 2)
    rates, points = [], []
    for d in (1, -1):
        z_new = z * (1 - e**2 / 2) + d * e * p
        p_new = p * (1 - e**2 / 2) - d * e * z * (1 - e**2 / 4)
        rates.append(math.exp(energy - 0.5 * (z_new**2 + p_new**2)))  # 0.55, 0.37
        points.append((z_new, 0.5 * (z_new**2 + p_new**2)))
    join = torch.tensor(rates, dtype=torch.float64).repeat(2) + steps(-0.01, -0.01, 0.01, 0.01)
    second = torch.stack([torch.full_like(join, 0.99), join, direction], -1)
    tree = nuts_kernel.step(
        tree, potential, diagonal(1), steps(e, e, e, e), momentum, second, torch.tensor(2)
    )
    assert tree.ended.all()
    drawn = nuts_kernel.position(tree, torch.arange(4))[0][:, 0].tolist()
    ends = [*points, (z, energy), (z, energy)]
    for i, (point, total) in enumerate(ends):
        assert drawn[i] == pytest.approx(point, rel=1e-12)
        expected = [-0.5 * point**2, total, 1, 1, rates[i % 2], 0]
        assert tree.stats[i].tolist() == pytest.approx(expected, rel=1e-12)


def test_a_trajectory_that_went_round_is_not_doubled_again() -> None:
    """On circles of period 2 pi, 127 steps of 0.0497 end a little further than they began.

    Half of that, 63 steps, is just short of the half turn that the check of the ends finds; the
    check of a half with the next point of the other finds it.
    """
    runs = trajectories(
        nuts_kernel,
        scales(*[1.0] * 100).potential,
        diagonal(*[1.0] * 100),
        normal(8, 100, seed=0),
        steps(*[0.0497] * 8),
        num_steps=300,
        limit=1024,
        seed=1,
    )
    assert len(runs) >= 16
    assert max(count(runs, "n_steps")) == 127


@pytest.mark.parametrize("quarter_turns", [0.1, 0.5, 0.9, 1.1, 1.5, 1.9])
def test_a_stretch_turns_where_the_angle_between_its_ends_does(quarter_turns: float) -> None:
    """Momenta at angles 0, a, 2a, 3a: the trapezoid sum over an angle T turns where sin T < 0."""
    angles = torch.arange(4, dtype=torch.float64) * quarter_turns * math.pi / 2
    p = torch.stack([angles.cos(), angles.sin()], -1)
    for n in (2, 3, 4):
        turned = bool(turns(p[0], p[n - 1], p[:n].sum(0)))
        assert turned == (math.sin(angles[n - 1]) < 0)
        assert bool(turns(p[n - 1], p[0], p[:n].sum(0))) == turned


@pytest.mark.parametrize("beyond", [math.nan, math.inf, -math.inf, 5_000.0])
def test_divergence_ends_the_trajectory_and_keeps_the_point(beyond: float) -> None:
    start = normal(4, 3, seed=0)

    def cliff(z: Tensor) -> Tensor:
        return 0 * z.sum(-1) + torch.where((z == start).all(-1), 0.0, beyond)

    potential: Potential = with_gradient(cliff)
    runs = trajectories(
        nuts_kernel,
        potential,
        diagonal(1, 1, 1),
        start,
        steps(0.1, 0.1, 0.1, 0.1),
        num_steps=5,
        limit=1024,
        seed=1,
    )
    assert len(runs) == 20
    for run in runs:
        expected = {"tree_depth": 0, "n_steps": 1, "acceptance_rate": 0, "diverging": 1, "lp": 0}
        assert {name: run.stats[name] for name in expected} == expected
        assert torch.equal(run.drawn, start[run.chain])
        assert run.stats["energy"] == pytest.approx(0.5 * float(run.p.square().sum()), rel=1e-12)


def test_a_step_changes_nothing_that_it_is_given() -> None:
    z, potential = normal(3, 2, seed=0), banana(0.5).potential
    tree = nuts_kernel.begin((z, *potential(z)), normal(3, 2, seed=1), uniform(3, 3, seed=2), 8)
    for i in range(6):
        before = [value.clone() for value in tree]
        numbers = normal(3, 2, seed=i), uniform(3, 3, seed=i)
        new = nuts_kernel.step(
            tree, potential, diagonal(1, 1), steps(0.1, 0.3, 0.6), *numbers, torch.tensor(8)
        )
        assert_close(list(tree), before, rtol=0, atol=0)
        tree = new


def test_positions_are_the_latest_draws_with_their_potential_and_gradient() -> None:
    """Of any chains, in any order, while their next trajectories are under way."""
    density = banana(0.5)
    z = density.draws(5)
    tree = nuts_kernel.begin(
        (z, *density.potential(z)), normal(5, 2, seed=1), uniform(5, 3, seed=2), 64
    )
    last = z.clone()
    for i in range(50):
        numbers = normal(5, 2, seed=i), uniform(5, 3, seed=i)
        sizes = steps(0.1, 0.2, 0.3, 0.4, 0.5)
        tree = nuts_kernel.step(
            tree, density.potential, diagonal(1, 1), sizes, *numbers, torch.tensor(64)
        )
        chains = torch.tensor([4, 0, 3])
        found, value, grad = nuts_kernel.position(tree, chains)
        expected = density.potential(found)
        assert_close((value, grad), expected, rtol=1e-12, atol=1e-12)
        at_all = nuts_kernel.position(tree, torch.arange(5))[0]
        assert torch.equal(at_all[chains], found)
        last = torch.where(tree.ended[:, None], at_all, last)
    assert not torch.equal(last, z)
