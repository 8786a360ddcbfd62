"""Dual averaging against the paper's recursion for one chain, and where it settles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from pyro_bnn.infer.mcmc import step_size
from pyro_bnn.infer.mcmc.step_size import DualAveraging, reasonable

C = 4
STEPS = torch.tensor([0.01, 0.1, 1.0, 30.0], dtype=torch.float64)


def by_the_paper(first: float, acceptances: list[float], target: float) -> tuple[float, float]:
    """Last step size and averaged step size of Hoffman & Gelman's Algorithm 5; own gamma, mu."""
    gamma, t0, kappa = 0.1, 10, 0.75
    mu, h_bar, log_eps, log_eps_bar = np.log(3 * first), 0.0, np.log(first), 0.0
    for m, alpha in enumerate(acceptances, start=1):
        h_bar = (1 - 1 / (m + t0)) * h_bar + 1 / (m + t0) * (target - alpha)
        log_eps = mu - np.sqrt(m) / gamma * h_bar
        log_eps_bar = m**-kappa * log_eps + (1 - m**-kappa) * log_eps_bar
    return float(np.exp(log_eps)), float(np.exp(log_eps_bar))


@pytest.mark.parametrize("target", [0.65, 0.8])
def test_each_chain_is_the_papers_recursion(target: float) -> None:
    """Chains end trajectories at different times, and each counts its own."""
    generator = torch.Generator().manual_seed(0)
    state = step_size.start(STEPS)
    seen: list[list[float]] = [[] for _ in range(C)]
    for _ in range(60):
        acceptance = torch.rand(C, generator=generator, dtype=torch.float64)
        active = torch.rand(C, generator=generator) < 0.5
        state = step_size.update(state, acceptance, active, target)
        for i in active.nonzero()[:, 0].tolist():
            seen[i].append(float(acceptance[i]))
    assert len({len(s) for s in seen}) > 1
    expected = [by_the_paper(float(first), s, target) for first, s in zip(STEPS, seen, strict=True)]
    step, average = torch.tensor(expected, dtype=torch.float64).T
    assert_close(state.log_step.exp(), step, rtol=1e-10, atol=0)
    assert_close(step_size.final(state), average, rtol=1e-10, atol=0)


def test_settles_where_acceptance_is_the_target() -> None:
    """Acceptance exp(-step / width) is 0.8 at -width log 0.8."""
    width = torch.tensor([0.03, 0.5, 2.0, 100.0], dtype=torch.float64)
    state = step_size.start(STEPS)
    for _ in range(4_000):
        acceptance = (-state.log_step.exp() / width).exp()
        state = step_size.update(state, acceptance, torch.ones(C, dtype=torch.bool), 0.8)
    assert_close(step_size.final(state), -width * math.log(0.8), rtol=0.02, atol=0)


@pytest.mark.parametrize("first", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("num_updates", [17, 33])
def test_a_short_warm_up_reaches_the_target_through_noise(num_updates: int, first: float) -> None:
    """Acceptance 2 Phi(-a step^2), of many independent entries (Beskos et al., 2013, Theorem 3.6).

    Of a trajectory it has noise of sd 0.15; the acceptance at the final steps has none. It ends a
    little above the target, which funnels need; the paper's gamma and mu at 0.86.
    """
    optimum = 0.14
    rate = -scipy.special.ndtri(0.4) / optimum**2

    def acceptance(step: Tensor) -> Tensor:
        below: Tensor = torch.special.ndtr(-rate * step.square())
        return 2 * below

    many = 4_000
    generator = torch.Generator().manual_seed(0)
    state = step_size.start(torch.full((many,), first * optimum, dtype=torch.float64))
    everyone = torch.ones(many, dtype=torch.bool)
    for _ in range(num_updates):
        noise = 0.15 * torch.randn(many, generator=generator, dtype=torch.float64)
        noisy = (acceptance(state.log_step.exp()) + noise).clamp(0, 1)
        state = step_size.update(state, noisy, everyone, 0.8)
    assert 0.8 <= float(acceptance(step_size.final(state)).mean()) < 0.83


# --- an error that grows as a power of the step size ---------------------------------------------


def test_steps_by_an_errors_power_are_the_weighted_mean_of_all_errors() -> None:
    """With weights (m + 3 choose 3): log eps = -log(sum w E / E* eps^-k) / k."""
    generator = torch.Generator().manual_seed(0)
    first, state = STEPS, step_size.start(STEPS)
    errors, sizes, weights = [torch.full_like(first, 0.02)], [first], [1.0]
    for m in range(1, 30):
        sizes.append(state.log_step.exp())
        errors.append(0.02 * 10 ** torch.randn(C, generator=generator).double().clamp(-3, 3))
        everyone = torch.ones(C, dtype=torch.bool)
        state = step_size.update_by_power(state, errors[-1], everyone, 0.02, 6)
        weights.append((m + 1) * (m + 2) * (m + 3) / 6)
        share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        at_one = torch.stack(errors) / 0.02 / torch.stack(sizes) ** 6
        expected = (share @ at_one) ** (-1 / 6)
        assert_close(state.log_step.exp(), expected, rtol=1e-10, atol=0)
        assert_close(state.log_average, state.log_step, rtol=0, atol=0)


@pytest.mark.parametrize("first", [0.1, 3.0])
def test_steps_by_an_errors_power_settle_through_noise(first: float) -> None:
    """E = 7 eps^6 chi^2_3 / 3: 50 errors a chain, of 1,000 chains that share what they found."""
    generator = torch.Generator().manual_seed(0)
    state = step_size.start(torch.full((1_000,), first).double())
    for _ in range(50):
        noise = torch.randn(1_000, 3, generator=generator).double().square().mean(1)
        error = 7 * (6 * state.log_step).exp() * noise
        everyone = torch.ones(1_000, dtype=torch.bool)
        state = step_size.update_by_power(state, error, everyone, 5e-4, 6)
    shared = step_size.shared(state, -6)
    assert float(shared.max()) == float(shared.min())
    assert 7 * float(shared[0]) ** 6 == pytest.approx(5e-4, rel=0.05)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_an_error_beyond_all_counts_as_a_thousand_wanted_ones(bad: float) -> None:
    state, everyone = step_size.start(STEPS), torch.ones(C, dtype=torch.bool)
    new = step_size.update_by_power(state, torch.full_like(STEPS, bad), everyone, 0.1, 6)
    expected = step_size.update_by_power(state, torch.full_like(STEPS, 100.0), everyone, 0.1, 6)
    assert_close(list(new), list(expected), rtol=1e-12, atol=0)
    assert (new.log_step < state.log_step).all()
    none = step_size.update_by_power(state, torch.zeros_like(STEPS), everyone, 0.1, 6)
    assert bool((none.log_step - state.log_step < 0.3).all())  # one small error is not trusted
    idle = step_size.update_by_power(state, torch.zeros_like(STEPS), ~everyone, 0.1, 6)
    assert_close(list(idle), list(state), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inactive_chains_stay_to_the_bit(dtype: torch.dtype) -> None:
    state = step_size.start(STEPS.to(dtype))
    everyone = torch.ones(C, dtype=torch.bool)
    state = step_size.update(state, torch.full((C,), 0.3, dtype=dtype), everyone, 0.8)
    active = torch.tensor([True, False, True, False])
    acceptance = torch.tensor([0.9, 0.9, torch.nan, torch.nan], dtype=dtype)
    new = step_size.update(state, acceptance, active, 0.8)
    for name, before, after in zip(DualAveraging._fields, state, new, strict=True):
        assert after.dtype is dtype
        assert torch.equal(before[~active], after[~active]), name
        assert name == "centre" or not torch.isclose(before[active], after[active]).any(), name


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_acceptance_that_is_not_finite_counts_as_none(bad: float) -> None:
    state, everyone = step_size.start(STEPS), torch.ones(C, dtype=torch.bool)
    new = step_size.update(state, torch.full_like(STEPS, bad), everyone, 0.8)
    expected = step_size.update(state, torch.zeros_like(STEPS), everyone, 0.8)
    assert_close(list(new), list(expected), rtol=0, atol=0)


def test_after_few_updates_half_the_first_step_size_is_final() -> None:
    state = step_size.start(STEPS)
    everyone = torch.ones(len(STEPS), dtype=torch.bool)
    for _ in range(step_size.FEW):
        assert_close(step_size.final(state), 0.5 * STEPS, rtol=1e-14, atol=0)
        state = step_size.update(state, torch.full_like(STEPS, 0.8), everyone, 0.8)
    assert_close(step_size.final(state), state.log_average.exp())


def test_update_is_captured_as_one_graph() -> None:
    def one(state: DualAveraging, acceptance: Tensor, active: Tensor) -> DualAveraging:
        return step_size.update(state, acceptance, active, 0.8)

    state, active = step_size.start(STEPS), torch.tensor([True, False, True, True])
    acceptance = torch.tensor([0.1, 0.5, torch.nan, 1.0], dtype=torch.float64)
    graph = make_fx(one)(state, torch.zeros_like(STEPS), ~active)
    expected = one(one(state, acceptance, active), acceptance, active)
    new = graph(graph(state, acceptance, active), acceptance, active)
    assert_close(list(new), list(expected))


def test_reasonable_step_brackets_the_crossing() -> None:
    """One leapfrog step on N(0, sd^2) from z / sd = p = 1, where the energy is 1."""
    sd = torch.tensor([1e-3, 0.3, 1.0, 50.0], dtype=torch.float64)

    def energy_error(step: Tensor) -> Tensor:
        e = step / sd
        z = 1 + e - e**2 / 2
        p = 1 - e / 2 - e / 2 * z
        return (z**2 + p**2) / 2 - 1

    step = reasonable(energy_error, STEPS)
    powers = (step / STEPS).log2()
    assert_close(powers, powers.round())
    grew = powers > 0
    assert grew.tolist() == [False, True, True, True]
    accepted = (-energy_error(step)).exp() > 0.8
    before = (-energy_error(torch.where(grew, step / 2, step * 2))).exp() > 0.8
    assert accepted.tolist() == (~grew).tolist()
    assert before.tolist() == grew.tolist()


def test_reasonable_step_stops_at_an_acceptance_of_four_fifths() -> None:
    """Acceptance exp(-step) is 0.8 at 0.223: 0.3 and 0.25 halve once, 0.2 doubles once."""
    first = torch.tensor([0.3, 0.25, 0.2, 0.1, 2.0], dtype=torch.float64)
    expected = torch.tensor([0.15, 0.125, 0.4, 0.4, 0.125], dtype=torch.float64)
    assert_close(reasonable(lambda step: step, first), expected)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_reasonable_step_halves_what_is_not_finite(bad: float) -> None:
    """Energies are finite below 1 only."""
    calls: list[Tensor] = []

    def energy_error(step: Tensor) -> Tensor:
        calls.append(step)
        return torch.where(step < 1, 0.0, bad)

    first = torch.tensor([0.1, 0.75, 1.5, 40.0], dtype=torch.float32)
    expected = torch.tensor([1.6, 1.5, 0.75, 0.625], dtype=torch.float32)
    step = reasonable(energy_error, first)
    assert step.dtype is torch.float32
    assert_close(step, expected)
    assert len(calls) == 1 + 6  # 40 is halved six times; the others wait


def test_reasonable_step_ends_on_a_flat_potential() -> None:
    step = reasonable(torch.zeros_like, torch.ones(2, dtype=torch.float64))
    assert_close(step, torch.full((2,), 2.0**50, dtype=torch.float64))


def _tuned(steps: list[float], num_updates: list[int]) -> DualAveraging:
    """Averages at these step sizes, after so many updates."""
    first = torch.tensor(steps, dtype=torch.float64)
    state = step_size.start(2 * first)
    return state._replace(
        log_average=first.log(), num_updates=torch.tensor(num_updates, dtype=torch.float64)
    )


def test_chains_of_one_density_end_with_one_step_size() -> None:
    """Far smaller ones stay, far larger ones do not; who has not tuned has no say and keeps its."""
    near = [0.08, 0.1, 0.12, 0.14]  # and a median of 0.1, the lower of the middle two
    found = step_size.shared(_tuned([*near, 9.0, 0.066, 100.0, 300.0], [20] * 6 + [2] * 2))
    common = math.sqrt((0.08**2 + 0.1**2 + 0.12**2 + 0.14**2) / 4)
    expected = [common] * 5 + [0.066, 100.0, 300.0]
    assert_close(found, torch.tensor(expected, dtype=torch.float64))


def test_a_shared_step_size_leaves_the_mean_acceptance() -> None:
    """Acceptance 2 Phi(-a step^2) (Beskos et al., 2013, Theorem 3.6), steps of sd 0.15 in the log.

    Its second order is in step^4, so that the mean differs by a thousandth; that of the median, by
    a hundredth.
    """
    rate = -scipy.special.ndtri(0.4) / 0.14**2
    generator = torch.Generator().manual_seed(0)
    log_step = math.log(0.14) + 0.15 * torch.randn(2_000, generator=generator, dtype=torch.float64)
    state = step_size.start(torch.ones_like(log_step))
    state = state._replace(log_average=log_step, num_updates=torch.full_like(log_step, 20.0))
    before, after = (
        float((2 * torch.special.ndtr(-rate * steps.square())).mean())
        for steps in (step_size.final(state), step_size.shared(state))
    )
    assert abs(after - before) < 0.003


@pytest.mark.parametrize("num_updates", [0, 20])
def test_one_chain_has_its_own_step_size(num_updates: int) -> None:
    state = _tuned([0.3], [num_updates])
    assert_close(step_size.shared(state), step_size.final(state), rtol=1e-15, atol=0)
