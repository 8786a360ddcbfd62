"""The trajectories are Pyro's, draw for draw; the statistics obey their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pyro.infer import mcmc
from torch import Tensor

from pyro_bnn.infer.nuts_kernel import FlatNUTS, _State, _Tree

SD = torch.tensor([0.3, 1.0, 2.5], dtype=torch.float64)


def value_and_grad(potential: Callable[[Tensor], Tensor]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    def both(z: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            value = potential(z)
            return value.detach(), *torch.autograd.grad(value, z)

    return both


def gaussian(z: Tensor) -> Tensor:
    return 0.5 * (z / SD).square().sum()


def banana(z: Tensor) -> Tensor:
    return 0.5 * (z[0].square() + (z[1] - z[0].square()).square() / 0.1 + z[2].square())


def chain(potential: Callable[[Tensor], Tensor], **options: Any) -> FlatNUTS:
    start = torch.tensor([0.4, -0.2, 1.1], dtype=torch.float64)
    return FlatNUTS(value_and_grad(potential), start, **{"warmup_steps": 0, **options})


# --- trajectories --------------------------------------------------------------------------------


@pytest.mark.parametrize("potential", [gaussian, banana, lambda z: 1e3 * banana(z)])
@pytest.mark.parametrize("max_tree_depth", [3, 10])
def test_draws_are_those_of_pyros_kernel(
    potential: Callable[[Tensor], Tensor], max_tree_depth: int
) -> None:
    inverse_mass = torch.tensor([0.5, 2.0, 1.3], dtype=torch.float64)
    options = {"adapt": False, "check_halves": False}
    ours = chain(potential, step_size=0.15, max_tree_depth=max_tree_depth, **options)
    theirs: Any = mcmc.NUTS(
        potential_fn=lambda values: potential(values["z"]),
        step_size=0.15,
        adapt_step_size=False,
        adapt_mass_matrix=False,
        max_tree_depth=max_tree_depth,
    )
    theirs.initial_params = {"z": torch.tensor([0.4, -0.2, 1.1], dtype=torch.float64)}
    theirs.setup(0)
    for kernel in (ours._kernel, theirs):
        kernel.mass_matrix_adapter.inverse_mass_matrix = {("z",): inverse_mass.clone()}
    torch.manual_seed(1)
    draws = [ours.draw() for _ in range(25)]
    torch.manual_seed(1)
    z = theirs.initial_params
    expected, accepts = [], [0.0]
    for _ in range(25):
        z = theirs.sample(z)
        expected.append(z["z"])
        accepts.append(theirs._mean_accept_prob)
    torch.testing.assert_close(torch.stack([d.z for d in draws]), torch.stack(expected))
    assert [i for i, d in enumerate(draws) if d.diverging] == theirs._divergences
    assert math.fsum(d.acceptance_rate for d in draws) / 25 == pytest.approx(accepts[-1])


def test_statistics_of_one_leapfrog_step() -> None:
    """A trajectory of one step from (z, p) on U = z^2 / 2, worked out by hand."""
    z, e = 0.4, 1.7
    start = torch.tensor([z], dtype=torch.float64)
    kernel = FlatNUTS(
        value_and_grad(lambda z: 0.5 * z.square().sum()),
        start,
        warmup_steps=0,
        adapt=False,
        step_size=e,
        max_tree_depth=1,
    )
    torch.manual_seed(3)
    p = float(torch.normal(torch.zeros_like(start), torch.ones_like(start)))
    torch.manual_seed(3)
    draw = kernel.draw()
    energy = 0.5 * (z**2 + p**2)
    ends = []
    for d in (1, -1):  # forwards or backwards in time
        z_new = z * (1 - e**2 / 2) + d * e * p
        p_new = p * (1 - e**2 / 2) - d * e * z * (1 - e**2 / 4)
        ends.append((z_new, 0.5 * (z_new**2 + p_new**2)))
    rates = [min(1.0, math.exp(energy - end)) for _, end in ends]
    d = min((0, 1), key=lambda i: abs(rates[i] - draw.acceptance_rate))
    assert draw.acceptance_rate == pytest.approx(rates[d], rel=1e-12)
    point, total = ends[d] if float(draw.z) != z else (z, energy)
    assert float(draw.z) == pytest.approx(point, rel=1e-12)
    assert draw.energy == pytest.approx(total, rel=1e-12)
    assert draw.lp == pytest.approx(-0.5 * point**2, rel=1e-12)
    assert (draw.n_steps, draw.step_size, draw.diverging) == (1, e, False)


def test_a_trajectory_that_went_round_is_not_doubled_again() -> None:
    """On circles of period 2 pi, 127 steps of 0.0497 end a little further than they began.

    Half of that, 63 steps, is just short of the half turn that the check of the ends finds.
    """
    potential = value_and_grad(lambda z: 0.5 * z.square().sum())
    start = torch.randn(1_000, generator=torch.Generator().manual_seed(0)).double()
    deepest = {}
    for check_halves in (True, False):
        torch.manual_seed(0)
        kernel = FlatNUTS(
            potential,
            start,
            warmup_steps=0,
            adapt=False,
            step_size=0.0497,
            check_halves=check_halves,
        )
        deepest[check_halves] = max(kernel.draw().n_steps for _ in range(6))
    assert deepest[True] == 127
    assert deepest[False] > 127


@pytest.mark.parametrize("quarter_turns", [0.1, 0.5, 0.6, 0.7, 0.9, 1.1, 1.3, 1.4, 1.7, 1.9])
def test_two_halves_turn_where_the_angle_between_their_ends_does(quarter_turns: float) -> None:
    """Momenta at angles 0, a, 2a, 3a: the trapezoid sum over an angle T turns where sin T < 0."""
    a = quarter_turns * math.pi / 2
    p = [torch.tensor([math.cos(k * a), math.sin(k * a)]).double() for k in range(4)]
    states = [_State(p_k, p_k, p_k, 0.0, 0.0) for p_k in p]
    halves = [_Tree(states[i], states[i + 1], states[i], p[i] + p[i + 1], 0.0) for i in (0, 2)]
    ends, half = math.sin(3 * a) < 0, math.sin(2 * a) < 0
    for check_halves in (True, False):
        joined = chain(gaussian, check_halves=check_halves)._join(halves[0], halves[1], states[1])
        assert joined.turning == (ends or (half and check_halves))
        assert (joined.left, joined.right, joined.chosen) == (states[0], states[3], states[1])
        assert joined.log_weight == pytest.approx(math.log(2))


def test_depth_counts_doublings_and_steps_fill_them() -> None:
    torch.manual_seed(0)
    kernel = chain(gaussian, adapt=False, step_size=0.1)
    for _ in range(50):
        draw = kernel.draw()
        assert 2**draw.tree_depth - 1 <= draw.n_steps <= 2 ** (draw.tree_depth + 1) - 1


def test_short_steps_fill_the_deepest_tree() -> None:
    draw = chain(gaussian, adapt=False, step_size=1e-6, max_tree_depth=4).draw()
    assert (draw.tree_depth, draw.n_steps, draw.diverging) == (4, 15, False)
    assert draw.acceptance_rate == pytest.approx(1.0, abs=1e-6)


def test_energy_is_at_least_minus_lp() -> None:
    torch.manual_seed(0)
    kernel = chain(banana, adapt=False, step_size=0.2)
    for _ in range(50):
        draw = kernel.draw()
        assert draw.lp == pytest.approx(-float(banana(draw.z)), rel=1e-12)
        assert draw.energy >= -draw.lp


@pytest.mark.parametrize("beyond", [math.nan, math.inf, 5_000.0])
def test_divergence_ends_the_trajectory_and_keeps_the_point(beyond: float) -> None:
    start = torch.tensor([0.4, -0.2, 1.1], dtype=torch.float64)

    def cliff(z: Tensor) -> Tensor:
        return z.sum() * 0 + (0.0 if torch.equal(z, start) else beyond)

    draw = chain(cliff, adapt=False, step_size=0.1).draw()
    assert (draw.diverging, draw.n_steps, draw.tree_depth) == (True, 1, 0)
    assert draw.acceptance_rate == 0
    assert torch.equal(draw.z, start)


# --- adaptation ----------------------------------------------------------------------------------


def test_warmup_finds_the_scales_and_a_step_size_for_the_target() -> None:
    """The rule is exact on independent Gaussians; whatever the draws."""
    torch.manual_seed(0)
    steps = []
    for target in (0.6, 0.95):
        kernel = chain(gaussian, warmup_steps=100, target_accept=target)
        for _ in range(100):
            kernel.draw()
        found = kernel._kernel.inverse_mass_matrix[("z",)].sqrt()
        torch.testing.assert_close(found, SD, rtol=1e-8, atol=0)
        steps.append(kernel.draw().step_size)
        assert kernel.draw().step_size == steps[-1]  # fixed after warm-up
    assert steps[0] > 1.3 * steps[1]


@pytest.mark.parametrize("warmup_steps", [0, 1, 5, 30])
def test_short_warmups_run(warmup_steps: int) -> None:
    torch.manual_seed(0)
    kernel = chain(gaussian, warmup_steps=warmup_steps)
    draws = [kernel.draw() for _ in range(warmup_steps + 3)]
    assert all(math.isfinite(draw.lp) and draw.step_size > 0 for draw in draws)
    assert len({draw.step_size for draw in draws[warmup_steps:]}) == 1


def test_first_trajectories_of_warmup_are_short() -> None:
    """Under the identity matrix this Gaussian takes trees of about 2^11 steps."""
    scales = torch.tensor([1e-3, 1.0, 1.0], dtype=torch.float64)
    torch.manual_seed(0)
    kernel = chain(lambda z: 0.5 * (z / scales).square().sum(), warmup_steps=40, target_accept=0.99)
    assert max(kernel.draw().tree_depth for _ in range(19)) == 6
