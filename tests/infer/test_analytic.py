"""The ELBO of a one-hidden-layer ReLU net in closed form, against numerical integration."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import scipy.stats
import torch
from scipy import integrate
from torch import Tensor

from pyro_bnn import SVI, Program, description_length, guides, likelihoods, models, priors
from pyro_bnn.errors import OptionError
from pyro_bnn.infer.svi.estimators.analytic import closed_form_elbo, function_moments, relu_moments
from pyro_bnn.posterior import GuidePosterior, Posterior

PRIOR_SD = 0.75  # as all numbers here, the same in both precisions
normal_log_pdf = scipy.stats.norm.logpdf


def mean_under(loc: float, scale: float, fn: Callable[[float], float]) -> float:
    """E fn(h) under h ~ N(loc, scale²) by quadrature in two halves, as fn may have a kink at 0."""
    low, high = loc - 12 * scale, loc + 12 * scale
    inside = [0.0] if low < 0 < high else []
    value, _ = integrate.quad(
        lambda h: fn(h) * scipy.stats.norm.pdf(h, loc, scale),
        low,
        high,
        points=[*inside, loc],
        epsabs=1e-13,
        epsrel=1e-12,
        limit=400,
    )
    return float(value)


def fitted(model: Any, data: tuple[Tensor, Tensor], num_steps: int = 30) -> GuidePosterior:
    guide = functools.partial(guides.AutoNormal, init_scale=0.3)
    engine = SVI(guide, num_steps=num_steps, loc_warmup=0, compile=False)
    posterior = engine.run(model, data, progress=False)
    assert isinstance(posterior, GuidePosterior)
    return posterior


def net(hidden: int = 5, outputs: int = 1, **options: Any) -> models.MLP:
    return models.MLP(2, outputs, hidden=(hidden,), **options).double()


def rows(outputs: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    return x, x[:, :1].sin().repeat(1, outputs)


@pytest.mark.parametrize(
    ("loc", "scale"), [(0.0, 1.0), (1.3, 0.4), (-2.0, 0.7), (30.0, 0.5), (-6.0, 1.0)]
)
def test_moments_of_a_relu(loc: float, scale: float) -> None:
    given = (torch.tensor(v, dtype=torch.float64) for v in (loc, scale))
    mean, variance = map(float, relu_moments(*given))
    first = mean_under(loc, scale, lambda h: max(h, 0.0))
    spread = mean_under(loc, scale, lambda h: (max(h, 0.0) - first) ** 2)
    assert mean == pytest.approx(first, rel=1e-9, abs=1e-14)
    assert variance == pytest.approx(spread, rel=1e-8, abs=1e-14)


def test_the_variance_far_above_zero_keeps_its_digits_in_single_precision() -> None:
    _, variance = relu_moments(torch.tensor(1000.0), torch.tensor(0.01))
    assert float(variance) == pytest.approx(1e-4, rel=1e-5)


def test_moments_of_the_function_are_those_of_draws() -> None:
    x, y = rows(2)
    posterior = fitted(net(outputs=2), (x, y))
    means = posterior.program.constrain(posterior.guide.loc.detach())
    scales = posterior.program.constrain(posterior.guide.scale.detach())
    f, variance = function_moments(x, means, scales)
    draws = posterior.function_draws(x, 20_000).double()
    second = (draws - f).square()
    for found, expected in ((draws, f), (second, variance)):
        z = (found.mean(0) - expected).abs() / (found.std(0) / len(found) ** 0.5)
        assert float(z.max()) < scipy.stats.norm.isf(0.5e-4 / z.numel())


def kl(loc: float, scale: float) -> float:
    return math.log(PRIOR_SD / scale) + (scale**2 + loc**2) / (2 * PRIOR_SD**2) - 0.5


@pytest.mark.parametrize("noise_sd", [0.5, None])
def test_the_elbo_is_the_numerical_integral(noise_sd: float | None) -> None:
    prior = priors.Normal(scale=PRIOR_SD)
    likelihood = likelihoods.Normal(noise_sd)
    model = models.MLP(1, hidden=(1,), prior=prior, likelihood=likelihood).double()
    x, y = torch.tensor([[-0.8], [1.7]]).double(), torch.tensor([0.3, -0.4]).double()
    posterior = fitted(model, (x, y))
    sites = {site.name: site.start for site in posterior.program.sites}
    loc, sd = (v.detach().numpy() for v in (posterior.guide.loc, posterior.guide.scale))
    expected = 0.0
    names = ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias")
    entries = w1, b1, w2, b2 = [sites[name] for name in names]
    if noise_sd is not None:
        log_sd, precision = math.log(noise_sd), noise_sd**-2
    else:
        u = sites["likelihood.scale"]
        log_sd = loc[u]
        precision = mean_under(loc[u], sd[u], lambda v: math.exp(-2 * v))
        # HalfNormal(1) of t = exp(u), with the Jacobian u; then the entropy of q
        expected += mean_under(
            loc[u], sd[u], lambda v: math.log(2) + normal_log_pdf(math.exp(v)) + v
        )
        expected += 0.5 * math.log(2 * math.pi * math.e * sd[u] ** 2)
    for row, target in zip(x[:, 0].tolist(), y.tolist(), strict=True):
        a, s = loc[w1] * row + loc[b1], math.hypot(sd[w1] * row, sd[b1])

        def misfit(h: float, target: float = target) -> float:
            """E (y - f)² given h, over output weight and bias, each by quadrature."""
            r = max(h, 0.0)
            centre, spread = loc[w2] * r + loc[b2], math.hypot(sd[w2] * r, sd[b2])
            nodes, weights = np.polynomial.hermite_e.hermegauss(5)
            values = (target - centre - spread * nodes) ** 2
            return float(weights @ values / weights.sum())

        squared = mean_under(a, s, misfit)
        expected += -0.5 * math.log(2 * math.pi) - log_sd - 0.5 * precision * squared
    expected -= sum(kl(loc[j], sd[j]) for j in entries)
    assert closed_form_elbo(posterior, (x, y)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("prior", [priors.Normal(), priors.Laplace()])
def test_the_elbo_is_that_of_draws(prior: Any) -> None:
    x, y = rows()
    likelihood = likelihoods.Normal(dist.LogNormal(torch.tensor(-1.0), torch.tensor(0.5)))
    posterior = fitted(net(prior=prior, likelihood=likelihood), (x, y))
    for data in ((x, y), (x[:5], y[:5])):  # rows count once each, whatever the fit's number
        value, error = posterior.elbo(data, num_samples=4_000)
        assert abs(closed_form_elbo(posterior, data) - value) < 4 * error


def test_bits_are_those_of_the_elbo_and_of_the_precision() -> None:
    x, y = rows()
    posterior = fitted(net(), (x, y))
    bits, error = description_length(posterior, (x, y))
    assert (bits, error) == (-closed_form_elbo(posterior, (x, y)) / math.log(2), 0.0)
    finer, _ = description_length(posterior, (x, y), precision=0.25)
    assert finer - bits == pytest.approx(2 * len(x))  # two more binary digits each
    tanh: Posterior = fitted(net(activation="tanh"), (x, y))
    bits, error = description_length(tanh, (x, y), seed=1)
    value, nats = tanh.elbo((x, y), seed=1)
    assert (bits, error) == (-value / math.log(2), nats / math.log(2))
    with pytest.raises(OptionError, match="precision is a positive step of the target, not 0"):
        description_length(posterior, (x, y), precision=0)


def test_all_bits_are_misfits_where_nothing_was_learned() -> None:
    """Where q is the prior the weights cost nothing, and all bits are misfits."""
    x, y = rows()
    model = net(prior=priors.Normal(scale=PRIOR_SD), likelihood=likelihoods.Normal(1.0))
    start = {site.name: torch.zeros(site.shape) for site in Program(model, x, y).sites}
    guide = functools.partial(guides.AutoNormal, init_scale=PRIOR_SD)
    engine = SVI(guide, num_steps=1, optimizer=torch.optim.SGD, learning_rate=1e-30)
    posterior = engine.run(model, (x, y), init=start, progress=False)
    # a prior net of H units: Var f = H E w² E relu² + Var b, E relu² half the variance of h
    s2 = PRIOR_SD**2 * (1 + x.square().sum(-1))
    variance = 5 * PRIOR_SD**2 * 0.5 * s2 + PRIOR_SD**2
    nats = 0.5 * (math.log(2 * math.pi) + y[:, 0].square() + variance)
    bits, _ = description_length(posterior, (x, y))
    assert bits == pytest.approx(float(nats.sum()) / math.log(2), rel=1e-9)


class Other(models.MLP):
    """Another class."""


def correlated_scales() -> models.MLP:
    normal = dist.MultivariateNormal(torch.zeros(2), torch.tensor([[1.0, 0.5], [0.5, 1.0]]))
    prior = dist.TransformedDistribution(normal, dist.transforms.ExpTransform())
    return net(outputs=2, likelihood=likelihoods.Normal(prior))


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "class": (lambda: Other(2, hidden=(5,)), "this is Other"),
    "depth": (lambda: models.MLP(2, hidden=(5, 5)), "this has 2 hidden layers"),
    "activation": (lambda: net(activation="tanh"), "its activation is another one"),
    "likelihood": (
        lambda: net(likelihood=likelihoods.StudentT()),
        "its likelihood is StudentT",
    ),
    "hierarchy": (
        lambda: net(prior=priors.HalfCauchyScale()),
        "it has the site 'layers.0.weight.scale'",
    ),
    "prior": (lambda: net(prior=priors.StudentT()), "'layers.0.weight' has the prior StudentT"),
    "Cauchy": (lambda: net(prior=priors.Cauchy()), "'layers.0.weight' has the prior Cauchy"),
    "bounded scale": (
        lambda: net(likelihood=likelihoods.Normal(dist.Uniform(torch.tensor(0.1), 2.0))),
        "the support of 'likelihood.scale' is Interval",
    ),
    "correlated scales": (
        correlated_scales,
        "the prior of 'likelihood.scale' is over several entries together",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_models_are_refused(name: str) -> None:
    make, message = REFUSED[name]
    model = make().double()
    engine = SVI(guides.AutoNormal, estimator="analytic", num_steps=1)
    with pytest.raises(OptionError, match=rf"in closed form for models.MLP .* but {message}"):
        engine.run(model, rows(2 if name == "correlated scales" else 1), progress=False)


def test_independent_scales_of_several_targets_are_served() -> None:
    prior = dist.LogNormal(torch.zeros(2), torch.ones(2)).to_event(1)
    posterior = fitted(net(outputs=2, likelihood=likelihoods.Normal(prior)), rows(2))
    value, error = posterior.elbo(rows(2), num_samples=4_000)
    assert abs(closed_form_elbo(posterior, rows(2)) - value) < 4 * error


def test_the_closed_form_is_of_independent_gaussians() -> None:
    engine = SVI(guides.AutoMultivariateNormal, num_steps=1)
    posterior = engine.run(net(), rows(), progress=False)
    assert isinstance(posterior, GuidePosterior)
    with pytest.raises(
        OptionError, match=r"for guides\.AutoNormal, not for AutoMultivariateNormal"
    ):
        closed_form_elbo(posterior, rows())
