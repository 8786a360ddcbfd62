"""Guides of stock Pyro, and guides written as functions, through the SVI engine."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer import autoguide
from pyro.nn import PyroModule, PyroParam
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from pyro_bnn import SVI, likelihoods, models, priors
from pyro_bnn.errors import DivergenceError, OptionError, SiteError
from pyro_bnn.infer.svi import stock
from pyro_bnn.posterior import DrawsPosterior
from pyro_bnn.sites import Site
from tests import plain_pyro
from tests.infer.test_svi import FirstStepOnly
from tests.laws import MixedModel, one
from tests.oracle import design, linear_gaussian

STEP: dict[str, Any] = {"optimizer": torch.optim.SGD, "learning_rate": 1.0, "num_steps": 1}


@pytest.fixture(autouse=True)
def _few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stock, "NUM_DRAWS", 20)


def run(model: Any, guide: Any, **options: Any) -> DrawsPosterior:
    oracle = linear_gaussian()
    data = options.pop("data", (oracle.x, oracle.y))
    posterior = SVI(guide, **options).run(model, data, progress=False)
    assert isinstance(posterior, DrawsPosterior)
    return posterior


def start_at_one(site: dict[str, Any]) -> Tensor:
    return torch.ones(site["fn"].shape(), dtype=torch.float64)


# log q against closed forms


def test_log_q_of_stock_auto_normal() -> None:
    model = MixedModel()
    guide = autoguide.AutoNormal(model)
    posterior = run(model, guide, num_steps=5)
    z, log_q = posterior.unconstrained(20), posterior.log_q(20)
    names = ["w", "noise", "rate", "mixing", "offset", "gain"]
    locs = torch.cat([getattr(guide.locs, name).detach().reshape(-1) for name in names])
    scales = torch.cat([getattr(guide.scales, name).detach().reshape(-1) for name in names])
    expected = torch.distributions.Normal(locs, scales).log_prob(z).sum(-1)
    torch.testing.assert_close(log_q, expected, rtol=1e-9, atol=1e-9)
    assert posterior.elbo_kind == "monte_carlo"


@pytest.mark.parametrize(
    "kind", ["AutoDiagonalNormal", "AutoLowRankMultivariateNormal", "AutoIAFNormal"]
)
def test_log_q_of_stock_joint_guides(kind: str) -> None:
    with plain_pyro.default_dtype(torch.float64):  # of the networks of the flow
        model = MixedModel()
        guide = getattr(autoguide, kind)(model)
        posterior = run(model, guide, num_steps=5)
        z, log_q = posterior.unconstrained(20), posterior.log_q(20)
        with torch.no_grad():
            expected = guide.get_posterior().log_prob(z)
    torch.testing.assert_close(log_q, expected, rtol=1e-9, atol=1e-9)


def structured_gaussian(
    guide: Any, sites: Sequence[Site]
) -> torch.distributions.MultivariateNormal:
    """What ``AutoStructured`` of normal parts and linear dependencies is over z ``[P]``, by hand.

    Each site is its own normal plus a linear map of the sites before it, of which the rows of the
    lower-triangular factor are made one after the other.
    """
    rows: dict[str, Tensor] = {}
    for site in sites:
        of_site = attrgetter(site.name)
        own = torch.zeros(site.stop - site.start, sites[-1].stop)
        own[:, site.start : site.stop] = of_site(guide.scales)[:, None] * of_site(guide.scale_trils)
        for before in guide.dependencies.get(site.name, {}):
            own = own + attrgetter(before)(of_site(guide.deps)).weight @ rows[before]
        rows[site.name] = own
    loc = torch.cat([attrgetter(site.name)(guide.locs) for site in sites])
    tril = torch.cat([rows[site.name] for site in sites])
    return torch.distributions.MultivariateNormal(loc, scale_tril=tril)


def test_log_q_of_a_structured_guide_of_a_network() -> None:
    with plain_pyro.default_dtype(torch.float64), torch.no_grad():
        model = models.MLP(3, hidden=(2,), activation="tanh")
        guide = autoguide.AutoStructured(model)
        with torch.enable_grad():
            posterior = run(model, guide, data=plain_pyro.data(), num_steps=5, learning_rate=0.1)
        q = structured_gaussian(guide, posterior.program.sites)
        # every site depends on those before it, as all meet in y
        dependencies: Any = guide.dependencies
        assert sum(len(before) for before in dependencies.values()) == 10
        assert float(q.covariance_matrix[:6, 6:].abs().max()) > 1e-4
        z, log_q = posterior.unconstrained(20), posterior.log_q(20)
        torch.testing.assert_close(log_q, q.log_prob(z), rtol=1e-9, atol=1e-9)


@pytest.mark.slow("a fit through plain Pyro")
def test_a_structured_guide_beats_the_best_factorised_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On one of our models, whose evidence is known and bounds its ELBO from above."""
    monkeypatch.setattr(stock, "NUM_DRAWS", 1_000)
    oracle = linear_gaussian()
    with plain_pyro.default_dtype(torch.float64):
        model = models.LinearRegression(
            3, prior=priors.Normal(oracle.prior_scale), likelihood=likelihoods.Normal(oracle.noise)
        )
        options: dict[str, Any] = {"num_steps": 400, "learning_rate": 0.05}
        posterior = run(model, autoguide.AutoStructured, **options)
    z, log_q = posterior.unconstrained(1_000), posterior.log_q(1_000)
    terms = oracle.log_joint(z) - log_q
    gap, error = oracle.log_evidence - float(terms.mean()), float(terms.std()) / 1_000**0.5
    assert -5 * error - 1e-9 < gap < oracle.mean_field_gap - 5 * error
    f = posterior.predict(oracle.x, 1_000).function_draws[..., 0].mean(0)
    mean, sd = oracle.function_moments(oracle.x)
    assert float(((f - mean) / sd).abs().max()) < 0.5


def written_guide(x: Tensor, y: Tensor | None = None) -> None:
    loc = pyro.param("loc", lambda: torch.zeros(3, 1, dtype=torch.float64))
    scale = pyro.param(
        "scale", lambda: one(0.5), constraint=torch.distributions.constraints.positive
    )
    w = pyro.sample("w", dist.Normal(loc, scale).to_event(2))
    pyro.sample("b", dist.Normal(w.sum().reshape(1), one(0.3)).to_event(1))


def test_a_guide_written_as_a_function() -> None:
    pyro.clear_param_store()
    model = linear_gaussian().model
    posterior = run(model, written_guide, num_steps=5)
    assert posterior.method == "written_guide"
    assert posterior.options["guide"] == "written_guide"
    assert posterior.num_parameters == 4
    assert len(pyro.get_param_store()) == 0
    z, log_q = posterior.unconstrained(20), posterior.log_q(20)
    # a Gaussian of w up to its unknown loc and scale; b given w is known
    b_given_w = torch.distributions.Normal(z[:, :3].sum(-1), 0.3).log_prob(z[:, 3])
    log_q_w = log_q - b_given_w  # -|w - loc|^2 / (2 scale^2) - 3 log scale - 3/2 log 2 pi
    columns = torch.cat([z[:, :3].square().sum(-1, keepdim=True), z[:, :3], torch.ones(20, 1)], 1)
    coefficients = torch.linalg.lstsq(columns, log_q_w[:, None]).solution.squeeze(-1)
    scale = (-0.5 / coefficients[0]).sqrt()
    loc = coefficients[1:4] * scale**2
    expected = torch.distributions.Normal(loc, scale).log_prob(z[:, :3]).sum(-1)
    torch.testing.assert_close(log_q_w, expected, rtol=1e-6, atol=1e-6)


# The objective


@pytest.mark.slow("about a second")
def test_stock_auto_delta_reaches_the_exact_mode() -> None:
    oracle = linear_gaussian()
    posterior = run(oracle.model, autoguide.AutoDelta, num_steps=400, learning_rate=0.1)
    expected = oracle.mean.expand(20, -1)
    torch.testing.assert_close(posterior.unconstrained(20), expected, rtol=1e-5, atol=1e-5)
    assert not posterior.has_log_prob
    assert posterior.losses[-1] == pytest.approx(-float(oracle.log_joint(oracle.mean)), rel=1e-8)


def test_batches_are_scaled_by_the_rows_of_the_data() -> None:
    oracle = linear_gaussian()
    guide = functools.partial(autoguide.AutoDelta, init_loc_fn=start_at_one)
    still: dict[str, Any] = {"optimizer": torch.optim.SGD, "learning_rate": 1e-30}
    expected = -float(oracle.log_joint(torch.ones(4, dtype=torch.float64)))
    losses = run(oracle.model, guide, num_steps=4, batch_size=5, **still).losses
    assert losses.std() > 1
    assert losses.mean() == pytest.approx(expected, rel=1e-12)
    loader = DataLoader(TensorDataset(oracle.x, oracle.y), batch_size=5, shuffle=True)
    losses = run(oracle.model, guide, num_steps=4, data=loader, **still).losses
    assert losses.std() > 1
    assert losses.mean() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("warmup", "weight"), [(0, 1.0), (4, 0.25)])
def test_the_kl_weight_scales_the_kl(warmup: int, weight: float) -> None:
    oracle = linear_gaussian()
    guide = functools.partial(autoguide.AutoDelta, init_loc_fn=start_at_one)
    once = functools.partial(FirstStepOnly, lr=1.0)
    posterior = run(oracle.model, guide, kl_warmup=warmup, num_steps=4, optimizer=once)
    a, z = design(oracle.x), torch.ones(4, dtype=torch.float64)
    gradient = a.T @ (oracle.y - a @ z) / oracle.noise**2 - weight * z / oracle.prior_scale**2
    torch.testing.assert_close(posterior.unconstrained(20)[0], z + gradient)
    assert posterior.losses[0] == pytest.approx(-float(oracle.log_joint(z)), rel=1e-12)


def test_a_parameter_that_appears_late_is_trained_too() -> None:
    oracle = linear_gaussian()
    calls = []

    def guide(x: Tensor, y: Tensor | None = None) -> None:
        calls.append(1)
        w = pyro.param("w_loc", lambda: torch.ones(3, 1, dtype=torch.float64))
        late = len(calls) > 2  # the first call only looks for the sites
        b = pyro.param("b_loc", lambda: torch.ones(1).double()) if late else torch.ones(1).double()
        pyro.sample("w", dist.Delta(w, event_dim=2))
        pyro.sample("b", dist.Delta(b, event_dim=1))

    posterior = run(oracle.model, guide, **{**STEP, "num_steps": 2, "schedule": "constant"})
    assert posterior.num_parameters == 4
    a, z = design(oracle.x), torch.ones(4, dtype=torch.float64)
    for moves in (torch.tensor([1.0, 1, 1, 0]), torch.ones(4)):
        gradient = a.T @ (oracle.y - a @ z) / oracle.noise**2 - z / oracle.prior_scale**2
        z = z + moves.double() * gradient
    torch.testing.assert_close(posterior.unconstrained(20)[0], z)


def test_point_parameters_of_the_model_are_trained_on_a_copy() -> None:
    oracle = linear_gaussian()
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    model = models.bayesian(net, {"2.*": priors.Normal()}, likelihoods.Normal(0.3)).double()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    posterior = run(model, autoguide.AutoNormal, num_steps=5, learning_rate=0.1)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value.detach(), before[name], rtol=0, atol=0)
        assert bool((posterior.params[name] != before[name]).all())
    assert posterior.predict(oracle.x, 20).mean.shape == (20, 1)


# What a user sees


def test_it_says_once_that_it_is_slower(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="pyro_bnn"):
        run(linear_gaussian().model, autoguide.AutoDelta, num_steps=2)
    assert [record.getMessage() for record in caplog.records] == [
        "AutoDelta is a guide of stock Pyro and runs through plain Pyro, which is slower"
    ]


def test_a_partial_of_a_stock_class_with_positional_options_is_a_class() -> None:
    model = linear_gaussian().model
    guide = functools.partial(autoguide.AutoLowRankMultivariateNormal, rank=1)
    assert run(model, guide, num_steps=1).num_parameters == 4 + 4 + 4


def test_store_and_random_state_are_left_alone() -> None:
    pyro.clear_param_store()
    pyro.param("mine", torch.ones(1))
    state = torch.get_rng_state()
    run(linear_gaussian().model, autoguide.AutoNormal, num_steps=2)
    torch.testing.assert_close(torch.get_rng_state(), state)
    assert list(pyro.get_param_store()) == ["mine"]
    pyro.clear_param_store()


def test_a_site_that_the_guide_lacks_is_named() -> None:
    def guide(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("w", dist.Normal(torch.zeros(3, 1).double(), one(1.0)).to_event(2))

    with pytest.raises(SiteError, match="the guide does not cover 'b': every latent site"):
        run(linear_gaussian().model, guide, num_steps=1)


def test_a_loss_that_is_not_finite_names_the_step_and_keeps_the_last_good_state() -> None:
    model = linear_gaussian().model
    options: dict[str, Any] = {"optimizer": torch.optim.SGD, "num_steps": 5}
    guide = functools.partial(autoguide.AutoDelta, init_loc_fn=start_at_one)
    with pytest.raises(DivergenceError) as caught:
        run(model, guide, learning_rate=1e200, **options)
    assert str(caught.value) == (
        "the loss of AutoDelta is not finite at step 1; the state of step 0 is kept in "
        "error.posterior. Lower learning_rate, set clip_norm, or standardise the data"
    )
    posterior = caught.value.posterior
    assert isinstance(posterior, DrawsPosterior)
    torch.testing.assert_close(posterior.unconstrained(20), torch.ones(20, 4).double())
    assert len(posterior.losses) == 1


def test_options_that_stock_guides_do_not_have_are_refused() -> None:
    oracle = linear_gaussian()
    with pytest.raises(OptionError, match="init, patience and per_example_draws are not built"):
        run(oracle.model, autoguide.AutoNormal, patience=10, num_steps=50)
    with pytest.raises(OptionError, match="init, patience and per_example_draws are not built"):
        SVI(autoguide.AutoNormal).run(
            oracle.model, (oracle.x, oracle.y), init={"b": torch.zeros(1)}
        )


@pytest.mark.slow("about a second")
def test_draws_are_those_of_the_guide() -> None:
    """Mean and sd of many draws of a guide that one step of a tiny size leaves at its start."""
    oracle = linear_gaussian()
    guide = functools.partial(
        autoguide.AutoDiagonalNormal, init_loc_fn=start_at_one, init_scale=0.5
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stock, "NUM_DRAWS", 1_000)
        posterior = run(
            oracle.model, guide, optimizer=torch.optim.SGD, learning_rate=1e-30, num_steps=1
        )
    z = posterior.unconstrained(1_000)
    assert float(((z.mean(0) - 1) / (0.5 / math.sqrt(1_000))).abs().max()) < 5
    assert float(((z.var(0) / 0.25 - 1) / math.sqrt(2 / 1_000)).abs().max()) < 5


# Parameters of the model, and what is left of them


def linear_with_param(x: Tensor, y: Tensor | None = None) -> None:
    slope = pyro.param("slope", lambda: torch.zeros((), dtype=torch.float64))
    scale = pyro.param("scale", lambda: one(2.0), constraint=dist.constraints.positive)
    w = pyro.sample("w", dist.Normal(one(0.0), 0.1))
    f = pyro.deterministic("f", x[:, :1] * slope + w)
    with pyro.plate("data", x.shape[0]):
        pyro.sample("y", dist.Normal(f, scale).to_event(1), obs=y)


@pytest.mark.slow("about a second")
def test_trained_values_of_pyro_param_are_in_the_posterior() -> None:
    x = torch.linspace(-1, 1, 20, dtype=torch.float64)[:, None]
    posterior = run(
        linear_with_param, autoguide.AutoDelta, data=(x, 3 * x), num_steps=500, learning_rate=0.1
    )
    assert float(posterior.params["slope"]) == pytest.approx(3, abs=0.1)
    assert float(posterior.params["scale"].exp()) < 0.5
    line = posterior.params["slope"] * x + posterior.unconstrained(1)[0]
    torch.testing.assert_close(posterior.predict(x, 20).mean, line, rtol=1e-10, atol=1e-10)


class WithPyroParam(PyroModule):
    """A linear model whose noise is a constrained point parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.noise = PyroParam(one(1.0), constraint=dist.constraints.positive)
        self.slope = nn.Parameter(one(0.0))

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        w = pyro.sample("w", dist.Normal(one(0.0), 1.0))
        f = pyro.deterministic("f", x[:, :1] * self.slope + w)
        with pyro.plate("data", x.shape[0]):
            noise = cast(Tensor, self.noise)
            sampled: Tensor = pyro.sample("y", dist.Normal(f, noise).to_event(1), obs=y)
        return sampled


@pytest.mark.parametrize("form", ["class", "instance", "closure"])
def test_the_users_model_is_left_alone_and_fits_stay_apart(form: str) -> None:
    model = WithPyroParam()
    before = {name: (value, value.detach().clone()) for name, value in model.named_parameters()}

    def spec() -> Any:
        kinds = {
            "class": autoguide.AutoNormal,
            "instance": autoguide.AutoNormal(model),
            "closure": lambda _: autoguide.AutoNormal(model),
        }
        return kinds[form]

    first, second = (run(model, spec(), num_steps=5, learning_rate=0.1) for _ in range(2))
    for name, value in model.named_parameters():
        assert value is before[name][0]
        torch.testing.assert_close(value.detach(), before[name][1], rtol=0, atol=0)
        assert value.grad is None
        assert bool((first.params[name] != before[name][1]).all())
    assert first.losses.tolist() == second.losses.tolist()
    assert first.num_parameters == 2 + 2


def test_frozen_parameters_of_the_model_are_not_trained() -> None:
    model = WithPyroParam()
    model.slope.requires_grad = False
    posterior = run(model, autoguide.AutoNormal, num_steps=3, learning_rate=0.1)
    assert float(posterior.params["slope"]) == 0
    assert posterior.num_parameters == 2 + 1


def test_what_a_guide_thaws_as_it_is_made_stays_frozen() -> None:
    model = WithPyroParam()
    model.slope.requires_grad = False

    def made(own: Any) -> Any:
        own.slope.requires_grad_()  # as Pyro's store does with what is read
        return autoguide.AutoNormal(own)

    posterior = run(model, made, num_steps=3, learning_rate=0.1)
    assert float(posterior.params["slope"]) == 0
    assert posterior.num_parameters == 2 + 1


# Point estimates


def delta_guide(x: Tensor, y: Tensor | None = None) -> None:
    w = pyro.param("w_loc", lambda: torch.zeros(3, 1, dtype=torch.float64))
    pyro.sample("w", dist.Delta(w, event_dim=2))
    pyro.sample("b", dist.Normal(torch.zeros(1, dtype=torch.float64), 1.0).to_event(1))


@pytest.mark.parametrize("guide", [delta_guide, autoguide.AutoDelta])
def test_a_guide_with_a_point_mass_has_no_density(guide: Any) -> None:
    posterior = run(linear_gaussian().model, guide, num_steps=1)
    assert not posterior.has_log_prob
    assert posterior.elbo_kind == "none"


@pytest.mark.slow("about a second")
def test_a_laplace_approximation_is_the_gaussian_at_the_mode() -> None:
    oracle = linear_gaussian()
    guide = autoguide.AutoLaplaceApproximation(oracle.model)
    posterior = run(oracle.model, guide, num_steps=400, learning_rate=0.05)
    torch.testing.assert_close(guide.loc.detach(), oracle.mean, rtol=0, atol=1e-3)
    z = posterior.unconstrained(20)
    exact = torch.distributions.MultivariateNormal(guide.loc.detach(), oracle.covariance)
    torch.testing.assert_close(posterior.log_q(20), exact.log_prob(z), rtol=1e-7, atol=1e-7)
    assert posterior.provenance.method == "AutoLaplaceApproximation"
    # its draws are of that Gaussian
    white = (z - oracle.mean) @ torch.linalg.cholesky(oracle.precision)
    assert 0.5 < float(white.square().mean()) < 1.7  # chi-squared, of 80 numbers


def test_a_laplace_approximation_where_there_is_no_maximum() -> None:
    """-log of a Cauchy density is curved downwards beyond 1, and rows of zeros say nothing."""

    def model(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", dist.Cauchy(one(0.0), one(1.0)).expand([3, 1]).to_event(2))
        f = pyro.deterministic("f", x @ w)
        with pyro.plate("data", len(x)):
            pyro.sample("y", dist.Normal(f, one(1.0)).to_event(1), obs=y)

    def far(site: dict[str, Any]) -> Tensor:
        return torch.full((3, 1), 3.0, dtype=torch.float64)

    guide = functools.partial(autoguide.AutoLaplaceApproximation, init_loc_fn=far)
    rows = torch.zeros(4, 3, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    with pytest.raises(DivergenceError, match="the log joint is not curved downwards where"):
        run(model, guide, data=rows, num_steps=1)


# Divergence that Pyro's own checks would meet first


def scaled_guide(x: Tensor, y: Tensor | None = None) -> None:
    loc = pyro.param("loc", lambda: torch.zeros(3, 1, dtype=torch.float64))
    pyro.sample("w", dist.Normal(loc, one(0.1)).to_event(2))
    pyro.sample("b", dist.Normal(loc[0], one(0.1)).to_event(1))


def test_parameters_that_are_not_finite_are_told_by_this_package() -> None:
    options: dict[str, Any] = {"optimizer": torch.optim.SGD, "learning_rate": 1e308}
    with pytest.raises(DivergenceError, match="the loss of scaled_guide is not finite at step 1"):
        run(linear_gaussian().model, scaled_guide, num_steps=3, **options)
    with pytest.raises(
        DivergenceError, match="parameters of scaled_guide are not finite after the last step; the"
    ) as caught:
        run(linear_gaussian().model, scaled_guide, num_steps=1, **options)
    posterior = caught.value.posterior
    assert isinstance(posterior, DrawsPosterior)
    assert bool(posterior.unconstrained(20).isfinite().all())
