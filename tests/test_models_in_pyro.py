"""What Pyro users do with models: draw their graph, hold sites, and set them from outside."""

from __future__ import annotations

import re
from typing import Any

import pyro
import pytest
import torch
from pyro import poutine
from pyro.infer import Predictive, Trace_ELBO
from pyro.infer.inspect import get_model_relations
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import NUTS, SVI, Laplace, likelihoods, models, priors
from pyro_bnn.errors import ModelError
from pyro_bnn.guides import AutoNormal
from pyro_bnn.program import Program
from tests import plain_pyro
from tests.oracle import LinearGaussian, linear_gaussian, log_normal

# --- the graph of a model -------------------------------------------------------------------------

OURS = ["normal-learned", "heteroscedastic", "categorical", "bayesian-linear", "bayesian-conv"]


@pytest.mark.parametrize("name", OURS)
def test_the_graph_of_a_network_has_an_edge_from_each_site_to_y(name: str) -> None:
    case = plain_pyro.CASES[name]
    model, (x, y) = case.build(), plain_pyro.data(case.target)
    sites = [site.name for site in Program(model, x, y).sites]
    found = get_model_relations(model, (x, y))
    weights = [name for name in sites if not name.startswith("likelihood.")]
    edges = {**{name: [] for name in sites}, "f": weights, "y": sites}  # f is passed through
    assert found["sample_sample"] == edges
    assert found["observed"] == ["f", "y"]  # what is recorded counts as observed
    assert found["plate_sample"] == {"data": ["y"]}


def test_the_graph_of_a_hierarchy_has_the_edges_of_its_centring() -> None:
    x, y = plain_pyro.data()
    for centred in (False, True):
        prior: dict[str, Any] = {
            "*.weight": priors.HalfCauchyScale(centred=centred),
            "*": priors.Normal(),
        }
        edges = get_model_relations(models.MLP(3, hidden=(2,), prior=prior), (x, y))
        of_y = edges["sample_sample"]["y"]
        scale = "layers.0.weight.scale"
        if centred:  # the weight is drawn given its scale, of which y is independent given it
            assert edges["sample_sample"]["layers.0.weight.value"] == [scale]
            assert "layers.0.weight.value" in of_y
            assert scale not in of_y
        else:
            assert edges["sample_sample"]["layers.0.weight.raw"] == []
            assert {scale, "layers.0.weight.raw"} <= {*of_y}


def test_render_model_draws_the_graph() -> None:
    pytest.importorskip("graphviz")
    model, (x, y) = models.MLP(3, hidden=(2,)), plain_pyro.data()
    source = pyro.render_model(model, model_args=(x, y), render_distributions=True).source
    edges = {tuple(part.strip('"') for part in e) for e in re.findall(r"(\S+) -> (\S+)", source)}
    sites = {site.name for site in Program(model, x, y).sites}
    of_f = {(name, "f") for name in sites - {"likelihood.scale"}}
    assert edges == of_f | {(name, "y") for name in sites}
    assert len(edges) == 9
    assert "cluster_data" in source
    assert "layers.0.weight ~ Normal" in source


# --- sites set from outside -----------------------------------------------------------------------

ORACLE = linear_gaussian()
SET = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
HANDLERS: dict[str, Any] = {"do": poutine.do, "condition": poutine.condition}


def linear() -> models.LinearRegression:
    """The oracle's model as one of ours; its sites are ``weight`` [1, 3] and ``bias`` [1]."""
    with plain_pyro.default_dtype(torch.float64):  # of the scales
        prior, noise = priors.Normal(ORACLE.prior_scale), likelihoods.Normal(ORACLE.noise)
        return models.LinearRegression(3, prior=prior, likelihood=noise)


def with_set_weight(oracle: LinearGaussian) -> tuple[Tensor, Tensor, float]:
    """Posterior mean and variance of the bias ``[1]`` beside the set weight, and log evidence."""
    rest = oracle.y - (oracle.x @ SET.T).squeeze(-1)
    precision = len(rest) / oracle.noise**2 + 1 / oracle.prior_scale**2
    mean = rest.sum() / oracle.noise**2 / precision
    ones = torch.ones(len(rest), len(rest), dtype=torch.float64)
    marginal = oracle.noise**2 * torch.eye(len(rest)) + oracle.prior_scale**2 * ones
    evidence = torch.distributions.MultivariateNormal(torch.zeros_like(rest), marginal)
    variance = torch.full_like(mean, 1 / precision)
    return mean.reshape(1), variance.reshape(1), float(evidence.log_prob(rest))


@pytest.mark.parametrize("handler", HANDLERS)
def test_laplace_is_exact_where_a_weight_is_set(handler: str) -> None:
    """Under ``do`` the site of the weight stays, with its prior; ``condition`` counts its density.

    y is explained by the value that was set, in both.
    """
    model = HANDLERS[handler](linear(), data={"weight": SET})
    engine = Laplace(num_steps=3, compile=False)
    posterior: Any = engine.run(model, (ORACLE.x, ORACLE.y), progress=False)
    mean, variance, evidence = with_set_weight(ORACLE)
    if handler == "do":
        mean = torch.cat([torch.zeros(3, dtype=torch.float64), mean])
        variance = torch.cat(
            [torch.full((3,), ORACLE.prior_scale**2, dtype=torch.float64), variance]
        )
    else:
        evidence += float(log_normal(SET, ORACLE.prior_scale).sum())
    q = posterior.guide.get_posterior()
    assert_close(q.loc.detach(), mean, rtol=1e-9, atol=1e-9)
    assert_close(q.covariance_matrix.detach(), variance.diag(), rtol=1e-9, atol=1e-9)
    assert posterior.log_evidence == pytest.approx(evidence, rel=1e-9)
    f, bias = posterior.function_draws(ORACLE.x, 7), posterior.sample(7)["bias"]
    assert_close(f, ORACLE.x @ SET.T + bias.unsqueeze(-1))


def test_the_elbo_at_the_posterior_of_an_intervened_model_is_its_evidence() -> None:
    """Of stock Pyro's estimator with a guide of ours, whose every draw is exact there."""
    model = poutine.do(linear(), data={"weight": SET})
    mean, variance, evidence = with_set_weight(ORACLE)
    guide = AutoNormal(model)
    guide.setup(ORACLE.x)
    guide.to(torch.float64)
    guide.move_to(torch.cat([torch.zeros(3, dtype=torch.float64), mean]))
    guide.set_sds(
        torch.cat([torch.full((3,), ORACLE.prior_scale, dtype=torch.float64), variance.sqrt()])
    )
    for vectorized in (False, True):
        elbo = Trace_ELBO(num_particles=2, vectorize_particles=vectorized, max_plate_nesting=1)
        assert elbo.loss(model, guide, ORACLE.x, ORACLE.y) == pytest.approx(-evidence, rel=1e-6)


@pytest.mark.slow("a second or more")
def test_nuts_draws_the_prior_of_a_weight_that_is_set() -> None:
    model = poutine.do(linear(), data={"weight": SET})
    sampler = NUTS(num_chains=4, warmup_steps=60, num_samples=100, compile=True)
    z = sampler.run(model, (ORACLE.x, ORACLE.y), progress=False).unconstrained().double()
    mean, variance, _ = with_set_weight(ORACLE)
    mean = torch.cat([torch.zeros(3, dtype=torch.float64), mean])
    variance = torch.cat([torch.full((3,), ORACLE.prior_scale**2, dtype=torch.float64), variance])
    error = (variance / 100).sqrt()  # of a quarter of the draws
    assert float(((z.mean(0) - mean) / error).abs().max()) < 5
    assert_close(z.var(0), variance, rtol=0.5, atol=0)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("handler", HANDLERS)
def test_predictions_with_a_set_weight_take_the_rest_from_the_draws(
    handler: str, parallel: bool
) -> None:
    """Last weights of 0 leave the last bias, that of each draw, at every row."""
    net, (x, y) = models.MLP(3, hidden=(4,)), plain_pyro.data()
    engine = SVI(AutoNormal, num_steps=3, compile=False)
    draws = engine.run(net, (x, y), progress=False).sample(5)
    model = HANDLERS[handler](net, data={"layers.1.weight": torch.zeros(1, 4)})
    own = {n: value for n, value in draws.items() if n != "layers.1.weight" or handler == "do"}
    f = Predictive(model, own, return_sites=("f",), parallel=parallel)(x)["f"]
    assert_close(f.reshape(5, 12), draws["layers.1.bias"].expand(5, 12))
    free = Predictive(model, num_samples=4, return_sites=("f", "layers.1.bias"), parallel=parallel)
    drawn = free(x)
    assert float(drawn["layers.1.bias"].std()) > 0
    assert_close(drawn["f"].reshape(4, 12), drawn["layers.1.bias"].reshape(4, 1).expand(4, 12))


def test_a_misspelt_site_is_not_set_in_silence() -> None:
    x, y = plain_pyro.data()
    model = poutine.do(models.MLP(3, hidden=(4,)), data={"layer.0.bias": torch.zeros(4)})
    expected = r"poutine.do sets 'layer.0.bias', which the model does not have; its sites are .*lay"
    with pytest.raises(ModelError, match=expected):
        Program(model, x, y)
