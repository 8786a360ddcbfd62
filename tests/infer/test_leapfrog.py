"""The integrator: order, reversibility, volume, and the textbook's form of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.infer.mcmc.leapfrog import Point, energy_error, kinetic, leapfrog
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.potentials import Potential
from tests.infer import naive_nuts
from tests.infer.densities import banana, scales, with_gradient
from tests.infer.drive import diagonal, low_rank, normal, uniform

C, P = 5, 4
MASSES = {"diagonal": diagonal(0.5, 1.0, 0.8, 1.3), "low_rank": low_rank(P)}
EACH_MASS = pytest.mark.parametrize("mass", MASSES.values(), ids=MASSES)


def _energy(z: Tensor) -> Tensor:
    """A potential of four latents with derivatives of all orders."""
    bent = z[:, 1] - z[:, 0].square()
    walls = (z.square().sum(-1) + 1).sqrt()
    return 0.5 * z[:, 0].square() + bent.square() + walls + 0.3 * (z[:, 2] * z[:, 3]).cos()


POTENTIAL: Potential = with_gradient(_energy)


def start() -> Point:
    z, p = 0.7 * normal(C, P, seed=0), normal(C, P, seed=1)
    value, grad = POTENTIAL(z)
    return Point(z, p, grad, value, value + kinetic(p))


def moved(point: Point, epsilon: Tensor, num_steps: int, mass: Mass) -> Point:
    for _ in range(num_steps):
        point = leapfrog(point.z, point.p, point.grad, epsilon, POTENTIAL, mass)
    return point


@EACH_MASS
def test_half_the_step_has_a_quarter_of_the_energy_error(mass: Mass) -> None:
    """Over the same time: eps^2 to first order, and eps^4 after that."""
    epsilon = 0.01 + 0.01 * uniform(C, seed=2)
    errors = [moved(start(), epsilon / k, 40 * k, mass).energy - start().energy for k in (1, 2, 4)]
    assert errors[2].abs().min() > 1e-7  # far from rounding
    ratios = torch.stack([errors[0] / errors[1], errors[1] / errors[2]])
    assert (ratios - 4).abs().max() < 0.05
    assert (ratios[1] - 4).abs().mean() < 0.5 * (ratios[0] - 4).abs().mean()


@EACH_MASS
@pytest.mark.parametrize("way", ["back in time", "momenta flipped"])
def test_steps_undo_themselves(mass: Mass, way: str) -> None:
    epsilon = 0.02 + 0.05 * uniform(C, seed=2)
    there = moved(start(), epsilon, 50, mass)
    assert (there.z - start().z).abs().mean() > 0.5
    if way == "back in time":
        back = moved(there, -epsilon, 50, mass)
    else:
        back = moved(there._replace(p=-there.p), epsilon, 50, mass)
        back = back._replace(p=-back.p)
    assert_close(tuple(back), tuple(start()), rtol=0, atol=1e-12)


@EACH_MASS
def test_a_step_keeps_volumes(mass: Mass) -> None:
    """The Jacobian determinant of (z, p) is 1, though the map is far from linear."""
    first = start()
    for c in range(C):

        def step(state: Tensor) -> Tensor:
            z, p = state[None, :P], state[None, P:]
            size = torch.tensor([0.3], dtype=torch.float64)  # 0.7: a condition of 1e8
            grad = torch.func.grad(lambda z: _energy(z).sum())
            half = leapfrog(z, p, grad(z), size, lambda z: (_energy(z), grad(z)), mass)
            return torch.cat([half.z[0], half.p[0]])

        state = torch.cat([first.z[c], first.p[c]])
        jacobian = torch.func.jacrev(step)(state)
        assert (jacobian - torch.eye(2 * P, dtype=torch.float64)).abs().max() > 0.5
        assert float(torch.linalg.det(jacobian)) == pytest.approx(1, abs=1e-12)


@EACH_MASS
def test_whitened_momenta_are_those_of_the_mass_matrix(mass: Mass) -> None:
    """z, U and energies of r = L^-T p, M^-1 = L L^T; each chain with its own step, either way."""
    epsilon = torch.tensor([0.1, -0.1, 0.15, 0.02, -0.12], dtype=torch.float64)
    ours = moved(start(), epsilon, 7, mass)
    of = naive_nuts.dynamics(POTENTIAL, mass)
    for c in range(C):
        point = of.start(start().z[c].numpy(), start().p[c].numpy())
        for _ in range(7):
            point = of.leapfrog(point, float(epsilon[c]))
        assert_close(ours.z[c], torch.from_numpy(point.z), rtol=1e-11, atol=1e-11)
        assert_close(ours.p[c], torch.from_numpy(of.factor.T @ point.r), rtol=1e-11, atol=1e-11)
        assert_close(ours.grad[c], torch.from_numpy(point.grad), rtol=1e-11, atol=1e-11)
        assert float(ours.potential[c]) == pytest.approx(point.potential, rel=1e-11)
        assert float(ours.energy[c]) == pytest.approx(point.energy, rel=1e-11)


def test_an_oscillator_turns_by_the_angle_that_the_step_stands_for() -> None:
    """On U = z^2 / 2 a step is a linear map of eigenvalues e^(+-i a), cos a = 1 - eps^2 / 2.

    Its orbit is z_n = z_0 cos(n a) + p_0 sin(n a) / sqrt(1 - eps^2 / 4).
    """
    epsilon = torch.tensor([0.1, 0.7, 1.9], dtype=torch.float64)
    z, p = normal(3, 1, seed=0), normal(3, 1, seed=1)
    potential = scales(1).potential
    point = Point(z, p, potential(z)[1], *[potential(z)[0]] * 2)
    angle = torch.acos(1 - epsilon**2 / 2)
    for n in range(1, 20):
        point = leapfrog(point.z, point.p, point.grad, epsilon, potential, diagonal(1))
        sine = (n * angle).sin() / (1 - epsilon**2 / 4).sqrt()
        expected = z[:, 0] * (n * angle).cos() + p[:, 0] * sine
        assert_close(point.z[:, 0], expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("energy", [math.nan, math.inf, -math.inf])
def test_an_energy_that_is_no_number_is_infinitely_wrong(energy: float) -> None:
    energies = torch.tensor([energy, 5.0, -2.0])
    assert energy_error(energies, torch.ones(3)).tolist() == [math.inf, 4.0, -3.0]


def test_gradients_of_the_densities_of_these_tests_are_those_of_autograd() -> None:
    for density in (banana(0.3), scales(0.1, 3.0)):
        z = density.draws(7).requires_grad_()
        value = 0.5 * density.to_normal(z).square().sum(-1)
        (grad,) = torch.autograd.grad(value.sum(), z)
        assert_close(density.potential(z.detach()), (value.detach(), grad), rtol=1e-12, atol=1e-12)
