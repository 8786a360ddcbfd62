"""Last layers of classes: the bound against formulas, draws, quadrature, and its gap."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pyro
import pytest
import torch
from scipy import integrate, special, stats
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import SVI, Posterior, Program, bayesian, likelihoods, priors
from pyro_bnn.guides import AutoComposite, AutoDelta
from pyro_bnn.infer.svi.estimators.last_layer import LastLayer, LastLayerDraws
from tests.infer.test_last_layer import CLASSES, GENERATOR, THREE, Tempered, X, at_random, mlp

PARTS = ["AutoMultivariateNormal", "AutoNormal", "AutoLowRankMultivariateNormal"]
NUM_DRAWS = 10_000


def with_part(part: str, y: Tensor = THREE, likelihood: Any = None) -> tuple[Program, Any]:
    likelihood = likelihoods.Categorical(3) if likelihood is None else likelihood
    parts = {"last layer": {"guide": part}}
    return at_random(mlp(likelihood), y, parts=parts, default=AutoDelta)


def rows_of(estimator: Any, guide: Any, y: Tensor, noise: Tensor | None = None) -> Tensor:
    """Log densities ``[S, N]`` of an estimator, at the centre of all else."""
    own = dict(guide.named_parameters())
    of_guide = torch.zeros(1 if noise is None else len(noise), guide.noise_dim).double()
    given = (of_guide,) if noise is None else (of_guide, noise)
    program = estimator.program
    terms = guide.terms(own, of_guide)
    rows: Tensor
    rows, scale = estimator.rows(terms, given, program.batch(X, y), program.params, own)
    total: Tensor = rows * scale
    return total


def logits(program: Program, guide: Any) -> tuple[Tensor, Tensor]:
    """Means ``[N, C]`` and covariances ``[N, C, C]`` of logits out of weights and features."""
    values = program.constrain(guide.centre())
    h = torch.relu(X @ values["layers.0.weight"].T + values["layers.0.bias"])
    mean = h @ values["layers.1.weight"].T + values["layers.1.bias"]
    q = guide.parts[0].get_posterior()
    S = q.base_dist.scale.square().diag() if hasattr(q, "base_dist") else q.covariance_matrix
    C, D = values["layers.1.weight"].shape
    names = guide.names_of_parts[0]
    J = {"layers.1.weight": torch.einsum("kc,nd->nkcd", torch.eye(C).double(), h).flatten(2)}
    J["layers.1.bias"] = torch.eye(C).double().expand(len(X), C, C)
    jacobian = torch.cat([J[name] for name in names], -1)  # [N, C, P_b]
    assert jacobian.shape[-1] == C * D + C
    return mean.detach(), (jacobian @ S @ jacobian.mT).detach()


@pytest.mark.parametrize("part", PARTS)
def test_the_bound_is_jensens(part: str) -> None:
    program, guide = with_part(part)
    mean, covariance = logits(program, guide)
    moved = mean + 0.5 * covariance.diagonal(dim1=-2, dim2=-1)
    expected = mean.gather(1, THREE.unsqueeze(-1)).squeeze(-1) - moved.logsumexp(-1)
    assert_close(rows_of(LastLayer(program, guide), guide, THREE)[0].detach(), expected)


def drawn(mean: Tensor, covariance: Tensor, y: Tensor) -> Tensor:
    """Log densities of all rows together ``[S]`` at antithetic pairs of draws of logits."""
    root = torch.linalg.cholesky(covariance)
    noise = torch.randn(NUM_DRAWS, *mean.shape, generator=GENERATOR).double()
    pair = torch.stack([noise, -noise])
    z = mean + torch.einsum("nij,psnj->psni", root, pair)
    rows = z.log_softmax(-1).gather(-1, y.expand(2, NUM_DRAWS, -1).unsqueeze(-1))
    return rows.squeeze(-1).sum(-1).mean(0)


@pytest.mark.parametrize("part", PARTS)
def test_it_is_below_the_expectation(part: str) -> None:
    program, guide = with_part(part)
    total = drawn(*logits(program, guide), THREE)
    gap = float(total.mean() - rows_of(LastLayer(program, guide), guide, THREE).detach().sum())
    assert gap > 5 * float(total.std()) / NUM_DRAWS**0.5


def test_it_is_tight_for_small_variances() -> None:
    """The gap is p' S p / 2 to second order, which the expansion of both sides gives."""
    program, guide = with_part("AutoNormal")
    for sd, least in ((0.1, 1.0), (0.01, 0.01)):
        guide.parts[0].set_sds(torch.full((18,), sd))
        mean, covariance = logits(program, guide)
        p = mean.softmax(-1)
        expected = 0.5 * torch.einsum("nk,nkl,nl->", p, covariance, p)
        total = drawn(mean, covariance, THREE)
        gap = float(total.mean() - rows_of(LastLayer(program, guide), guide, THREE).detach().sum())
        assert 0 < gap < least
        error = float(total.std()) / NUM_DRAWS**0.5
        assert abs(gap - float(expected)) < 5 * error + sd * float(expected)


@pytest.mark.slow("a forward pass for each parameter")
def test_its_gradient_is_that_of_finite_differences() -> None:
    program, guide = with_part("AutoMultivariateNormal")
    estimator = LastLayer(program, guide)
    names, values = zip(*guide.named_parameters(), strict=True)
    zero = torch.zeros(1, guide.noise_dim).double()

    def total(*values: Tensor) -> Tensor:
        own = dict(zip(names, values, strict=True))
        terms = guide.terms(own, zero)
        batch = program.batch(X, THREE)
        return estimator.rows(terms, (zero,), batch, program.params, own)[0].sum()

    inputs = tuple(value.detach().clone().requires_grad_() for value in values)
    assert torch.autograd.gradcheck(total, inputs, eps=1e-6, atol=1e-6, rtol=1e-5)


def test_two_logits_are_the_logistic_integral() -> None:
    y = CLASSES.long()
    parts = {"last layer": {"guide": "AutoMultivariateNormal"}}
    program, guide = at_random(mlp(likelihoods.Categorical(2)), y, parts=parts, default=AutoDelta)
    correlations = guide.parts[0].tril_times_root.detach().clone()
    guide.parts[0].set_sds(torch.full((12,), 0.2))  # 20 nodes are enough there
    with torch.no_grad():
        guide.parts[0].tril_times_root.copy_(correlations)
    estimator = LastLayer(program, guide)
    assert not estimator.is_bound
    found = rows_of(estimator, guide, y)[0]
    mean, covariance = logits(program, guide)
    of_gap = mean[:, 1] - mean[:, 0]
    sd = (covariance[:, 0, 0] + covariance[:, 1, 1] - 2 * covariance[:, 0, 1]).sqrt()
    for value, m, s, sign in zip(found.detach(), of_gap, sd, 2 * y - 1, strict=True):
        q = stats.norm(float(m), float(s))

        def density(t: float, q: Any = q, sign: float = float(sign)) -> float:
            return float(special.log_expit(sign * t) * q.pdf(t))

        expected, _ = integrate.quad(density, q.mean() - 12 * q.std(), q.mean() + 12 * q.std())
        assert float(value) == pytest.approx(expected, rel=1e-6)


def test_the_kl_is_that_of_torch() -> None:
    model, _ = frozen(3)
    program, guide = at_random(model, THREE)
    program.prepare(guide)
    params = {f"guide.{name}": value for name, value in guide.named_parameters()}
    noise = torch.zeros(1, guide.noise_dim).double()
    terms = program.elbo(guide, params, noise, program.batch(X, THREE), LastLayer(program, guide))
    q = guide.parts[0].get_posterior()
    p = torch.distributions.MultivariateNormal(torch.zeros(15).double(), 1.5**2 * torch.eye(15))
    q = torch.distributions.MultivariateNormal(q.loc, scale_tril=q.scale_tril)
    assert_close(terms.kl, torch.distributions.kl_divergence(q, p))
    assert_close(
        terms.expected_log_likelihood, rows_of(LastLayer(program, guide), guide, THREE).sum()
    )


def frozen(num_classes: int, likelihood: Any = None) -> tuple[Any, nn.Module]:
    """A Bayesian head of classes on a body that is held fixed."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
        net = nn.Sequential(body, nn.Linear(4, num_classes)).double()
    body.requires_grad_(requires_grad=False)
    likelihood = likelihoods.Categorical(num_classes) if likelihood is None else likelihood
    return bayesian(net, prior={"1.*": priors.Normal(1.5)}, likelihood=likelihood), body


class Weighted(likelihoods.Categorical):
    """Classes of which each row counts half."""

    def forward(self, f: Tensor, y: Tensor | None = None) -> Tensor:
        with pyro.poutine.scale(scale=torch.full((len(f),), 0.5, dtype=f.dtype)):
            return super().forward(f, y)


def test_rows_count_with_their_weights() -> None:
    program, guide = with_part("AutoNormal", likelihood=Weighted(3))
    mean, covariance = logits(program, guide)
    moved = mean + 0.5 * covariance.diagonal(dim1=-2, dim2=-1)
    expected = mean.gather(1, THREE.unsqueeze(-1)).squeeze(-1) - moved.logsumexp(-1)
    assert_close(rows_of(LastLayer(program, guide), guide, THREE)[0].detach(), 0.5 * expected)


@pytest.mark.slow("many draws")
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("likelihood", [likelihoods.Categorical(3), Tempered()])
def test_draws_of_the_outputs_have_the_expectation_of_draws_of_the_layer(
    part: str, likelihood: Any
) -> None:
    program, guide = with_part(part, likelihood=likelihood)
    estimator = LastLayerDraws(program, guide)
    temperature = 2.0 if isinstance(likelihood, Tempered) else 1.0
    noise = estimator.row_noise(NUM_DRAWS, len(X), GENERATOR)
    assert noise.shape[-1] == estimator.row_numbers
    mean, covariance = (
        part / k
        for part, k in zip(logits(program, guide), (temperature, temperature**2), strict=True)
    )
    exact = drawn(mean, covariance, THREE)
    with torch.no_grad():
        found = torch.cat([rows_of(estimator, guide, THREE, part) for part in noise.split(2_000)])
    total = found.sum(-1)
    error = (total.var() / NUM_DRAWS + exact.var() / NUM_DRAWS) ** 0.5
    assert abs(float(total.mean() - exact.mean())) < 5 * float(error)


def test_the_gap_is_that_of_many_draws_and_is_kept(tmp_path: Path) -> None:
    model, body = frozen(3)
    svi = SVI(AutoComposite, estimator="last_layer", num_steps=60, compile=False)
    posterior: Any = svi.run(model, (X, THREE), progress=False)
    q = posterior.guide.parts[0].get_posterior()
    phi = torch.cat([body(X), torch.ones(30, 1)], -1)
    J = torch.cat(
        [
            torch.einsum("kc,nd->nkcd", torch.eye(3).double(), phi[:, :4]).flatten(2),
            torch.eye(3).double().expand(30, 3, 3),
        ],
        -1,
    )
    mean, covariance = J @ q.loc.detach(), J @ q.covariance_matrix.detach() @ J.mT
    total = drawn(mean, covariance, THREE)
    moved = mean + 0.5 * covariance.diagonal(dim1=-2, dim2=-1)
    bound = (mean.gather(1, THREE.unsqueeze(-1)).squeeze(-1) - moved.logsumexp(-1)).sum()
    gap = posterior.bound_gap
    assert abs(gap.gap - float(total.mean() - bound)) < 5 * gap.error
    assert gap.num_rows == 30
    assert gap.a_row == gap.gap / 30
    posterior.save(tmp_path / "a.pt")
    assert Posterior.load(tmp_path / "a.pt", frozen(3)[0]).bound_gap == gap
    exact: Any = SVI(AutoComposite, estimator="last_layer_draws", num_steps=5, compile=False).run(
        frozen(3)[0], (X, THREE), progress=False
    )
    assert exact.bound_gap is None


@pytest.mark.slow("fits a network")
@pytest.mark.parametrize(
    ("estimator", "part"),
    [("last_layer", "AutoMultivariateNormal"), ("last_layer_draws", "AutoNormal")],
)
def test_on_iris_it_predicts_as_well_as_a_logistic_regression(estimator: Any, part: str) -> None:
    x, y = load_iris(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    train_x, test_x, train_y, test_y = train_test_split(x, y, random_state=0, stratify=y)
    net = nn.Linear(4, 3).double()
    model = bayesian(net, prior=priors.Normal(3.0), likelihood=likelihoods.Categorical(3))
    guide = functools.partial(AutoComposite, parts={"last layer": {"guide": part}})
    posterior: Any = SVI(guide, estimator=estimator, num_steps=1_500, learning_rate=0.03).run(
        model, (torch.from_numpy(train_x), torch.from_numpy(train_y)), progress=False
    )
    probs = posterior.predict(torch.from_numpy(test_x)).probs
    other = LogisticRegression(C=9.0).fit(train_x, train_y)  # the same prior
    right, others = probs.argmax(-1).numpy() == test_y, other.predict(test_x) == test_y
    lost, won = (others & ~right).sum(), (right & ~others).sum()
    assert lost - won <= 2 * (lost + won) ** 0.5  # McNemar's test sees no difference
    assert right.mean() > 0.9
