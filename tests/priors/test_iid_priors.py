"""Laplace, Student-t and scale-mixture priors against scipy, and in fits of a network."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.testing import assert_close

from pyro_bnn import NUTS, SVI, Posterior, guides, likelihoods, models, priors
from pyro_bnn.errors import OptionError, SiteError
from pyro_bnn.likelihoods import Normal as NormalLikelihood
from pyro_bnn.models import bayesian
from pyro_bnn.models.description import describe
from pyro_bnn.priors import Cauchy, Laplace, Prior, PriorModule, ScaleMixture, StudentT
from pyro_bnn.priors.prior import unvalidated
from pyro_bnn.program import Program
from tests.laws import objective
from tests.priors.laws import assert_law


class MixtureLaw:
    """The law of a scale mixture, made of scipy's Gaussians."""

    def __init__(self, mixing: float, scale1: float, scale2: float, loc: float = 0.0) -> None:
        self.parts = ((mixing, stats.norm(loc, scale1)), (1 - mixing, stats.norm(loc, scale2)))
        self.loc, self.second = loc, mixing * scale1**2 + (1 - mixing) * scale2**2
        self.fourth = 3 * (mixing * scale1**4 + (1 - mixing) * scale2**4)

    def cdf(self, w: Any) -> Any:
        return sum(weight * part.cdf(w) for weight, part in self.parts)

    def logpdf(self, w: Any) -> Any:
        return np.logaddexp(*(np.log(weight) + part.logpdf(w) for weight, part in self.parts))

    def stats(self, moments: str) -> tuple[float, float, float]:
        assert moments == "mvk"
        return self.loc, self.second, self.fourth / self.second**2 - 3


CASES: list[Any] = [
    # prior, shape of the weight, its law; scales that float32 holds exactly
    (Laplace(), (400, 8), stats.laplace(0, 0.25)),
    (Laplace(), (100, 2, 4), stats.laplace(0, 0.25)),
    (Laplace(2.5, loc=-1.0), (3_000,), stats.laplace(-1, 2.5)),
    (StudentT(), (400, 8), stats.t(4, 0, 0.25)),
    (StudentT(10.0, scale=0.5, loc=2.0), (3_000,), stats.t(10, 2, 0.5)),
    (ScaleMixture(0.25, 1.0, 0.125), (400, 8), MixtureLaw(0.25, 1.0, 0.125)),
    (ScaleMixture(0.75, 2.0, 0.5, loc=1.0), (3_000,), MixtureLaw(0.75, 2.0, 0.5, 1.0)),
]
FITTED = [Laplace(), StudentT(), ScaleMixture()]
every = pytest.mark.parametrize("prior", FITTED, ids=lambda prior: type(prior).__name__)


@pytest.mark.parametrize(("prior", "shape", "law"), CASES, ids=lambda value: repr(value)[:24])
def test_density_draws_and_moments(prior: Prior, shape: tuple[int, ...], law: Any) -> None:
    fn: Any = prior.distribution(torch.Size(shape))
    assert (fn.batch_shape, fn.event_shape) == (torch.Size([]), torch.Size(shape))
    fn = PriorModule(fn).double()()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        draws = fn.sample()
    assert draws.dtype == torch.float64
    assert_law(draws, law.cdf)
    expected = torch.as_tensor(law.logpdf(draws.numpy()))
    assert_close(fn.base_dist.log_prob(draws), expected, rtol=1e-10, atol=1e-10)
    assert_close(fn.log_prob(draws), expected.sum(), rtol=1e-10, atol=0)
    mean, variance, excess = (float(moment) for moment in law.stats(moments="mvk"))
    assert_close(fn.mean, torch.full(shape, mean, dtype=torch.float64))
    assert_close(fn.variance, torch.full(shape, variance, dtype=torch.float64), rtol=1e-12, atol=0)
    n = draws.numel()
    assert abs(float(draws.mean()) - mean) < 4 * math.sqrt(variance / n)
    if math.isfinite(excess):  # of Student-t with more than four degrees of freedom
        error = variance * math.sqrt((excess + 2) / n)
        assert abs(float((draws - mean).square().mean()) - variance) < 4 * error


def test_a_student_t_of_many_degrees_of_freedom_keeps_its_digits_in_float32() -> None:
    w = torch.linspace(-2.0, 2.0, 9)
    actual = StudentT(1e6, scale=0.5).distribution(w.shape).base_dist.log_prob(w)
    expected = torch.from_numpy(stats.t(1e6, scale=0.5).logpdf(w.double().numpy()))
    assert_close(actual.double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(5, 7), (9,), (4, 3, 2, 2)])
@pytest.mark.parametrize("prior", [Laplace(), StudentT(), StudentT(2.5), StudentT(50.0)])
def test_fan_in_has_the_variance_of_the_gaussian(prior: Prior, shape: tuple[int, ...]) -> None:
    size = torch.Size(shape)
    expected = priors.Normal().distribution(size).variance
    assert_close(prior.distribution(size).variance, expected, rtol=1e-5, atol=0)


def test_without_a_variance_large_sums_are_as_likely_at_any_width() -> None:
    """For tails P(|w| > t) = c t^-df, that of a sum over I is I times it, at large t."""
    for df in (0.7, 1.5, 2.0):
        tails = []
        for width in (1, 10, 1_000):
            fn: Any = StudentT(df).distribution(torch.Size([1, width]))
            scale = float(fn.base_dist.scale[0, 0])
            tails.append(width * stats.t(df, 0, scale).sf(1e5))
        np.testing.assert_allclose(tails, tails[0], rtol=1e-3)
    shape = torch.Size([3, 4])
    w = torch.linspace(-3, 3, 12).reshape(shape)
    expected = Cauchy().distribution(shape).log_prob(w)
    assert_close(StudentT(1.0).distribution(shape).log_prob(w), expected)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Laplace(0.0), "scale is a positive number or 'fan_in', not 0.0"),
        (lambda: Laplace(loc=math.nan), "loc is a finite number, not nan"),
        (lambda: StudentT(loc=math.inf), "loc is a finite number, not inf"),
        (lambda: ScaleMixture(loc=math.nan), "loc is a finite number, not nan"),
        (lambda: priors.Normal(scale=True), "a positive number or 'fan_in', not True"),
        (lambda: likelihoods.Normal(scale=True), "scale is a positive .*, not True"),
        (lambda: StudentT(0.0), "df is a positive number, not 0.0"),
        (lambda: StudentT(scale=-1.0), "scale is a positive number or 'fan_in', not -1.0"),
        (lambda: ScaleMixture(0.0), "mixing is a positive number, not 0.0"),
        (lambda: ScaleMixture(1.5), "mixing is the probability of .*, at most 1, not 1.5"),
        (lambda: ScaleMixture(scale1=math.nan), "scale1 is a positive number, not nan"),
        (lambda: ScaleMixture(scale2=-1.0), "scale2 is a positive number, not -1.0"),
        (lambda: ScaleMixture(0.5, 0.1, 1.0), "below scale1, not 1.0 beside 0.1: exchange them"),
    ],
)
def test_options_out_of_range_are_refused(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make()


# --- in a network --------------------------------------------------------------------------------


def rows() -> tuple[Tensor, Tensor]:
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)
    return x, (2 * x[:, :1]).sin()


def mlp(prior: Any) -> models.MLP:
    likelihood = NormalLikelihood(0.5)
    return models.MLP(2, hidden=(3,), prior=prior, likelihood=likelihood).double()


def normal_guide(model: Any, x: Tensor) -> guides.AutoNormal:
    """A guide of given means and sds."""
    guide = guides.AutoNormal(model)
    guide.setup(x)
    guide.double()
    steps = torch.arange(guide.num_latents, dtype=torch.float64)
    with torch.no_grad():
        guide.loc.copy_(0.8 * steps.sin())
    guide.scale = 0.1 + 0.3 * steps.cos().square()
    return guide


@every
def test_captured_and_plain_objectives_agree(prior: Prior) -> None:
    (x, y), model = rows(), mlp(prior)
    program, guide = Program(model, x, y), normal_guide(model, x)
    batch, noise = program.batch(x, y), guide.draw_noise(3, torch.Generator().manual_seed(0))
    results = [objective(guide, program, captured=c)[1](noise, batch) for c in (True, False)]
    for captured, plain in zip(*results, strict=True):
        assert_close(captured, plain, rtol=1e-10, atol=1e-10)


def test_only_the_laplace_prior_has_a_closed_form_kl() -> None:
    r"""Of N(m, s) against Laplace(0, b): E|z| is that of scipy's folded Gaussian."""
    x, y = rows()
    exact = []
    for prior in (*FITTED, Laplace(0.5)):
        model = mlp(prior)
        guide = normal_guide(model, x)
        kl, is_exact = guide.kl(num_draws=20)
        exact.append(is_exact)
    assert exact == [True, False, False, True]
    m, s = guide.loc.detach().numpy(), guide.scale.detach().numpy()
    folded = stats.foldnorm(np.abs(m) / s, scale=s).mean()
    expected = np.log(2 * 0.5) + folded / 0.5 - stats.norm(m, s).entropy()
    assert kl == pytest.approx(float(expected.sum()), rel=1e-10)
    assert Program(model, x, y).latents.is_closed_form()


def test_a_mixture_of_one_component_is_the_gaussian() -> None:
    (x, _), size = rows(), torch.Size([4, 3])
    w = torch.linspace(-3, 3, 12, dtype=torch.float64).reshape(size).requires_grad_()
    fn, gaussian = ScaleMixture(1.0, 0.7).distribution(size), priors.Normal(0.7).distribution(size)
    assert_close(fn.log_prob(w), gaussian.log_prob(w))
    (grad,) = torch.autograd.grad(fn.log_prob(w), w)
    assert_close(grad, -w.detach() / 0.7**2, rtol=1e-6, atol=0)
    guide = normal_guide(mlp(ScaleMixture(1.0, 0.7)), x)
    closed = normal_guide(mlp(priors.Normal(0.7)), x)
    num_draws = 4_000
    value, is_exact = guide.kl(num_draws=num_draws)
    expected, _ = closed.kl()
    z = guide.sample(num_draws)
    spread = float((0.5 * (z / 0.7).square()).sum(-1).std())  # entropy is in closed form
    assert not is_exact
    assert abs(value - expected) < 4 * spread / math.sqrt(num_draws)


@every
def test_fits_are_saved_and_told_from_those_of_another_prior(prior: Prior, tmp_path: Path) -> None:
    (x, y), path = rows(), tmp_path / "fit.pt"
    fit = SVI(guides.AutoNormal, num_steps=30, learning_rate=0.05, compile=False)
    posterior = fit.run(mlp(prior), (x, y), progress=False)
    assert bool(np.isfinite(posterior.losses).all())
    posterior.save(path)
    loaded = Posterior.load(path, mlp(prior))
    assert_close(loaded.unconstrained(5), posterior.unconstrained(5), rtol=0, atol=0)
    with pytest.raises(SiteError, match="not its densities at the same weights"):
        Posterior.load(path, mlp(priors.Normal(3.0)))


@pytest.mark.slow("a second or more")
def test_nuts_samples_weights_of_every_prior_by_pattern() -> None:
    """With hardly any data the posterior is the prior: variances, each by its own prior."""
    net = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)).double()
    patterns: Any = {
        "0.weight": Laplace(),
        "0.bias": StudentT(8.0),
        "1.*": ScaleMixture(0.5, 1.0, 0.5),
    }
    model = bayesian(net, patterns, NormalLikelihood(1e4))
    sampler = NUTS(num_chains=12, warmup_steps=25, num_samples=25, compile=True)
    draws = sampler.run(model, rows(), progress=False).sample(300)
    for name, variance in {"0.weight": 0.5, "0.bias": 1.0, "1.weight": 0.625}.items():
        assert 0.6 < float(draws[name].square().mean()) / variance < 1.6, name


def test_descriptions_name_the_prior() -> None:
    words = [describe(models.MLP(2, hidden=(3,), prior=p)) for p in (Laplace(0.5), ScaleMixture())]
    assert "Laplace(0, 0.5) prior" in words[0]
    assert "ScaleMixture(0.5, 1, 0.00248, 0) prior" in words[1]


@every
def test_they_follow_a_device(prior: Prior) -> None:
    fn = PriorModule(prior.distribution(torch.Size([2, 3]))).to("meta")()
    value = fn.sample()
    assert value.device.type == "meta"
    assert unvalidated(fn).log_prob(value).device.type == "meta"


def test_values_outside_the_support_are_refused_where_they_are_checked() -> None:
    fn = ScaleMixture().distribution(torch.Size([2]))
    with pytest.raises(ValueError, match="to be within the support"):
        fn.log_prob(torch.tensor([0.0, math.nan]))
    assert isinstance(fn.base_dist.expand([3, 2]), dist.TorchDistribution)
