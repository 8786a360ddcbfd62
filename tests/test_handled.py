"""Models under Pyro's handlers in the engines: sites held at values, reparameterised sites."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.infer.autoguide import AutoNormal as StockNormal
from pyro.infer.reparam import LocScaleReparam, ProjectedNormalReparam
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import NUTS, SVI, Dataset, bayesian, models, prior_predictive, priors, registry
from pyro_bnn.errors import ModelError, OptionError, SiteError
from pyro_bnn.guides import AutoDelta, AutoMultivariateNormal, AutoNormal
from pyro_bnn.handled import model_name, module_of, unhandled
from pyro_bnn.models.description import describe
from pyro_bnn.posterior import Posterior
from pyro_bnn.program import Program
from tests import plain_pyro
from tests.laws import one
from tests.oracle import linear_gaussian, log_normal

pytestmark = pytest.mark.usefixtures("uncaptured")

SHORT = functools.partial(SVI, num_steps=3, compile=False)


def with_noise(x: Tensor, y: Tensor | None = None) -> Tensor:
    """The linear-Gaussian oracle, its noise a latent site."""
    prior = dist.Normal(one(0.0), one(1.3))
    w = pyro.sample("w", prior.expand([3, 1]).to_event(2))
    b = pyro.sample("b", prior.expand([1]).to_event(1))
    noise = pyro.sample("noise", dist.HalfNormal(one(1.0)))
    f = pyro.deterministic("f", x @ w + b)
    with pyro.plate("data", x.shape[0]):
        sampled: Tensor = pyro.sample("y", dist.Normal(f, noise).to_event(1), obs=y)
    return sampled


def hierarchical(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A weight [1] of unknown scale: y = x w + noise of 0.5."""
    tau = pyro.sample("tau", dist.LogNormal(one(0.0), one(1.0)))
    w = pyro.sample("w", dist.Normal(one(0.0), tau).expand([1]).to_event(1))
    f = pyro.deterministic("f", x[:, :1] * w)
    with pyro.plate("data", x.shape[0]):
        sampled: Tensor = pyro.sample("y", dist.Normal(f, one(0.5)).to_event(1), obs=y)
    return sampled


def direction(x: Tensor, y: Tensor | None = None) -> Tensor:
    """A latent on the sphere."""
    d = pyro.sample("d", dist.ProjectedNormal(torch.tensor([1.0, 2.0, 0.0], dtype=x.dtype)))
    f = pyro.deterministic("f", x @ d.unsqueeze(-1))
    with pyro.plate("data", x.shape[0]):
        sampled: Tensor = pyro.sample("y", dist.Normal(f, one(0.1)).to_event(1), obs=y)
    return sampled


NOISE = {"noise": one(0.5)}


# --- what is inside -------------------------------------------------------------------------------


def test_handlers_and_partials_are_taken_off() -> None:
    net = models.MLP(3, hidden=(4,))
    inner = poutine.reparam(net, config={"layers.0.weight": LocScaleReparam(0.0)})
    model = functools.partial(pyro.condition(inner, data={}), y=None)
    found, handlers = unhandled(model)
    assert found is net
    assert [type(h).__name__ for h in handlers] == ["ConditionMessenger", "ReparamMessenger"]
    assert module_of(model) is net
    assert module_of(pyro.condition(with_noise, data=NOISE)) is None
    assert module_of("no model") is None


def test_the_description_names_the_handlers() -> None:
    net = models.MLP(3, hidden=(4,))
    model = pyro.condition(poutine.reparam(net, config={}), data={})
    assert describe(model) == f"{describe(net)} under reparam under condition"
    assert model_name(model) == "MLP under reparam under condition"
    assert describe(pyro.condition(with_noise, data=NOISE)) == "with_noise under condition"


# --- sites held at values -------------------------------------------------------------------------


def test_a_held_site_is_a_constant_whose_density_is_part_of_the_joint() -> None:
    oracle = linear_gaussian()
    model = pyro.condition(with_noise, data=NOISE)
    program = Program(model, oracle.x, oracle.y)
    assert [site.name for site in program.sites] == ["w", "b"]
    batch = program.batch(oracle.x, oracle.y)
    z = torch.randn(5, 4, dtype=torch.float64)
    held = log_normal(one(0.5), 1.0) + torch.log(one(2.0))  # of a HalfNormal(1)
    expected = oracle.log_joint(z) + held
    assert_close(program.log_joint(z, batch), expected)
    assert_close(program.log_prior(z, oracle.x), log_normal(z, 1.3).sum(-1) + held)
    by_pyro = torch.stack([plain_pyro.log_joint(model, row, oracle.x, batch.y) for row in z])
    assert_close(program.log_joint(z, batch), by_pyro)
    part = program.batch(oracle.x[:5], oracle.y[:5])  # which counts once, whatever the rows
    rows = program.log_likelihood(z, part).sum(-1)
    assert_close(program.log_joint(z, part), rows * 4 + log_normal(z, 1.3).sum(-1) + held)


@pytest.mark.slow("about a second")
def test_the_elbo_at_the_posterior_is_the_evidence_with_the_held_value() -> None:
    oracle = linear_gaussian()
    model = pyro.condition(with_noise, data=NOISE)
    program = Program(model, oracle.x, oracle.y)
    guide = AutoMultivariateNormal(model)
    guide.setup(oracle.x)
    guide.set_moments(oracle.mean, oracle.covariance)
    params: dict[str, Tensor] = {f"guide.{k}": v for k, v in guide.named_parameters()}
    batch = program.batch(oracle.x, oracle.y)
    noise = guide.draw_noise(500, torch.Generator().manual_seed(0))
    terms = [program.elbo(guide, params, row, batch) for row in noise.split(1)]
    elbos = torch.stack([t.expected_log_likelihood - t.kl for t in terms])
    held = log_normal(one(0.5), 1.0) + torch.log(one(2.0))
    error = elbos.std() / len(elbos) ** 0.5
    assert abs(elbos.mean() - oracle.log_evidence - held) < 5 * error
    assert error < 0.2
    kl, exact = guide.kl()  # is that of the weights alone
    prior = torch.distributions.MultivariateNormal(
        torch.zeros(4, dtype=torch.float64), 1.3**2 * torch.eye(4, dtype=torch.float64)
    )
    q = torch.distributions.MultivariateNormal(oracle.mean, oracle.covariance)
    assert exact
    assert kl == pytest.approx(float(torch.distributions.kl_divergence(q, prior)))


@pytest.mark.slow("about a second")
def test_a_held_weight_tells_of_its_scale() -> None:
    x, y = torch.linspace(-1, 1, 6, dtype=torch.float64).unsqueeze(-1), torch.ones(6, 1).double()
    program = Program(pyro.condition(hierarchical, data={"w": one(0.8).reshape(1)}), x, y)
    assert [site.name for site in program.sites] == ["tau"]
    log_tau = torch.linspace(-1, 1, 5, dtype=torch.float64)
    normal = torch.distributions.Normal
    expected = normal(one(0.0), one(1.0)).log_prob(log_tau)  # of the logarithm
    expected = expected + normal(one(0.0), log_tau.exp()).log_prob(one(0.8))
    expected = expected + normal(0.8 * x, one(0.5)).log_prob(y).sum()
    assert_close(program.log_joint(log_tau.unsqueeze(-1), program.batch(x, y)), expected)
    # MAP of tau: the root of the gradient, where tau is a value (no Jacobian)
    svi = SVI(AutoDelta, num_steps=400, learning_rate=0.05, compile=False)
    model = pyro.condition(hierarchical, data={"w": one(0.8).reshape(1)})
    found = svi.run(model, (x, y), progress=False).sample(1)["tau"].double()
    log_tau = found.log()
    slope = -2 - log_tau + 0.8**2 / found**2  # of log p(tau) + log N(0.8 | 0, tau) by log tau
    assert abs(float(slope)) < 1e-3


@pytest.mark.slow("a second or more")
def test_nuts_draws_from_the_posterior_of_the_other_sites() -> None:
    oracle = linear_gaussian()
    sampler = NUTS(num_chains=4, warmup_steps=60, num_samples=100, compile=True)
    model = pyro.condition(with_noise, data=NOISE)
    posterior = sampler.run(model, (oracle.x, oracle.y), progress=False)
    z = posterior.unconstrained().double()
    assert z.shape == (400, 4)
    error = (oracle.covariance.diagonal() / 100).sqrt()  # of a quarter of the draws
    assert bool(((z.mean(0) - oracle.mean).abs() < 5 * error).all())
    assert_close(z.var(0), oracle.covariance.diagonal(), rtol=0.5, atol=0)


@pytest.mark.usefixtures("few_stock_draws")
def test_parameters_inside_a_handler_are_trained_in_the_posterior_alone() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    model = bayesian(net, {"2.*": priors.Normal()})
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    x, y = (value.double() for value in plain_pyro.data())
    held = pyro.condition(model, data={"2.bias": torch.zeros(1, dtype=torch.float64)})
    for guide in (AutoNormal, StockNormal):
        posterior = SHORT(guide).run(held, (x, y), progress=False)
        assert [*posterior.params] == [*before] == ["net.0.weight", "net.0.bias"]
        for name, value in model.named_parameters():
            assert_close(value, before[name], rtol=0, atol=0)
            assert bool((posterior.params[name] != before[name]).any())
        sites = posterior.sample(2)
        assert {*sites} == {"2.weight", "likelihood.scale"}
        z = torch.ones(1, 5, dtype=torch.float64)
        f = posterior.program.function(z, x, posterior.params)  # of weights 1 and the held bias 0
        first, bias = posterior.params["net.0.weight"], posterior.params["net.0.bias"]
        assert_close(f[0], torch.tanh(x @ first.T + bias).sum(1, keepdim=True))


def test_a_fit_of_a_conditioned_model_goes_through_a_file(tmp_path: Path) -> None:
    net, (x, y) = models.MLP(3, hidden=(4,)), plain_pyro.data()
    held = pyro.condition(net, data={"likelihood.scale": torch.tensor(0.5)})
    posterior = SHORT(AutoNormal).run(held, (x, y), progress=False)
    posterior.save(tmp_path / "fit.pt")
    again = Posterior.load(tmp_path / "fit.pt", held)
    assert_close(again.predict(x).mean, posterior.predict(x).mean, rtol=0, atol=0)
    other = pyro.condition(net, data={"likelihood.scale": torch.tensor(0.6)})
    with pytest.raises(SiteError, match="but not its densities at the same weights"):
        Posterior.load(tmp_path / "fit.pt", other)


@pytest.mark.parametrize("name", registry.entries("engine"))
def test_engines_run_on_a_conditioned_and_reparameterised_network(name: str) -> None:
    engine = registry.entries("engine")[name]
    few = {"num_steps": 2, "warmup_steps": 2, "num_samples": 2, "num_chains": 2, "compile": False}
    few |= {"num_members": 2, "num_islands": 2, "num_particles": 4}
    options: dict[str, Any] = {k: v for k, v in few.items() if k in engine.__dataclass_fields__}
    if name == "svi":
        options["guide"] = AutoNormal
    if name == "cyclical":  # around a method, which has the options
        own = registry.entries("engine")["baoab"]
        options = {"engine": own(**{k: few[k] for k in few if k in own.__dataclass_fields__})}
    if name == "subspace":
        short = {"num_steps": 8, "num_iterates": 4, "rank": 2, "compile": False}
        nuts = {key: few[key] for key in ("warmup_steps", "num_samples", "num_chains", "compile")}
        engines = registry.entries("engine")
        options = {"engine": engines["nuts"](**nuts), "rank": 2, "around": engines["swag"](**short)}
    inner = poutine.reparam(
        models.MLP(3, hidden=(4,)), config={"layers.0.weight": LocScaleReparam(0.0)}
    )
    model = pyro.condition(inner, data={"likelihood.scale": torch.tensor(0.5)})
    run = functools.partial(engine(**options).run, model, plain_pyro.data(), progress=False)
    if name in ("exact", "cavi"):
        with pytest.raises(
            OptionError, match=r"LinearRegression, .*not MLP under reparam under co"
        ):
            run()
        return
    posterior = run()
    assert {*posterior.sample(2)} == {
        "layers.0.weight_decentered",
        "layers.0.bias",
        "layers.1.weight",
        "layers.1.bias",
    }
    assert posterior.predict(plain_pyro.data()[0]).mean.shape == (12, 1)


# --- reparameterised sites ------------------------------------------------------------------------


def test_a_reparameterised_site_is_that_of_the_decentred_model() -> None:
    x, y = torch.linspace(-1, 1, 6, dtype=torch.float64).unsqueeze(-1), torch.ones(6, 1).double()
    model = poutine.reparam(hierarchical, config={"w": LocScaleReparam(0.0)})
    program = Program(model, x, y)
    assert [site.name for site in program.sites] == ["tau", "w_decentered"]
    z = torch.randn(5, 2, dtype=torch.float64)
    normal = torch.distributions.Normal
    f = z[:, :1].exp() * z[:, 1:] * x[:, 0]  # [5, 6]: w = tau times the decentred site
    expected = normal(one(0.0), one(1.0)).log_prob(z).sum(-1)
    expected = expected + normal(f, one(0.5)).log_prob(y[:, 0]).sum(-1)
    assert_close(program.log_joint(z, program.batch(x, y)), expected)
    assert_close(program.function(z, x).squeeze(-1), f)
    posterior = SHORT(AutoNormal).run(model, (x, y), progress=False)
    assert {*posterior.sample(2)} == {"tau", "w_decentered"}


def test_handlers_stack() -> None:
    net, (x, y) = models.MLP(3, hidden=(4,)), plain_pyro.data()
    model = poutine.reparam(net, config={"layers.0.weight": LocScaleReparam(0.0)})
    held = pyro.condition(model, data={"layers.0.bias": torch.zeros(4)})
    names = [site.name for site in Program(held, x, y).sites]
    assert names == [
        "layers.0.weight_decentered",
        "layers.1.weight",
        "layers.1.bias",
        "likelihood.scale",
    ]


def test_a_sphere_is_refused_with_the_way_out_which_works() -> None:
    x, y = plain_pyro.data()
    x, y = x.double(), y.double()
    with pytest.raises(SiteError, match=r"site 'd' lies on a sphere .*ProjectedNormalReparam"):
        Program(direction, x, y)
    model = poutine.reparam(direction, config={"d": ProjectedNormalReparam()})
    program = Program(model, x, y)
    assert [site.name for site in program.sites] == ["d_normal"]
    z = torch.randn(4, 3, dtype=torch.float64)
    mean = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64)
    d = (z + mean) / (z + mean).norm(dim=-1, keepdim=True)
    expected = log_normal(z, 1.0).sum(-1) + log_normal(d @ x.T - y[:, 0], 0.1).sum(-1)
    assert_close(program.log_joint(z, program.batch(x, y)), expected)


# --- what is refused ------------------------------------------------------------------------------


def at_points(x: Tensor, y: Tensor | None = None, *, rows: Any = None) -> Tensor:
    """A model that holds its function near 0 at points of its own, or at the rows."""
    w = pyro.sample("w", dist.Normal(one(0.0), one(1.0)).expand([3, 1]).to_event(2))
    points = x if rows is None else rows
    pyro.sample("near", dist.Normal((points @ w).mean(), one(0.1)), obs=one(0.0))
    f = pyro.deterministic("f", x @ w)
    with pyro.plate("data", x.shape[0]):
        sampled: Tensor = pyro.sample("y", dist.Normal(f, one(0.5)).to_event(1), obs=y)
    return sampled


def test_what_is_observed_outside_the_rows_may_not_depend_on_them() -> None:
    x, y = (value.double() for value in plain_pyro.data())
    with pytest.raises(ModelError, match="the model observes 'near' beside \"y\"; one site"):
        Program(at_points, x, y)
    points = torch.ones(2, 3, dtype=torch.float64)
    program = Program(functools.partial(at_points, rows=points), x, y)
    z = torch.randn(3, dtype=torch.float64)
    expected = log_normal(z, 1.0).sum() + log_normal(z.sum(), 0.1)
    assert_close(program.log_prior(z, x), expected)


def test_what_is_computed_from_other_sites_is_not_held() -> None:
    x, y = plain_pyro.data()
    weight = torch.ones(4, 3)
    net = models.MLP(3, hidden=(4,), prior=priors.HalfCauchyScale())
    refused = pytest.raises(ModelError, match=r"'layers.0.weight' is computed from other sites")
    with refused:
        Program(pyro.condition(net, data={"layers.0.weight": weight}), x, y)
    inner = poutine.reparam(
        models.MLP(3, hidden=(4,)), config={"layers.0.weight": LocScaleReparam(0.0)}
    )
    with refused:
        Program(pyro.condition(inner, data={"layers.0.weight": weight}), x, y)
    raw = Program(pyro.condition(net, data={"layers.0.weight.raw": weight}), x, y)
    assert "layers.0.weight.scale" in [site.name for site in raw.sites]


def test_a_held_name_is_that_of_a_site() -> None:
    x, y = plain_pyro.data()
    net = models.MLP(3, hidden=(4,))
    expected = r"holds 'layer.0.bias', which the model does not have; its sites are .*layers.0.bias"
    with pytest.raises(ModelError, match=expected):
        Program(pyro.condition(net, data={"layer.0.bias": torch.zeros(4)}), x, y)


def test_nothing_is_drawn_from_the_prior_given_what_depends_on_it() -> None:
    x, y = (value.double() for value in plain_pyro.data())
    held = pyro.condition(hierarchical, data={"w": one(3.0).reshape(1)})
    with pytest.raises(SiteError, match="density of w, held at a value, depends on other sites"):
        prior_predictive(held, x, num_samples=5)
    posterior = SHORT(AutoNormal).run(held, (x, y), progress=False)
    groups = {node.name for node in posterior.to_arviz(Dataset(x, y)).subtree}
    assert "log_prior" in groups
    assert not {"prior", "prior_predictive"} & groups
    other = pyro.condition(with_noise, data=NOISE)  # whose density does not
    assert prior_predictive(other, x, num_samples=5).function_draws.shape == (5, 12, 1)
    posterior = SHORT(AutoNormal).run(other, (x, y), progress=False)
    assert "prior" in {node.name for node in posterior.to_arviz(Dataset(x, y)).subtree}


def test_point_estimates_inside_a_handler_are_not_continued() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    held = pyro.condition(bayesian(net, {"2.*": priors.Normal()}), data={"2.bias": torch.zeros(1)})
    posterior = SHORT(AutoNormal).run(held, plain_pyro.data(), progress=False)
    with pytest.raises(OptionError, match=r"net.0.weight, net.0.bias are point estimates"):
        priors.continued(held, posterior)


def test_y_is_passed_with_the_data() -> None:
    x, y = (value.double() for value in plain_pyro.data())
    with pytest.raises(ModelError, match=r'observes "y" without being given it.*pass y with'):
        Program(pyro.condition(with_noise, data={"y": y}), x, y)
