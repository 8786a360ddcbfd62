"""AutoLowRankMultivariateNormal between the mean-field optimum and the exact posterior."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pytest
import torch
from pyro.infer import SVI, Trace_ELBO
from pyro.optim import Adam  # type: ignore[attr-defined]  # made at import time
from scipy import stats
from torch import Tensor

from pyro_bnn import models
from pyro_bnn.errors import OptionError
from pyro_bnn.guides import AutoLowRankMultivariateNormal
from pyro_bnn.guides.low_rank import Block
from tests.guides.exact import assert_stationary, assert_svi_reaches, at, expected_elbo, moments
from tests.guides.layered import BLOCKS, best_covariance, layered
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


@pytest.mark.parametrize("block", ["all", "layer"])
def test_at_rank_zero_the_distribution_object_is_of_independent_normals(block: Block) -> None:
    oracle = linear_gaussian()
    guide = AutoLowRankMultivariateNormal(oracle.model, rank=0, block=block)
    at(guide, oracle, loc=oracle.mean, scale=oracle.mean_field_variance.sqrt())
    q = guide.get_posterior()
    z = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = stats.norm(oracle.mean, oracle.mean_field_variance.sqrt()).logpdf(z).sum(-1)
    torch.testing.assert_close(q.log_prob(z).detach(), torch.from_numpy(expected))
    assert q.event_shape == (4,)


@pytest.mark.slow("about a second")
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


# Layer by layer


def by_layer(oracle: LinearGaussian, covariance: Tensor) -> AutoLowRankMultivariateNormal:
    """Of rank 2, so that each layer has a full covariance: the blocks of a given one."""
    guide = AutoLowRankMultivariateNormal(oracle.model, rank=2, block="layer")
    d = (0.5 * torch.linalg.eigvalsh(covariance)[0]).sqrt()
    eye = torch.eye(2, dtype=torch.float64)
    factors = [
        torch.linalg.cholesky(covariance[block][:, block] - d**2 * eye) / d for block in BLOCKS
    ]
    flat = torch.cat([factor.flatten() for factor in factors])
    at(guide, oracle, loc=oracle.mean, scale=d.expand(4).clone(), cov_factor=flat)
    return guide


def test_in_layers_the_density_is_the_dense_one_and_layers_are_independent() -> None:
    oracle = layered()
    guide = by_layer(oracle, oracle.covariance)
    covariance = oracle.covariance.clone()
    covariance[0::2, 1::2] = covariance[1::2, 0::2] = 0
    dense = torch.distributions.MultivariateNormal(oracle.mean, covariance)
    z = guide.sample(20)
    with torch.no_grad():
        torch.testing.assert_close(guide.log_prob(z), dense.log_prob(z), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(guide.entropy(), dense.entropy(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(guide.marginals()[1], covariance.diagonal().sqrt())
        torch.testing.assert_close(guide.get_posterior().covariance_matrix, covariance)
        _, own = moments(guide)
        torch.testing.assert_close(own, covariance)
        jacobian = torch.func.jacrev(guide.transport)(torch.zeros(guide.noise_dim).double())
        between = (jacobian @ jacobian.mT)[0::2, 1::2]
        torch.testing.assert_close(between, torch.zeros(2, 2).double(), rtol=0, atol=0)
    assert guide.noise_dim == 2 + 2 + 4
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(oracle.mean, covariance), rel=1e-12)


@pytest.mark.parametrize("independent", [False, True])
def test_in_layers_the_optimum_is_the_inverse_of_each_block_of_the_precision(
    independent: bool,
) -> None:
    oracle = layered(independent=independent)
    guide = by_layer(oracle, best_covariance(oracle))
    assert_stationary(guide, oracle)
    elbo, _ = expected_elbo(guide, oracle)
    blocks = [oracle.precision[block][:, block].logdet() for block in BLOCKS]
    gap = 0.5 * float(sum(blocks) - oracle.precision.logdet())
    assert elbo == pytest.approx(oracle.log_evidence - gap, rel=1e-12)
    assert (gap < 1e-12) == independent


def test_one_layer_is_the_gaussian_over_all_of_z() -> None:
    oracle = linear_gaussian()
    guides = [
        AutoLowRankMultivariateNormal(oracle.model, None, 0.3, 2, b) for b in ("layer", "all")
    ]
    for guide in guides:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            guide.setup(oracle.x)
    layer, whole = guides
    assert [tuple(guide.cov_factor.shape) for guide in guides] == [(8,), (4, 2)]
    z = whole.sample(5)
    torch.testing.assert_close(layer.sample(5), z, rtol=0, atol=0)
    torch.testing.assert_close(layer.log_prob(z), whole.log_prob(z), rtol=0, atol=0)
    torch.testing.assert_close(layer.entropy(), whole.entropy(), rtol=0, atol=0)


def test_each_layer_has_a_rank_of_its_own() -> None:
    model = models.MLP(3, hidden=(20,))  # layers of 80, 21 and, for the noise, 1 entries
    guide = AutoLowRankMultivariateNormal(model, block="layer")
    guide.setup(torch.zeros(1, 3))
    assert guide.cov_factor.shape == (80 * 9 + 21 * 5 + 1,)
    assert guide.options() == {"init_scale": 0.01, "block": "layer"}
    capped = AutoLowRankMultivariateNormal(model, rank=30, block="layer")
    capped.setup(torch.zeros(1, 3))
    assert capped.cov_factor.shape == (80 * 30 + 21 * 21 + 1,)
    assert AutoLowRankMultivariateNormal(model, block="all").options().get("block") is None


def test_a_block_of_another_name_is_refused() -> None:
    wrong: Any = "column"
    with pytest.raises(OptionError, match=r'block is "layer", "all" or None, not \'column\''):
        AutoLowRankMultivariateNormal(linear_gaussian().model, block=wrong)
