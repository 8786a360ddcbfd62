"""The multilayer perceptron against its textbook formula, and the options it refuses."""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import nn
from torch.testing import assert_close

from pyro_bnn import likelihoods, priors
from pyro_bnn.errors import OptionError, ShapeError, SiteError, UnknownNameError
from pyro_bnn.models import MLP, LeNet, Rank1MLP
from pyro_bnn.models.network import ACTIVATIONS
from pyro_bnn.priors import PriorModule
from pyro_bnn.priors.prior import tensors_of

BY_HAND: dict[str, Any] = {
    "relu": lambda h: max(h, 0.0),
    "leaky_relu": lambda h: h if h > 0 else 0.01 * h,
    "tanh": math.tanh,
    "erf": math.erf,
    "silu": lambda h: h / (1 + math.exp(-h)),
    "identity": lambda h: h,
}


def nodes_of(model: Any, *args: Any) -> Any:
    return poutine.trace(model).get_trace(*args).nodes


def test_no_activation_is_left_out() -> None:
    assert set(BY_HAND) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", BY_HAND)
def test_activations_elementwise(name: str) -> None:
    h = torch.tensor([-2.0, -0.5, 0.0, 0.3, 4.0])
    assert_close(ACTIVATIONS[name](h), torch.tensor([BY_HAND[name](v) for v in h.tolist()]))


@pytest.mark.parametrize(
    ("activation", "function"),
    [("tanh", torch.tanh), (torch.sin, torch.sin), (nn.LeakyReLU(0.3), nn.LeakyReLU(0.3))],
    ids=["name", "function", "module"],
)
@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
def test_f_is_the_textbook_recursion(
    hidden: tuple[int, ...], activation: Any, function: Any
) -> None:
    model = MLP(3, 2, hidden=hidden, activation=activation)
    x = torch.randn(6, 3)
    nodes = nodes_of(model, x)
    sites = [name for name in nodes if name.startswith("layers.")]
    assert sites == [
        f"layers.{i}.{kind}" for i in range(len(hidden) + 1) for kind in ("weight", "bias")
    ]
    h = x
    for i in range(len(hidden) + 1):
        w, b = nodes[f"layers.{i}.weight"]["value"], nodes[f"layers.{i}.bias"]["value"]
        h = (function(h) if i else h) @ w.T + b
    assert_close(nodes["f"]["value"], h)
    assert nodes["f"]["value"].shape == (6, 2)
    assert not list(model.parameters())


@pytest.mark.parametrize(
    ("likelihood", "num_outputs", "num_function_outputs"),
    [
        (likelihoods.Normal(0.1), 3, 3),
        (likelihoods.HeteroscedasticNormal(), 3, 6),
        (likelihoods.Bernoulli(), 1, 1),
        (likelihoods.Categorical(4), 1, 4),
    ],
)
def test_the_likelihood_sets_the_number_of_outputs(
    likelihood: Any, num_outputs: int, num_function_outputs: int
) -> None:
    model = MLP(2, num_outputs, hidden=(3,), likelihood=likelihood)
    nodes = nodes_of(model, torch.zeros(5, 2))
    assert nodes["layers.1.weight"]["value"].shape == (num_function_outputs, 3)
    assert nodes["f"]["value"].shape == (5, num_function_outputs)


def test_classes_have_one_target() -> None:
    with pytest.raises(OptionError, match="has one target: leave num_outputs at 1, not 2"):
        MLP(3, 2, likelihood=likelihoods.Categorical(3))


def test_default_priors_are_fan_in_and_patterns_choose_others() -> None:
    nodes = nodes_of(MLP(4, hidden=(9,)), torch.zeros(1, 4))
    variances = {
        name: nodes[name]["fn"].variance.unique().item() for name in nodes if "layers" in name
    }
    assert variances == pytest.approx(
        {"layers.0.weight": 1 / 4, "layers.0.bias": 1, "layers.1.weight": 1 / 9, "layers.1.bias": 1}
    )
    patterns = {"*.bias": dist.Laplace(0.0, 1.0), "*": priors.Normal(3.0)}
    nodes = nodes_of(MLP(4, hidden=(9,), prior=patterns), torch.zeros(1, 4))
    assert_close(nodes["layers.0.weight"]["fn"].variance, torch.full((9, 4), 9.0))
    assert_close(nodes["layers.1.bias"]["fn"].variance, torch.tensor([2.0]))


@pytest.mark.slow("about a second")
def test_the_functions_prior_scale_does_not_depend_on_the_width() -> None:
    torch.manual_seed(0)
    x = torch.ones(1, 1)
    for width in (10, 1_000):
        model = MLP(1, hidden=(width,), activation="identity", likelihood=likelihoods.Normal(1.0))
        f = torch.stack([nodes_of(model, x)["f"]["value"] for _ in range(600)])
        # h ~ N(0, 2) for each unit; f sums width of them with weights of variance 1/width, plus b
        z_score = (float(f.var()) / 3.0 - 1) / math.sqrt(8 / 600)
        assert abs(z_score) < 5


def test_every_weight_needs_a_prior() -> None:
    with pytest.raises(
        SiteError,
        match=r"no prior pattern matches layers.0.bias, layers.1.bias; every weight of the MLP has "
        r'a prior: add {"\*": pyro_bnn.priors.Normal\(\)} as the last pattern',
    ):
        MLP(3, prior={"*.weight": priors.Normal()})


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(SiteError, match=r"the prior pattern 'layers.7.\*' matches no parameter"):
        MLP(3, prior={"layers.7.*": priors.Normal(), "*": priors.Normal()})


@pytest.mark.parametrize(
    ("sizes", "wrong"),
    [
        ({"num_inputs": 0}, "not 0"),
        ({"num_inputs": 3, "num_outputs": -1}, "not -1"),
        ({"num_inputs": 3, "hidden": (5, 0)}, "not 0"),
        ({"num_inputs": 3.0}, "not 3.0"),
        ({"num_inputs": True}, "not True"),
        ({"num_inputs": 3, "hidden": ("5",)}, "not '5'"),
    ],
)
def test_sizes_that_are_no_positive_integers_are_refused(sizes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(
        OptionError, match="the size of a layer is an integer of at least 1, not "
    ) as caught:
        MLP(**sizes)
    assert str(caught.value).endswith(wrong)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("ReLU", "did you mean 'relu'"), ("leaky", "'leaky_relu'"), ("tahn", "'tanh'"), ("x", "")],
)
def test_an_unknown_activation_suggests_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        MLP(3, activation=name)
    message = str(caught.value)
    assert message.startswith(f"unknown activation {name!r}: ")
    assert hint in message
    assert ("did you mean" in message) is bool(hint)
    assert message.endswith("known are erf, identity, leaky_relu, relu, silu, tanh")


@pytest.mark.parametrize("shape", [(5, 4), (5,), (5, 3, 1)])
def test_x_of_another_width_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError) as caught:
        MLP(3)(torch.zeros(shape))
    assert str(caught.value) == f"x has shape {shape}, but the model takes [N, 3]"


def test_two_models_of_one_prior_and_one_likelihood_share_no_state() -> None:
    prior = dist.Normal(torch.tensor(0.0), torch.tensor(1.0))
    likelihood = likelihoods.Normal()
    first, second = (MLP(3, hidden=(2,), prior=prior, likelihood=likelihood) for _ in range(2))
    tensors = [
        {
            id(value)
            for module in model.modules()
            if isinstance(module, PriorModule)
            for value in tensors_of(module())
        }
        for model in (first, second)
    ]
    assert len(tensors[0]) == len(tensors[1]) > 5
    assert not tensors[0] & tensors[1]
    first.double()
    x = torch.zeros(2, 3)
    assert second(x).dtype == torch.float32
    assert first(x.double()).dtype == torch.float64
    assert prior.loc.dtype == torch.float32


def test_y_of_one_dimension_is_observed_as_a_column() -> None:
    x, y = torch.zeros(4, 3), torch.arange(4.0)
    nodes = nodes_of(MLP(3, hidden=(2,)), x, y)
    assert_close(nodes["y"]["value"], y.unsqueeze(-1))


def test_it_runs_under_stock_pyro() -> None:
    model = MLP(3, hidden=(2,))
    x, y = torch.randn(4, 3), torch.randn(4)
    with pyro.get_param_store().scope():
        guide = pyro.infer.autoguide.AutoNormal(model)
        elbo = pyro.infer.Trace_ELBO()
        assert math.isfinite(elbo.loss(model, guide, x, y))


def test_an_activation_that_is_a_class_is_refused() -> None:
    with pytest.raises(OptionError, match=r"is the class ReLU, .* pass an instance, ReLU\(\)"):
        MLP(3, activation=cast(Any, nn.ReLU))


def test_hierarchical_priors_by_pattern() -> None:
    patterns: Any = {
        "layers.0.weight": priors.HalfCauchyScale(per="input"),
        "*.bias": priors.Normal(),
        "*": priors.Horseshoe(centred=True),
    }
    model = MLP(4, hidden=(9,), prior=patterns, likelihood=likelihoods.Normal(0.1))
    x = torch.randn(3, 4)
    nodes = nodes_of(model, x)
    shapes = {
        name: tuple(node["value"].shape)
        for name, node in nodes.items()
        if node["type"] == "sample" and name.startswith("layers")
    }
    assert shapes == {
        "layers.0.weight.scale": (1, 4),
        "layers.0.weight.raw": (9, 4),
        "layers.0.weight": (9, 4),
        "layers.0.bias": (9,),
        "layers.1.weight.global": (),
        "layers.1.weight.local": (1, 9),
        "layers.1.weight.value": (1, 9),
        "layers.1.weight": (1, 9),
        "layers.1.bias": (1,),
    }
    w = [nodes[f"layers.{i}.weight"]["value"] for i in (0, 1)]
    b = [nodes[f"layers.{i}.bias"]["value"] for i in (0, 1)]
    assert_close(nodes["f"]["value"], torch.relu(x @ w[0].T + b[0]) @ w[1].T + b[1])


@pytest.mark.parametrize(
    ("make", "columns", "count"),
    [
        (functools.partial(MLP, 3), 3, 1),
        (functools.partial(Rank1MLP, 3), 3, 1),
        (functools.partial(LeNet, (1, 8, 8), prior={"conv*": priors.Normal()}), 64, 1),
        (functools.partial(LeNet, (1, 8, 8)), 64, 0),
    ],
    ids=["mlp", "rank-1", "le-net", "le-net-sampled"],
)
def test_parameters_of_an_activation_are_the_models_own_and_are_used(
    make: Any, columns: int, count: int
) -> None:
    """One slope in training, or none where it is sampled; two models share none."""
    slope = nn.PReLU(init=0.125)
    first, second = make(activation=slope), make(activation=slope)
    slopes = [
        [v for v in m.parameters() if v.shape == (1,) and v == 0.125] for m in (first, second)
    ]
    assert [len(found) for found in slopes] == [count, count]
    x = torch.linspace(-1, 1, 4 * columns).reshape(4, columns)
    for model, own in zip((first, second), slopes, strict=True):
        with torch.random.fork_rng():
            f = nodes_of(model, x)["f"]["value"]
        assert all(bool(torch.autograd.grad(f.square().sum(), v)[0]) for v in own)
        assert model.activation(-torch.ones(1)).item() == -0.125
    assert {id(v) for v in slopes[0]}.isdisjoint(map(id, slopes[1]))
