"""AutoRank1Mixture: bounds on a conjugate toy, members, densities, Cauchy components, refusals."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy import integrate, optimize, stats
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import guides, likelihoods, priors
from pyro_bnn.errors import BNNWarning, OptionError, OutputError, SiteError
from pyro_bnn.guides import AutoRank1Mixture
from pyro_bnn.guides.parts.components import Components
from pyro_bnn.models import MLP, Rank1MLP
from pyro_bnn.program import Batch, Program
from tests.laws import module_of

PRIOR_SCALE, NOISE = 0.5, 0.75
CENTRES = torch.tensor([[0.7], [1.9]], dtype=torch.float64)
SPREADS = torch.tensor([[0.3], [0.5]], dtype=torch.float64)


# A conjugate toy: f = W s x + b with W, b known, s ~ N(1, 0.5^2), three observations


class Toy:
    """One rank-1 layer 1-1 with a factor on its input: linear in s, so all is closed form."""

    def __init__(self) -> None:
        self.model: Any = Rank1MLP(
            1,
            hidden=(),
            prior=priors.Normal(loc=1.0, scale=PRIOR_SCALE),
            on="inputs",
            weight_prior=None,
            likelihood=likelihoods.Normal(scale=NOISE),
        )
        self.model.double()
        with torch.no_grad():
            self.model.get_parameter("layers.0.weight").fill_(1.3)
            self.model.get_parameter("layers.0.bias").fill_(-0.2)
        self.x = torch.tensor([[-1.0], [0.4], [1.5]], dtype=torch.float64)
        self.y = torch.tensor([[0.3], [0.6], [2.4]], dtype=torch.float64)
        slope = 1.3 * self.x[:, 0]
        precision = PRIOR_SCALE**-2 + float(slope @ slope) / NOISE**2
        residual = self.y[:, 0] + 0.2
        self.sd = precision**-0.5
        self.mean = (1.0 / PRIOR_SCALE**2 + float(slope @ residual) / NOISE**2) / precision
        covariance = NOISE**2 * torch.eye(3) + PRIOR_SCALE**2 * slope[:, None] * slope[None]
        evidence = stats.multivariate_normal((slope - 0.2).numpy(), covariance.numpy())
        self.log_evidence = float(evidence.logpdf(self.y[:, 0].numpy()))

    @property
    def program(self) -> Program:
        return Program(self.model, self.x, self.y)

    def guide(self, *, centres: Tensor = CENTRES, spreads: Tensor = SPREADS, **options: Any) -> Any:
        options = {"num_components": len(centres), "separate_biases": False, **options}
        guide = AutoRank1Mixture(self.model, **options)
        guide.setup(self.x)
        guide.double()
        with torch.no_grad():
            guide.loc.copy_(centres)
        if guide.has_log_prob:
            guide.scale = spreads
        return guide

    def exact_guide(self, **options: Any) -> Any:
        """Two components, both the exact posterior."""
        two = torch.ones(2, 1, dtype=torch.float64)
        return self.guide(centres=self.mean * two, spreads=self.sd * two, **options)


def objective(toy: Toy, guide: Any) -> float:
    """The objective of two components in one dimension, by Gauss-Hermite quadrature."""
    program = toy.program
    batch = program.batch(toy.x, toy.y)
    program.prepare(guide)
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(40))
    weights = weights / weights.sum()
    noise = torch.cat([torch.cartesian_prod(nodes, nodes), torch.zeros(1600, 1)], -1)
    params = {f"guide.{name}": value.detach() for name, value in guide.named_parameters()}

    def value(row: Tensor) -> Tensor:
        terms = program.elbo(guide, params, row.unsqueeze(0), batch)
        return terms.expected_log_likelihood - terms.kl

    values = torch.func.vmap(value)(noise)
    return float((values * torch.cartesian_prod(weights, weights).prod(-1)).sum().detach())


BOUNDS = ("average", "mixture", "log_mixture")


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize("seed", range(5))
def test_bounds_stay_below_the_evidence(kind: str, seed: int) -> None:
    toy = Toy()
    generator = torch.Generator().manual_seed(seed)
    centres = toy.mean + 0.5 * torch.randn(2, 1, generator=generator, dtype=torch.float64)
    spreads = 0.2 + torch.rand(2, 1, generator=generator, dtype=torch.float64)
    guide = toy.guide(centres=centres, spreads=spreads, objective=kind)
    assert objective(toy, guide) < toy.log_evidence


def test_what_is_tight_at_the_exact_posterior_and_what_exceeds_the_evidence() -> None:
    toy = Toy()
    values = {
        kind: objective(toy, toy.exact_guide(objective=kind))
        for kind in (*BOUNDS, "log_mixture_averaged_kl")
    }
    assert values["average"] == pytest.approx(toy.log_evidence, abs=1e-10)
    assert values["mixture"] == pytest.approx(toy.log_evidence, abs=1e-10)
    assert values["log_mixture"] < toy.log_evidence - 0.1  # it pays for both KLs
    assert values["log_mixture_averaged_kl"] > toy.log_evidence + 0.01  # Jensen: not a bound


@pytest.mark.slow("about a second")
def test_training_the_averaged_log_mixture_passes_the_evidence_further() -> None:
    toy = Toy()
    guide = functools.partial(
        AutoRank1Mixture,
        num_components=2,
        separate_biases=False,
        objective="log_mixture_averaged_kl",
    )
    for parameter in toy.model.parameters():
        parameter.requires_grad = False  # W and b stay what the evidence is conditional on
    svi = bnn.SVI(guide, num_steps=400, num_particles=20, learning_rate=0.02, compile=False)
    fitted: Any = svi.run(toy.model, (toy.x, toy.y), progress=False)
    start = objective(toy, toy.exact_guide(objective="log_mixture_averaged_kl"))
    assert objective(toy, fitted.guide) > start
    assert fitted.objective == "log-mixture objective with averaged KL (no bound)"
    value, error = fitted.elbo((toy.x, toy.y))
    assert value - 5 * error < toy.log_evidence  # what is reported is a bound, whatever was trained


@pytest.mark.slow("whole fits")
@pytest.mark.parametrize("kind", ["average", "mixture"])
def test_svi_reaches_the_evidence(kind: Any) -> None:
    toy = Toy()
    for parameter in toy.model.parameters():
        parameter.requires_grad = False
    guide = functools.partial(
        AutoRank1Mixture, num_components=2, separate_biases=False, objective=kind
    )
    svi = bnn.SVI(guide, num_steps=1_500, num_particles=10)
    fitted: Any = svi.run(toy.model, (toy.x, toy.y), progress=False)
    assert objective(toy, fitted.guide) == pytest.approx(toy.log_evidence, abs=1e-3)


def test_the_kl_of_the_mixture_lies_within_log_k_of_the_average() -> None:
    toy = Toy()
    guide = toy.guide()
    prior = stats.norm(1.0, PRIOR_SCALE)
    parts = [stats.norm(float(m), float(s)) for m, s in zip(CENTRES, SPREADS, strict=True)]

    def integrand(z: float) -> float:
        density = float(np.mean([part.pdf(z) for part in parts]))
        return density * (math.log(density) - float(prior.logpdf(z)))

    exact, _ = integrate.quad(integrand, -2.0, 5.0, epsabs=1e-12)
    average = np.mean(
        [
            math.log(PRIOR_SCALE / s) + (s**2 + (m - 1) ** 2) / (2 * PRIOR_SCALE**2) - 0.5
            for m, s in zip(CENTRES.flatten().tolist(), SPREADS.flatten().tolist(), strict=True)
        ]
    )
    assert average - math.log(2) <= exact <= average
    value, is_exact = guide.kl(num_draws=200_000)
    assert not is_exact
    z = guide.sample(200_000)
    error = (
        float((guide.log_prob(z) - torch.from_numpy(prior.logpdf(z[:, 0]))).std().detach())
        / 200_000**0.5
    )
    assert abs(value - exact) < 5 * error
    own = toy.guide(separate_biases=True)
    assert own.kl() == (pytest.approx(average, rel=1e-12), True)
    terms = [
        toy.guide(objective=kind).make_terms(own.seeded_noise(1, 0), density=True)
        for kind in BOUNDS
    ]
    assert [t.kl_scale for t in terms] == [1.0, 1.0, 2.0]


def test_the_log_mixture_is_at_least_the_average_on_any_likelihoods() -> None:
    toy = Toy()
    rows = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    average, log_mixture, by_row = (
        float(toy.guide(objective=kind).reduce_log_likelihood(rows, 1.0))
        for kind in ("average", "log_mixture", "log_mixture_averaged_kl")
    )
    two = rows.reshape(3, 2, 5)  # [S, K, B]
    assert average == pytest.approx(float(rows.sum(-1).mean()), rel=1e-12)
    whole = (two.sum(-1).exp().mean(1)).log().mean()
    assert log_mixture == pytest.approx(float(whole), rel=1e-12)
    assert by_row == pytest.approx(float(two.exp().mean(1).log().sum(-1).mean()), rel=1e-12)
    assert average < log_mixture
    assert average < by_row


# Networks


def network(**options: Any) -> Rank1MLP:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        options = {"prior": priors.Normal(loc=1.0, scale=0.2), **options}
        model = Rank1MLP(3, hidden=(4,), activation="tanh", **options)
        model.double()
        for parameter in model.parameters():
            parameter.data.normal_()
    return model


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64)
    return x, x[:, :1] * 0.8 + 0.1 * torch.randn(12, 1, generator=generator, dtype=torch.float64)


def fit(model: Any = None, *, num_steps: int = 30, data: Any = None, **options: Any) -> Any:
    model = network() if model is None else model
    svi = bnn.SVI(functools.partial(AutoRank1Mixture, **options), num_steps=num_steps)
    return svi.run(model, rows() if data is None else data, progress=False)


def components(posterior: Any, num_samples: int, seed: int = 0) -> Tensor:
    """Number of the component of each draw."""
    guide = posterior.guide
    u = torch.special.ndtr(guide.seeded_noise(num_samples, seed)[:, -1])
    numbers: Tensor = (u * guide.num_components).long()
    return numbers


def by_hand(posterior: Any, z: Tensor, biases: Tensor, x: Tensor) -> Tensor:
    """F of one member from materialised weights W o r s^T."""
    sites = posterior.program.constrain(z)
    h = x
    for layer, (start, stop) in enumerate(((0, 4), (4, 5))):
        weight = posterior.params[f"layers.{layer}.weight"]
        r, s = sites[f"layers.{layer}.r"], sites[f"layers.{layer}.s"]
        h = h @ (weight * torch.outer(r, s)).T + biases[start:stop]
        h = torch.tanh(h) if layer == 0 else h
    return h


@pytest.mark.parametrize("separate", [True, False])
def test_members_in_one_pass_are_the_materialised_networks(separate: bool) -> None:
    posterior = fit(num_components=3, separate_biases=separate)
    x, _ = rows()
    f = posterior.function_draws(x, 6)
    draws = posterior.draws(6)
    num_latents = posterior.program.num_latents
    shared = torch.cat([posterior.params[f"layers.{i}.bias"] for i in (0, 1)])
    for row, value in zip(draws, f, strict=True):
        biases = row[num_latents:] if separate else shared
        assert_close(
            value, by_hand(posterior, row[:num_latents], biases, x), rtol=1e-12, atol=1e-12
        )
    if separate:
        own = posterior.guide.biases.detach()
        k = components(posterior, 6)
        assert_close(draws[:, num_latents:], own[k], rtol=0, atol=0)
        assert bool((own[0] != own[1]).any())
    assert posterior.unconstrained(6).shape == (6, num_latents)


def test_components_are_drawn_at_random() -> None:
    posterior = fit(num_components=4, num_steps=1)
    counts = torch.bincount(components(posterior, 4_000), minlength=4)
    assert stats.chisquare(counts.tolist()).pvalue > 1e-4
    first = torch.cat([components(posterior, 1, seed) for seed in range(60)])
    assert set(first.tolist()) == {0, 1, 2, 3}  # a single draw is of any component


def test_without_scale_it_is_batch_ensemble() -> None:
    posterior = fit(family="delta", num_components=2)
    x, _ = rows()
    f = posterior.function_draws(x, 10)
    guide = posterior.guide
    for k in range(2):  # two functions, each as often as the other
        expected = by_hand(posterior, guide.loc[k].detach(), guide.biases[k].detach(), x)
        assert int((f - expected).abs().flatten(1).amax(1).lt(1e-12).sum()) == 5
    assert posterior.elbo_kind == "none"
    narrow = AutoRank1Mixture(posterior.model, num_components=2, init_scale=1e-9)
    narrow.setup(x)
    narrow.double()
    with torch.no_grad():
        narrow.loc.copy_(guide.loc)
        narrow.biases.copy_(guide.biases)
    z = narrow.draws(narrow.seeded_noise(2, 0))
    assert_close(z, posterior.draws(2), rtol=1e-6, atol=1e-6)


@pytest.mark.slow("about a second")
def test_own_biases_make_the_average_the_exact_elbo() -> None:
    posterior = fit(num_components=3, num_steps=100)
    data = rows()
    guide, program = posterior.guide, posterior.program
    value, error = posterior.elbo(data, 5_000)
    likelihood = posterior.log_likelihood(data, 5_000, seed=3).sum(-1).double()
    other = float(likelihood.mean()) - guide.kl()[0]
    noise = float(likelihood.std()) / 5_000**0.5
    assert abs(value - other) < 5 * math.hypot(error, noise)
    log_q = posterior.log_q(6)
    z = posterior.unconstrained(6)
    for s, k in enumerate(components(posterior, 6).tolist()):
        expected = dist.Normal(guide.loc[k], guide.scale[k]).log_prob(z[s]).sum()
        assert_close(log_q[s], expected.detach(), rtol=1e-10, atol=1e-10)
    assert program.member_params == ("layers.0.bias", "layers.1.bias")
    # loc and scale of 3 + 4 + 4 + 1 factors and the noise, 3 of each; 5 biases of 3; W
    assert posterior.num_parameters == 3 * 2 * 13 + 3 * 5 + 3 * 4 + 4


def test_log_prob_is_the_mixture_of_normals() -> None:
    posterior = fit(num_components=3)
    guide = posterior.guide
    z = posterior.unconstrained(20)
    parts = torch.stack(
        [dist.Normal(guide.loc[k], guide.scale[k]).log_prob(z).sum(-1) for k in range(3)]
    )
    expected = parts.logsumexp(0) - math.log(3)
    assert_close(guide.log_prob(z).detach(), expected.detach(), rtol=1e-12, atol=1e-12)


def test_quantiles_invert_the_cdf_of_the_mixture() -> None:
    guide = Toy().guide()
    levels = [0.01, 0.3, 0.5, 0.99]
    values = guide.quantiles(levels)["layers.0.s"].flatten().tolist()
    parts = [stats.norm(float(m), float(s)) for m, s in zip(CENTRES, SPREADS, strict=True)]
    for level, value in zip(levels, values, strict=True):
        expected = optimize.brentq(_cdf_less, -5, 9, args=(parts, level))
        assert value == pytest.approx(expected, abs=1e-9)


def _cdf_less(z: float, parts: Any, level: float) -> float:
    return float(np.mean([part.cdf(z) for part in parts])) - level


def test_draws_for_each_row_estimate_the_same_likelihood_with_less_noise() -> None:
    model = network(likelihood=likelihoods.Normal(scale=0.5))
    x, y = rows()
    guide = AutoRank1Mixture(model, num_components=2, init_scale=0.3)
    guide.setup(x)
    guide.double()
    program = Program(model, x, y)
    program.prepare(guide)
    batch = program.batch(x, y)
    params = {f"guide.{name}": value.detach() for name, value in guide.named_parameters()}
    generator = torch.Generator().manual_seed(0)

    def likelihood(noise: Tensor) -> Tensor:
        return program.elbo(guide, params, noise, batch).expected_log_likelihood

    count = 2_000
    shared = guide.draw_noise(count, generator).unsqueeze(1)  # [T, 1, M]
    by_row = guide.draw_noise(count * 12, generator).reshape(count, 1, 12, -1)  # [T, 1, B, M]
    a = torch.func.vmap(likelihood)(shared).detach()
    b = torch.func.vmap(likelihood)(by_row).detach()
    error = float((a.var() / count + b.var() / count).sqrt())
    assert abs(float(a.mean() - b.mean())) < 5 * error
    assert float(b.var()) < 0.6 * float(a.var())
    # one row at a time by hand, W' materialised, two particles
    noise = by_row[:2, 0]  # [S, B, M]
    own = {k.removeprefix("guide."): v for k, v in params.items()}
    z = torch.stack([guide.terms(own, part, density=False).z for part in noise])  # [S, B K, P + Q]
    z = z.reshape(24, 2, -1)
    actual = float(likelihood(noise).detach())  # before the guide is trained below
    fitted: Any = bnn.SVI(guide, num_steps=1).run(model, (x, y), progress=False)
    fitted.params.update({k: v.detach() for k, v in program.params.items()})
    total = 0.0
    for i in range(24):
        n = i % 12
        for k in range(2):
            f = by_hand(fitted, z[i, k, :12], z[i, k, 12:], x[n : n + 1])
            total += float(dist.Normal(f, 0.5).log_prob(y[n]).sum().detach()) / 4
    assert actual == pytest.approx(total, rel=1e-10)


def test_a_step_gives_every_component_its_own_biases() -> None:
    guide = AutoRank1Mixture(network(), num_components=3)
    guide.setup(rows()[0])
    guide.double()
    with torch.no_grad():
        guide.biases.normal_(generator=torch.Generator().manual_seed(0))
        noise = guide.draw_noise(2, torch.Generator().manual_seed(1))
        draws = guide.make_terms(noise, density=True).z.unflatten(0, (2, 3))  # [S, K, P + Q]
        assert_close(draws[..., :-5], guide.members(noise), rtol=0, atol=0)
        assert_close(draws[..., -5:], guide.biases.expand(2, 3, 5), rtol=0, atol=0)


@pytest.mark.slow("a second or more")
def test_a_narrow_weight_prior_shrinks_the_weights() -> None:
    norms = []
    for prior in (None, priors.Normal(0.01)):
        svi = bnn.SVI(AutoRank1Mixture, num_steps=100, learning_rate=0.05)
        posterior = svi.run(network(weight_prior=prior), rows(), progress=False)
        norms.append(float(posterior.params["layers.0.weight"].norm()))
    assert norms[1] < 0.5 * norms[0]


@pytest.mark.slow("about a second")
def test_svi_with_draws_for_each_row_trains() -> None:
    svi = bnn.SVI(AutoRank1Mixture, num_steps=200, batch_size=6, per_example_draws=True)
    posterior = svi.run(network(), rows(), progress=False)
    assert posterior.losses[-20:].mean() < posterior.losses[:20].mean() - 5


def test_weight_decay_enters_the_loss_once_and_not_the_elbo() -> None:
    model = network(weight_prior=priors.Normal(0.75))
    x, y = rows()
    guide = AutoRank1Mixture(model, num_components=2)
    guide.setup(x)
    guide.double()
    with torch.no_grad():
        guide.biases.normal_(generator=torch.Generator().manual_seed(0))
    program = Program(model, x, y)
    program.prepare(guide)
    params = {f"guide.{name}": value for name, value in guide.named_parameters()}
    noise = guide.draw_noise(3, torch.Generator().manual_seed(0))
    whole = program.elbo(guide, params, noise, program.batch(x, y))
    half = program.elbo(guide, params, noise, Batch(x[:6], y[:6]))
    decay = dist.Normal(torch.zeros((), dtype=torch.float64), 0.75)
    weights = sum(decay.log_prob(layer.weight).sum() for layer in model.layers)
    biases = decay.log_prob(guide.biases).sum() / 2  # the mean over components
    assert whole.log_factors is not None
    assert half.log_factors is not None
    assert_close(whole.log_factors, weights + biases, rtol=1e-12, atol=1e-12)
    assert_close(half.log_factors, whole.log_factors, rtol=0, atol=0)
    without = Program(network(weight_prior=None), x, y)
    without.prepare(guide)
    bare = without.elbo(guide, params, noise, without.batch(x, y))
    assert bare.log_factors is None
    assert_close(bare.kl, whole.kl, rtol=1e-12, atol=0)


def test_a_saved_mixture_comes_back(tmp_path: Any) -> None:
    posterior = fit(num_components=3)
    posterior.save(tmp_path / "mixture.pt")
    again = bnn.Posterior.load(tmp_path / "mixture.pt", posterior.model)
    x, y = rows()
    assert_close(again.function_draws(x, 7), posterior.function_draws(x, 7), rtol=0, atol=0)
    assert again.elbo((x, y), 50) == posterior.elbo((x, y), 50)
    assert again.objective == posterior.objective == "ELBO"


# Cauchy components


def cauchy_network(**options: Any) -> Rank1MLP:
    return network(prior=priors.Cauchy(scale=0.125, loc=1.0), **options)


def test_cauchy_divergence_is_closed_form_and_that_of_the_draws() -> None:
    x, _ = rows()
    model = cauchy_network(likelihood=likelihoods.Normal(scale=0.5))
    guide = AutoRank1Mixture(model, family="cauchy", num_components=1, init_scale=0.3)
    guide.setup(x)
    guide.double()
    value, exact = guide.kl()
    assert exact
    m, g = guide.loc.detach(), guide.scale.detach()
    by_formula = (((g + 0.125) ** 2 + (m - 1) ** 2) / (4 * g * 0.125)).log().sum()
    assert value == pytest.approx(float(by_formula), rel=1e-10)
    z = guide.sample(100_000)
    with torch.no_grad():
        ratio = guide.log_prob(z) - dist.Cauchy(1.0, 0.125).log_prob(z).sum(-1)
        expected = dist.Cauchy(m[0], g[0]).log_prob(z).sum(-1)
        assert_close(guide.log_prob(z), expected, rtol=1e-10, atol=1e-10)
    assert abs(float(ratio.mean()) - value) < 5 * float(ratio.std()) / 100_000**0.5
    for j in range(3):  # the draws have the law that the density says
        distance = stats.kstest(z[:, j].numpy(), stats.cauchy(float(m[0, j]), float(g[0, j])).cdf)
        assert distance.pvalue > 1e-4


def test_only_the_factors_are_cauchy() -> None:
    posterior = fit(cauchy_network(), family="cauchy", num_components=2)
    guide = posterior.guide
    assert "likelihood.scale" not in guide.cauchy_sites
    assert guide.cauchy_sites == {f"layers.{i}.{kind}" for i in (0, 1) for kind in "rs"}
    assert guide.marginals() is None
    quantiles = guide.quantiles([0.5])["layers.0.r"]
    assert bool(quantiles.isfinite().all())


def test_cauchy_predictions_have_quantiles_and_no_moments() -> None:
    posterior = fit(cauchy_network(), family="cauchy", num_steps=100)
    x, y = rows()
    prediction = posterior.predict(x, 400)
    with pytest.warns(BNNWarning, match="the predictive mean does not exist or hangs on few"):
        assert bool(prediction.mean.isnan().all())
    with pytest.warns(
        BNNWarning, match="the predictive sd does not exist or hangs on few draws at 12 r"
    ):
        assert bool(prediction.sd.isnan().all())
    assert bool(prediction.quantile([0.1, 0.5, 0.9]).isfinite().all())
    assert bool(prediction.log_prob(y).isfinite().all())
    elbo, error = posterior.elbo((x, y))
    assert math.isfinite(elbo)  # the clip is part of the model
    assert math.isfinite(error)


def test_cauchy_components_need_heavy_tails_and_a_clip() -> None:
    with pytest.raises(SiteError, match=r"infinite KL from the priors of layers.0.s \(Normal\)"):
        fit(network(), family="cauchy")
    with pytest.raises(SiteError, match=r"layers.0, layers.1 have clip=None: build the model with"):
        fit(cauchy_network(clip=None), family="cauchy")
    tailed = network(prior=dist.StudentT(2.0, 1.0, 0.1))
    assert math.isfinite(fit(tailed, family="cauchy").elbo(rows(), 50)[0])


def test_cauchy_tails_keep_their_sign() -> None:
    components = Components(torch.zeros(1, 1), torch.ones(1, 1), torch.tensor([True]))
    upper = torch.tensor([0.5, 2.0, 5.4, 5.8])
    noise = torch.cat([upper, -upper, torch.tensor([-9.0, 9.0, 0.0])])
    draws = components.draws(noise.reshape(-1, 1, 1)).flatten().double()
    expected = torch.from_numpy(stats.cauchy.isf(stats.norm.sf(upper.double().numpy())))
    assert_close(draws[:4], expected, rtol=1e-4, atol=0)
    assert_close(draws[4:8], -expected, rtol=1e-4, atol=0)
    assert draws[8] < -1e15
    assert draws[9] > 1e15
    assert draws[10] == 0
    levels = torch.tensor([0.0, 0.25, 0.5, 1.0])
    quantiles = components.quantiles(levels).flatten()
    assert_close(quantiles[1:3], torch.tensor([-1.0, 0.0]), rtol=1e-5, atol=1e-5)
    assert quantiles[[0, 3]].tolist() == [-math.inf, math.inf]


# Starts and refusals


def test_starts() -> None:
    x, _ = rows()
    near = AutoRank1Mixture(network(), num_components=200, init_spread=0.1)
    near.setup(x)
    factors = near.loc[:, :12].detach()
    z_score = (factors.mean() - 1.0) / (0.1 / factors.numel() ** 0.5)
    assert abs(float(z_score)) < 5
    assert float(factors.std()) == pytest.approx(0.1, rel=5 / (2 * factors.numel()) ** 0.5)
    assert bool((near.loc[:, 12] == near.loc[0, 12]).all())  # the noise starts at one value
    signs = AutoRank1Mixture(network(), num_components=200, start="random_sign", init_spread=0.0)
    signs.setup(x)
    values = signs.loc[:, :12].detach()
    assert_close(values.abs(), torch.ones_like(values), rtol=0, atol=0)
    positive = int((values > 0).sum())
    assert stats.binomtest(positive, values.numel(), 0.5).pvalue > 1e-4
    assert signs.init_scale == pytest.approx(0.0316, abs=1e-4)
    log_normal = AutoRank1Mixture(network(prior=priors.LogNormal(0.2)), init_spread=0.0)
    log_normal.setup(x)
    sites = log_normal.quantiles([0.5])
    assert_close(sites["layers.0.r"][0], torch.ones(4, dtype=torch.float64), rtol=1e-6, atol=1e-6)


@pytest.mark.slow("fits")
@pytest.mark.parametrize("per", ["layer", "unit"])
def test_hierarchies_over_the_factors_train(per: Any) -> None:
    model = network(prior=priors.HalfCauchyScale(scale=0.1, per=per, loc=1.0))
    posterior = fit(model, num_steps=200)
    assert posterior.losses[-20:].mean() < posterior.losses[:20].mean() - 5
    with pytest.raises(SiteError, match="needs factors that are real and their own sites, which"):
        fit(model, start="random_sign")


def test_options_out_of_range_are_refused() -> None:
    model = network()
    for options, message in (
        ({"num_components": 0}, "num_components is an integer of at least 1, not 0"),
        ({"family": "gauss"}, "family is one of 'normal', 'cauchy', 'delta', not 'gauss'"),
        ({"objective": "elbo"}, "objective is one of 'average', 'mixture', 'log_mixture', "),
        ({"start": "ones"}, "start is one of 'near_one', 'random_sign', not 'ones'"),
        ({"init_spread": -0.1}, "init_spread is a number of at least 0, not -0.1"),
        ({"init_scale": 0.0}, "init_scale is a positive standard deviation, not 0.0"),
        ({"objective": "mixture"}, "there is one for each component: pass separate_biases=False"),
    ):
        with pytest.raises(OptionError) as caught:
            AutoRank1Mixture(model, **options)
        assert message in str(caught.value)


@pytest.mark.parametrize("objective", ["mixture", "log_mixture", "log_mixture_averaged_kl"])
def test_deltas_have_the_average_alone(objective: Any) -> None:
    message = f'objective="{objective}" needs a density, which family="delta" has not: use "averag'
    with pytest.raises(OptionError, match=message):
        AutoRank1Mixture(network(), family="delta", objective=objective, separate_biases=False)


def test_options_without_effect_are_refused() -> None:
    model = network()
    with pytest.raises(OptionError, match='as family="delta" has no scales'):
        AutoRank1Mixture(model, family="delta", init_scale=0.1)
    with pytest.raises(OptionError, match="init_loc_fn would have no effect on the factors"):
        AutoRank1Mixture(model, lambda site: site["value"], start="random_sign")
    delta = functools.partial(AutoRank1Mixture, family="delta")
    with pytest.raises(OptionError, match="per_example_draws=True would have no effect, as the"):
        bnn.SVI(delta, per_example_draws=True).run(model, rows(), progress=False)
    signs = functools.partial(AutoRank1Mixture, start="random_sign", separate_biases=False)
    start = bnn.SVI(guides.AutoDelta, num_steps=1).run(model, rows(), progress=False)
    with pytest.raises(OptionError, match="would move the factors off the signs"):
        bnn.SVI(signs, num_steps=1).run(model, rows(), init=start, progress=False)
    with pytest.raises(SiteError, match=r'family="delta" has no density for the ELBO of pyro'):
        AutoRank1Mixture(model, family="delta", separate_biases=False)(*rows())


def test_a_hierarchy_around_zero_is_refused() -> None:
    model = network(prior=priors.HalfCauchyScale())
    with pytest.raises(SiteError, match=r"layers.0.s.* are centred at 0, where every unit is"):
        fit(model)


@pytest.mark.slow("about a second")
def test_a_fit_starts_where_init_says() -> None:
    model = network()
    x, y = rows()
    y = y + 3.0  # needs biases
    start = bnn.SVI(guides.AutoDelta, num_steps=300, compile=False).run(
        model, (x, y), progress=False
    )
    guide = functools.partial(AutoRank1Mixture, init_spread=0.0, init_scale=1e-6)
    svi = bnn.SVI(guide, num_steps=1, learning_rate=1e-12, compile=False)
    posterior: Any = svi.run(model, (x, y), init=start, progress=False)
    f = start.function_draws(x, 1)[0]
    assert_close(posterior.function_draws(x, 8).mean(0), f, rtol=1e-4, atol=1e-4)
    part: Any = svi.run(
        model, (x, y), init={"likelihood.scale": torch.tensor(0.25)}, progress=False
    )
    assert_close(part.guide.loc[:, :12], torch.ones(4, 12).double(), rtol=1e-6, atol=1e-6)
    noise = part.guide.quantiles([0.5])["likelihood.scale"]
    assert float(noise) == pytest.approx(0.25, rel=1e-6)


def test_a_frozen_bias_stays_the_models() -> None:
    model = network()
    model.get_parameter("layers.0.bias").requires_grad = False
    posterior = fit(model)
    assert posterior.program.member_params == ("layers.1.bias",)
    assert posterior.guide.biases.shape == (4, 1)
    assert_close(posterior.params["layers.0.bias"], model.get_parameter("layers.0.bias").detach())
    model.get_parameter("layers.1.bias").requires_grad = False
    assert fit(model).guide.member_params == ()


@pytest.mark.parametrize("family", ["normal", "cauchy"])
def test_a_model_under_a_handler_is_the_same_to_it(family: Any) -> None:
    model = Rank1MLP(2, hidden=(4,), prior=priors.Cauchy(0.1, loc=1.0))
    guide = AutoRank1Mixture(poutine.scale(model, scale=0.5), family=family)
    guide.setup(torch.zeros(3, 2))
    assert guide.member_params == ("layers.0.bias", "layers.1.bias")
    assert guide.biases.shape == (4, 5)


def test_progress_names_the_objective(capsys: pytest.CaptureFixture[str]) -> None:
    svi = bnn.SVI(
        functools.partial(AutoRank1Mixture, objective="log_mixture_averaged_kl"), num_steps=3
    )
    svi.run(network(), rows(), progress=True)
    shown = capsys.readouterr().err
    assert "log-mixture objective with averaged KL (no bound) -" in shown
    assert "ELBO" not in shown


class OwnMixture(AutoRank1Mixture):
    """A guide of a user's own."""


def test_a_guide_of_ones_own_with_own_biases_is_not_saved_without_them(tmp_path: Any) -> None:
    svi = bnn.SVI(OwnMixture, num_steps=2)
    posterior = svi.run(network(), rows(), progress=False)
    with pytest.raises(OutputError, match=r"values of their own of layers.0.bias, layers.1.bias"):
        posterior.save(tmp_path / "fit.pt")


@pytest.mark.slow("a fit of stock Pyro")
def test_stock_guides_train_with_weight_decay_and_record_the_elbo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pyro_bnn.infer.svi.stock.NUM_DRAWS", 200)
    model = network(weight_prior=priors.Normal(0.75))
    svi = bnn.SVI(pyro.infer.autoguide.AutoNormal, num_steps=200, kl_warmup=100, compile=False)
    posterior = svi.run(model, rows(), progress=False)
    value, error = posterior.elbo(rows(), 200)
    last = -posterior.losses[-50:]
    assert abs(float(last.mean()) - value) < 5 * math.hypot(error, float(last.std()))
    assert float(model.weight_log_prior().detach()) < -10  # what the trace would be off by


def test_other_models_are_refused() -> None:
    with pytest.raises(SiteError, match=r"and MLP has none: use pyro_bnn\.models\.Rank1MLP"):
        AutoRank1Mixture(MLP(3))
    with pytest.raises(SiteError, match="Sequential has none"):
        AutoRank1Mixture(torch.nn.Sequential(module_of([torch.zeros(1)])))


def test_an_objective_over_all_rows_refuses_parts_of_them() -> None:
    guide = functools.partial(AutoRank1Mixture, objective="log_mixture")
    with pytest.raises(OptionError, match="has no unbiased estimate from a minibatch"):
        bnn.SVI(guide, batch_size=4).run(network(), rows(), progress=False)
    with pytest.raises(OptionError, match="not linear in the rows' likelihoods"):
        bnn.SVI(guide, per_example_draws=True).run(network(), rows(), progress=False)


def test_stock_pyro_cannot_set_own_biases() -> None:
    guide = AutoRank1Mixture(network())
    with pytest.raises(SiteError, match=r"pass separate_biases=False, or train with pyro_bnn.SVI"):
        guide(*rows())


# The model under every other guide and NUTS


@pytest.mark.parametrize(
    "guide", [guides.AutoDelta, guides.AutoNormal, guides.AutoLowRankMultivariateNormal]
)
def test_the_network_takes_every_guide(guide: Any) -> None:
    model = network()
    before = {name: value.clone() for name, value in model.named_parameters()}
    posterior = bnn.SVI(guide, num_steps=20, compile=False).run(model, rows(), progress=False)
    assert posterior.losses[-10:].mean() < posterior.losses[:10].mean()
    for name, value in model.named_parameters():
        assert_close(value, before[name], rtol=0, atol=0)  # the user's model stays
        assert bool((posterior.params[name] != value).any())  # W and b are trained


@pytest.mark.slow("about a second")
@pytest.mark.usefixtures("short_trajectories")
def test_nuts_samples_the_factors_at_a_stated_weight() -> None:
    model = network()
    shared = fit(model, num_components=2, separate_biases=False)
    nuts = bnn.NUTS(num_chains=1, warmup_steps=5, num_samples=5, compile=False)
    posterior = nuts.run(model, rows(), init=shared, progress=False)
    assert {site.name for site in posterior.program.sites} == {
        "layers.0.r",
        "layers.0.s",
        "layers.1.r",
        "layers.1.s",
        "likelihood.scale",
    }
    for name, value in shared.params.items():
        assert_close(posterior.params[name], value, rtol=0, atol=0)
    own = fit(model, num_components=2)
    with pytest.raises(OptionError, match=r"components have values of their own of layers.0.bias"):
        nuts.run(model, rows(), init=own, progress=False)
