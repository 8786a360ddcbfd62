"""Kronecker factors, subsets and evidence of Laplace's approximation, by their closed forms."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import scipy.optimize
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import Laplace, bayesian, likelihoods, models
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides.kronecker import AutoKroneckerBasis
from pyro_bnn.infer.curvature.gaussian_prior import GaussianPrior
from pyro_bnn.infer.curvature.kronecker import Factors, Kronecker
from pyro_bnn.infer.laplace.mode import MinusLogJoint
from pyro_bnn.posterior import Posterior
from tests.oracle import design, linear_gaussian

ORACLE = linear_gaussian()
GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(30, 2, generator=GENERATOR, dtype=torch.float64)
Y = torch.stack([X[:, 0].sin(), X[:, 1] - 0.5 * X[:, 0]], 1)
Y = Y + 0.3 * torch.randn(30, 2, generator=GENERATOR, dtype=torch.float64)


def fit(model: Any, data: Any = (X, Y), **options: Any) -> Any:
    given: dict[str, Any] = {"num_steps": 300, "compile": False, **options}
    return Laplace(**given).run(model, data, progress=False)


def regression(noise: float = 0.25, **options: Any) -> models.LinearRegression:
    likelihood = likelihoods.Normal(noise)
    return models.LinearRegression(2, num_outputs=2, likelihood=likelihood, **options).double()


def network(**options: Any) -> models.MLP:
    given = {"likelihood": likelihoods.Normal(0.25), "activation": "tanh", **options}
    return models.MLP(2, num_outputs=2, hidden=(4,), **given).double()


def covariance(guide: Any) -> Tensor:
    """Of a guide that is affine in its noise."""
    eye = torch.eye(guide.noise_dim, dtype=torch.float64)
    with torch.no_grad():
        root = guide.transport(eye) - guide.transport(torch.zeros_like(eye[0]))
    product: Tensor = root.mT @ root
    return product


# --- Kronecker factors


@pytest.mark.parametrize("predictive", ["linearised", "weights"])
def test_factors_are_exact_for_a_linear_model_of_several_outputs(predictive: str) -> None:
    """The bias is folded in, and its prior has another scale than that of the weights."""
    exact, kron = (
        fit(regression(), structure=structure, num_steps=3, predictive=predictive)
        for structure in ("full", "kron")
    )
    expected = exact.guide.get_posterior().covariance_matrix.detach()
    assert_close(covariance(kron.guide), expected, rtol=1e-9, atol=1e-12)
    assert kron.log_evidence == pytest.approx(exact.log_evidence, rel=1e-10)
    f, g = (p.function_draws(X, 4_000).std(0) for p in (exact, kron))
    assert float((f / g - 1).abs().max()) < 5 / 4_000**0.5


@pytest.mark.slow("a second or more")
def test_factors_of_a_network_are_the_sums_over_rows() -> None:
    posterior = fit(network(), structure="kron")
    program, z = posterior.program, posterior.guide.centre()
    J = torch.func.jacrev(lambda z: program.function(z, X))(z) / 0.25  # [N, F, P]
    site = {s.name: s for s in program.sites}["layers.0.weight"]
    bias = {s.name: s for s in program.sites}["layers.0.bias"]
    g = J[..., bias.start : bias.stop]
    a = design(X)
    G, A = torch.einsum("nko,nkp->op", g, g), a.T @ a / len(X)
    d = GaussianPrior.of(program, "the test").precision
    of_columns = torch.cat([d[site.start : site.start + 2], d[bias.start : bias.start + 1]])
    whole = torch.kron(G, A) + torch.kron(torch.eye(4).to(G), of_columns.diag())
    index = torch.cat(
        [
            torch.arange(site.start, site.stop).reshape(4, 2),
            torch.arange(bias.start, bias.stop)[:, None],
        ],
        1,
    ).flatten()
    found = covariance(posterior.guide)[index][:, index]
    assert_close(found, torch.linalg.inv(whole), rtol=1e-7, atol=1e-10)


def test_factors_need_layers_of_their_kind() -> None:
    index, eye = torch.arange(6).reshape(2, 3), torch.eye(3).double()
    factors = Factors(torch.ones(6).double(), [(index, eye[:2, :2], eye)])
    with pytest.raises(SiteError, match="the same scale for all rows"):
        Kronecker(factors, torch.arange(1, 7).double())
    with pytest.raises(SiteError, match="the model has none"):
        fit(ORACLE.model, (ORACLE.x, ORACLE.y), structure="kron", num_steps=1)
    shared = torch.nn.Sequential(*[torch.nn.Linear(2, 2)] * 2)
    model = bayesian(shared, likelihood=likelihoods.Normal(0.25)).double()
    with pytest.raises(SiteError, match="applied once"):
        fit(model, structure="kron", num_steps=1)


def test_the_guide_has_the_density_of_its_draws() -> None:
    guide = AutoKroneckerBasis(network())
    guide.setup(X[:1])
    guide.double()
    with torch.no_grad():
        for value in guide.parameters():
            value.add_(0.3 * torch.randn(value.shape, generator=GENERATOR, dtype=torch.float64))
    S, m = covariance(guide), guide.centre()
    z = guide.sample(5, seed=1)
    expected = torch.distributions.MultivariateNormal(m, S).log_prob(z)
    assert_close(guide.log_prob(z), expected, rtol=1e-9, atol=1e-9)
    entropy = torch.distributions.MultivariateNormal(m, S).entropy()
    assert_close(guide.entropy(), entropy, rtol=1e-9, atol=1e-9)
    assert_close(guide.marginals()[1], S.diagonal().sqrt(), rtol=1e-9, atol=1e-9)


# --- subsets


@pytest.mark.slow("a second or more")
def test_the_last_layer_is_a_regression_on_its_features() -> None:
    posterior = fit(network(), subset="last_layer")
    program, z = posterior.program, posterior.guide.centre()
    values = program.constrain(z)
    features = torch.tanh(X @ values["layers.0.weight"].T + values["layers.0.bias"])
    a = design(features)  # [N, 5]
    d = GaussianPrior.of(program, "the test").precision
    weight = {s.name: s for s in program.sites}["layers.1.weight"]
    bias = {s.name: s for s in program.sites}["layers.1.bias"]
    P0 = torch.cat([d[weight.start : weight.start + 4], d[bias.start : bias.start + 1]]).diag()
    P = a.T @ a / 0.25**2 + P0
    mean = torch.linalg.solve(P, a.T @ Y / 0.25**2)  # [5, O]
    own = torch.cat([values["layers.1.weight"], values["layers.1.bias"][:, None]], 1)
    assert_close(own.T, mean, rtol=1e-3, atol=1e-3)  # as near as the mode is
    new = torch.cat([X[:3], 5 * X[:3]])
    rows = torch.tanh(new @ values["layers.0.weight"].T + values["layers.0.bias"])
    expected = ((design(rows) @ torch.linalg.inv(P)) * design(rows)).sum(-1).sqrt()
    f = posterior.function_draws(new, 20_000)  # exact, as f is linear in the last layer
    assert float((f.std(0) / expected[:, None] - 1).abs().max()) < 5 / 40_000**0.5
    assert_close(program.function(z, new), own_function(own, rows), rtol=1e-9, atol=1e-9)
    held = posterior.unconstrained(50)[:, : weight.start]
    assert_close(held, z[: weight.start].expand_as(held), rtol=0, atol=0)


def own_function(own: Tensor, rows: Tensor) -> Tensor:
    return design(rows) @ own.T


@pytest.mark.slow("a second or more")
def test_a_pattern_of_all_sites_is_all_of_them() -> None:
    whole, pattern = (fit(network(), subset=subset) for subset in ("all", "*"))
    assert pattern.log_evidence == pytest.approx(whole.log_evidence, abs=1e-4)


@pytest.mark.parametrize("subset", ["w", 3, "b"])
def test_without_all_entries_there_is_no_evidence(subset: Any, tmp_path: Path) -> None:
    """Entries that are held have a density and no volume: under other units there is another."""
    posterior = fit(ORACLE.model, (ORACLE.x, ORACLE.y), num_steps=3, subset=subset)
    assert math.isnan(posterior.log_evidence)
    assert "log_evidence" not in repr(posterior.options)
    posterior.save(tmp_path / "fit")
    read: Any = Posterior.load(tmp_path / "fit", ORACLE.model)
    assert math.isnan(read.log_evidence)


@pytest.mark.parametrize("subset", ["all", "*", 4])
def test_with_all_entries_the_evidence_is_exact(subset: Any) -> None:
    posterior = fit(ORACLE.model, (ORACLE.x, ORACLE.y), num_steps=3, subset=subset)
    assert posterior.log_evidence == pytest.approx(ORACLE.log_evidence, rel=1e-10)


@pytest.mark.slow("a second or more")
def test_a_number_of_entries_takes_the_widest() -> None:
    model = network()
    whole, few = (fit(model, subset=subset) for subset in ("all", 5))
    z = few.guide.centre()
    program = few.program
    J = torch.func.jacrev(lambda z: program.function(z, X).flatten())(z) / 0.25
    P = J.T @ J + GaussianPrior.of(program, "the test").precision.diag()
    widest = P.diagonal().argsort()[:5].sort().values
    moved = (few.unconstrained(20).std(0) > 0).nonzero()[:, 0]
    assert moved.tolist() == widest.tolist()
    inner = covariance(few.guide)[widest][:, widest]
    assert_close(inner, torch.linalg.inv(P[widest][:, widest]), rtol=1e-7, atol=1e-10)
    all_of_them = fit(model, subset=program.num_latents)
    assert all_of_them.log_evidence == pytest.approx(whole.log_evidence, abs=1e-4)


@pytest.mark.slow("a second or more")
@pytest.mark.parametrize(
    "options",
    [
        {"structure": "kron"},
        {"subset": "last_layer"},
        {"subset": "layers.0.*", "structure": "kron"},
        {"subset": "layers.0.*", "structure": "low_rank", "rank": 3},
        {"subset": 6},
    ],
)
def test_saved_and_loaded_it_predicts_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    posterior = fit(network(), num_steps=50, **options)
    posterior.save(tmp_path / "fit")
    read = Posterior.load(tmp_path / "fit", network())
    assert_close(read.function_draws(X, 9), posterior.function_draws(X, 9), rtol=0, atol=0)


def test_subsets_are_checked() -> None:
    with pytest.raises(SiteError, match=r"subset='head' takes no site: there are layers\.0"):
        fit(network(), subset="head", num_steps=1)
    with pytest.raises(OptionError, match=r'at most 22 here, under structure="full"'):
        fit(network(), subset=23, num_steps=1)
    with pytest.raises(OptionError, match="subset"):
        Laplace(subset=0)
    with pytest.raises(OptionError, match='take subset="all"'):
        Laplace(subset="last_layer", prior_scales="evidence")


# --- evidence


def exact_log_evidence(scales: Tensor) -> Tensor:
    """Log p(y) of the oracle under prior sds of the weights and of the bias."""
    a, noise = design(ORACLE.x), ORACLE.noise
    variances = torch.cat([scales[:1].expand(3), scales[1:]]).square()
    marginal = noise**2 * torch.eye(len(a), dtype=torch.float64) + (a * variances) @ a.T
    zero = torch.zeros(len(a), dtype=torch.float64)
    found: Tensor = torch.distributions.MultivariateNormal(zero, marginal).log_prob(ORACLE.y)
    return found


def test_the_fixed_point_is_where_the_evidence_is_largest() -> None:
    posterior = fit(ORACLE.model, (ORACLE.x, ORACLE.y), num_steps=3, prior_scales="evidence")
    best = scipy.optimize.minimize(
        lambda logs: -float(exact_log_evidence(torch.tensor(logs, dtype=torch.float64).exp())),
        [0.0, 0.0],
        method="Nelder-Mead",
        options={"xatol": 1e-8, "fatol": 1e-12, "maxiter": 2_000},
    )
    found = posterior.options["found_scales"]
    scales = [ORACLE.prior_scale * found[name] for name in ("w", "b")]
    assert [math.log(scale) for scale in scales] == pytest.approx(list(best.x), abs=1e-3)
    assert posterior.log_evidence == pytest.approx(-best.fun, abs=1e-7)


@pytest.mark.slow("a second or more")
def test_the_evidence_of_a_network_is_not_below_that_of_its_own_prior() -> None:
    data = X, Y[:, :1]
    small = models.MLP(2, hidden=(2,), activation="tanh", likelihood=likelihoods.Normal(0.25))
    own, found = (fit(small.double(), data, prior_scales=s) for s in ("model", "evidence"))
    assert found.log_evidence > own.log_evidence + 0.1


@pytest.mark.slow("a second or more")
def test_factors_scale_the_prior() -> None:
    program = fit(network(), num_steps=1).program
    rows, prior = program.batch(X, Y), GaussianPrior.of(program, "the test")
    objective = MinusLogJoint(program, rows, prior)
    objective.factors = torch.full_like(objective.factors, 4.0)
    z = program.initial
    narrow = torch.distributions.Normal(prior.loc, prior.precision.rsqrt() / 2)

    def exact(z: Tensor) -> Tensor:
        found: Tensor = -program.log_likelihood(z, rows).sum() - narrow.log_prob(z).sum()
        return found

    expected = exact(z)
    value, gradient = objective(z)
    assert_close(value, expected, rtol=1e-10, atol=0)
    assert_close(gradient, torch.func.grad(exact)(z), rtol=1e-9, atol=1e-9)
