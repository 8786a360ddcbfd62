"""The Gaussian of a precision of low rank plus a diagonal, against the dense one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import models
from pyro_bnn.errors import DivergenceError
from pyro_bnn.guides.low_rank_precision import AutoLowRankPrecision
from pyro_bnn.infer.curvature.precision import Dense, Diagonal, LowRank, largest
from tests.guides.exact import assert_svi_reaches
from tests.oracle import linear_gaussian

P, R = 7, 3


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


DIAGONAL, FACTOR, MEAN = normal(P, seed=0).exp(), normal(P, R, seed=1), normal(P, seed=2)
MATRIX = FACTOR @ FACTOR.T + DIAGONAL.diag()
EXACT = torch.distributions.MultivariateNormal(MEAN, precision_matrix=MATRIX)


def guide_of(precision: Any) -> Any:
    """The guide of a precision, over the seven weights of a linear regression."""
    model = models.LinearRegression(P - 1).double()
    guide = precision.make_guide(model)
    guide.setup(torch.zeros(1, P - 1, dtype=torch.float64))
    guide.to(torch.float64)
    precision.set(guide, MEAN)
    return guide


@pytest.mark.parametrize("name", ["low rank", "dense", "diagonal"])
def test_precisions_against_the_dense_gaussian(name: str) -> None:
    precision: Any
    if name == "diagonal":
        precision, exact = (
            Diagonal(DIAGONAL),
            torch.distributions.MultivariateNormal(MEAN, precision_matrix=DIAGONAL.diag()),
        )
    else:
        precision = LowRank(DIAGONAL, FACTOR) if name == "low rank" else Dense(MATRIX)
        exact = EXACT
    matrix = exact.precision_matrix
    values = normal(P, seed=3)
    assert_close(precision.solve(values), torch.linalg.solve(matrix, values))
    damped = matrix + 0.7 * torch.eye(P, dtype=torch.float64)
    assert_close(precision.solve(values, 0.7), torch.linalg.solve(damped, values))
    assert_close(precision.variance(), exact.covariance_matrix.diagonal())
    assert_close(precision.log_det(), matrix.logdet())
    # a linear map of the noise: its square is the covariance
    eye = torch.eye(precision.noise_dim, dtype=torch.float64)
    root = precision.deviations(eye)  # [M, P]
    assert_close(root.T @ root, exact.covariance_matrix)
    guide = guide_of(precision)
    z = MEAN + normal(5, P, seed=4)
    with torch.no_grad():
        assert_close(guide.log_prob(z), exact.log_prob(z))
        assert_close(guide.entropy(), exact.entropy())
        root = guide.transport(torch.eye(guide.noise_dim, dtype=torch.float64)) - MEAN
        assert_close(root.T @ root, exact.covariance_matrix)
        assert_close(guide.marginals()[1].square(), exact.covariance_matrix.diagonal())
        assert_close(guide.get_posterior().log_prob(z), exact.log_prob(z))
        assert_close(guide.marginals()[0], MEAN)


def test_a_guide_starts_with_twice_the_precision_in_random_directions() -> None:
    """Not with a factor of 0, at which the gradient in it is 0."""
    guide = AutoLowRankPrecision(models.LinearRegression(999).double(), init_scale=0.5, rank=2)
    guide.setup(torch.zeros(1, 999, dtype=torch.float64))
    guide.to(torch.float64)
    with torch.no_grad():
        V = guide.prec_factor
        assert_close(guide.scale, torch.full((1_000,), 0.5, dtype=torch.float64), rtol=1e-6, atol=0)
        # of 1,000 normal numbers over 1,000 the sum of squares has an sd of 0.045, a product 0.03
        assert_close(V.T @ V, torch.eye(2, dtype=torch.float64), rtol=0, atol=4 * 0.045)
    assert guide.options() == {"init_scale": 0.5, "rank": 2}


@pytest.mark.slow("a second or more")
def test_svi_reaches_the_posterior_from_its_start() -> None:
    """Of rank P - 1 it contains every Gaussian: the smallest eigenvalue is the diagonal's."""
    oracle = linear_gaussian()
    guide = AutoLowRankPrecision(oracle.model, init_scale=0.1, rank=3)
    assert_svi_reaches(guide, oracle, oracle.mean, oracle.covariance)


@pytest.mark.parametrize("columns", [4, 12])
def test_the_largest_part_of_a_product_is_that_of_its_eigenvectors(columns: int) -> None:
    W = normal(P, columns, seed=5)
    values, vectors = torch.linalg.eigh(W @ W.T)
    top = vectors[:, -2:] * values[-2:].sqrt()
    found = largest(W, 2)
    assert found.shape == (P, 2)
    assert_close(found @ found.T, top @ top.T)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Diagonal(torch.tensor([1.0, 0.0])),
        lambda: Dense(torch.tensor([[1.0, 2.0], [2.0, 1.0]])),
        lambda: Dense(torch.tensor([[torch.nan, 0.0], [0.0, 1.0]])),
        lambda: LowRank(torch.tensor([1.0, -1.0]), torch.zeros(2, 1)),
    ],
)
def test_what_is_not_positive_definite_is_refused(make: Any) -> None:
    with pytest.raises(DivergenceError, match="the precision of q is not positive definite"):
        make()
