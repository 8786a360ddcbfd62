"""The oracle's closed forms against each other and against Monte Carlo."""

from __future__ import annotations

import math

import torch
from torch.distributions import MultivariateNormal, kl_divergence
from torch.testing import assert_close

from tests.oracle import linear_gaussian

ORACLE = linear_gaussian()


def test_posterior_is_the_joint_over_the_evidence() -> None:
    z = torch.randn(50, 4, dtype=torch.float64)
    posterior = MultivariateNormal(ORACLE.mean, ORACLE.covariance)
    assert_close(ORACLE.log_posterior(z), posterior.log_prob(z), rtol=1e-10, atol=1e-10)


def test_evidence_is_the_mean_likelihood_over_the_prior() -> None:
    small = linear_gaussian(num_rows=3, num_inputs=1, noise=1.0)
    z = small.prior_scale * torch.randn(200_000, 2, dtype=torch.float64)
    prior = MultivariateNormal(torch.zeros(2), small.prior_scale**2 * torch.eye(2)).log_prob(z)
    likelihood = (small.log_joint(z) - prior - small.log_evidence).exp()
    z_score = (likelihood.mean() - 1) / (likelihood.std() / math.sqrt(len(z)))
    assert abs(float(z_score)) < 5


def test_gaps_are_divergences_from_the_posterior() -> None:
    posterior = MultivariateNormal(ORACLE.mean, ORACLE.covariance)
    q = MultivariateNormal(ORACLE.mean + 0.1, torch.eye(4, dtype=torch.float64))
    gap = float(kl_divergence(q, posterior))
    assert math.isclose(ORACLE.kl(q.mean, q.covariance_matrix), gap, rel_tol=1e-10)
    assert math.isclose(
        ORACLE.log_evidence - ORACLE.elbo(q.mean, q.covariance_matrix), gap, rel_tol=1e-10
    )
    # of all diagonal covariances, 1 / diag(precision) has the smallest divergence
    best = ORACLE.mean_field_variance
    assert ORACLE.mean_field_gap > 0
    for factor in (0.9, 1.1):
        assert ORACLE.kl(ORACLE.mean, (best * factor).diag()) > ORACLE.mean_field_gap


def test_predictive_moments_are_those_of_the_draws() -> None:
    posterior = MultivariateNormal(ORACLE.mean, ORACLE.covariance)
    z = posterior.sample((100_000,))
    f = z[:, :3] @ ORACLE.x[:5].T + z[:, 3:]  # [S, N]
    mean, sd = ORACLE.function_moments(ORACLE.x[:5])
    assert ((f.mean(0) - mean).abs() / (sd / math.sqrt(len(z))) < 5).all()
    assert ((f.var(0) / sd**2 - 1).abs() / math.sqrt(2 / len(z)) < 5).all()
    y_mean, y_sd = ORACLE.predictive(ORACLE.x[:5])
    assert_close(y_mean, mean)
    assert_close(y_sd**2, sd**2 + 0.25)
