"""Isokinetic steps: closed forms, reversibility, volume, and the bias of a Gaussian direction."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import torch
from torch import Tensor

from pyro_bnn.diagnostics.energy_error import mean_energy_variance, variance_bias
from pyro_bnn.infer.mcmc.isokinetic import (
    INTEGRATORS,
    MINIMAL_NORM,
    kick,
    refresh,
    unit,
)
from tests.infer.blackjax_steps import STORED
from tests.infer.densities import banana, gaussian, rotated, with_gradient
from tests.infer.drive import diagonal, low_rank, normal, uniform
from tests.infer.isokinetic_laws import isotropic, variances

EVERY_INTEGRATOR = pytest.mark.parametrize("integrator", INTEGRATORS)


def velocities(*shape: int, seed: int) -> Tensor:
    return unit(normal(*shape, seed=seed))


# --- the kick ------------------------------------------------------------------------------------


def test_a_kick_solves_its_differential_equation() -> None:
    """Velocity and the log of the Jacobian, whose rate is minus the divergence on the sphere.

    Of the field (e - v (v.e)) |G| / (P - 1) on the sphere of P - 1 dimensions the divergence is
    -(v.e) |G|.
    """
    v, force = velocities(1, 5, seed=0)[0], 3 * normal(5, seed=1)

    def field(_: float, state: np.ndarray) -> np.ndarray:
        v, g = state[:5], force.numpy()
        return np.append(-(g - v * (v @ g)) / 4, -(v @ g))

    time = 1.7
    solved = scipy.integrate.solve_ivp(
        field, (0, time), np.append(v.numpy(), 0.0), rtol=1e-12, atol=1e-12
    )
    turned, change = kick(v[None], force[None], time)
    np.testing.assert_allclose(turned[0], solved.y[:5, -1], rtol=1e-9, atol=1e-9)
    assert float(change) == pytest.approx(solved.y[5, -1], rel=1e-9)


def test_kicks_in_one_gradient_compose_and_their_changes_add() -> None:
    v, force = velocities(20, 7, seed=0), normal(20, 7, seed=1)
    whole, change = kick(v, force, 2.3)
    half, first = kick(v, force, 1.4)
    parts, second = kick(half, force, 0.9)
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-14)
    torch.testing.assert_close(first + second, change, rtol=0, atol=1e-13)


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e6])
def test_kicks_of_no_gradient_a_tiny_one_and_a_huge_one(size: float) -> None:
    v, towards = velocities(4, 3, seed=0), velocities(4, 3, seed=1)
    turned, change = kick(v, size * towards, 0.5)
    torch.testing.assert_close(turned.norm(dim=-1), torch.ones(4).double(), rtol=1e-14, atol=0)
    expected = v if size < 1 else -towards
    torch.testing.assert_close(turned, expected, rtol=0, atol=1e-11)
    along = -(v * towards).sum(-1)
    # to first order a |G| t; far beyond, (P - 1) (delta - log 2 + log(1 + a))
    much = 0.5 * size - 2 * math.log(2) + 2 * torch.log1p(along)
    torch.testing.assert_close(
        change, along * size * 0.5 if size < 1 else much, rtol=1e-9, atol=1e-15
    )


# --- the refresh ---------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.05, 0.25, 1.0])
def test_a_refresh_keeps_a_share_of_the_velocity(share: float) -> None:
    """E v.v' = exp(-t / L) up to 1 / P, exactly E (1 + nu a) / |1 + nu xi| for P normals."""
    num_latents = 2_000
    v = velocities(1, num_latents, seed=0).expand(4_000, -1)
    new = refresh(v, normal(4_000, num_latents, seed=1), torch.full((4_000,), share).double())
    torch.testing.assert_close(new.norm(dim=-1), torch.ones(4_000).double(), rtol=1e-12, atol=0)
    along = (v * new).sum(-1)
    error = float(along.std()) / 4_000**0.5
    assert abs(float(along.mean()) - math.exp(-share)) < 4 * error + 1 / num_latents
    assert error < 1e-3


# --- steps ---------------------------------------------------------------------------------------


@EVERY_INTEGRATOR
def test_a_step_is_reversible_and_its_energy_error_changes_sign(integrator: str) -> None:
    density, mass = gaussian(rotated(torch.tensor([0.1, 0.5, 1, 2, 9]).double())), low_rank(5)
    z, v = density.draws(20), velocities(20, 5, seed=1)
    value, grad = density.potential(z)
    epsilon = uniform(20, seed=2)
    step = INTEGRATORS[integrator].step
    there = step(z, v, grad, value, epsilon, density.potential, mass)
    back = step(there.z, -there.v, there.grad, there.potential, epsilon, density.potential, mass)
    torch.testing.assert_close(back.z, z, rtol=0, atol=1e-11)
    torch.testing.assert_close(back.v, -v, rtol=0, atol=1e-11)
    torch.testing.assert_close(back.error, -there.error, rtol=0, atol=1e-10)
    assert there.error.abs().min() > 1e-6
    torch.testing.assert_close(there.potential, density.potential(there.z)[0], rtol=0, atol=0)


@EVERY_INTEGRATOR
def test_the_kinetic_part_of_the_error_is_minus_the_log_of_the_jacobian(integrator: str) -> None:
    """Of the map of (z, angle) in the plane, by differences of second order."""
    potential, mass = banana(0.5).potential, diagonal(0.9, 1.4)
    step, epsilon = INTEGRATORS[integrator].step, torch.tensor([0.4]).double()

    def moved(state: Tensor) -> tuple[Tensor, Tensor]:
        z, v = state[None, :2], torch.stack([state[2].cos(), state[2].sin()])[None]
        value, grad = potential(z)
        new = step(z, v, grad, value, epsilon, potential, mass)
        angle = torch.atan2(new.v[0, 1], new.v[0, 0])
        return torch.cat([new.z[0], angle[None]]), new.error - (new.potential - value)

    start = torch.tensor([0.7, -0.4, 1.1]).double()
    columns = [
        (moved(start + 1e-5 * e)[0] - moved(start - 1e-5 * e)[0]) / 2e-5
        for e in torch.eye(3).double()
    ]
    log_jacobian = torch.linalg.det(torch.stack(columns, -1)).log()
    kinetic = float(moved(start)[1])
    assert kinetic == pytest.approx(-float(log_jacobian), rel=1e-7)
    assert abs(kinetic) > 0.05


@pytest.mark.parametrize(("integrator", "order"), [("leapfrog", 3), ("minimal_norm", 3)])
def test_the_energy_error_of_a_step_is_of_third_order(integrator: str, order: int) -> None:
    """So that its variance goes as the sixth power of the step size."""
    density, mass = banana(0.5), diagonal(0.9, 1.4)
    z, v = density.draws(50), velocities(50, 2, seed=1)
    value, grad = density.potential(z)
    step = INTEGRATORS[integrator].step
    errors = [
        step(z, v, grad, value, torch.full((50,), size).double(), density.potential, mass).error
        for size in (2e-3, 1e-3)
    ]
    ratio = (errors[0] / errors[1]).median()
    assert float(ratio) == pytest.approx(2**order, rel=0.05)


def test_the_constant_of_minimal_norm_is_mclachlans() -> None:
    """The real zero of 12 b^3 - 15 b^2 + ... that makes the error terms least, to all digits.

    Omelyan, Mryglod & Folk, "Symplectic analytical decomposition of algorithms", Comput. Phys.
    Commun. 2003, equation (31): b = 1/2 - (2 sqrt(326) + 36)^(1/3) / 12 + ...
    """
    root = (2 * math.sqrt(326) + 36) ** (1 / 3)
    assert pytest.approx(0.5 - root / 12 + 1 / (6 * root), abs=1e-15) == MINIMAL_NORM


# --- BlackJAX ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", json.loads(STORED.read_text())["steps"])
def test_a_step_is_that_of_blackjax(case: dict[str, Any]) -> None:
    """One step of the quartic potential that ``blackjax_steps`` writes down for JAX."""

    def energy(z: Tensor) -> Tensor:
        quartic = 0.25 * z**4 + 0.5 * (z - 0.3).square()
        return quartic.sum(-1) + 0.4 * z[:, 0] * z[:, 1] * z[:, 2]

    z, v, new_z, new_v = (
        torch.tensor([case[name]], dtype=torch.float64) for name in ("z", "v", "new_z", "new_v")
    )
    potential = with_gradient(energy)
    value, grad = potential(z)
    mass = diagonal(*[variance**0.5 for variance in case["variances"]])
    size = torch.tensor([case["size"]], dtype=torch.float64)
    found = INTEGRATORS[case["integrator"]].step(z, v, grad, value, size, potential, mass)
    torch.testing.assert_close(found.z, new_z, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(found.v, new_v, rtol=1e-11, atol=1e-11)
    assert float(found.error) == pytest.approx(case["error"], rel=1e-10, abs=1e-10)


# --- bias by the energy error --------------------------------------------------------------------


@pytest.mark.parametrize("h", [0.2, 0.7, 1.3])
def test_the_bias_is_that_of_leapfrog_steps_of_a_gaussian(h: float) -> None:
    """Stationary variance of half kick, drift, half kick with fresh momenta, by Lyapunov.

    x' = (1 - h^2/2) x + h p with p from N(0, 1) has the variance h^2 / (1 - (1 - h^2/2)^2), and
    the change of (x^2 + p^2) / 2 is a quadratic form of a normal vector.
    """
    step = np.array([[1, 0], [-h / 2, 1]]) @ np.array([[1, h], [0, 1]])
    step = step @ np.array([[1, 0], [-h / 2, 1]])
    variance = step[0, 1] ** 2 / (1 - step[0, 0] ** 2)
    form = (step.T @ step - np.eye(2)) / 2
    covariance = np.diag([variance, 1.0])
    energy_variance = 2 * np.trace(form @ covariance @ form @ covariance)
    assert variance_bias(energy_variance) == pytest.approx(variance - 1, rel=1e-9)


@pytest.mark.parametrize("share", [0.25, math.inf])
def test_variances_and_energy_errors_of_unequal_directions(share: float) -> None:
    """By velocities kept in part and fresh ones alike; the energy error to leading order in h."""
    curvature = torch.cat([torch.full((200,), 0.4), torch.full((200,), 1.6)]).double()
    h, num_chains = 0.4, 48
    size = torch.full((num_chains,), h * 399**0.5).double()
    expected = variances(curvature, float(size[0]))

    def potential(z: Tensor) -> tuple[Tensor, Tensor]:
        return 0.5 * (curvature * z.square()).sum(-1), curvature * z

    z = normal(num_chains, 400, seed=0) * (expected / curvature).sqrt()
    v, (value, grad) = velocities(num_chains, 400, seed=1), potential(z)
    mass, squares, errors = diagonal(*[1.0] * 400), [], []
    for i in range(240):
        z, v, grad, value, error = INTEGRATORS["leapfrog"].step(
            z, v, grad, value, size, potential, mass
        )
        squares.append(curvature * z.square())
        errors.append(error.square().mean() / 400)
        if i % 3 == 2:
            noise = normal(num_chains, 400, seed=2 + i)
            kept = share < math.inf
            v = refresh(v, noise, torch.full_like(size, share)) if kept else unit(noise)
    found = torch.stack(squares).mean((0, 1)).reshape(2, 200).mean(1)
    # 1 / P = 0.0025 of the limit, and 0.002 of chance
    torch.testing.assert_close(found, expected[[0, -1]], rtol=0, atol=0.005)
    r = expected - 1
    law = h**2 * (curvature * r.square()).mean()
    assert float(torch.stack(errors).mean()) == pytest.approx(float(law), rel=0.1)


def test_the_law_of_equal_directions_is_that_of_all() -> None:
    for step_size in (1.0, 5.0, 10.0):
        r, _ = isotropic(step_size, 100)
        found = variances(torch.ones(100).double(), step_size)
        torch.testing.assert_close(found, torch.full_like(found, 1 + r), rtol=1e-9, atol=0)
    r, energy = isotropic(0.1, 101)
    assert energy == pytest.approx(12 * r**3, rel=1e-3)
    assert r == pytest.approx(1e-4 / 12, rel=1e-3)


def test_the_root_mean_square_error_is_bounded_by_the_energy_variance() -> None:
    """The bound is met where 9 of 14 directions are equally stiff and the others flat."""
    step_size, least = 1e-2, (8 / 3) ** 2 * 4 / 9 / (2 / 3) ** 1.5
    assert least == pytest.approx(5.8, rel=2e-3)
    spectra = [torch.rand(140, generator=torch.Generator().manual_seed(i)) ** i for i in range(9)]
    spectra.append(torch.cat([torch.ones(90), torch.zeros(50)]))
    over = []
    for spectrum in spectra:
        curvature = spectrum.double() / spectrum.double().mean()
        r = variances(curvature, step_size) - 1
        energy = step_size**2 / 139 * (curvature * r.square()).mean()
        over.append(float(energy / r.square().mean() ** 1.5))
        bound = variance_bias(float(energy))
        assert float(r.square().mean().sqrt()) < bound
    assert min(over) == pytest.approx(least, rel=1e-3)
    assert over[-1] == min(over)
    assert over[0] == pytest.approx(12, rel=1e-3)


def test_the_bias_of_no_error_of_an_infinite_one_and_of_none_known() -> None:
    assert variance_bias(0.0) == 0
    assert variance_bias(math.inf) == math.inf
    assert math.isnan(variance_bias(math.nan))
    # where r is small E = 4 r^3, where it is large E = 4 r
    assert variance_bias(4e-12) == pytest.approx(1e-4, rel=1e-3)
    assert variance_bias(4e6) == pytest.approx(1e6, rel=1e-5)


def test_the_mean_over_draws_leaves_out_those_that_diverged() -> None:
    values = np.array([[1.0, np.inf], [3.0, 5.0]])
    assert mean_energy_variance(values, np.isinf(values)) == 3
    assert math.isnan(mean_energy_variance(values, np.full((2, 2), fill_value=True)))
