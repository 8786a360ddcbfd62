"""Poisson: its log probability by scipy at all sizes, moments, draws, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.errors import DataError
from pyro_bnn.likelihoods import Poisson
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Program


def log_prob(f: Any, y: Any, dtype: torch.dtype) -> Tensor:
    f, y = (torch.as_tensor(value, dtype=dtype)[:, None] for value in (f, y))
    fn = Poisson().distribution(f)
    assert (fn.batch_shape, fn.event_shape) == ((len(f),), (1,))
    values: Tensor = fn.log_prob(y)
    return values


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_log_probability_is_that_of_scipy_up_to_the_rounding_of_f(dtype: torch.dtype) -> None:
    y = np.array([0, 0, 1, 7, 7, 1000, 1_000_000, 2_000_000])
    f = np.array([-3.0, 2.0, 0.0, -1.0, 2.5, 7.0, 13.8125, 14.5])  # exact in float32
    expected = stats.poisson(np.exp(f)).logpmf(y)
    rounding = torch.finfo(dtype).eps * (np.abs(f) * np.abs(y - np.exp(f)) + 20 * np.abs(expected))
    rounding += np.finfo(float).eps * 20 * y  # of scipy, which subtracts log y! from y f
    actual = log_prob(f, y, dtype).double().numpy()
    assert (np.abs(actual - expected) <= rounding).all()


def test_rates_that_under_or_overflow_keep_their_density_and_gradient() -> None:
    f = torch.tensor([-200.0, -200.0, 89.0], requires_grad=True)  # exp(f) is 0, 0, inf in float32
    y = torch.tensor([0.0, 3.0, 2.0])
    values = Poisson().distribution(f[:, None]).log_prob(y[:, None])
    assert_close(values, torch.tensor([0.0, -600.0 - math.log(6), -math.inf]))
    (gradient,) = torch.autograd.grad(values[:2].sum(), f)
    assert_close(gradient, torch.tensor([0.0, 3.0, 0.0]))  # y - exp(f)


def test_counts_of_any_dtype_are_observed() -> None:
    f = torch.zeros(3, 1)
    for dtype in (torch.int64, torch.int32, torch.float64):
        y = Poisson()(f, torch.tensor([0, 4, 2], dtype=dtype))
        assert_close(y, torch.tensor([[0.0], [4.0], [2.0]]))


def test_draws_are_poisson_also_where_int64_would_overflow() -> None:
    torch.manual_seed(0)
    fn = Poisson().distribution(torch.full((20_000, 1), 1.2))
    counts = fn.sample()
    pmf = stats.poisson(math.exp(1.2)).pmf(np.arange(8))
    seen = torch.bincount(counts.long().flatten(), minlength=8)[:8]
    z = (seen.double() - 20_000 * torch.tensor(pmf)) / (20_000 * torch.tensor(pmf)).sqrt()
    assert float(z.abs().max()) < 4
    huge = Poisson().distribution(torch.tensor([[80.0], [math.inf]])).sample()
    assert_close(huge, torch.full((2, 1), 1e18), rtol=1e-6, atol=0)


def posterior(scale: float = 0.3) -> tuple[DrawsPosterior, Tensor]:
    """Draws of one weight: log rate f = w x with w ~ N(0, scale)."""
    x = torch.tensor([[1.0], [4.0]], dtype=torch.float64)
    model = bnn.models.MLP(1, hidden=(), likelihood=Poisson()).double()
    program = Program(model, x, torch.tensor([1, 3]))
    z = torch.randn(1, 4_000, 2, generator=torch.Generator().manual_seed(0)).double()
    return DrawsPosterior(program, z * torch.tensor([scale, 0.0]), Provenance("prior", "none")), x


def test_moments_are_those_of_a_log_normal_mixture() -> None:
    draws, x = posterior()
    prediction = draws.predict(x, 4_000)
    rate = prediction.function_draws.exp()
    assert_close(prediction.mean, rate.mean(0))
    assert_close(prediction.sd**2, rate.mean(0) + rate.var(0, correction=0))
    s = 0.3 * x  # sd of f
    exact = (s**2 / 2).exp()  # E exp(f)
    error = (exact**2 * (s**2).expm1() / 4_000).sqrt()
    assert float(((prediction.mean - exact) / error).abs().max()) < 4


def test_log_score_is_the_log_of_the_mean_probability() -> None:
    draws, x = posterior()
    prediction = draws.predict(x)
    rate = prediction.function_draws[..., 0].exp().numpy()
    expected = np.log(stats.poisson(rate).pmf([[2, 9]]).mean(0))
    assert_close(prediction.log_prob(torch.tensor([2, 9])), torch.tensor(expected))


def test_quantiles_are_counts_of_the_mixture_whatever_the_blocks_of_rows() -> None:
    draws, x = posterior()
    prediction = draws.predict(x, 1_000)
    levels = [0.05, 0.5, 0.95]
    found = prediction.quantile(levels)
    mixture = stats.poisson(prediction.function_draws[..., 0].exp().numpy())
    for level, counts in zip(levels, found[..., 0].numpy(), strict=True):
        error = 5 * math.sqrt(level * (1 - level) / 1_000)
        assert (mixture.cdf(counts).mean(0) > level - error).all()
        assert (mixture.cdf(counts - 1).mean(0) < level + error).all()
    assert prediction.quantile(0.5).shape == (2, 1)
    several = draws.predict(x.repeat(3, 1), 1_000, memory=60_000)  # whose draws do not fit
    assert torch.equal(several.quantile(levels), found.repeat(1, 3, 1))


def test_quantiles_of_one_rate_are_those_of_scipy() -> None:
    rate, levels = 3.4, [0.04, 0.31, 0.62, 0.96]  # away from the steps of its distribution
    program = Program(
        bnn.models.MLP(1, hidden=(), likelihood=Poisson()).double(),
        torch.ones(2, 1).double(),
        torch.tensor([1, 3]),
    )
    z = torch.tensor([0.0, math.log(rate)]).double().expand(1, 40_000, 2)
    found = DrawsPosterior(program, z, Provenance("made", "none")).predict(torch.ones(1, 1), 40_000)
    assert found.quantile(levels).flatten().tolist() == stats.poisson(rate).ppf(levels).tolist()


@pytest.mark.parametrize("y", [[0.5, 1.0, 2.0], [-1.0, 0.0, 2.0]])
def test_targets_that_are_no_counts_are_refused(y: list[float]) -> None:
    model = bnn.models.MLP(1, likelihood=Poisson())
    with pytest.raises(DataError, match=rf"y holds {y[0]}.*, outside .*counts 0, 1, 2, \.\.\., wh"):
        bnn.SVI(bnn.guides.AutoNormal, num_steps=2).run(model, (torch.ones(3, 1), torch.tensor(y)))


@pytest.mark.slow("about a second")
def test_a_regression_of_counts_finds_the_maximum_likelihood_of_a_generalised_linear_model() -> (
    None
):
    """Under a flat prior MAP solves the score equations X^T (y - exp(Xw)) = 0."""
    x = torch.linspace(-1, 1, 40, dtype=torch.float64)[:, None]
    y = torch.poisson((1.5 + 0.8 * x[:, 0]).exp(), generator=torch.Generator().manual_seed(0))
    model = bnn.models.MLP(1, hidden=(), likelihood=Poisson(), prior=bnn.priors.Flat()).double()
    fit = bnn.SVI(bnn.guides.AutoDelta, num_steps=1_500, learning_rate=0.03)
    f = fit.run(model, (x, y), progress=False).function_draws(x, 1)[0, :, 0]
    residual = y - f.exp()
    score = torch.stack([residual.sum(), residual @ x[:, 0]]) / math.sqrt(float(y.sum()))
    assert float(score.abs().max()) < 1e-3
