"""The rank-1 residual network: the ResNet of the materialised weights, members and all."""

from __future__ import annotations

import functools
import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import guides, priors, registry
from pyro_bnn.errors import OptionError, SiteError, UnknownNameError
from pyro_bnn.models import Rank1ResNet, ResNet
from pyro_bnn.models.description import describe
from pyro_bnn.program import Program
from pyro_bnn.program.handlers import evaluate
from tests.laws import objective

SHAPE, NUM_CLASSES, NUM_COMPONENTS = (2, 6, 6), 3, 2
WIDE = priors.Normal(0.5, loc=1.0)
LAYERS = ["first", *(f"stage{s}.0.conv{c}" for s in (1, 2, 3) for c in (1, 2)), "last"]


def made(**options: Any) -> Rank1ResNet:
    """A small network in float64 whose weights, gains and bias are not their start."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        options = {"prior": WIDE, "depth": 8, "width": 4, **options}
        model = Rank1ResNet(SHAPE, NUM_CLASSES, **options)
        for parameter in model.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape))
    return model.double()


def rows() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, *SHAPE, generator=generator, dtype=torch.float64)
    return x, torch.arange(5) % NUM_CLASSES


def materialised(model: Rank1ResNet, values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a ResNet in which every kernel has its factors."""
    params = {name: p.detach().clone() for name, p in model.layers.named_parameters()}
    for layer in LAYERS:
        weight = params[f"{layer}.weight"]
        for o in range(weight.shape[0]):
            for i in range(weight.shape[1]):
                if f"layers.{layer}.r" in values:
                    weight[o, i] *= values[f"layers.{layer}.r"][o]
                if f"layers.{layer}.s" in values:
                    weight[o, i] *= values[f"layers.{layer}.s"][i]
    return params


def by_hand(model: Rank1ResNet, values: dict[str, Tensor], x: Tensor) -> Tensor:
    """F of a plain ResNet with the materialised weights."""
    twin = ResNet(SHAPE, NUM_CLASSES, depth=8, width=4, norm=model.norm).double()
    f = evaluate(twin, {k: v.to(x) for k, v in materialised(model, values).items()}, x).f
    assert f is not None
    return f


@pytest.mark.parametrize("norm", ["group", "frn"])
@pytest.mark.parametrize("on", ["both", "inputs", "outputs"])
def test_f_is_that_of_the_res_net_with_materialised_weights(on: Any, norm: Any) -> None:
    model, (x, _) = made(on=on, norm=norm), rows()
    trace = poutine.trace(model).get_trace(x)
    nodes: Any = trace.nodes
    sides = {"both": "sr", "inputs": "s", "outputs": "r"}[on]
    names = [f"layers.{layer}.{side}" for layer in LAYERS for side in sides]
    assert [name for name in trace.stochastic_nodes if name.startswith("layers")] == names
    values = {name: nodes[name]["value"] for name in names}
    expected = by_hand(model, values, x)
    assert_close(nodes["f"]["value"], expected, rtol=1e-10, atol=1e-10)


def test_members_in_one_batch_are_a_loop_and_the_captured_step_the_uncaptured() -> None:
    model, (x, y) = made(), rows()
    program = Program(model, x, y)
    z = 1 + 0.5 * torch.randn(3, program.num_latents, dtype=torch.float64)
    loop = torch.stack([by_hand(model, program.constrain(row), x) for row in z])
    assert_close(program.function(z, x), loop, rtol=1e-10, atol=1e-10)
    guide = guides.AutoRank1Mixture(model, num_components=NUM_COMPONENTS)
    guide.setup(x[:1])
    guide.to(torch.float64)
    program.prepare(guide)
    noise, batch = guide.draw_noise(1, torch.Generator().manual_seed(3)), program.batch(x, y)
    _, captured = objective(guide, program, captured=True)
    _, plain = objective(guide, program, captured=False)
    for ours, theirs in zip(captured(noise, batch), plain(noise, batch), strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.fixture(scope="module", params=["normal", "delta"])
def fitted(request: pytest.FixtureRequest) -> Any:
    """A mixture of networks, or a BatchEnsemble, after a few steps."""
    guide: Any = guides.AutoRank1Mixture if request.param == "normal" else guides.BatchEnsemble
    guide = functools.partial(guide, num_components=NUM_COMPONENTS, init_spread=0.3)
    engine = bnn.SVI(guide, num_steps=25, learning_rate=0.02, compile=False)
    return engine.run(made(), rows(), progress=False)


def test_members_have_factors_and_biases_of_their_own(fitted: Any) -> None:
    model, (x, _) = made(), rows()
    num_latents = fitted.program.num_latents
    assert fitted.program.member_params == ("layers.last.bias",)
    trained = {name.removeprefix("layers."): value for name, value in fitted.params.items()}
    for name, parameter in model.layers.named_parameters():
        parameter.data = trained[name].detach().clone()
    draws = fitted.draws(4)
    for draw, f in zip(draws, fitted.function_draws(x, 4), strict=True):
        model.layers.last.bias.data = draw[num_latents:]  # type: ignore[union-attr]  # a tensor
        expected = by_hand(model, fitted.program.constrain(draw[:num_latents]), x)
        assert_close(f, expected, rtol=1e-9, atol=1e-9)
    biases = fitted.guide.biases.detach()
    assert biases.shape == (NUM_COMPONENTS, NUM_CLASSES)
    assert not torch.equal(biases[0], biases[1])
    assert fitted.losses[-5:].mean() < fitted.losses[:5].mean()


# The weights' prior


def test_weight_decay_is_that_of_weights_and_of_gains_around_one() -> None:
    model = made()
    expected = 0.0
    for name, parameter in model.layers.named_parameters():
        value = parameter.detach().numpy()
        is_gain = name.endswith("weight") and "norm" in name
        fan_in = value[0].size if value.ndim > 1 else 1
        expected += stats.norm.logpdf(value, float(is_gain), 1 / math.sqrt(fan_in)).sum()
    assert float(model.weight_log_prior().detach()) == pytest.approx(float(expected), rel=1e-6)
    trace = poutine.trace(model).get_trace(*rows())
    trace.compute_log_prob()
    node: Any = trace.nodes["weight_prior"]
    assert float(node["log_prob"].detach()) == pytest.approx(float(expected), rel=1e-6)
    assert node["cond_indep_stack"] == ()
    without = made(weight_prior=None)
    assert float(without.weight_log_prior().detach()) == 0.0
    assert "weight_prior" not in poutine.trace(without).get_trace(*rows()).nodes


# What is refused


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prior": {"*.r": WIDE}}, SiteError, r"matches layers.first.s, .*last.s; every factor"),
        ({"on": "input"}, UnknownNameError, "unknown side of the factors 'input': did you mean"),
        ({"weight_prior": priors.HalfCauchyScale()}, OptionError, "weight_prior is one distrib"),
        ({"weight_prior": dist.LogNormal(0.0, 1.0)}, OptionError, "no density at the initial wei"),
        ({"depth": 9}, OptionError, "depth is 6 n"),
        ({"clip": 0.0}, OptionError, "clip is a positive number, not 0.0"),
    ],
)
def test_options_are_checked(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        made(**options)


def test_it_is_listed_and_described() -> None:
    assert registry.lookup("model", "rank1-res-net") is Rank1ResNet
    assert describe(Rank1ResNet((1, 8, 8), depth=8, width=2)) == (
        "Rank1ResNet 1x8x8, Normal(1, 0.1) prior, Categorical likelihood, 23 tensors "
        "point-estimated with a weight prior"
    )


def test_it_has_the_weights_of_res_net_20_and_a_factor_of_each_channel() -> None:
    model = Rank1ResNet()
    assert sum(p.numel() for p in model.parameters()) == 269_722
    trace = poutine.trace(model).get_trace(torch.zeros(1, 3, 32, 32))
    nodes: Any = trace.nodes
    found = sum(nodes[n]["value"].numel() for n in trace.stochastic_nodes if n[-2:] in (".r", ".s"))
    by_stage = [12 * 16, 16 + 11 * 32, 32 + 11 * 64]  # six convolutions of two ends each
    assert found == (3 + 16) + sum(by_stage) + (64 + 10)
