"""AutoLowRankMultivariateNormal between the mean-field optimum and the exact posterior."""

from __future__ import annotations

import math

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam  # type: ignore[attr-defined]  # made at import time
from torch import Tensor

from pyro_bnn.errors import OptionError
from pyro_bnn.guides import AutoLowRankMultivariateNormal
from tests.guides.exact import assert_stationary, assert_svi_reaches, at, expected_elbo
from tests.oracle import LinearGaussian, linear_gaussian


def full_rank(oracle: LinearGaussian) -> AutoLowRankMultivariateNormal:
    """The exact posterior, half of its smallest eigenvalue in the diagonal."""
    guide = AutoLowRankMultivariateNormal(oracle.model, rank=4)
    d = (0.5 * torch.linalg.eigvalsh(oracle.covariance)[0]).sqrt()
    eye = torch.eye(4, dtype=torch.float64)
    factor = torch.linalg.cholesky(oracle.covariance - d**2 * eye)
    at(guide, oracle, loc=oracle.mean, scale=d.expand(4).clone(), cov_factor=factor / d)
    return guide


def rank_one(oracle: LinearGaussian) -> tuple[AutoLowRankMultivariateNormal, Tensor, Tensor]:
    guide = AutoLowRankMultivariateNormal(oracle.model, rank=1)
    mean = torch.tensor([0.3, -1.2, 0.7, 0.1], dtype=torch.float64)
    scale = torch.tensor([0.2, 0.5, 0.05, 0.6], dtype=torch.float64)
    C = torch.tensor([[1.0], [-0.5], [2.0], [0.3]], dtype=torch.float64)
    at(guide, oracle, loc=mean, scale=scale, cov_factor=C)
    eye = torch.eye(4, dtype=torch.float64)
    return guide, mean, scale.diag() @ (C @ C.T + eye) @ scale.diag()


def test_elbo_of_any_parameters_is_the_closed_form() -> None:
    oracle = linear_gaussian()
    guide, mean, covariance = rank_one(oracle)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(mean, covariance), rel=1e-12)


def test_density_is_the_dense_one() -> None:
    guide, mean, covariance = rank_one(linear_gaussian())
    dense = torch.distributions.MultivariateNormal(mean, covariance)
    z = guide.sample(20)
    with torch.no_grad():
        torch.testing.assert_close(guide.log_prob(z), dense.log_prob(z), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(guide.entropy(), dense.entropy(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(guide.marginals()[1], covariance.diagonal().sqrt())
        torch.testing.assert_close(guide.get_posterior().covariance_matrix, covariance)


def test_at_full_rank_the_exact_posterior_is_the_optimum() -> None:
    oracle = linear_gaussian()
    guide = full_rank(oracle)
    assert_stationary(guide, oracle)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.log_evidence, rel=1e-12)


def test_at_rank_zero_the_mean_field_optimum_is_the_optimum() -> None:
    oracle = linear_gaussian()
    guide = AutoLowRankMultivariateNormal(oracle.model, rank=0)
    at(guide, oracle, loc=oracle.mean, scale=oracle.mean_field_variance.sqrt())
    assert_stationary(guide, oracle)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.log_evidence - oracle.mean_field_gap, rel=1e-12)


def test_svi_at_full_rank_reaches_the_exact_posterior() -> None:
    oracle = linear_gaussian()
    guide = AutoLowRankMultivariateNormal(oracle.model, rank=4)
    assert_svi_reaches(guide, oracle, oracle.mean, oracle.covariance)


def test_two_ranks_stay_apart_under_stock_pyro() -> None:
    """peers.md, M6: Pyro's second guide silently has the first one's rank."""
    oracle = linear_gaussian()
    pyro.clear_param_store()
    guides = [AutoLowRankMultivariateNormal(oracle.model, rank=rank) for rank in (1, 3)]
    for guide in guides:
        svi = SVI(oracle.model, guide, Adam({"lr": 0.01}), Trace_ELBO())
        with torch.random.fork_rng():
            svi.step(oracle.x, oracle.y[:, None])
    assert [tuple(guide.cov_factor.shape) for guide in guides] == [(4, 1), (4, 3)]
    assert len(pyro.get_param_store()) == 6
    pyro.clear_param_store()


def test_the_default_rank_is_the_root_of_the_number_of_latents() -> None:
    oracle = linear_gaussian(num_inputs=8)
    guide = AutoLowRankMultivariateNormal(oracle.model)
    guide.setup(oracle.x)
    assert guide.cov_factor.shape == (9, 3)
    assert guide.options() == {"init_scale": 0.01, "rank": 3}


@pytest.mark.parametrize("rank", [0, 2])
def test_the_first_marginal_variance_is_about_that_of_init_scale(rank: int) -> None:
    oracle = linear_gaussian(num_inputs=399)
    guide = AutoLowRankMultivariateNormal(oracle.model, rank=rank, init_scale=0.2)
    guide.setup(oracle.x)
    with torch.no_grad():
        relative = guide.marginals()[1].square() / 0.2**2
    # 1/2 + chi2_rank / (2 rank) per entry at rank > 0, of mean 1 and variance 1 / (2 rank)
    error = math.sqrt(1 / (2 * rank) / 400) if rank else 1e-12
    assert abs(float(relative.mean()) - 1) < 5 * error


@pytest.mark.parametrize("rank", [-1, 1.5, "2"])
def test_rank_has_to_be_an_integer(rank: int) -> None:
    with pytest.raises(OptionError, match="rank is an integer of at least 0, not"):
        AutoLowRankMultivariateNormal(linear_gaussian().model, rank=rank)
