"""AutoNormal against the closed form of the linear-Gaussian model."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import TraceMeanField_ELBO
from torch import Tensor

from pyro_bnn.errors import OptionError
from pyro_bnn.guides import AutoNormal
from tests.guides.exact import assert_stationary, assert_svi_reaches, at, expected_elbo
from tests.laws import MixedModel, one
from tests.oracle import LinearGaussian, linear_gaussian


def optimum(oracle: LinearGaussian) -> AutoNormal:
    guide = AutoNormal(oracle.model)
    at(guide, oracle, loc=oracle.mean, scale=oracle.mean_field_variance.sqrt())
    return guide


def test_elbo_of_any_parameters_is_the_closed_form() -> None:
    oracle = linear_gaussian()
    loc = torch.tensor([0.3, -1.2, 0.7, 0.1], dtype=torch.float64)
    scale = torch.tensor([0.2, 1.5, 0.05, 0.6], dtype=torch.float64)
    guide = at(AutoNormal(oracle.model), oracle, loc=loc, scale=scale)
    elbo, _ = expected_elbo(guide, oracle)
    assert elbo == pytest.approx(oracle.elbo(loc, scale.square().diag()), rel=1e-12)


def test_exact_means_and_inverse_diagonal_precision_are_the_optimum() -> None:
    oracle = linear_gaussian()
    guide = optimum(oracle)
    assert_stationary(guide, oracle)
    elbo, _ = expected_elbo(guide, oracle)
    precision = oracle.precision
    gap = 0.5 * float(precision.diagonal().log().sum() - precision.logdet())
    assert gap > 0.1  # the inputs are correlated
    assert elbo == pytest.approx(oracle.log_evidence - gap, rel=1e-12)


def test_its_distribution_is_that_of_its_parameters() -> None:
    oracle = linear_gaussian()
    q = optimum(oracle).get_posterior()
    normal = torch.distributions.Normal(oracle.mean, oracle.mean_field_variance.sqrt())
    z = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    torch.testing.assert_close(q.log_prob(z), normal.log_prob(z).sum(-1))


def test_svi_reaches_the_optimum() -> None:
    oracle = linear_gaussian()
    covariance = oracle.mean_field_variance.diag()
    assert_svi_reaches(AutoNormal(oracle.model), oracle, oracle.mean, covariance)


def test_kl_is_the_closed_form_of_torch() -> None:
    oracle = linear_gaussian()
    guide = optimum(oracle)
    normal = torch.distributions.Normal
    scale = torch.full((4,), oracle.prior_scale, dtype=torch.float64)
    prior = normal(torch.zeros_like(scale), scale)
    q = normal(oracle.mean, oracle.mean_field_variance.sqrt())
    value, exact = guide.kl()
    assert exact
    expected = float(torch.distributions.kl_divergence(q, prior).sum())
    assert value == pytest.approx(expected, rel=1e-12)


def test_stock_mean_field_elbo_finds_the_closed_form_kl() -> None:
    """peers.md, M8: with Pyro's own AutoNormal the KL is a Monte Carlo estimate of sd 1.2."""
    oracle = linear_gaussian()
    guide = optimum(oracle)

    def prior_only(x: Tensor) -> None:
        prior = dist.Normal(one(0.0), one(oracle.prior_scale))
        pyro.sample("w", prior.expand([3, 1]).to_event(2))
        pyro.sample("b", prior.expand([1]).to_event(1))

    elbo = TraceMeanField_ELBO()
    with torch.random.fork_rng(), pyro.get_param_store().scope():
        losses = [elbo.loss(prior_only, guide, oracle.x) for _ in range(20)]
    expected, _ = guide.kl()
    assert losses == pytest.approx([expected] * 20, rel=1e-12)


def test_quantiles_are_those_of_a_normal() -> None:
    oracle = linear_gaussian()
    guide = optimum(oracle)
    levels = [0.025, 0.5, 0.9]
    normal = torch.distributions.Normal(oracle.mean, oracle.mean_field_variance.sqrt())
    expected = torch.stack([normal.icdf(torch.tensor(q).double()) for q in levels])  # [Q, P]
    quantiles = guide.quantiles(levels)
    assert {name: tuple(q.shape) for name, q in quantiles.items()} == {"w": (3, 3, 1), "b": (3, 1)}
    torch.testing.assert_close(quantiles["w"], expected[:, :3, None])
    torch.testing.assert_close(quantiles["b"], expected[:, 3:])
    torch.testing.assert_close(guide.median()["w"], oracle.mean[:3, None])


def test_quantiles_of_positive_sites_are_in_their_own_units() -> None:
    x = torch.zeros(2, 3, dtype=torch.float64)
    guide = AutoNormal(MixedModel())
    guide.setup(x)
    guide.to(torch.float64)
    with torch.no_grad():
        guide.loc.zero_()
        guide.loc[3] = math.log(0.3)  # "noise", the fourth entry of z
    guide.scale = torch.full_like(guide.loc, 0.4)
    low, middle, high = guide.quantiles([0.1, 0.5, 0.9])["noise"].tolist()
    log_normal = torch.distributions.LogNormal(math.log(0.3), 0.4)
    expected = [float(log_normal.icdf(torch.tensor(q).double())) for q in (0.1, 0.5, 0.9)]
    assert [low, middle, high] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("init_scale", [0, -0.1, math.inf, math.nan, "wide"])
def test_init_scale_has_to_be_positive(init_scale: float) -> None:
    with pytest.raises(OptionError, match="init_scale is a positive standard deviation, not"):
        AutoNormal(linear_gaussian().model, init_scale=init_scale)


def test_init_scale_is_the_first_sd() -> None:
    oracle = linear_gaussian()
    guide = AutoNormal(oracle.model, init_scale=0.25)
    guide.setup(oracle.x)
    torch.testing.assert_close(guide.scale.detach(), torch.full((4,), 0.25).double())
