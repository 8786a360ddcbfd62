"""Student-t noise: density and moments by scipy, and what an outlier does to the function."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn.errors import BNNWarning, OptionError
from pyro_bnn.likelihoods import Likelihood, Normal, StudentT
from pyro_bnn.posterior import DrawsPosterior, Provenance
from pyro_bnn.program import Program
from pyro_bnn.program.distributions import base_distribution

F = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 30.0]], dtype=torch.float64)
NUM_DRAWS = 20_000
X, OUTLIER = torch.ones(8, 1, dtype=torch.float64), 10.0
Y = torch.tensor([0.3, -0.2, 0.1, 0.4, -0.5, 0.2, 0.0, OUTLIER], dtype=torch.float64)


@pytest.mark.parametrize("df", [1.0, 3.0, 50.0])
def test_density_is_that_of_scipy(df: float) -> None:
    y = torch.tensor([[0.0, -40.0], [2.5, -1.0], [1e4, 31.0]], dtype=torch.float64)
    actual = StudentT(df=df, scale=0.75).double().distribution(F).log_prob(y)
    expected = stats.t(df, loc=F.numpy(), scale=0.75).logpdf(y.numpy()).sum(1)
    assert_close(actual, torch.tensor(expected), rtol=1e-10, atol=0)


@pytest.mark.parametrize("df", [0.5, 4.0, 15.9, 16.0, 1e3, 1e6, 1e12])
def test_density_and_its_slope_in_df_keep_their_digits_in_float32(df: float) -> None:
    """The slope is the difference quotient of scipy's density in 1 / df, where it is smooth."""
    y = torch.tensor([[0.0, 0.5], [3.0, -40.0], [1.5, 2.5]])
    r = torch.tensor(1 / df, dtype=torch.float64, requires_grad=True)
    likelihood = StudentT(df=df, scale=0.75)
    likelihood.df = (1 / r).float()
    actual = base_distribution(likelihood.distribution(F.float())).log_prob(y)
    u = (y.double() - F).numpy()

    def exact(r: float) -> np.ndarray[Any, Any]:
        return np.asarray(stats.t(1 / r, scale=0.75).logpdf(u))

    assert_close(actual.double(), torch.tensor(exact(1 / df)), rtol=1e-5, atol=3e-6)
    if df <= 1e3:  # beyond it the difference of scipy's own has too few digits
        h = 1e-4 / df
        slope = (exact(1 / df + h) - exact(1 / df - h)).sum() / (2 * h)
        (gradient,) = torch.autograd.grad(actual.sum(), r)
        assert gradient.item() == pytest.approx(slope, rel=1e-3)


def test_there_are_four_degrees_of_freedom_where_nothing_is_said() -> None:
    variance = StudentT(scale=0.5).distribution(torch.zeros(1, 1)).variance
    assert_close(variance, torch.tensor([[0.5**2 * 4 / 2]]))


def test_targets_have_their_own_degrees_of_freedom_and_scales() -> None:
    fn = StudentT(df=[3.0, 6.0], scale=[1.0, 2.0]).double().distribution(F)
    assert_close(fn.variance, torch.tensor([[3.0, 6.0]]).double().expand(3, 2))
    assert (fn.batch_shape, fn.event_shape) == ((3,), (2,))


def test_both_are_learned_one_a_target() -> None:
    nodes: Any = poutine.trace(StudentT(df=dist.Gamma(2.0, 0.1))).get_trace(F).nodes
    assert [nodes[name]["fn"].event_shape for name in ("df", "scale")] == [(2,), (2,)]
    df = nodes["df"]["value"]
    expected = stats.gamma(2.0, scale=10.0).logpdf(df.numpy()).sum()
    assert float(nodes["df"]["fn"].log_prob(df)) == pytest.approx(expected, rel=1e-5)


def test_a_df_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="df is a positive number of degrees of freedom, one f"):
        StudentT(df=0.0)


def conjugate_like(likelihood: Likelihood) -> Program:
    """One weight w ~ N(0, 3^2) and y = w + noise: the posterior is a one-dimensional integral."""
    model = bnn.models.MLP(
        1, hidden=(), likelihood=likelihood, prior={"*.weight": dist.Normal(0.0, 3.0), "*": FIXED}
    ).double()
    return Program(model, X, Y)


FIXED = dist.Normal(0.0, 1e-9)  # the bias is no parameter here


def posterior_mean(program: Program) -> float:
    """Of the weight, on a grid."""
    w = torch.linspace(-15, 15, 3_001, dtype=torch.float64)
    z = torch.stack([w, torch.zeros_like(w)], 1)
    return float(program.log_joint(z, program.batch(X, Y)).softmax(0) @ w)


def test_an_outlier_moves_the_mean_less_than_under_gaussian_noise() -> None:
    y, scale = Y.numpy(), 0.5
    gaussian = y.sum() / scale**2 / (len(y) / scale**2 + 1 / 9)  # conjugate
    normal = posterior_mean(conjugate_like(Normal(scale)))
    assert normal == pytest.approx(gaussian, rel=1e-6)
    w = np.linspace(-15, 15, 30_001)
    log_p = stats.norm(0, 3).logpdf(w) + stats.t(4, w[:, None], scale).logpdf(y).sum(1)
    weights = np.exp(log_p - log_p.max())
    student = posterior_mean(conjugate_like(StudentT(df=4.0, scale=scale)))
    assert student == pytest.approx(float(weights @ w / weights.sum()), rel=1e-6)
    clean = y[:-1].mean()
    assert abs(student - clean) < 0.1 < 1.2 < abs(normal - clean)


@pytest.mark.parametrize(("df", "exists"), [(1.0, ""), (2.0, "mean"), (2.5, "mean sd")])
def test_moments_that_do_not_exist_are_nan_with_a_warning(df: float, exists: str) -> None:
    model = bnn.models.MLP(1, hidden=(), likelihood=StudentT(df=df, scale=0.5)).double()
    program = Program(model, X, Y)
    z = program.prior_draws(40, X[:1], seed=0)
    prediction = DrawsPosterior(program, z[None], Provenance("prior", "none")).predict(X)
    f = prediction.function_draws
    values: dict[str, Tensor] = {"mean": f.mean(0)}
    values["sd"] = (f.var(0, correction=0) + 0.25 * df / max(df - 2, 1e-9)).sqrt()
    for name, expected in values.items():
        if name in exists:
            assert_close(getattr(prediction, name), expected)
            continue
        with pytest.warns(
            BNNWarning, match=f"the predictive {name} does not exist or .* at 8 rows"
        ):
            assert bool(getattr(prediction, name).isnan().all())
    assert bool(prediction.quantile(0.5).isfinite().all())
    assert_close(
        prediction.log_prob(Y),
        torch.tensor(np.log(stats.t(df, f[..., 0].numpy(), 0.5).pdf(Y.numpy()).mean(0))),
    )


def test_draws_of_y_have_the_quantiles_of_the_mixture() -> None:
    model = bnn.models.MLP(1, hidden=(), likelihood=StudentT(df=2.5, scale=0.5)).double()
    program = Program(model, X, Y)
    z = torch.randn(1, NUM_DRAWS, 2, generator=torch.Generator().manual_seed(0)).double()
    draws = DrawsPosterior(program, z, Provenance("prior", "none"))
    prediction = draws.predict(X[:1], NUM_DRAWS)
    components = stats.t(2.5, prediction.function_draws[:, 0, 0].numpy(), 0.5)
    for q in (0.025, 0.5, 0.9):
        share = components.cdf(float(prediction.quantile(q))).mean()
        assert abs(share - q) < 4 * math.sqrt(q * (1 - q) / NUM_DRAWS)
