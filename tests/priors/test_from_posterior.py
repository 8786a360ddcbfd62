"""The posterior of task 1 as the prior of task 2, against the exact posterior of both."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import NUTS, SVI, Posterior, guides, likelihoods, models, priors
from pyro_bnn.errors import OptionError, ShapeError, SiteError
from pyro_bnn.models.description import describe
from pyro_bnn.posterior import DrawsPosterior, GuidePosterior, Provenance
from pyro_bnn.priors import FromPosterior, continued
from pyro_bnn.priors.from_posterior import gaussian_of, moments_of
from pyro_bnn.program import Program
from tests.guides.exact import at, exact_posterior
from tests.guides.layered import layered
from tests.laws import objective
from tests.oracle import LinearGaussian, design, linear_gaussian

NUM_FIRST = 9  # rows of task 1


def parts(oracle: LinearGaussian) -> tuple[LinearGaussian, LinearGaussian]:
    """Task 1 with its exact posterior given the prior, and the rows of task 2."""
    x, y = oracle.x[:NUM_FIRST], oracle.y[:NUM_FIRST]
    a = design(x)
    eye = torch.eye(a.shape[1], dtype=torch.float64)
    precision = a.T @ a / oracle.noise**2 + eye / oracle.prior_scale**2
    covariance = torch.linalg.inv(precision)
    first = dataclasses.replace(
        oracle,
        x=x,
        y=y,
        precision=precision,
        covariance=(covariance + covariance.T) / 2,
        mean=covariance @ a.T @ y / oracle.noise**2,
    )
    return first, dataclasses.replace(oracle, x=oracle.x[NUM_FIRST:], y=oracle.y[NUM_FIRST:])


def gaussian_posterior(model: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and precision of a posterior that is Gaussian: of its log joint, a quadratic."""
    program = Program(model, x, y)
    rows, zero = program.batch(x, y), torch.zeros(program.num_latents, dtype=torch.float64)

    def log_joint(z: Tensor) -> Tensor:
        return program.log_joint(z, rows)

    precision = -torch.func.jacrev(torch.func.grad(log_joint))(zero)
    return torch.linalg.solve(precision, torch.func.grad(log_joint)(zero)), precision


def fit_of(model: Any, x: Tensor, y: Tensor, guide: Any) -> GuidePosterior:
    """A guide as what a fit returns."""
    return GuidePosterior(Program(model, x, y), guide, Provenance(type(guide).__name__, "SVI"))


def test_two_tasks_in_turn_are_both_tasks_together() -> None:
    oracle = linear_gaussian()
    first, second = parts(oracle)
    model = continued(oracle.model, exact_posterior(first))
    mean, precision = gaussian_posterior(model, second.x, second.y)
    assert_close(precision, oracle.precision, rtol=1e-9, atol=1e-9)
    assert_close(mean, oracle.mean, rtol=1e-9, atol=1e-9)


@pytest.mark.slow("about a second")
def test_the_joint_density_is_that_of_the_earlier_posterior() -> None:
    """p(D2 | D1) = p(D1, D2) / p(D1): the normaliser is right too, not the shape alone."""
    oracle = linear_gaussian()
    first, second = parts(oracle)
    posterior = exact_posterior(first)
    program = Program(continued(oracle.model, posterior), second.x, second.y)
    z = torch.linspace(-2, 2, 20, dtype=torch.float64).reshape(5, 4)
    exact = stats.multivariate_normal(first.mean.numpy(), first.covariance.numpy())
    assert_close(program.log_prior(z, second.x), torch.from_numpy(exact.logpdf(z.numpy())))
    draws = program.prior_draws(600, second.x)
    errors = (draws - first.mean) @ torch.linalg.inv(torch.linalg.cholesky(first.covariance)).T
    second_moments = errors.T @ errors / len(draws)  # of variance 1, or 2 on the diagonal
    assert float((second_moments - torch.eye(4)).abs().max()) < 4.5 * (2 / len(draws)) ** 0.5


def orthogonal() -> tuple[Tensor, Tensor]:
    """Inputs whose design matrix has orthogonal columns within each task, and targets."""
    x = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]], dtype=torch.float64)
    return torch.cat([x, 2 * x]), torch.arange(8, dtype=torch.float64).cos()


def linear_model(prior: Any, noise: float = 0.5) -> models.MLP:
    """Linear regression as a network without hidden layers."""
    return models.MLP(2, hidden=(), prior=prior, likelihood=likelihoods.Normal(noise)).double()


@pytest.mark.parametrize("way", ["by name", "by name and pattern", "continued"])
def test_mean_field_is_exact_where_the_posterior_is_independent(way: str) -> None:
    (x, y), start = orthogonal(), linear_model(priors.Normal(1.3))
    mean, precision = gaussian_posterior(start, x[:4], y[:4])
    guide = guides.AutoNormal(start)
    guide.setup(x)
    guide.double()
    guide.move_to(mean)
    guide.scale = precision.diagonal().rsqrt()
    fit = fit_of(start, x[:4], y[:4], guide)
    prior: Any = FromPosterior(fit)
    if way == "by name and pattern":
        prior = {"layers.0.weight": prior, "layers.0.bias": FromPosterior(fit)}
    model = continued(start, fit) if way == "continued" else linear_model(prior)
    expected_mean, expected_precision = gaussian_posterior(start, x, y)
    mean, precision = gaussian_posterior(model, x[4:], y[4:])
    assert_close(precision, expected_precision, rtol=1e-6, atol=1e-6)  # 1.3 is held as float32
    assert_close(mean, expected_mean, rtol=1e-6, atol=1e-6)
    assert Program(model, x, y).latents.is_closed_form()  # its KL from the next AutoNormal


# --- noise scales, hierarchies, several guides ---------------------------------------------------


def rows() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)
    return x, (2 * x[:, :1]).sin()


def network(prior: Any = None, likelihood: Any = None) -> models.MLP:
    return models.MLP(2, hidden=(2,), prior=prior, likelihood=likelihood).double()


GUIDES: dict[str, Any] = {
    "mean field": guides.AutoNormal,
    "k-tied": guides.AutoKTiedNormal,
    "full": guides.AutoMultivariateNormal,
    "low rank": guides.AutoLowRankMultivariateNormal,
    "matrix": guides.AutoMatrixNormal,
}


@pytest.fixture(scope="module", params=GUIDES)
def fit(request: pytest.FixtureRequest) -> Posterior:
    """A fit of a network with a hierarchy and a learned noise scale."""
    prior = {"layers.0.weight": priors.HalfCauchyScale(per="unit"), "*": priors.Normal()}
    engine = SVI(GUIDES[request.param], num_steps=60, learning_rate=0.05, compile=False)
    return engine.run(network(prior), rows(), progress=False)


@pytest.mark.slow("a second or more")
def test_every_gaussian_guide_is_carried_on_whole(fit: Posterior) -> None:
    """The prior of task 2 is q of task 1 in z: hierarchies and positive sites included."""
    assert isinstance(fit, GuidePosterior)
    (x, y), model = rows(), continued(fit.model, fit)
    program = Program(model, x, y)
    assert [site.name for site in program.sites] == [site.name for site in fit.program.sites]
    z = fit.unconstrained(20)
    with torch.no_grad():
        assert_close(program.log_prior(z, x), fit.guide.log_prob(z), rtol=1e-9, atol=1e-9)
        guide = guides.AutoNormal(model)
        guide.setup(x)
        batch, noise = program.batch(x, y), guide.draw_noise(3, torch.Generator().manual_seed(0))
    results = [objective(guide, program, captured=c)[1](noise, batch) for c in (True, False)]
    for captured, plain in zip(*results, strict=True):
        assert_close(captured, plain, rtol=1e-10, atol=1e-10)
    assert describe(model).endswith("likelihood, its prior replaced by an earlier posterior")


def test_correlations_are_left_out_only_where_that_is_asked_for(fit: Posterior) -> None:
    assert isinstance(fit, GuidePosterior)
    if type(fit.guide) in (guides.AutoNormal, guides.AutoKTiedNormal):
        prior = FromPosterior(fit)
    else:
        message = r"is no product of independent Gaussians: priors.continued\(model, posterior\)"
        with pytest.raises(OptionError, match=message):
            FromPosterior(fit)
        prior = FromPosterior(fit, marginals=True)
    marginals = fit.guide.marginals()
    assert marginals is not None
    assert_close(prior.loc, marginals[0].detach())
    assert_close(prior.scale, marginals[1].detach())
    with pytest.raises(SiteError, match=r"no site 'layers.0.weight' to take .* hierarchical prior"):
        network(prior)
    shared = {"layers.1.*": prior, "*": priors.Normal()}
    noise = likelihoods.Normal(prior.distribution_of("likelihood.scale"))
    x, y = rows()
    program = Program(network(shared, noise), x, y)
    run = program.run_at(program.initial, (x[:1],))
    sites = {site.name: site for site in fit.program.sites}
    weight = sites["layers.1.weight"]
    assert_close(run.latent["layers.1.weight"]["fn"].mean, weight.unconstrained(prior.loc))
    scale, site = torch.tensor(0.3, dtype=torch.float64), sites["likelihood.scale"]
    m, s = float(prior.loc[site.start]), float(prior.scale[site.start])
    expected = stats.lognorm(s, scale=np.exp(m)).logpdf(0.3)
    actual = run.latent["likelihood.scale"]["fn"].log_prob(scale)
    assert_close(actual, torch.tensor(expected), rtol=1e-10, atol=0)


def test_parts_of_a_guide_are_one_gaussian_in_the_order_of_the_model() -> None:
    """Part "a" is z_0 and z_2, which are correlated; "b" is z_1 and z_3, which are not."""
    oracle = layered()
    parts = {"a": guides.AutoMultivariateNormal, "b": guides.AutoNormal}
    guide = guides.AutoComposite(oracle.model, parts)
    at(guide, oracle)
    full, normal = guide.parts
    assert isinstance(full, guides.AutoMultivariateNormal)
    assert isinstance(normal, guides.AutoNormal)
    full.set_moments(torch.tensor([1.0, 3.0]).double(), torch.tensor([[1.0, 2], [2, 5]]).double())
    normal.move_to(torch.tensor([2.0, 4.0]).double())
    normal.scale = torch.tensor([3.0, 0.5]).double()
    found = gaussian_of(fit_of(oracle.model, oracle.x, oracle.y, guide))
    assert found is not None
    assert found.scale_tril is not None
    assert_close(found.loc, torch.arange(1.0, 5.0).double())
    covariance = torch.tensor([[1.0, 0, 2, 0], [0, 9, 0, 0], [2, 0, 5, 0], [0, 0, 0, 0.25]])
    assert_close(found.scale_tril @ found.scale_tril.T, covariance.double())


def drawn(oracle: LinearGaussian, num_draws: int) -> DrawsPosterior:
    """Exact draws, as a sampler stores them."""
    program = Program(oracle.model, oracle.x, oracle.y)
    z = torch.distributions.MultivariateNormal(oracle.mean, oracle.covariance)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DrawsPosterior(
            program, z.sample(torch.Size([2, num_draws // 2])), Provenance("NUTS", "NUTS")
        )


def test_draws_are_carried_on_by_their_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    oracle = linear_gaussian()
    posterior = drawn(oracle, 400)
    z = posterior.stored.flatten(0, 1).numpy()
    assert gaussian_of(posterior) is None
    moments = moments_of(posterior, full=True)
    assert moments.scale_tril is not None
    assert_close(moments.loc, torch.from_numpy(z.mean(0)))
    assert_close(moments.scale_tril @ moments.scale_tril.T, torch.from_numpy(np.cov(z.T)))
    prior = FromPosterior(posterior, marginals=True)
    assert_close(prior.scale, torch.from_numpy(z.std(0, ddof=1)))
    program = Program(continued(oracle.model, posterior), oracle.x, oracle.y)
    expected = stats.multivariate_normal(z.mean(0), np.cov(z.T)).logpdf(np.zeros(4))
    actual = program.log_prior(torch.zeros(4, dtype=torch.float64), oracle.x)
    assert float(actual) == pytest.approx(float(expected), rel=1e-9)
    few = drawn(oracle, 8)
    monkeypatch.delattr(torch.linalg, "cholesky_ex")  # of so few it would be of no use
    with pytest.raises(OptionError, match="8 draws are too few for the covariance of P = 4 numb"):
        continued(oracle.model, few)


@pytest.mark.slow("a second or more")
def test_engines_run_on_it_and_files_know_it(tmp_path: Path) -> None:
    oracle = linear_gaussian()
    first, second = parts(oracle)
    posterior = exact_posterior(first)
    model, data = continued(oracle.model, posterior), (second.x, second.y)
    sampler = NUTS(num_chains=8, warmup_steps=20, num_samples=20, compile=False)
    z = sampler.run(model, data, progress=False, init=posterior).unconstrained(160)
    errors = (z - oracle.mean).mean(0) / oracle.covariance.diagonal().sqrt()
    assert float(errors.abs().max()) < 4 / 40**0.5  # at least 40 effective draws
    engine = SVI(guides.AutoMultivariateNormal, num_steps=20, compile=False)
    engine.run(model, data, progress=False, init=posterior).save(tmp_path / "fit.pt")
    Posterior.load(tmp_path / "fit.pt", continued(oracle.model, posterior))
    with pytest.raises(SiteError, match="differs from the one saved"):
        Posterior.load(tmp_path / "fit.pt", oracle.model)


# --- what cannot be carried on -------------------------------------------------------------------


def test_other_models_are_refused() -> None:
    x, y = (value.float() for value in rows())
    start = models.MLP(2, hidden=(2,))
    guide = guides.AutoNormal(start)
    guide.setup(x)
    posterior = fit_of(start, x, y, guide)
    wider = models.MLP(2, hidden=(3,))
    with pytest.raises(SiteError, match=r"samples 'layers.0.weight' \(3, 2\) where .* \(2, 2\)"):
        Program(continued(wider, posterior), x, y)
    with pytest.raises(ShapeError, match=r"'layers.0.weight' of the earlier posterior has shape"):
        models.MLP(2, hidden=(3,), prior=FromPosterior(posterior))
    deeper = models.MLP(2, hidden=(2, 1))
    with pytest.raises(SiteError, match=r"samples 'layers.2.weight' \(1, 1\) where .* 'likelihood"):
        Program(continued(deeper, posterior), x, y)
    fixed = models.MLP(2, hidden=(2,), likelihood=likelihoods.Normal(0.1))
    with pytest.raises(SiteError, match=r"does not sample likelihood.scale, which the earlier"):
        Program(continued(fixed, posterior), x, y)
    with pytest.raises(
        OptionError, match=r"layers.0.weight.* are point estimates, of which a post"
    ):
        continued(models.Rank1MLP(2, hidden=(2,)), posterior)
    point = guides.AutoDelta(start)
    point.setup(x)
    with pytest.raises(OptionError, match="AutoDelta has no spread in some direction"):
        continued(start, fit_of(start, x, y, point))
    with pytest.raises(OptionError, match="AutoDelta has no spread in some direction"):
        FromPosterior(fit_of(start, x, y, point), marginals=True)


def in_plate(x: Tensor, y: Tensor | None = None) -> Tensor:
    with pyro.plate("inputs", 2):
        w = pyro.sample("w", dist.Normal(torch.zeros(2).double(), 1.0))
    f = pyro.deterministic("f", x @ w.unsqueeze(-1))
    with pyro.plate("data", len(x)):
        sampled: Tensor = pyro.sample("y", dist.Normal(f, 1.0).to_event(1), obs=y)
    return sampled


def test_sites_in_plates_are_refused() -> None:
    x, y = rows()
    guide = guides.AutoNormal(in_plate)
    guide.setup(x)
    model = continued(in_plate, fit_of(in_plate, x, y, guide))
    with pytest.raises(SiteError, match="the site 'w' lies in a plate: make its entries one event"):
        Program(model, x, y)


def test_a_rank1_network_takes_the_factors_of_an_earlier_fit() -> None:
    x, y = rows()
    model = models.Rank1MLP(2, hidden=(2,)).double()
    engine = SVI(guides.AutoNormal, num_steps=5, compile=False)
    first = engine.run(model, (x, y), progress=False)
    again: Any = models.Rank1MLP(2, hidden=(2,), prior=FromPosterior(first)).double()
    second = engine.run(again, (x, y), progress=False, init=first)
    assert isinstance(first, GuidePosterior)
    assert_close(again.layers[0].s_prior().mean, first.guide.loc.detach()[:2])
    assert second.params.keys() == first.params.keys()


def test_what_a_module_inside_a_handler_holds_is_the_models() -> None:
    x, y = rows()
    inner: Any = models.bayesian(
        torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
    )
    inner.double().eval()
    held = pyro.condition(inner, {"1.bias": torch.zeros(1, dtype=torch.float64)})
    fit = SVI(guides.AutoNormal, num_steps=2, compile=False)
    model = continued(held, fit.run(held, (x, y), progress=False))
    names = [f"model.{name}" for name, _ in inner.named_buffers()]
    assert [name for name, _ in model.named_buffers() if name.startswith("model.")] == names
    program = Program(model, x, y)
    before = program.function(program.initial, x)
    inner.net[0].running_mean.add_(3.0)
    assert_close(program.function(program.initial, x), before, rtol=0, atol=0)
    assert describe(model).startswith(describe(held))


def test_fixed_parameters_are_those_of_the_earlier_fit() -> None:
    x, y = rows()
    model = models.Rank1MLP(2, hidden=(2,)).double()
    engine = SVI(guides.AutoNormal, num_steps=5, compile=False)
    first = engine.run(model, (x, y), progress=False)
    model.requires_grad_(requires_grad=False)
    with pytest.raises(OptionError, match=r"layers.0.weight.*: copy posterior.params in first"):
        continued(model, first)
    model.load_state_dict(first.params, strict=False)
    continued(model, first)


def test_one_positive_number_is_no_prior_of_several() -> None:
    x, y = rows()
    model = network()
    guide = guides.AutoNormal(model)
    guide.setup(x)
    noise = FromPosterior(fit_of(model, x, y, guide)).distribution_of("likelihood.scale")
    two = models.MLP(2, 2, hidden=(2,), likelihood=likelihoods.Normal(noise)).double()
    with pytest.raises(OptionError, match=r"has one 'likelihood.scale', which is no prior of 2"):
        Program(two, x, y.expand(-1, 2))
