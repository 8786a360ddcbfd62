"""Linear regression against Gaussian conditioning, and what is not conjugate."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import likelihoods, priors
from pyro_bnn.data import Dataset
from pyro_bnn.errors import ModelError, ShapeError, SiteError
from pyro_bnn.models import LinearRegression
from pyro_bnn.program import Program
from tests.oracle import LinearGaussian, design, linear_gaussian

EXACT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-10}


def one_target(oracle: LinearGaussian) -> LinearRegression:
    """The oracle's model; its scales are multiples of powers of two, the same in float32."""
    return LinearRegression(
        oracle.x.shape[1],
        prior=priors.Normal(scale=oracle.prior_scale),
        likelihood=likelihoods.Normal(scale=oracle.noise),
    )


@pytest.fixture(scope="module")
def oracle() -> LinearGaussian:
    return linear_gaussian(prior_scale=1.25, correlation=0.9)


def test_posterior_and_evidence_are_the_closed_form(oracle: LinearGaussian) -> None:
    for model, x in ((one_target(oracle), oracle.x), (one_target(oracle).double(), oracle.x)):
        exact = model.exact_posterior((x, oracle.y))
        assert_close(exact.precision, oracle.precision, **EXACT)
        assert_close(exact.mean, oracle.mean, **EXACT)
        assert_close(exact.covariance, oracle.covariance, **EXACT)
        assert exact.log_evidence == pytest.approx(oracle.log_evidence, rel=1e-12)
        assert model.log_evidence(Dataset(x, oracle.y)) == exact.log_evidence
        z = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        assert_close(exact.log_prob(z), oracle.log_posterior(z), **EXACT)


def conditioned(
    a: Tensor, y: Tensor, loc: Tensor, scale: Tensor, noise: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, covariance and log evidence of one target by conditioning the joint Gaussian on y."""
    cross = a * scale**2  # Cov(y, z) [N, I + 1]
    marginal = cross @ a.T + noise**2 * torch.eye(len(y), dtype=torch.float64)
    gain = torch.linalg.solve(marginal, cross).T  # [I + 1, N]
    evidence = torch.distributions.MultivariateNormal(a @ loc, marginal).log_prob(y)
    return loc + gain @ (y - a @ loc), torch.diag(scale**2) - gain @ cross, evidence


def test_targets_have_noises_and_priors_of_their_own() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(15, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(15, 3, generator=generator, dtype=torch.float64)
    locs = torch.tensor([[0.5, -1.0], [0.0, 0.25], [2.0, 1.0]])
    scales = torch.tensor([[1.0, 0.5], [2.0, 0.25], [1.5, 4.0]])
    model = LinearRegression(
        2,
        3,
        prior={"weight": dist.Normal(locs, scales), "bias": priors.Normal(scale=0.5, loc=-0.75)},
        likelihood=likelihoods.Normal(scale=[0.5, 1.0, 0.25]),
    )
    exact = model.exact_posterior((x, y))
    evidence = torch.zeros((), dtype=torch.float64)
    covariance = torch.zeros(9, 9, dtype=torch.float64)
    for target, noise in enumerate((0.5, 1.0, 0.25)):
        loc = torch.tensor([*locs[target], -0.75], dtype=torch.float64)
        scale = torch.tensor([*scales[target], 0.5], dtype=torch.float64)
        mean, own, log_p = conditioned(design(x), y[:, target], loc, scale, noise)
        entries = torch.tensor([2 * target, 2 * target + 1, 6 + target])
        assert_close(exact.mean[entries], mean, **EXACT)
        covariance[entries[:, None], entries] = own
        evidence = evidence + log_p
    assert_close(exact.covariance, covariance, **EXACT)
    assert exact.log_evidence == pytest.approx(float(evidence), rel=1e-12)


def test_entries_of_z_stand_as_in_the_program(oracle: LinearGaussian) -> None:
    """Bayes' rule at any z: log p(y, z) - log p(z | y) is the log evidence."""
    y = torch.stack([oracle.y, -oracle.y + oracle.x[:, 0]], 1)
    model = LinearRegression(3, 2, likelihood=likelihoods.Normal(scale=[0.5, 0.75])).double()
    exact, program = model.exact_posterior((oracle.x, y)), Program(model, oracle.x, y)
    assert [site.name for site in program.sites] == ["weight", "bias"]
    z = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    log_joint = program.log_joint(z, program.batch(oracle.x, y))
    expected = torch.full((5,), exact.log_evidence, dtype=torch.float64)
    assert_close(log_joint - exact.log_prob(z), expected, **EXACT)


def test_f_is_linear_and_noise_is_that_of_a_standardised_target() -> None:
    model = LinearRegression(3, 2)
    x = torch.randn(6, 3)
    nodes: Any = poutine.trace(model).get_trace(x).nodes
    f = x @ nodes["weight"]["value"].T + nodes["bias"]["value"]
    assert_close(nodes["f"]["value"], f)
    assert_close(nodes["y"]["fn"].base_dist.scale, torch.ones(6, 2))
    assert "likelihood.scale" not in nodes


def test_other_likelihoods_and_hierarchies_make_other_models() -> None:
    model = LinearRegression(
        3,
        likelihood=likelihoods.Bernoulli(),
        prior={"weight": priors.Horseshoe(), "*": dist.Normal(0, 1)},
    )
    nodes = poutine.trace(model).get_trace(torch.randn(6, 3)).nodes
    assert type(nodes["y"]["fn"]).__name__ == "Bernoulli"
    assert "weight.raw" in nodes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior": priors.Laplace()}, "under the Laplace prior of 'weight': take independent"),
        (
            {"prior": {"weight": priors.Normal(), "*": priors.Flat()}},
            "ImproperUniform prior of 'bi",
        ),
        ({"prior": priors.Horseshoe()}, "under the Horseshoe prior of 'weight'"),
        ({"likelihood": likelihoods.Normal()}, r"the Normal likelihood, of learned scale: fix th"),
        ({"likelihood": likelihoods.StudentT()}, "with the StudentT likelihood, of another family"),
    ],
)
def test_what_is_not_conjugate_is_refused(options: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        LinearRegression(2, **options).log_evidence((torch.zeros(4, 2), torch.zeros(4)))


def test_rows_of_another_shape_are_refused() -> None:
    model = LinearRegression(2)
    with pytest.raises(ShapeError, match=r"x has shape \(4, 3\), but the model takes \[N, 2\]"):
        model.exact_posterior((torch.zeros(4, 3), torch.zeros(4)))
    with pytest.raises(ShapeError, match=r"y has shape \(4, 2\), but the model has 1 targets"):
        model.exact_posterior((torch.zeros(4, 2), torch.zeros(4, 2)))
    with pytest.raises(ShapeError, match=r"x has shape \(4, 3\)"):
        model(torch.zeros(4, 3))


def test_a_weight_without_a_prior_is_refused() -> None:
    with pytest.raises(SiteError, match="no prior pattern matches bias; every weight of the Lin"):
        LinearRegression(2, prior={"weight": priors.Normal()})
