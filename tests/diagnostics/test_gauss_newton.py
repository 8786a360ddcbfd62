"""Hessian, Gauss-Newton matrix and empirical Fisher information against closed forms."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import likelihoods, models
from pyro_bnn.diagnostics import curvature_matrices
from pyro_bnn.errors import OptionError, ShapeError

NOISE = 0.5


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y = normal(30, 2, seed=0), normal(30, seed=1)
DESIGN = torch.cat([X, torch.ones(30, 1, dtype=torch.float64)], 1)  # weights, then the bias
POINTS = normal(2, 3, seed=2)


def test_of_a_linear_regression_the_hessian_is_that_of_least_squares() -> None:
    model = models.LinearRegression(2, likelihood=likelihoods.Normal(NOISE)).double()
    found = curvature_matrices(model, (X, Y), POINTS)
    exact = (DESIGN.T @ DESIGN / NOISE**2).expand(2, 3, 3)
    assert_close(found.hessian, exact)
    assert_close(found.gauss_newton, exact)
    assert_close(found.gauss_newton_error, torch.zeros(2).double(), atol=1e-12, rtol=0)
    residuals = Y - POINTS @ DESIGN.T  # [2, N]
    fisher = torch.einsum("sn,ni,nj->sij", residuals.square(), DESIGN, DESIGN) / NOISE**4
    assert_close(found.empirical_fisher, fisher)
    distance = torch.linalg.matrix_norm(fisher - exact) / torch.linalg.matrix_norm(exact)
    assert_close(found.empirical_fisher_error, distance)


def test_of_logistic_regression_the_hessian_is_that_of_its_probabilities() -> None:
    model = models.MLP(2, hidden=(), likelihood=likelihoods.Bernoulli()).double()
    classes = (Y > 0).double()
    found = curvature_matrices(model, (X, classes), POINTS)
    p = torch.sigmoid(POINTS @ DESIGN.T)
    exact = torch.einsum("sn,ni,nj->sij", p * (1 - p), DESIGN, DESIGN)
    assert_close(found.hessian, exact)
    assert_close(found.gauss_newton, exact)
    fisher = torch.einsum("sn,ni,nj->sij", (classes - p).square(), DESIGN, DESIGN)
    assert_close(found.empirical_fisher, fisher)


def test_of_one_hidden_unit_the_hessian_has_the_curvature_of_the_network() -> None:
    """With f = v t + c, t = tanh(a x + b), by a, b, v and c."""
    model = models.MLP(1, hidden=(1,), activation="tanh", likelihood=likelihoods.Normal(NOISE))
    x = X[:, :1]
    z = torch.tensor([[0.7, -0.3, 1.4, 0.2]], dtype=torch.float64)
    found = curvature_matrices(model.double(), (x, Y), z)
    a, b, v, c = z[0]
    inputs, one = x[:, 0], torch.ones(30).double()
    t = (a * inputs + b).tanh()
    slope, bend = 1 - t**2, -2 * t * (1 - t**2)
    J = torch.stack([v * slope * inputs, v * slope, t, one], 1)  # [N, 4]
    second = torch.zeros(30, 4, 4).double()  # of f
    second[:, 0, 0], second[:, 0, 1], second[:, 1, 1] = (
        v * bend * inputs**2,
        v * bend * inputs,
        v * bend,
    )
    second[:, 0, 2], second[:, 1, 2] = slope * inputs, slope
    second = second + second.triu(1).mT
    residual = Y - (v * t + c)
    gauss_newton = J.T @ J / NOISE**2
    assert_close(found.gauss_newton[0], gauss_newton)
    hessian = gauss_newton - torch.einsum("n,nij->ij", residual, second) / NOISE**2
    assert_close(found.hessian[0], hessian)
    difference = torch.linalg.matrix_norm(gauss_newton - hessian)
    expected = difference / torch.linalg.matrix_norm(hessian)
    assert float(expected) > 0.05
    assert_close(found.gauss_newton_error[0], expected)


@pytest.mark.parametrize("shape", [(3,), (2, 4)], ids=["one point", "of another model"])
def test_points_have_the_length_of_z(shape: Any) -> None:
    model = models.LinearRegression(2, likelihood=likelihoods.Normal(NOISE)).double()
    message = re.escape(f"z has the shape {list(shape)}: pass points [n, 3]")
    with pytest.raises(ShapeError, match=message):
        curvature_matrices(model, (X, Y), torch.zeros(shape))


def test_a_likelihood_without_known_information_is_refused() -> None:
    model = models.LinearRegression(2, likelihood=likelihoods.StudentT(4.0, 1.0)).double()
    with pytest.raises(OptionError, match='curvature="ggn" is not built for the likelihood'):
        curvature_matrices(model, (X, Y), POINTS)
