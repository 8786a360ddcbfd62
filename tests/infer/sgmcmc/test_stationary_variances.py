"""Stationary variances on a Gaussian, by the discrete Lyapunov equation of each step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from pyro_bnn.infer import BAOAB, PSGLD, SGHMC, SGLD, SGNHT
from tests.infer.sgmcmc.linear import affine, told

STEPS, CURVATURES, TEMPERATURES = [0.05, 0.4, 0.9], [0.3, 1.0, 2.0], [0.2, 1.0]
FRICTION = 0.7
ALL = [SGLD(), SGHMC(friction=FRICTION), BAOAB(friction=FRICTION), PSGLD(damping=1.0)]
NOISE = 0.6  # variance of the gradient
each = pytest.mark.parametrize(
    ("h", "curvature", "temperature"),
    [(h, c, t) for h in STEPS for c in CURVATURES for t in TEMPERATURES],
)


def damped(h: float) -> float:
    """Share of a momentum that is left after a step."""
    return math.exp(-FRICTION * h)


@each
def test_sgld(h: float, curvature: float, temperature: float) -> None:
    step = affine(SGLD(), h, curvature, temperature=temperature)
    exact = temperature / curvature / (1 - h * curvature / 2)
    np.testing.assert_allclose(step.covariance(), [[exact]], rtol=1e-12)
    noisy = exact * (1 + h * NOISE / (2 * temperature))
    np.testing.assert_allclose(step.covariance(NOISE), [[noisy]], rtol=1e-12)


@each
@pytest.mark.parametrize("estimate", [0.0, 0.1])
def test_sghmc(h: float, curvature: float, temperature: float, estimate: float) -> None:
    alpha, eta = FRICTION * h, h * h
    step = affine(
        SGHMC(friction=FRICTION), h, curvature, temperature=temperature, variance=estimate
    )
    exact = temperature / curvature / (1 - eta * curvature / (4 - 2 * alpha))
    factor = 1 + eta * (NOISE - estimate) / (2 * alpha * temperature)
    np.testing.assert_allclose(step.covariance(NOISE)[0, 0], exact * factor, rtol=1e-10)
    # its own noise and an estimate that is right are together that of a gradient without noise
    np.testing.assert_allclose(step.covariance(estimate)[0, 0], exact, rtol=1e-10)


def test_momenta_of_sghmc_on_a_free_particle() -> None:
    h, weak = 0.4, 1e-9
    covariance = affine(SGHMC(friction=FRICTION), h, weak).covariance()
    np.testing.assert_allclose(covariance[1, 1], 1 / (1 - FRICTION * h / 2), rtol=1e-6)


@each
def test_baoab(h: float, curvature: float, temperature: float) -> None:
    step = affine(BAOAB(friction=FRICTION), h, curvature, temperature=temperature)
    c, u = damped(h), h * h * curvature / 4
    covariance, exact = step.covariance(), temperature / curvature
    np.testing.assert_allclose(covariance[0, 0], exact, rtol=1e-10)
    np.testing.assert_allclose(covariance[1, 1], temperature, rtol=1e-10)  # kinetic
    added = h * h * NOISE * (1 + c) / (4 * temperature * (1 - c) * (1 - u))
    np.testing.assert_allclose(step.covariance(NOISE)[0, 0], exact * (1 + added), rtol=1e-10)


@each
def test_psgld_is_sgld_at_the_curvature_of_its_coordinates(
    h: float, curvature: float, temperature: float
) -> None:
    square = torch.tensor([[4.0]], dtype=torch.float64)
    g = 1 / (1.0 + 2.0)
    step = affine(
        PSGLD(damping=1.0), h, curvature, temperature=temperature, held={"square": square}
    )
    exact = temperature / curvature / (1 - h * g * curvature / 2)
    np.testing.assert_allclose(step.covariance(), [[exact]], rtol=1e-12)
    noisy = exact * (1 + h * g * NOISE / (2 * temperature))
    np.testing.assert_allclose(step.covariance(NOISE), [[noisy]], rtol=1e-12)


@each
def test_sgnht_with_its_thermostat_held_is_baoab(
    h: float, curvature: float, temperature: float
) -> None:
    held = {"thermostat": torch.tensor([[FRICTION]], dtype=torch.float64)}
    of_baoab, of_sgnht = (
        affine(method, h, curvature, temperature=temperature, held=own)
        for method, own in ((BAOAB(friction=FRICTION), None), (SGNHT(friction=FRICTION), held))
    )
    for mine, theirs in zip(of_sgnht, of_baoab, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-15)


def thermostat(h: float, curvature: float, noise: float, temperature: float = 1.0) -> float:
    """The friction at which momenta have temperature T: where the thermostat of many settles."""

    def excess(zeta: float) -> float:
        held = {"thermostat": torch.tensor([[zeta]], dtype=torch.float64)}
        step = affine(SGNHT(friction=FRICTION), h, curvature, temperature=temperature, held=held)
        return float(step.covariance(noise)[1, 1]) - temperature

    return float(brentq(excess, FRICTION / 2, 50 * FRICTION, xtol=1e-13))


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_the_thermostat_settles_at_what_undoes_the_noise(temperature: float) -> None:
    errors = []
    for h in (0.02, 0.01):
        first_order = FRICTION + h * NOISE / (2 * temperature)
        errors.append(thermostat(h, 1.0, NOISE, temperature) - first_order)
    assert abs(errors[0]) < 1e-3
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.1)  # of second order in h


@pytest.mark.parametrize("method", ALL, ids=lambda method: type(method).__name__)
@pytest.mark.parametrize("curvature", [0.5, 3.0])
def test_where_each_is_stable(method: Any, curvature: float) -> None:
    held = {"square": torch.ones(1, 1, dtype=torch.float64)} if type(method) is PSGLD else None

    def radius(h: float) -> float:
        return affine(method, h, curvature, held=held).radius

    limits: dict[Any, float] = {
        SGLD: 2 / curvature,
        PSGLD: 2 * 2 / curvature,  # of G = 1/2
        BAOAB: 2 / math.sqrt(curvature),
        # h^2 lambda = 4 - 2 gamma h
        SGHMC: (math.sqrt(FRICTION**2 + 4 * curvature) - FRICTION) / curvature,
    }
    largest = limits[type(method)]
    assert radius(0.999 * largest) < 1 < radius(1.001 * largest)


def test_a_drift_by_the_old_momentum_would_diverge() -> None:
    # the law that the explicit Euler step of some released codes has: sqrt(1 - a + h^2 lambda) > 1
    h, curvature, alpha = 0.1, 2.0, 0.01
    euler = np.array([[1, h], [-h * curvature, 1 - alpha]])
    assert np.abs(np.linalg.eigvals(euler)).max() > 1
    assert affine(SGHMC(friction=alpha / h), h, curvature).radius < 1


@pytest.mark.parametrize(
    "method", [*ALL, SGNHT(friction=FRICTION)], ids=lambda method: type(method).__name__
)
@pytest.mark.parametrize("h", [0.01, 0.3])
def test_a_step_of_no_length_changes_nothing(method: Any, h: float) -> None:
    z = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3)

    given = told(z, 0.0, 0.0)
    state = method.begin(z, h * z, torch.ones(3, dtype=torch.float64))
    new = method.step(state, z + 1, z + 2, given)
    for name, value in state.items():
        torch.testing.assert_close(new[name], value, rtol=0, atol=0)


@pytest.mark.slow("about a second")
def test_thermostats_find_that_friction() -> None:

    h, steps, chains = 0.1, 3_000, 20
    generator = torch.Generator().manual_seed(0)

    def normal() -> torch.Tensor:
        return torch.randn(chains, 400, generator=generator, dtype=torch.float64)

    z = normal()
    method, given = SGNHT(friction=FRICTION), told(z, h)
    state, total = method.begin(z, normal(), torch.ones_like(z[0])), z.new_zeros(chains, 1)
    for t in range(steps):
        slope = state["z"] + math.sqrt(NOISE) * normal()
        state = method.step(state, slope, normal(), given)
        if t >= steps // 3:
            total += state["thermostat"]
    means = (total / (steps - steps // 3)).flatten()
    error = float(means.std()) / math.sqrt(chains)
    expected = thermostat(h, 1.0, NOISE)
    assert abs(float(means.mean()) - expected) < 5 * error
    assert abs(FRICTION - expected) > 5 * error  # which it would be without the noise
