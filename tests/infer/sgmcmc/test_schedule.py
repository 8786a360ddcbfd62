"""Steps of a cycle and of a falling step by hand, and which draws are kept for them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyro_bnn.infer.sgmcmc.schedule import Cycles, Decay, Plan, StepSchedule


def test_the_steps_of_two_cycles_by_hand() -> None:
    # n = 7 in M = 2: cycles of ceil(7 / 2) = 4 steps, r = 0, 1/4, 1/2, 3/4 and again
    plan = Plan(Cycles(2, exploration=0.5), 7, num_samples=3, power=1.0)
    root = math.sqrt(0.5)
    cycle = [1.0, (1 + root) / 2, 0.5, (1 - root) / 2]
    np.testing.assert_allclose(plan.factors, [*cycle, *cycle[:3]], rtol=1e-15)
    assert plan.samples.tolist() == [False, False, True, True, False, False, True]
    # kept of 0.5, 0.146 and 0.5 at multiples of a third of their sum, 0.382
    assert plan.counts.tolist() == [0, 0, 1, 0, 0, 0, 2]


def test_a_momentum_method_takes_the_root_of_the_factor() -> None:
    whole, root = (Plan(Cycles(3, 0.0), 30, 5, power) for power in (1.0, 0.5))
    np.testing.assert_allclose(root.factors**2, whole.factors, rtol=1e-15)


def test_the_falling_step_is_that_of_welling_and_teh() -> None:
    a, b, gamma = 0.3, 7.0, 0.55
    factors = Decay(gamma, b).factors(np.arange(50), 50)
    t = np.arange(50)
    wanted = a * (b + t) ** -gamma
    np.testing.assert_allclose(wanted[0] * factors, wanted, rtol=1e-14)


@pytest.mark.parametrize("thin", [1, 3, 20])
def test_of_equal_steps_every_thinth_is_kept(thin: int) -> None:
    plan = Plan(StepSchedule(), 1_000 * thin, 1_000, 0.5)
    assert np.flatnonzero(plan.counts).tolist() == list(range(thin - 1, 1_000 * thin, thin))
    assert plan.counts.max() == 1


@pytest.mark.parametrize("power", [0.5, 1.0])
@pytest.mark.parametrize("schedule", [Decay(0.7, 10.0), Cycles(7, 0.3), StepSchedule()])
def test_kept_draws_weigh_the_chain_by_its_steps(schedule: object, power: float) -> None:
    # the mean over kept draws is the mean weighted by steps, up to one draw's weight at the ends
    n, num_samples = 20_000, 2_000
    plan = Plan(schedule, n, num_samples, power)  # type: ignore[arg-type]
    assert plan.counts.sum() == num_samples
    weights = plan.factors * plan.samples
    assert not plan.counts[~plan.samples].any()
    share, kept = np.cumsum(weights) / weights.sum(), np.cumsum(plan.counts) / num_samples
    assert np.abs(share - kept).max() < 1.001 / num_samples
