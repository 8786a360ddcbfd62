"""Models in words."""

from __future__ import annotations

import pyro.distributions as dist
import pytest
import torch
from torch import nn

from pyro_bnn.likelihoods import Categorical, HeteroscedasticNormal
from pyro_bnn.likelihoods import Normal as NormalLikelihood
from pyro_bnn.models import MLP, DeepLinear, LinearRegression, Rank1MLP, bayesian
from pyro_bnn.models.description import describe
from pyro_bnn.priors import Cauchy, Flat, HalfCauchyScale, Horseshoe, Normal


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (MLP(10), "MLP 10-50-1 relu, Normal(fan_in) prior, Normal likelihood"),
        (
            MLP(4, hidden=(8, 3), activation="identity", likelihood=Categorical(5)),
            "MLP 4-8-3-5 identity, Normal(fan_in) prior, Categorical likelihood",
        ),
        (
            MLP(4, 2, hidden=(8,), prior=Normal(scale=0.2), likelihood=HeteroscedasticNormal()),
            "MLP 4-8-4 relu, Normal(0, 0.2) prior, HeteroscedasticNormal likelihood",
        ),
        (
            MLP(4, activation=torch.nn.LeakyReLU(0.2), prior=Flat()),
            "MLP 4-50-1 LeakyReLU, Flat prior, Normal likelihood",
        ),
        (
            MLP(4, prior={"*.weight": dist.Laplace(1.0, 0.5), "*": dist.Normal(0.0, 0.3)}),
            "MLP 4-50-1 relu, Laplace(1, 0.5) and Normal(0, 0.3) priors, Normal likelihood",
        ),
        (
            MLP(4, prior={"*.weight": Normal(), "*": dist.StudentT(3.0, 0.0, 2.0)}),
            "MLP 4-50-1 relu, Normal(fan_in) and StudentT(3, 0, 2) priors, Normal likelihood",
        ),
        (  # half-distributions are transformed ones, and no Cauchy
            MLP(4, prior=dist.HalfCauchy(2.0)),
            "MLP 4-50-1 relu, HalfCauchy(2) prior, Normal likelihood",
        ),
        (
            MLP(4, prior={"*.weight": HalfCauchyScale(per="unit"), "*": Normal(scale=0.5)}),
            "MLP 4-50-1 relu, HalfCauchyScale and Normal(0, 0.5) priors, Normal likelihood",
        ),
        (
            MLP(4, prior=Horseshoe(centred=True)),
            "MLP 4-50-1 relu, Horseshoe (centred) prior, Normal likelihood",
        ),
        (
            LinearRegression(4, likelihood=NormalLikelihood(scale=0.7)),
            "LinearRegression 4-1, Normal(fan_in) prior, Normal(0.7) likelihood",
        ),
        (
            LinearRegression(4, 3, likelihood=NormalLikelihood(scale=[0.5, 0.6, 0.7])),
            "LinearRegression 4-3, Normal(fan_in) prior, Normal likelihood",
        ),
        (
            DeepLinear(4, 2, hidden=(8,), bias=False),
            "DeepLinear 4-8-2, Normal(fan_in) prior, Normal likelihood",
        ),
        (
            Rank1MLP(4, hidden=(8,)),
            "Rank1MLP 4-8-1 relu, Normal(1, 0.1) prior, Normal likelihood, "
            "4 tensors point-estimated with a weight prior",
        ),
        (
            Rank1MLP(4, hidden=(8,), weight_prior=None, prior=Cauchy(loc=1.0, scale=0.2)),
            "Rank1MLP 4-8-1 relu, Cauchy(1, 0.2) prior, Normal likelihood, "
            "4 tensors point-estimated",
        ),
    ],
)
def test_networks_say_sizes_prior_and_likelihood(model: nn.Module, words: str) -> None:
    assert describe(model) == words


def test_a_prior_of_many_scales_is_named_without_them() -> None:
    prior = dist.Normal(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0])).to_event(1)
    net = bayesian(torch.nn.Linear(2, 3), prior={"bias": prior})
    assert describe(net) == (
        "bayesian(Linear), Normal prior, Normal likelihood, 1 tensor point-estimated"
    )


def test_many_priors_are_counted() -> None:
    priors = {f"layers.{i}.*": dist.Normal(0.0, 1.0 + i) for i in range(4)}
    assert describe(MLP(2, hidden=(2, 2, 2), prior=priors)) == (
        "MLP 2-2-2-2-1 relu, 4 different priors, Normal likelihood"
    )


def test_point_estimates_of_a_network_are_counted() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.SiLU(), torch.nn.Linear(4, 1))
    assert describe(bayesian(net, prior={"2.*": Normal()})) == (
        "bayesian(Sequential), Normal(fan_in) prior, Normal likelihood, 2 tensors point-estimated"
    )


def test_what_is_no_network_of_this_package_has_a_name() -> None:
    class Cubic:
        pass

    class Speaking:
        def describe(self) -> str:
            return "a cubic with Student noise"

    def line() -> None:
        """Stand-in for a model that is a function."""

    assert describe(Cubic()) == "Cubic"
    assert describe(Speaking()) == "a cubic with Student noise"
    assert describe(line) == "line"
    assert describe("MLP 1-5-1, of a file") == "MLP 1-5-1, of a file"
