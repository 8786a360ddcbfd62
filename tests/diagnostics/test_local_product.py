"""The local product matrix against autograd, the function itself, and a net worked out by hand."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import SVI, guides, likelihoods, models, priors
from pyro_bnn.diagnostics import local_products, matrix_moments, product_draws, product_moments
from pyro_bnn.posterior import GuidePosterior, Posterior

X = torch.tensor([0.7, -1.2, 0.4], dtype=torch.float64)
NOISE = likelihoods.Normal(scale=0.1)


def fit(model: Any, spread: float = 0.3) -> Posterior:
    """A mean-field fit whose means are of order one and whose sds differ."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    y = torch.zeros(8, 2, dtype=torch.float64)
    engine = SVI(guides.AutoNormal, num_steps=1, compile=False)
    posterior = cast(GuidePosterior, engine.run(model.double(), (x, y), progress=False))
    normal = cast(guides.AutoNormal, posterior.guide)
    with torch.no_grad():
        normal.loc.copy_(torch.randn(normal.loc.shape, generator=generator))
        normal.scale = spread * (0.5 + torch.rand(normal.loc.shape, generator=generator))
    return posterior


def mlp(activation: Any, hidden: tuple[int, ...] = (5, 4), **options: Any) -> models.MLP:
    return models.MLP(3, 2, hidden=hidden, activation=activation, likelihood=NOISE, **options)


class Hinge(nn.Module):
    """Twice the positive part, from 0.3 on: its pieces do not meet the origin."""

    def forward(self, a: Tensor) -> Tensor:
        return 2 * torch.relu(a - 0.3) + 1


@pytest.fixture(scope="module")
def relu() -> Posterior:
    return fit(mlp("relu"))


@pytest.fixture(scope="module")
def linear() -> Posterior:
    return fit(mlp("identity"))


@pytest.mark.parametrize(
    "activation",
    ["relu", "leaky_relu", nn.LeakyReLU(0.3), nn.functional.hardtanh, Hinge(), "identity"],
    ids=["relu", "leaky_relu", "LeakyReLU", "hardtanh", "Hinge", "identity"],
)
def test_it_is_the_jacobian_and_with_its_offset_the_function(activation: Any) -> None:
    posterior = fit(mlp(activation))
    found = local_products(posterior, X, 20, seed=4)
    f = posterior.function_draws(X[None], 20, seed=4)[:, 0]
    assert_close(found.matrix @ X + found.offset, f, rtol=1e-12, atol=1e-12)
    for draw, matrix in zip(posterior.unconstrained(20, seed=4), found.matrix, strict=True):
        jacobian = torch.func.jacrev(
            lambda row, draw=draw: posterior.program.function(draw, row[None])[0]
        )(X)
        assert_close(matrix, jacobian, rtol=1e-12, atol=1e-12)


def test_the_function_is_this_linear_map_next_to_x_and_another_one_far_away(
    relu: Posterior,
) -> None:
    found = local_products(relu, X, 20)
    step = torch.tensor([1.0, -2.0, 1.0], dtype=torch.float64)
    for size, is_near in ((1e-7, True), (10.0, False)):
        there = X + size * step
        gap = relu.function_draws(there[None], 20)[:, 0] - found.matrix @ there - found.offset
        assert bool((gap.abs() < 1e-12).all()) is is_near


def test_a_net_worked_out_by_hand() -> None:
    """f = 3 leaky(2 x_1 - x_2 + 1) - leaky(x_1 - 5), at (1, 1): units 2, on, and -4, leaking."""
    model = models.MLP(2, hidden=(2,), activation=nn.LeakyReLU(0.5), likelihood=NOISE).double()
    x = torch.ones(4, 2, dtype=torch.float64)
    engine = SVI(guides.AutoDelta, num_steps=1, compile=False)
    posterior = cast(GuidePosterior, engine.run(model, (x, x[:, 0]), progress=False))
    values = {
        "layers.0.weight": [[2.0, -1.0], [1.0, 0.0]],
        "layers.0.bias": [1.0, -5.0],
        "layers.1.weight": [[3.0, -1.0]],
        "layers.1.bias": [0.25],
    }
    z = posterior.program.unconstrain({name: torch.tensor(v) for name, v in values.items()})
    with torch.no_grad():
        cast(guides.AutoDelta, posterior.guide).loc.copy_(z)
    found = local_products(posterior, [1.0, 1.0], 1)
    assert found.matrix.tolist() == [[[5.5, -3.0]]]
    assert found.offset.tolist() == [[3.0 + 2.5 + 0.25]]


def test_of_slope_one_it_is_the_product_matrix(linear: Posterior) -> None:
    expected = product_draws(linear, 30, seed=1)
    weights = linear.sample(30, seed=1)
    one, two, three = (weights[f"layers.{i}.weight"] for i in range(3))
    assert_close(expected, three @ two @ one, rtol=1e-12, atol=1e-12)
    assert_close(local_products(linear, X, 30, 1).matrix, expected, rtol=1e-12, atol=1e-12)
    leaky = local_products(fit(mlp(nn.LeakyReLU(1.0))), X, 30, 1).matrix
    assert_close(leaky, expected, rtol=1e-12, atol=1e-12)
    for bias in (True, False):
        deep = fit(models.DeepLinear(3, 2, hidden=(5, 4), bias=bias, likelihood=NOISE))
        found = local_products(deep, X, 30, 1)
        assert_close(found.matrix, product_draws(deep, 30, 1), rtol=1e-12, atol=1e-12)
        assert bool((found.offset.abs() > 1e-12).any()) is bias  # else it is 0 to rounding


@pytest.mark.slow("about a second")
def test_the_pattern_correlates_entries_that_the_product_matrix_does_not() -> None:
    """One hidden ReLU layer, x = e_1, entries of other rows and columns.

    With a_i = w_i1 + b_i ~ N(m, t^2), u = m / t and D_i = [a_i > 0]:
    E D_i w_i1 = E w_i1 Phi(u) + (sd w_i1)^2 / t phi(u), and, as D_i^2 = D_i,
    Cov(m_a1, m_cd) = sum_i E v_ai E v_ci E w_id E D_i w_i1 (1 - Phi(u)).
    """
    posterior = fit(mlp("relu", hidden=(5,)), spread=1.0)
    loc, scale = cast(guides.AutoNormal, cast(GuidePosterior, posterior).guide).marginals()
    sites = {site.name: site for site in posterior.program.sites}
    w, v, bias = (f"layers.{name}" for name in ("0.weight", "1.weight", "0.bias"))
    with torch.no_grad():  # so that what units contribute adds up, and each is on now and then
        loc.abs_().add_(0.5)
        loc[sites[bias].start : sites[bias].stop].neg_()
    mean, sd = ({n: s.value(value.detach()) for n, s in sites.items()} for value in (loc, scale))
    t = (sd[w][:, 0] ** 2 + sd[bias] ** 2).sqrt()
    u = (mean[w][:, 0] + mean[bias]) / t
    normal = torch.distributions.Normal(torch.zeros_like(u), torch.ones_like(u))
    on = mean[w][:, 0] * normal.cdf(u) + sd[w][:, 0] ** 2 / t * normal.log_prob(u).exp()
    both = mean[v][0] * mean[v][1] * on * (1 - normal.cdf(u))
    x = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    found = matrix_moments(local_products(posterior, x, 400_000).matrix)
    for d in (1, 2):
        expected, error = (both * mean[w][:, d]).sum(), found.error[0, 0, 1, d]
        assert abs(found.covariance[0, 0, 1, d] - expected) < 4 * error
        assert abs(expected) > 20 * error  # and without the pattern it is 0
    assert (product_moments(posterior).covariance[0, 0, 1, 1:] == 0).all()


def test_draws_of_a_linear_net_have_the_exact_moments_of_its_weights(linear: Posterior) -> None:
    found = matrix_moments(local_products(linear, X, 50_000).matrix)
    z = (found.covariance - product_moments(linear).covariance) / found.error
    assert z.abs().max() < 4


def test_other_nets_have_jacobians() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    other = fit(bnn.bayesian(net, prior=priors.Normal(1.0), likelihood=NOISE))
    hierarchical = fit(mlp("relu", prior=priors.HalfCauchyScale()))
    trained = fit(mlp(nn.PReLU()))
    for posterior in (other, hierarchical, trained):
        found = local_products(posterior, X, 6, seed=2)
        f = posterior.function_draws(X[None], 6, seed=2)[:, 0]
        assert_close(found.matrix @ X + found.offset, f, rtol=1e-12, atol=1e-12)
    weights = other.sample(6, seed=2)
    first = weights["0.weight"]
    on = (first @ X + weights["0.bias"] > 0).double()
    found = local_products(other, X, 6, seed=2)
    expected = weights["2.weight"] @ (on[..., None] * first)
    assert_close(found.matrix, expected, rtol=1e-12, atol=1e-12)


def test_rows_and_columns_are_those_of_the_whole(relu: Posterior) -> None:
    whole = local_products(relu, X, 9)
    part = local_products(relu, X, 9, rows=[1], columns=[2, 0])
    assert_close(part.matrix, whole.matrix[:, [1]][:, :, [2, 0]], rtol=0, atol=0)
    assert_close(part.offset, whole.offset[:, [1]], rtol=0, atol=0)


@pytest.mark.parametrize("activation", ["tanh", "erf", "silu", nn.functional.gelu])
def test_a_curved_activation_has_no_local_product(activation: Any) -> None:
    posterior = fit(mlp(activation))
    with pytest.raises(bnn.errors.OptionError, match=r"is not piecewise linear, so that the net"):
        local_products(posterior, X, 2)


def test_what_does_not_fit_is_refused(relu: Posterior) -> None:
    with pytest.raises(bnn.errors.ShapeError, match=r"shape \[3\], and has shape \[1, 3\]: pass x"):
        local_products(relu, X[None])
    with pytest.raises(bnn.errors.OptionError, match=r"columns are indices from 0 to 2, not \[-1"):
        local_products(relu, X, columns=[-1])
    with pytest.raises(bnn.errors.OptionError, match="more than the bound"):
        local_products(relu, X, 1_000, memory=1_000)
