"""Dropout guides: moments of masked weights, objectives in closed form, learned rates, the laws."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pyro
import pytest
import torch
from pyro.infer import Trace_ELBO
from scipy import integrate, optimize, stats
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import SVI, likelihoods, models, priors
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.guides import AutoDelta, AutoDropout
from pyro_bnn.guides.dropout import DROPOUT, log_uniform_kl
from pyro_bnn.posterior import GuidePosterior
from pyro_bnn.program import Batch, Program
from tests import laws
from tests.collection import rest_in_soak
from tests.laws import made, problem
from tests.oracle import LinearGaussian, design, linear_gaussian

RATE = 0.25
exact = functools.partial(assert_close, rtol=1e-10, atol=1e-10)


def oracle_of_halves() -> LinearGaussian:
    """The oracle with scales that single precision holds, in which a network makes its priors."""
    return linear_gaussian(noise=0.5, prior_scale=1.25)


def linear(oracle: LinearGaussian) -> models.MLP:
    """The oracle as a network without hidden layers: sites ``weight`` [1, 3] and ``bias`` [1]."""
    prior = priors.Normal(oracle.prior_scale)
    return models.MLP(
        3, hidden=(), prior=prior, likelihood=likelihoods.Normal(oracle.noise)
    ).double()


def at(model: Any, x: Tensor, loc: Tensor | None = None, **options: Any) -> AutoDropout:
    """A guide in float64, its means at given values."""
    guide = AutoDropout(model, **options)
    guide.setup(x[:1])
    guide.double()
    if loc is not None:
        guide.move_to(loc)
    return guide


def named(guide: AutoDropout) -> dict[str, Tensor]:
    return {f"guide.{name}": value for name, value in guide.named_parameters()}


def all_masks(num_units: int) -> Tensor:
    """Noise ``[4^M, M]`` that drops units independently, each in a quarter of the rows."""
    levels = torch.special.ndtri((torch.arange(4, dtype=torch.float64) + 0.5) / 4)
    return torch.cartesian_prod(*[levels] * num_units).reshape(-1, num_units)


def ridge(oracle: LinearGaussian, rate: float) -> Tensor:
    """The optimum z ``[4]``: least squares, w^2 penalised by p/(1-p) sum x^2 and by the prior."""
    A = design(oracle.x)
    odds = rate / (1 - rate)
    penalty = torch.cat(
        [
            odds * oracle.x.square().sum(0) / oracle.noise**2
            + 1 / (1 - rate) / oracle.prior_scale**2,
            torch.full((1,), oracle.prior_scale**-2, dtype=torch.float64),
        ]
    )
    precision = A.T @ A / oracle.noise**2 + penalty.diag()
    z: Tensor = torch.linalg.solve(precision, A.T @ oracle.y / oracle.noise**2)
    return z


# --- masks ---------------------------------------------------------------------------------------


def test_moments_of_a_linear_layer_are_those_of_inverted_dropout() -> None:
    oracle = oracle_of_halves()
    model = linear(oracle)
    loc = torch.tensor([0.7, -1.2, 0.4, 0.3], dtype=torch.float64)
    guide = at(model, oracle.x, loc, rate=RATE)
    program = Program(model, oracle.x, oracle.y)
    with torch.no_grad():
        f = program.function(guide.transport(all_masks(3)), oracle.x)[..., 0]  # [64, N]
    w, b = loc[:3], loc[3]
    exact(f.mean(0), oracle.x @ w + b)
    exact(f.var(0, correction=0), RATE / (1 - RATE) * oracle.x.square() @ w.square())
    with torch.no_grad():
        q = guide.components()
    exact(q.loc, loc)
    exact(q.scale[:3], (RATE / (1 - RATE)) ** 0.5 * w.abs())
    assert float(q.scale[3]) == 0


@pytest.mark.parametrize("kind", ["bernoulli", "concrete"])
def test_units_are_dropped_as_often_as_the_rate_says_and_together(kind: Any) -> None:
    x = torch.zeros(1, 3, dtype=torch.float64)
    model = models.MLP(3, hidden=(4, 5)).double()
    sharp: dict[str, Any] = {"temperature": 1e-10} if kind == "concrete" else {}
    guide = at(model, x, kind=kind, rate=0.3, **sharp)
    assert guide.noise_dim == 9
    z = guide.sample(20_000)
    values = cast(Any, guide.latents).constrain(z)
    means = cast(Any, guide.latents).constrain(guide.centre())
    for name, num_units in (("layers.1.weight", 4), ("layers.2.weight", 5)):
        masks = values[name] / means[name]  # [S, O, I]
        exact(masks, masks[:, :1].expand_as(masks))
        dropped = (masks[:, 0] < 0.5).double()
        exact(masks[:, 0], (1 - dropped) / 0.7)
        laws.assert_mean(dropped, 0.3)
        pairs = dropped @ torch.ones(num_units, dtype=torch.float64)
        laws.assert_mean((pairs - 0.3 * num_units).square(), num_units * 0.3 * 0.7)
    exact(values["layers.0.weight"], means["layers.0.weight"].expand(20_000, -1, -1))
    exact(values["layers.1.bias"], means["layers.1.bias"].expand(20_000, -1))


def test_each_weight_is_dropped_at_its_own_learned_rate() -> None:
    x = torch.zeros(1, 3, dtype=torch.float64)
    guide = at(models.MLP(3, hidden=(4, 5)).double(), x, kind="concrete", temperature=1e-10)
    rates = {"layers.1.weight": 0.2, "layers.2.weight": 0.6}
    with torch.no_grad():
        guide.logit_rate.copy_(torch.logit(torch.tensor([*rates.values()], dtype=x.dtype)))
    assert guide.rates() == pytest.approx(rates)
    values = cast(Any, guide.latents).constrain(guide.sample(20_000))
    means = cast(Any, guide.latents).constrain(guide.centre())
    for name, rate in rates.items():
        masks = (values[name] / means[name])[:, 0]  # [S, I]
        assert_close(masks[masks > 0], torch.full_like(masks[masks > 0], 1 / (1 - rate)))
        laws.assert_mean((masks == 0).double(), rate)


def test_each_weight_has_its_own_learned_noise() -> None:
    x = torch.zeros(1, 3, dtype=torch.float64)
    guide = at(models.MLP(3, hidden=(4, 5)).double(), x, kind="gaussian")
    alphas = {"layers.0.weight": 0.25, "layers.1.weight": 1.0, "layers.2.weight": 4.0}
    with torch.no_grad():
        guide.log_alpha.copy_(torch.tensor([*alphas.values()], dtype=x.dtype).log())
        sds = guide.components().scale
    constrain = cast(Any, guide.latents).constrain
    values, means = constrain(guide.sample(20_000)), constrain(guide.centre())
    for site in cast(Any, guide.latents).sites:
        if site.name in alphas:
            own = alphas[site.name] ** 0.5 * means[site.name].abs()
            exact(sds[site.start : site.stop], own.flatten())
            laws.assert_mean((values[site.name] - means[site.name]).square(), own.square())


def logit_of_dropped(masks: Tensor, rate: float = 0.1) -> Tensor:
    """The logit of the literature's z~ of masks (1 - z~) / (1 - p)."""
    return torch.logit(1 - masks * (1 - rate))


def test_relaxed_masks_are_those_of_the_literature() -> None:
    """The logit of z~ times t, less logit p, is a standard logistic number; t = 0.1 by default."""
    oracle, ones = oracle_of_halves(), torch.ones(4, dtype=torch.float64)
    guide = at(linear(oracle), oracle.x, ones, kind="concrete", temperature=0.7)
    logistic = 0.7 * logit_of_dropped(guide.sample(4_000)[:, :3]) - math.log(0.1 / 0.9)
    fits = [stats.kstest(column, "logistic").pvalue for column in logistic.T.numpy()]
    assert min(fits) > 0.01
    default, stated = (
        at(linear(oracle), oracle.x, ones, kind="concrete", temperature=t) for t in (None, 0.1)
    )
    exact(default.sample(50), stated.sample(50))


def test_channels_of_a_convolution_are_dropped_whole() -> None:
    net = nn.Sequential(
        *(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 1), nn.Tanh(), nn.Conv2d(4, 2, 2)),
        *(nn.Flatten(), nn.Linear(4, 1)),
    ).double()
    x = torch.zeros(5, 6, dtype=torch.float64)
    guide = at(models.bayesian(net), x, kind="concrete", drop_inputs=True)
    assert guide.latents is not None
    values = guide.latents.constrain(guide.sample(4_000))
    means = guide.latents.constrain(guide.centre())
    assert list(guide.rates()) == ["1.weight", "3.weight", "5.weight"]
    for name in ("1.weight", "3.weight"):  # the first has a kernel of one entry
        masks = values[name] / means[name]  # [S, O, I, kernel]
        exact(masks, masks[:, :1, :, :1, :1].expand_as(masks))
        logistic = 2 / 3 * logit_of_dropped(masks[:, 0, :, 0, 0]) + math.log(9)
        assert stats.kstest(logistic.flatten().numpy(), "logistic").pvalue > 0.01


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("prior", [priors.Normal(), priors.HalfCauchyScale()])
def test_input_channels_of_a_transposed_convolution_are_dropped(prior: Any, groups: int) -> None:
    """Its weight is [I, O / groups, kernel]."""
    net = nn.Sequential(
        *(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 4, 1), nn.ConvTranspose1d(4, 6, 2, groups=groups)),
        nn.Flatten(),
    ).double()
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(1, 6)
    model = models.bayesian(net, prior, likelihoods.Normal(1.0))
    guide = at(model, x, rate=0.5)
    (site,) = guide.rates()
    assert site in ("2.weight", "2.weight.raw")
    assert guide.noise_dim == 4
    constrain = cast(Any, guide.latents).constrain
    z, centre = guide.sample(50), guide.centre()
    masks = constrain(z)[site] / constrain(centre)[site]  # [S, I, O / groups, kernel]
    exact(masks, masks[:, :, :1, :1].expand_as(masks))
    assert set(masks.unique().tolist()) == {0.0, 2.0}


def test_quantiles_of_a_masked_weight() -> None:
    oracle = oracle_of_halves()
    loc = torch.tensor([0.7, -1.2, 0.0, 0.3], dtype=torch.float64)
    guide = at(linear(oracle), oracle.x, loc, rate=RATE)
    values = guide.quantiles([0.2, 0.3, 0.5, 0.7, 0.8])
    kept = loc / (1 - RATE)
    weight = values["layers.0.weight"][:, 0]
    exact(weight[:, 0], kept[0] * torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0]).double())
    exact(weight[:, 1], kept[1] * torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]).double())
    exact(guide.median()["layers.0.bias"], loc[3:])
    gaussian = at(linear(oracle), oracle.x, loc, kind="gaussian", rate=RATE)
    upper = gaussian.quantiles([0.975])["layers.0.weight"][0, 0, 1]
    exact(upper, torch.tensor(stats.norm.ppf(0.975, -1.2, 1.2 / 3**0.5)).double())


# --- objectives ----------------------------------------------------------------------------------


def test_the_optimum_on_linear_regression_is_a_ridge() -> None:
    oracle = oracle_of_halves()
    model = linear(oracle)
    guide = at(model, oracle.x, ridge(oracle, RATE), rate=RATE)
    program = Program(model, oracle.x, oracle.y)
    _, evaluate = laws.objective(guide, program, captured=True)
    _, gradient = evaluate(all_masks(3), program.batch(oracle.x, oracle.y))
    assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-9)


def penalty(guide: AutoDropout, program: Program, noise: Tensor, **values: Tensor) -> Tensor:
    """What stands in place of the KL at given values of the parameters."""
    params = named(guide) | {f"guide.{name}": value for name, value in values.items()}
    rows = Batch(program.example.x, program.example.y)
    return program.elbo(guide, params, noise, rows).kl


def test_the_penalty_is_that_of_the_literature_and_so_is_its_slope_in_the_rate() -> None:
    r"""l^2 (1-p)/2 ||M||^2 - I H(p), and at fixed M -l^2 ||M||^2 / 2 - I log((1-p)/p) by p."""
    oracle = oracle_of_halves()
    model, l = linear(oracle), 1 / oracle.prior_scale  # noqa: E741  # the literature's
    M = torch.tensor([0.7, -1.2, 0.4], dtype=torch.float64)
    bias = torch.tensor([0.3], dtype=torch.float64)
    program = Program(model, oracle.x, oracle.y)
    constants = 4 * 0.5 * math.log(2 * math.pi / l**2) + 0.5 * (l * 0.3) ** 2
    for rate in (0.05, 0.4, 0.8):
        p = torch.tensor(rate, dtype=torch.float64, requires_grad=True)
        loc = torch.cat([(1 - p) * M, bias])
        entropy = stats.bernoulli(rate).entropy()
        expected = 0.5 * l**2 * (1 - rate) * float(M.square().sum()) - 3 * entropy + constants
        guides = {
            kind: at(model, oracle.x, kind=kind, rate=rate) for kind in ("bernoulli", "concrete")
        }
        noise = guides["bernoulli"].draw_noise(2)
        fixed = penalty(guides["bernoulli"], program, noise, loc=loc)
        learned = penalty(
            guides["concrete"], program, noise, loc=loc, logit_rate=p.logit().unsqueeze(0)
        )
        assert fixed.item() == pytest.approx(expected, rel=1e-12)
        assert learned.item() == pytest.approx(expected, rel=1e-12)
        (slope,) = torch.autograd.grad(learned, p)
        slope_by_hand = -0.5 * l**2 * float(M.square().sum()) - 3 * math.log((1 - rate) / rate)
        assert slope.item() == pytest.approx(slope_by_hand, rel=1e-10)


@pytest.mark.parametrize("kind", ["bernoulli", "concrete"])
def test_the_objective_by_hand_under_priors_of_other_families(kind: Any) -> None:
    """Fixed Gaussian priors in closed form, a Laplace prior and a scale's at the draws."""
    given = problem("matrix")
    guide = made(functools.partial(AutoDropout, kind=kind, rate=RATE), given, noise=0.3)
    assert list(guide.rates()) == ["skip", "offset", "decode"]
    noise = guide.draw_noise(5, torch.Generator().manual_seed(0))
    assert isinstance(guide, AutoDropout)
    actual = penalty(guide, given.program, noise).detach()
    z = guide.transport(noise).detach()
    encode, log_noise, skip, offset, decode = z.split([6, 1, 6, 2, 6], -1)
    theta = dict(
        zip(("skip", "offset", "decode"), guide.centre().split([6, 1, 6, 2, 6])[2:], strict=True)
    )
    d = torch.distributions
    expected = -d.Laplace(laws.one(0), laws.one(1)).log_prob(skip).sum(-1).mean()
    expected = expected - d.HalfNormal(laws.one(1)).log_prob(log_noise.exp()).mean()  # no Jacobian
    expected = expected - d.Normal(laws.one(0), laws.one(1)).log_prob(encode[0]).sum()
    for name in ("offset", "decode"):
        p = guide.rates()[name]
        expected = expected + 0.5 * theta[name].square().sum() / (1 - p)
        expected = expected + 0.5 * len(theta[name]) * math.log(2 * math.pi)
    for name, num_units in (("skip", 3), ("offset", 2), ("decode", 2)):
        expected = expected - num_units * stats.bernoulli(guide.rates()[name]).entropy()
    exact(actual, expected)
    assert offset.shape == (5, 2)
    assert decode.shape == (5, 6)


@pytest.mark.parametrize("kind", ["bernoulli", "concrete"])
def test_pyros_elbo_of_a_draw_is_the_objective_at_its_noise(kind: Any) -> None:
    given = problem("matrix")
    guide = made(functools.partial(AutoDropout, kind=kind), given)
    rows = given.program.batch(given.x, given.y)
    _, evaluate = laws.objective(guide, given.program, captured=False)
    with torch.random.fork_rng(), pyro.get_param_store().scope():
        torch.manual_seed(3)
        noise = guide.draw_noise(1)
        torch.manual_seed(3)
        loss = Trace_ELBO().loss(given.model, guide, given.x, given.y)
    assert loss == pytest.approx(float(evaluate(noise, rows)[0]), rel=1e-12)


def test_the_gaussian_kind_is_a_gaussian_with_a_kl_in_closed_form() -> None:
    oracle = oracle_of_halves()
    loc = torch.tensor([0.7, -1.2, 0.4, 0.3], dtype=torch.float64)
    guide = at(linear(oracle), oracle.x, loc, kind="gaussian", rate=0.2)
    bias_sd = float(guide.scale.detach())  # a parameter of its own
    assert bias_sd == pytest.approx(0.01, rel=1e-5)
    sds = torch.tensor([0.35, 0.6, 0.2, bias_sd], dtype=torch.float64)  # sqrt(0.2 / 0.8) = 0.5
    d = torch.distributions
    q, prior = d.Normal(loc, sds), d.Normal(laws.one(0), laws.one(oracle.prior_scale))
    value, is_exact = guide.kl()
    assert is_exact
    assert value == pytest.approx(float(d.kl_divergence(q, prior).sum()), rel=1e-12)
    z = guide.sample(5)
    exact(guide.log_prob(z).detach(), q.log_prob(z).sum(-1))
    assert guide.rates() == {"layers.0.weight": pytest.approx(0.2)}
    assert (guide.has_log_prob, guide.kl_kind, guide.objective) == (True, "exact", "ELBO")


def test_the_literatures_kl_from_the_log_uniform_prior() -> None:
    r"""KL = E log|e + a^-1/2| + (gamma + log 2) / 2 up to a constant, which is 0 at infinity."""
    log_alpha = torch.linspace(-8, 8, 17, dtype=torch.float64)
    for value, approximation in zip(log_alpha.tolist(), log_uniform_kl(log_alpha), strict=True):
        shift = math.exp(-0.5 * value)
        whole, _ = integrate.quad(
            lambda e, s=shift: math.log(abs(e + s)) * stats.norm.pdf(e),
            *(-12 - shift, 12),
            points=[-shift, -8, 8],
            limit=400,
        )
        kl = whole + 0.5 * (np.euler_gamma + math.log(2))
        assert abs(float(approximation) - kl) < 0.011, value  # of the fit, by its authors' figure
    kl = log_uniform_kl(torch.linspace(-8, 40, 200, dtype=torch.float64))
    assert bool((kl.diff() < 0).all())
    assert float(kl[-1]) == pytest.approx(0, abs=1e-12)
    noise = torch.randn(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    small, large = ((noise + math.exp(-0.5 * v)).abs().log() for v in (-2.0, 2.0))
    difference = log_uniform_kl(torch.tensor([-2.0, 2.0], dtype=torch.float64))
    error = float((small - large).std()) / math.sqrt(len(noise))
    assert abs(float((small - large).mean() - difference[0] + difference[1])) < 4 * error + 0.01


def test_each_row_of_a_step_may_have_masks_of_its_own() -> None:
    oracle = oracle_of_halves()
    model = linear(oracle)
    loc = torch.tensor([0.7, -1.2, 0.4, 0.3], dtype=torch.float64)
    guide = at(model, oracle.x, loc, rate=RATE)
    program = Program(model, oracle.x, oracle.y)
    rows = program.batch(oracle.x, oracle.y)
    noise = guide.draw_noise(20, torch.Generator().manual_seed(1))  # [B, M]
    terms = program.elbo(guide, named(guide), noise.unsqueeze(0), rows)
    masks = (noise >= stats.norm.ppf(RATE)).double() / (1 - RATE)
    mean = (oracle.x * masks) @ loc[:3] + loc[3]
    expected = stats.norm(mean, oracle.noise).logpdf(oracle.y).sum()
    assert terms.expected_log_likelihood.item() == pytest.approx(float(expected), rel=1e-12)
    engine = SVI(AutoDropout, num_steps=3, per_example_draws=True, batch_size=7, compile=False)
    assert np.isfinite(engine.run(model, (oracle.x, oracle.y), progress=False).losses).all()


# --- fits ----------------------------------------------------------------------------------------


def fit(rate: float, **options: Any) -> GuidePosterior:
    oracle = oracle_of_halves()
    engine = SVI(
        functools.partial(AutoDropout, rate=rate, **options),
        num_steps=600,
        learning_rate=0.05,
        num_particles=16,
        compile=False,
    )
    posterior = engine.run(linear(oracle), (oracle.x, oracle.y), progress=False)
    assert isinstance(posterior, GuidePosterior)
    return posterior


@pytest.fixture(scope="module")
def dropped() -> GuidePosterior:
    return fit(RATE)


def test_svi_ends_near_the_ridge_and_its_predictions_add_one_over_tau(
    dropped: GuidePosterior,
) -> None:
    """Var y = 1/tau + Var f, with Var f that of inverted dropout."""
    oracle = oracle_of_halves()
    centre = dropped.guide.centre()
    sds = oracle.covariance.diagonal().sqrt()
    assert float(((centre - ridge(oracle, RATE)) / sds).abs().max()) < 0.1
    x = oracle.x[:4]
    prediction = dropped.predict(x, 20_000)
    variance = RATE / (1 - RATE) * x.square() @ centre[:3].square()
    f = dropped.function_draws(x, 20_000)[..., 0]
    laws.assert_mean((f - x @ centre[:3] - centre[3]).square(), variance)
    exact(prediction.sd[:, 0].square(), f.var(0, correction=0) + oracle.noise**2)
    assert dropped.objective == DROPOUT
    assert dropped.elbo_kind == "none"


@pytest.mark.slow("about a second")
def test_rate_zero_is_the_mode() -> None:
    oracle = oracle_of_halves()
    posterior = fit(0.0)
    assert_close(posterior.guide.centre(), oracle.mean, rtol=1e-6, atol=1e-6)
    draws = posterior.draws(3)
    exact(draws, posterior.guide.centre().expand(3, -1))
    mode = SVI(AutoDelta, num_steps=600, learning_rate=0.05, compile=False).run(
        linear(oracle), (oracle.x, oracle.y), progress=False
    )
    assert_close(posterior.losses[-1], mode.losses[-1], rtol=1e-9, atol=0)


def best_rate(oracle: LinearGaussian, x: Tensor, y: Tensor, noise: float) -> float:
    """The optimum of the objective in closed form, by p, of masks at temperature 0."""
    many = dataclasses.replace(oracle, x=x, y=y, noise=noise)

    def loss(p: float) -> float:
        w, b = (z := ridge(many, p))[:3], z[3]
        second_moment = p / (1 - p) * (x.square() @ w.square())
        misfit = float(((y - x @ w - b).square() + second_moment).sum()) / (2 * noise**2)
        prior = float(w.square().sum() / (1 - p) + b**2) / (2 * oracle.prior_scale**2)
        return misfit + prior - 3 * float(stats.bernoulli(p).entropy())

    return float(optimize.minimize_scalar(loss, bounds=(1e-6, 0.999), method="bounded").x)


@pytest.mark.slow("a second or more")
def test_a_learned_rate_falls_as_the_rows_grow() -> None:
    """The same rows once to three times: the misfit grows with N, the masks' entropy does not."""
    oracle, noise = oracle_of_halves(), 2.0
    learned, best = [], []
    model = models.MLP(
        3, hidden=(), prior=priors.Normal(1.25), likelihood=likelihoods.Normal(noise)
    ).double()
    for times in (1, 2, 3):
        x, y = oracle.x.repeat(times, 1), oracle.y.repeat(times)
        engine = SVI(
            functools.partial(AutoDropout, kind="concrete", rate=0.3),
            num_steps=300,
            learning_rate=0.05,
            num_particles=8,
            schedule="cosine",
            compile=False,
        )
        posterior = engine.run(model, (x, y), progress=False)
        assert isinstance(posterior, GuidePosterior)
        learned.append(cast(AutoDropout, posterior.guide).rates()["layers.0.weight"])
        best.append(best_rate(oracle, x, y, noise))
    assert best[0] > 2 * best[2]
    assert learned == pytest.approx(best, abs=0.01)  # masks are relaxed, the fit of 300 steps


@pytest.mark.slow("about a second")
def test_each_layer_learns_a_rate_of_its_own() -> None:
    """Of two layers of units the one whose units matter less drops more."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=g)
    y = (2 * x[:, 0]).sin() + 0.1 * torch.randn(60, generator=g)
    model = models.MLP(3, hidden=(20, 20), likelihood=likelihoods.Normal(0.1))
    engine = SVI(functools.partial(AutoDropout, kind="concrete"), num_steps=300, compile=False)
    posterior = engine.run(model, (x, y), progress=False)
    assert isinstance(posterior, GuidePosterior)
    rates = cast(AutoDropout, posterior.guide).rates()
    assert list(rates) == ["layers.1.weight", "layers.2.weight"]
    assert len({round(rate, 4) for rate in rates.values()}) == 2
    assert all(0 < rate < 1 for rate in rates.values())


# --- the laws, for the other kinds ---------------------------------------------------------------

KINDS: dict[str, Callable[..., Any]] = {
    "concrete": functools.partial(AutoDropout, kind="concrete"),
    "gaussian": functools.partial(AutoDropout, kind="gaussian"),
}


# a law that tests/test_laws_of_priors.py has of these kinds
DEAR = (laws.captured_elbo_and_its_gradient_are_right,)
LAWS = rest_in_soak(
    [(law,) for law in laws.EVERY_GUIDE], [(law,) for law in laws.EVERY_GUIDE if law not in DEAR]
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_law(kind: str, law: Any) -> None:
    if law is laws.move_to_centres_the_draws and kind == "concrete":
        pytest.skip("a relaxed mask has mean 1 at temperature 0 only")
    law(KINDS[kind], problem("matrix"))


@pytest.mark.slow("fits of stock Pyro")
@pytest.mark.parametrize("law", laws.UNDER_STOCK_PYRO, ids=lambda law: law.__name__)
def test_law_under_stock_pyro(law: Any) -> None:
    law(KINDS["concrete"], problem("matrix"))


@pytest.mark.parametrize("law", laws.WITH_DENSITY, ids=lambda law: law.__name__)
def test_law_of_a_density(law: Any) -> None:
    law(KINDS["gaussian"], problem("matrix"))


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "normal"}, r"kind is one of 'bernoulli', 'concrete', 'gaussian', not 'normal'"),
        ({"rate": 1.0}, "rate is a number of at least 0 and below 1, not 1.0"),
        ({"rate": True}, "rate is a number of at least 0 and below 1, not True"),
        ({"rate": 0.0, "kind": "concrete"}, 'rate starts above 0 .* kind="concrete"'),
        ({"temperature": 0.1}, 'temperature would have no effect with kind="bernoulli"'),
        ({"temperature": -1.0, "kind": "concrete"}, "temperature is a positive number, not -1.0"),
        ({"drop_inputs": True, "kind": "gaussian"}, "drop_inputs would have no effect"),
        ({"init_scale": 0.1}, "init_scale would have no effect"),
    ],
)
def test_options_that_do_not_serve_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        AutoDropout(models.MLP(3), **options)


@pytest.mark.slow("about a second")
def test_a_model_without_weights_is_refused() -> None:
    given = problem("rank-1")
    with pytest.raises(
        SiteError, match=r"drops the inputs of weights.* there are layers.0.s \(3,\)"
    ):
        AutoDropout(given.model).setup(given.x[:1])


def test_masks_have_no_density() -> None:
    oracle = oracle_of_halves()
    guide = at(linear(oracle), oracle.x)
    with pytest.raises(TypeError, match="has no density"):
        guide.log_prob(torch.zeros(4))
    with pytest.raises(TypeError, match="has no distribution object"):
        guide.get_posterior()
    with pytest.raises(SiteError, match="AutoDropout has no density: its KL is infinite"):
        guide.kl()
    assert guide.marginals() is None
