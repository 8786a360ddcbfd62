"""Variance of one hidden layer against draws; the bound of mean-field, and what exceeds it."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pyro_bnn import SVI, guides, likelihoods, models, priors
from pyro_bnn.diagnostics import (
    NNGP,
    MeanFieldNet,
    bound_ratio,
    dropout_variance,
    is_bounded,
    overconfidence,
    segment,
)
from pyro_bnn.diagnostics.mean_field.in_between import LinearLayer
from pyro_bnn.errors import ModelError, OptionError, ShapeError
from pyro_bnn.guides import Guide
from pyro_bnn.posterior import GuidePosterior, Posterior

X = torch.tensor([[-2.0, 0.5], [0.3, 0.1], [1.0, -1.5]], dtype=torch.float64)
LINE = segment(torch.tensor([-1.0]).double(), torch.tensor([1.0]).double(), 81)


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mlp(*hidden: int, num_inputs: int = 2, **options: Any) -> models.MLP:
    options = {"likelihood": likelihoods.Normal(scale=0.1), **options}
    return models.MLP(num_inputs, hidden=hidden, **options).double()


def unfitted(model: models.MLP, guide: Any = guides.AutoNormal, num_outputs: int = 1) -> Posterior:
    """A posterior after one step, whose guide is set by hand."""
    num_inputs = model.num_inputs
    data = (normal(6, num_inputs, seed=0), normal(6, num_outputs, seed=1))
    return SVI(guide, num_steps=1, compile=False).run(model, data, progress=False)


def guide_of(posterior: Posterior) -> Any:
    return cast(GuidePosterior, posterior).guide


def z_of_variance(draws: Tensor, variance: Tensor) -> Tensor:
    squares = (draws - draws.mean(0)).square()  # [S, ...]
    error: Tensor = squares.std(0) / len(draws) ** 0.5
    return (squares.mean(0) - variance) / error


# The closed form


@pytest.mark.parametrize("guide", [guides.AutoNormal, guides.AutoKTiedNormal])
def test_moments_are_those_of_draws(guide: type[Guide]) -> None:
    model = mlp(5, num_outputs=2)
    posterior = unfitted(model, guide, 2)
    with torch.no_grad():
        own = guide_of(posterior)
        own.loc.copy_(normal(len(own.loc), seed=2))
        own.set_sds(0.1 + normal(len(own.loc), seed=3).abs())
    S = 20_000
    net, draws = MeanFieldNet.of(posterior), posterior.function_draws(X, S, seed=4)
    assert draws.shape == (S, 3, 2)
    z = (draws.mean(0) - net.mean(X)) / (draws.std(0) / S**0.5)
    assert float(z.abs().max()) < 4
    assert float(z_of_variance(draws, net.variance(X)).abs().max()) < 4


def test_without_hidden_variance_it_is_a_linear_model_of_the_units() -> None:
    hidden, output = (
        LinearLayer(normal(5, 2, seed=2), normal(5, seed=3)),
        LinearLayer(*[normal(1, 5, seed=4), normal(1, seed=5)]),
    )
    none = LinearLayer(torch.zeros(5, 2).double(), torch.zeros(5).double())
    spread = output.squared()
    net = MeanFieldNet(hidden, none, output, spread)
    units = (X @ hidden.weight.T + hidden.bias).relu()
    torch.testing.assert_close(net.mean(X), units @ output.weight.T + output.bias)
    expected = units.square() @ spread.weight.T + spread.bias
    torch.testing.assert_close(net.variance(X), expected, rtol=1e-12, atol=0)


def test_of_the_prior_it_is_the_kernel_of_infinite_width() -> None:
    # independent zero-mean weights, summed over units: one hidden layer has it at any width
    model = mlp(9, prior=priors.Normal(0.5))
    zero = [
        LinearLayer(torch.zeros(n, m).double(), torch.zeros(n).double())
        for n, m in ((9, 2), (1, 9))
    ]
    quarter = [LinearLayer(layer.weight + 0.25, layer.bias + 0.25) for layer in zero]
    net = MeanFieldNet(zero[0], quarter[0], zero[1], quarter[1])
    torch.testing.assert_close(net.variance(X)[:, 0], NNGP(model).variance(X), rtol=1e-12, atol=0)


# The bound


def random_net(seed: int, num_inputs: int, num_units: int = 4) -> MeanFieldNet:
    """Means and variances of very different sizes."""
    sizes = [(num_units, num_inputs), (num_units, num_inputs), (1, num_units), (1, num_units)]
    layers = []
    for i, (units, inputs) in enumerate(sizes):
        values = normal(units, inputs + 1, seed=4 * seed + i)
        values = values.exp() ** 2 if i % 2 else 3 * values
        layers.append(LinearLayer(values[:, :-1], values[:, -1]))
    return MeanFieldNet(*layers)


def test_random_mean_field_nets_obey_the_bound_and_come_near_it() -> None:
    through_origin = segment(
        torch.tensor([-1.0, 0.5, 2.0]).double(), torch.tensor([1.5, -0.75, -3.0]).double(), 61
    )
    along_axis = segment(
        torch.tensor([2.0, -1.0, 0.3]).double(), torch.tensor([2.0, 3.0, 0.3]).double(), 61
    )
    ratios = []
    for x in (through_origin, along_axis):
        for seed in range(150):
            net = random_net(seed, 3)
            ratios.append(float(bound_ratio(net.variance(x), x)))
    assert max(ratios) <= 1
    assert max(ratios) > 0.6  # the nets are of the kind that could break it


def test_output_noise_alone_reaches_half_the_bound() -> None:
    zero = [
        LinearLayer(torch.zeros(n, m).double(), torch.zeros(n).double())
        for n, m in ((3, 1), (1, 3))
    ]
    bias_only = LinearLayer(zero[1].weight, torch.ones(1).double())
    net = MeanFieldNet(zero[0], zero[0], zero[1], bias_only)  # Var f = 1 everywhere
    assert bound_ratio(net.variance(LINE), LINE).tolist() == [0.5]


def hat_posterior() -> Posterior:
    """f(x) = e (1 - |x|)+, with one e ~ N(0, 1): three output weights of correlation one."""
    model = mlp(3, num_inputs=1)
    posterior = unfitted(model, guides.AutoMultivariateNormal)
    sites = {site.name: site for site in posterior.program.sites}
    loc = torch.zeros(posterior.program.num_latents).double()
    for name, values in {
        "layers.0.weight": [1.0, 1.0, 1.0],
        "layers.0.bias": [1.0, 0.0, -1.0],  # kinks at -1, 0, 1
    }.items():
        loc[sites[name].start : sites[name].stop] = torch.tensor(values).double()
    direction = torch.zeros_like(loc)
    output = sites["layers.1.weight"]
    direction[output.start : output.stop] = torch.tensor([1.0, -2.0, 1.0]).double()
    covariance = torch.outer(direction, direction) + 1e-8 * torch.eye(len(loc)).double()
    guide_of(posterior).set_moments(loc, covariance)
    return posterior


def test_correlated_weights_break_the_bound_where_their_marginals_do_not() -> None:
    posterior = hat_posterior()
    draws = posterior.function_draws(LINE, 4_000)[..., 0]
    hat = (1 - LINE[:, 0].abs()).square()
    middle = slice(20, 61)
    assert float(z_of_variance(draws, hat)[middle].abs().max()) < 4
    assert float(bound_ratio(draws.var(0), LINE)) > 1e4
    mean_field = unfitted(
        cast(models.MLP, posterior.model), guides.AutoNormal
    )  # the same means and sds
    loc, scale = guide_of(posterior).marginals()
    own = guide_of(mean_field)
    with torch.no_grad():
        own.loc.copy_(loc)
        own.set_sds(scale)
    variance = MeanFieldNet.of(mean_field).variance(LINE)[:, 0]
    assert float(bound_ratio(variance, LINE)) <= 1
    # sds of the output weights are 1, 2, 1, and the units at 1 are 2, 1, 0
    by_hand = torch.tensor([0.0, 1.0, 2.0**2 + 2.0**2]).double()
    torch.testing.assert_close(variance[[0, 40, 80]], by_hand, rtol=0, atol=1e-5)


def test_the_process_of_infinite_width_is_beyond_the_bound() -> None:
    x = torch.cat([LINE[:10], LINE[-10:]])  # two clusters
    posterior = NNGP(mlp(50, num_inputs=1)).posterior((x, x[:, 0].abs()))
    _, variance = posterior.moments(LINE)
    ratio = bound_ratio(variance, LINE)
    assert ratio.shape == (1,)
    assert float(ratio) > 2  # by far


def test_a_method_of_half_the_sd_is_twice_as_certain() -> None:
    variance = torch.tensor([0.25, 1.0, 9.0])
    assert overconfidence(variance, torch.ones(3)).tolist() == [2.0, 1.0, pytest.approx(1 / 3)]


def test_where_the_bound_holds() -> None:
    def inside(p: list[float], q: list[float]) -> list[float]:
        x = segment(torch.tensor(p), torch.tensor(q), 9)
        return [round(float(v), 3) for v in x[is_bounded(x)][:, 0]]

    assert inside([-1.0], [1.0]) == [-0.75, -0.5, -0.25, 0.0, 0.25, 0.5, 0.75]
    assert inside([-3.0], [1.0]) == [-0.5, 0.0, 0.5]  # closer to 0 than both
    assert inside([-0.3, 0.9], [0.1, -0.3]) == [-0.05, 0.0, 0.05]  # through the origin
    assert inside([-3.0, 7.0], [1.0, 7.0]) == [-0.5, 0.0, 0.5]  # across x_0 = 0
    assert inside([1.0], [3.0]) == []  # on one side
    assert inside([1.0, -1.0], [1.0, -3.0]) == []
    assert inside([-1.0, 0.0], [1.0, 1.0]) == []  # oblique, beside the origin
    assert inside([1.0, 2.0], [2.0, 4.0]) == []  # on a line through the origin, which is outside


# Dropout


def test_dropout_variance_is_that_of_draws_and_convex() -> None:
    model = mlp(6, num_inputs=1)
    posterior = unfitted(model, lambda m: guides.AutoDropout(m, rate=0.3))
    own = guide_of(posterior)
    with torch.no_grad():
        own.loc.copy_(normal(len(own.loc), seed=7))
    variance = dropout_variance(posterior, LINE)
    some = LINE[::20]
    draws = posterior.function_draws(some, 40_000, seed=1)
    assert float(z_of_variance(draws, variance[::20]).abs().max()) < 4
    second = variance[2:] - 2 * variance[1:-1] + variance[:-2]
    assert float(second.min()) > -1e-12
    assert float(second.max()) > 1e-6
    assert float(bound_ratio(variance, LINE)) <= 1


# What is refused


def test_other_posteriors_are_refused() -> None:
    for guide in (guides.AutoDelta, guides.AutoMultivariateNormal):
        posterior = unfitted(mlp(3), guide)
        with pytest.raises(ModelError, match=f"{guide.__name__} has others: take the variance of"):
            MeanFieldNet.of(posterior)
        with pytest.raises(ModelError, match=f"of hidden units alone, not under {guide.__name__}"):
            dropout_variance(posterior, X)
    everywhere = unfitted(mlp(3), lambda m: guides.AutoDropout(m, drop_inputs=True))
    with pytest.raises(ModelError, match="'drop_inputs': True"):
        dropout_variance(everywhere, X)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (mlp(3, 3), "of one hidden layer whose weights are sample sites"),
        (mlp(3, prior=priors.HalfCauchyScale()), "of one hidden layer whose weights are sample"),
        (mlp(3, activation="tanh"), "a closed form here for the activation relu alone"),
    ],
)
def test_other_models_are_refused(model: models.MLP, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        MeanFieldNet.of(unfitted(model))


def test_what_does_not_fit_is_refused() -> None:
    p, q = torch.zeros(2), torch.ones(2)
    with pytest.raises(OptionError, match="num_points is at least 2, not 1"):
        segment(p, q, 1)
    with pytest.raises(ShapeError, match=r"not of shapes \(2,\) and \(3,\)"):
        segment(p, torch.ones(3))
    with pytest.raises(OptionError, match="the bound says nothing on this segment"):
        bound_ratio(torch.ones(5), segment(p, q, 5))
    with pytest.raises(ShapeError, match="4 variances do not fit 5 points"):
        bound_ratio(torch.ones(4), segment(p, q, 5))
    with pytest.raises(ShapeError, match=r"variance has shape \(4,\), the reference \(5,\)"):
        overconfidence(torch.ones(4), torch.ones(5))
