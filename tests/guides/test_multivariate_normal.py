"""AutoMultivariateNormal against the exact posterior of the linear-Gaussian model."""

from __future__ import annotations

import pytest
import torch

from pyro_bnn.guides import AutoMultivariateNormal
from tests.guides.exact import (
    assert_stationary,
    assert_svi_reaches,
    expected_elbo,
    multivariate_normal,
)
from tests.oracle import linear_gaussian


def test_elbo_of_any_parameters_is_the_closed_form() -> None:
    oracle = linear_gaussian()
    factor = torch.tensor(
        [[0.5, 0, 0, 0], [0.2, 0.3, 0, 0], [-0.4, 0.1, 0.9, 0], [0.3, -0.2, 0.1, 0.2]],
        dtype=torch.float64,
    )
    mean = torch.tensor([0.3, -1.2, 0.7, 0.1], dtype=torch.float64)
    guide = multivariate_normal(oracle, mean, factor @ factor.T)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(mean, factor @ factor.T), rel=1e-12)


def test_the_exact_posterior_is_the_optimum_and_its_elbo_the_log_evidence() -> None:
    oracle = linear_gaussian()
    guide = multivariate_normal(oracle, oracle.mean, oracle.covariance)
    assert_stationary(guide, oracle)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.log_evidence, rel=1e-12)


def test_density_at_the_exact_posterior_is_the_exact_density() -> None:
    oracle = linear_gaussian()
    guide = multivariate_normal(oracle, oracle.mean, oracle.covariance)
    z = guide.sample(50)
    with torch.no_grad():
        torch.testing.assert_close(guide.log_prob(z), oracle.log_posterior(z), rtol=1e-9, atol=1e-9)
        mean, sd = guide.marginals()
    torch.testing.assert_close(mean, oracle.mean)
    torch.testing.assert_close(sd, oracle.covariance.diagonal().sqrt())


@pytest.mark.slow("about a second")
def test_svi_reaches_the_exact_posterior() -> None:
    oracle = linear_gaussian()
    guide = AutoMultivariateNormal(oracle.model)
    assert_svi_reaches(guide, oracle, oracle.mean, oracle.covariance)


def test_draws_are_those_of_the_factor_of_the_covariance() -> None:
    """Whatever stands above the diagonal of the parameter is not part of it."""
    oracle = linear_gaussian()
    guide = multivariate_normal(oracle, oracle.mean, oracle.covariance)
    noise = torch.arange(12.0, dtype=torch.float64).sin().reshape(3, 4)
    factor = torch.linalg.cholesky(oracle.covariance)
    with torch.no_grad():
        guide.tril_times_root += torch.triu(torch.ones_like(guide.tril_times_root))
        for eps in (noise, noise[0], noise.expand(2, 3, 4)):
            z = guide.transport(eps)
            torch.testing.assert_close(z, oracle.mean + eps @ factor.T, rtol=1e-10, atol=1e-12)


def test_kl_is_the_closed_form_of_torch() -> None:
    oracle = linear_gaussian()
    guide = multivariate_normal(oracle, oracle.mean, oracle.covariance)
    normal = torch.distributions.MultivariateNormal
    prior = normal(torch.zeros(4).double(), oracle.prior_scale**2 * torch.eye(4).double())
    q = normal(oracle.mean, oracle.covariance)
    value, exact = guide.kl()
    assert exact
    assert value == pytest.approx(float(torch.distributions.kl_divergence(q, prior)), rel=1e-10)
