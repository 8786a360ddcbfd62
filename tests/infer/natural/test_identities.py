"""The identities that natural-gradient variational inference rests on, by autograd in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

DIM = 3
GENERATOR = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)


def positive(size: int) -> Tensor:
    root = normal(size, size)
    return root @ root.T + torch.eye(size, dtype=torch.float64)


MEAN, COVARIANCE = normal(DIM), positive(DIM)
PRIOR_MEAN, PRIOR_COVARIANCE = normal(DIM), positive(DIM)


def pack(vector: Tensor, matrix: Tensor) -> Tensor:
    """A vector and a symmetric matrix as one vector of its independent entries."""
    i, j = torch.triu_indices(DIM, DIM)
    return torch.cat([vector, matrix[i, j]])


def unpack(flat: Tensor) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(DIM, DIM)
    upper = torch.zeros(DIM, DIM, dtype=flat.dtype).index_put((i, j), flat[DIM:])
    return flat[:DIM], upper + upper.T - upper.diagonal().diag()


def natural(mean: Tensor, covariance: Tensor) -> Tensor:
    """eta = (Sigma^-1 mu, -Sigma^-1 / 2); the entry pairs (i, j), (j, i) are one coordinate."""
    precision = torch.linalg.inv(covariance)
    doubled = 2 - torch.eye(DIM, dtype=torch.float64)
    return pack(precision @ mean, -0.5 * precision * doubled)


def moments(eta: Tensor) -> tuple[Tensor, Tensor]:
    doubled = 2 - torch.eye(DIM, dtype=torch.float64)
    vector, matrix = unpack(eta)
    covariance = torch.linalg.inv(-2 * matrix / doubled)
    return covariance @ vector, covariance


def expectation(mean: Tensor, covariance: Tensor) -> Tensor:
    """m = (mu, mu mu^T + Sigma)."""
    return pack(mean, torch.outer(mean, mean) + covariance)


def of_expectation(m: Tensor) -> tuple[Tensor, Tensor]:
    first, second = unpack(m)
    return first, second - torch.outer(first, first)


def log_partition(eta: Tensor) -> Tensor:
    mean, covariance = moments(eta)
    value: Tensor = 0.5 * (mean @ torch.linalg.solve(covariance, mean) + covariance.logdet())
    return value


def some_loss(mean: Tensor, covariance: Tensor) -> Tensor:
    """Smooth in both, of no special form."""
    return mean.sin().sum() + (covariance.diagonal() + mean**2).log().sum() + covariance.logdet()


def minus_kl(mean: Tensor, covariance: Tensor) -> Tensor:
    q = torch.distributions.MultivariateNormal(mean, covariance)
    p = torch.distributions.MultivariateNormal(PRIOR_MEAN, PRIOR_COVARIANCE)
    return -torch.distributions.kl_divergence(q, p)


def gradient(fn: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.clone().requires_grad_()
    (value,) = torch.autograd.grad(fn(leaf), leaf)
    return value


def test_the_expectation_parameters_are_the_gradient_of_the_log_partition_function() -> None:
    eta = natural(MEAN, COVARIANCE)
    assert_close(gradient(log_partition, eta), expectation(MEAN, COVARIANCE), rtol=1e-10, atol=0)


def test_the_natural_gradient_is_the_gradient_by_the_expectation_parameters() -> None:
    eta, m = natural(MEAN, COVARIANCE), expectation(MEAN, COVARIANCE)
    fisher = torch.autograd.functional.hessian(log_partition, eta)
    by_eta = gradient(lambda value: some_loss(*moments(value)), eta)
    by_m = gradient(lambda value: some_loss(*of_expectation(value)), m)
    assert_close(torch.linalg.solve(fisher, by_eta), by_m, rtol=1e-9, atol=1e-9)


def test_the_gradient_of_minus_the_kl_is_the_difference_of_the_natural_parameters() -> None:
    m = expectation(MEAN, COVARIANCE)
    found = gradient(lambda value: minus_kl(*of_expectation(value)), m)
    expected = natural(PRIOR_MEAN, PRIOR_COVARIANCE) - natural(MEAN, COVARIANCE)
    assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_the_chain_rule_of_a_gaussian() -> None:
    """grad_m1 = grad_mu - 2 (grad_Sigma) mu and grad_m2 = grad_Sigma, as symmetric matrices."""
    leaves = MEAN.clone().requires_grad_(), COVARIANCE.clone().requires_grad_()
    by_mean, by_covariance = torch.autograd.grad(some_loss(*leaves), leaves)
    m1, m2 = MEAN.clone(), (torch.outer(MEAN, MEAN) + COVARIANCE).clone()
    m1.requires_grad_()
    m2.requires_grad_()
    loss = some_loss(m1, m2 - torch.outer(m1, m1))
    by_m1, by_m2 = torch.autograd.grad(loss, (m1, m2))
    symmetric = 0.5 * (by_covariance + by_covariance.T)
    assert_close(by_m1, by_mean - 2 * symmetric @ MEAN, rtol=1e-10, atol=1e-10)
    assert_close(0.5 * (by_m2 + by_m2.T), symmetric, rtol=1e-10, atol=1e-10)


def quadrature(count: int) -> tuple[Tensor, Tensor]:
    """Nodes ``[n, DIM]`` and weights ``[n]`` of expectations under N(0, I)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    weights = weights / weights.sum()
    grid = torch.cartesian_prod(*[torch.from_numpy(nodes)] * DIM)
    products = torch.cartesian_prod(*[torch.from_numpy(weights)] * DIM)
    return grid, products.prod(-1)


def polynomial(z: Tensor) -> Tensor:
    """Of degree 5, for which a quadrature of six nodes is exact."""
    return z[..., 0] ** 3 * z[..., 1] ** 2 + z[..., 2] ** 4 - z.sum(-1) ** 3


@pytest.mark.parametrize("identity", ["Bonnet", "Price"])
def test_gradients_of_an_expectation_are_expectations_of_derivatives(identity: str) -> None:
    nodes, weights = quadrature(6)

    def expected(mean: Tensor, covariance: Tensor) -> Tensor:
        return weights @ polynomial(mean + nodes @ torch.linalg.cholesky(covariance).T)

    leaves = MEAN.clone().requires_grad_(), COVARIANCE.clone().requires_grad_()
    by_mean, by_covariance = torch.autograd.grad(expected(*leaves), leaves)
    z = MEAN + nodes @ torch.linalg.cholesky(COVARIANCE).T
    if identity == "Bonnet":
        slopes = torch.func.vmap(torch.func.grad(polynomial))(z)
        assert_close(by_mean, weights @ slopes, rtol=1e-9, atol=1e-9)
        return
    hessians = torch.func.vmap(torch.func.jacrev(torch.func.grad(polynomial)))(z)
    symmetric = 0.5 * (by_covariance + by_covariance.T)
    assert_close(
        symmetric, 0.5 * torch.einsum("n,nij->ij", weights, hessians), rtol=1e-9, atol=1e-9
    )
