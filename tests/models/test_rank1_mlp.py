"""The rank-1 perceptron against its textbook formula, its joint density and stock Pyro."""

from __future__ import annotations

import math
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.optim import Adam  # type: ignore[attr-defined]  # made at import time
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

import pyro_bnn as bnn
from pyro_bnn import guides, likelihoods, priors, registry
from pyro_bnn.errors import OptionError, ShapeError, SiteError, UnknownNameError
from pyro_bnn.models import Rank1MLP
from pyro_bnn.program.handlers import evaluate

SIDES = {"both": ("s", "r"), "inputs": ("s",), "outputs": ("r",)}


def made(*, seed: int = 0, **options: Any) -> Rank1MLP:
    """A net in float64 with three inputs and biases that are not zero."""
    torch.manual_seed(seed)
    options = {
        "hidden": (4,),
        "activation": "tanh",
        "likelihood": likelihoods.Normal(0.3),
    } | options
    model = Rank1MLP(3, **options)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.data.normal_()
    return model.double()


def rows(num_rows: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    draws = torch.randn(num_rows, 4, generator=generator, dtype=torch.float64)
    return draws[:, :3], draws[:, 3]


def traced(model: Any, *args: Any) -> Any:
    trace = poutine.trace(model).get_trace(*args)
    trace.compute_log_prob()
    return trace


def parameters_of(model: Rank1MLP, layer: int) -> tuple[Tensor, Tensor]:
    named = dict(model.named_parameters())
    return named[f"layers.{layer}.weight"].detach(), named[f"layers.{layer}.bias"].detach()


# The network


@pytest.mark.parametrize("on", SIDES)
@pytest.mark.parametrize("hidden", [(), (5,), (5, 4)])
def test_f_is_the_textbook_recursion(hidden: tuple[int, ...], on: str) -> None:
    prior = dist.Normal(0.5, 1.0)
    model, (x, _) = made(num_outputs=2, hidden=hidden, on=on, prior=prior), rows()
    nodes = traced(model, x).nodes
    sites = [name for name in nodes if name.startswith("layers.") and name[-1] in "rs"]
    assert [name for name in sites if nodes[name]["type"] == "sample"] == [
        f"layers.{i}.{factor}" for i in range(len(hidden) + 1) for factor in SIDES[on]
    ]
    h = x
    for i in range(len(hidden) + 1):
        weight, bias = parameters_of(model, i)
        weight = weight.clone()
        for o, row in enumerate(weight):
            for j in range(len(row)):
                if "r" in SIDES[on]:
                    row[j] *= nodes[f"layers.{i}.r"]["value"][o]
                if "s" in SIDES[on]:
                    row[j] *= nodes[f"layers.{i}.s"]["value"][j]
        h = (h.tanh() if i else h) @ weight.T + bias
    assert h.shape == (6, 2)
    assert_close(nodes["f"]["value"], h, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("on", SIDES)
def test_sites_and_parameters_have_the_shapes_of_their_sides(on: str) -> None:
    model, (x, y) = made(on=on, hidden=(5, 4)), rows()
    trace = traced(model, x, y)
    widths = {"s": (3, 5, 4), "r": (5, 4, 1)}
    shapes = {name: tuple(trace.nodes[name]["value"].shape) for name in trace.stochastic_nodes}
    del shapes["data"]
    assert shapes == {
        f"layers.{i}.{factor}": (widths[factor][i],) for i in range(3) for factor in SIDES[on]
    }
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {
        "layers.0.weight": (5, 3),
        "layers.0.bias": (5,),
        "layers.1.weight": (4, 5),
        "layers.1.bias": (4,),
        "layers.2.weight": (1, 4),
        "layers.2.bias": (1,),
    }


def test_members_in_one_batch_are_a_loop_over_members() -> None:
    model, (x, _) = made(hidden=(5,)), rows()
    sizes = {"layers.0.s": 3, "layers.0.r": 5, "layers.1.s": 5, "layers.1.r": 1}
    members = {name: torch.randn(4, size, dtype=torch.float64) for name, size in sizes.items()}

    def function(values: dict[str, Tensor]) -> Tensor:
        f = evaluate(model, values, x).f
        assert f is not None
        return f

    batched = torch.func.vmap(function)(members)  # [K, N, F]
    loop = [function({name: value[k] for name, value in members.items()}) for k in range(4)]
    assert batched.shape == (4, 6, 1)
    assert_close(batched, torch.stack(loop), rtol=1e-12, atol=1e-12)


def test_the_clip_reaches_every_layer() -> None:
    values = {
        "layers.0.s": [3.0, -4.0, 0.5],
        "layers.0.r": [1.0, 9.0, -0.1, 0.2],
        "layers.1.s": [-2.1, 0.3, 0.4, 2.1],
        "layers.1.r": [5.0],
    }
    far = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
    near = {name: value.clamp(-2.0, 2.0) for name, value in far.items()}
    x, _ = rows()
    clipped, free = made(clip=2.0), made(clip=None)
    assert_close(evaluate(clipped, far, x).f, evaluate(free, near, x).f, rtol=1e-12, atol=1e-12)
    far, near = ({name: 5 * value for name, value in values.items()} for values in (far, near))
    assert_close(evaluate(made(), far, x).f, evaluate(free, near, x).f, rtol=1e-12, atol=1e-12)


# Densities


def test_the_log_joint_is_the_one_written_by_hand() -> None:
    model, (x, y) = made(), rows()
    trace = traced(model, x, y)
    expected = 0.0
    for layer, num_inputs in ((0, 3), (1, 4)):
        weight, bias = (p.numpy() for p in parameters_of(model, layer))
        expected += stats.norm.logpdf(weight, 0.0, 1 / math.sqrt(num_inputs)).sum()
        expected += stats.norm.logpdf(bias, 0.0, 1.0).sum()
        for factor in ("r", "s"):
            expected += stats.norm.logpdf(
                trace.nodes[f"layers.{layer}.{factor}"]["value"], 1.0, 0.1
            ).sum()
    expected += stats.norm.logpdf(y[:, None], trace.nodes["f"]["value"].detach(), 0.3).sum()
    # the prior's scales are float32 numbers
    assert trace.log_prob_sum().item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("prior", "log_density"),
    [
        (priors.Normal(0.5), lambda w: stats.norm.logpdf(w, 0.0, 0.5)),
        (priors.Normal(0.25, loc=0.5), lambda w: stats.norm.logpdf(w, 0.5, 0.25)),
        (dist.Laplace(0.0, 2.0), lambda w: stats.laplace.logpdf(w, 0.0, 2.0)),
    ],
    ids=["normal", "shifted", "laplace"],
)
def test_weight_decay_is_recorded_once_outside_the_plate(prior: Any, log_density: Any) -> None:
    model = made(weight_prior=prior)
    expected = sum(log_density(p.detach().numpy()).sum() for p in model.parameters())
    for num_rows in (2, 50):
        trace = traced(model, *rows(num_rows))
        node = trace.nodes["weight_prior"]
        assert isinstance(node["fn"], dist.Unit)
        assert (node["cond_indep_stack"], node["scale"]) == ((), 1.0)
        assert node["log_prob"].shape == ()
        assert node["log_prob"].item() == pytest.approx(float(expected), rel=1e-12)
    assert model.weight_log_prior().item() == pytest.approx(float(expected), rel=1e-12)


def test_without_weight_prior_there_is_no_factor() -> None:
    model = made(weight_prior=None)
    assert "weight_prior" not in traced(model, *rows()).nodes
    assert model.weight_log_prior().item() == 0.0


def test_an_l2_penalty_on_the_mean_loss_is_the_prior_scale_of_the_docstring() -> None:
    strength, num_rows = 1e-3, 200
    model = made(weight_prior=priors.Normal(1 / math.sqrt(2 * strength * num_rows)))
    (-model.weight_log_prior() / num_rows).backward()
    for parameter in model.parameters():
        assert_close(parameter.grad, 2 * strength * parameter.detach(), rtol=1e-6, atol=0)


def test_gradients_of_the_log_joint_reach_every_weight() -> None:
    model, (x, y) = made(), rows()
    values = {
        name: node["value"].detach()
        for name, node in traced(model, x).nodes.items()
        if name[-2:] in (".r", ".s")
    }

    def log_joint() -> Tensor:
        total: Tensor = traced(poutine.condition(model, data=values), x, y).log_prob_sum()
        return total

    log_joint().backward()
    step = 1e-5
    for parameter in model.parameters():
        assert parameter.grad is not None
        flat, expected = parameter.data.view(-1), torch.zeros_like(parameter.data).view(-1)
        for i in range(len(flat)):
            start = flat[i].item()
            flat[i] = start + step
            above = log_joint().item()
            flat[i] = start - step
            expected[i] = (above - log_joint().item()) / (2 * step)
            flat[i] = start
        assert_close(parameter.grad.view(-1), expected, rtol=1e-6, atol=1e-6)


# Priors


def test_the_default_prior_is_gaussian_around_one() -> None:
    nodes = traced(made(), *rows()).nodes
    for name in ("layers.0.s", "layers.0.r", "layers.1.s", "layers.1.r"):
        size = nodes[name]["value"].shape
        assert_close(nodes[name]["fn"].mean, torch.ones(size, dtype=torch.float64))
        sd = nodes[name]["fn"].variance.sqrt()
        assert_close(sd, torch.full(size, 0.1, dtype=torch.float64), rtol=1e-6, atol=0)


def test_patterns_choose_the_prior_of_each_factor() -> None:
    patterns = {"layers.0.s": dist.Cauchy(1.0, 0.2), "*.r": dist.LogNormal(0.0, 0.1), "*": NORMAL}
    nodes = traced(made(prior=patterns), *rows()).nodes
    families = {
        name: type(nodes[name]["fn"].base_dist).__name__
        for name in ("layers.0.s", "layers.0.r", "layers.1.s", "layers.1.r")
    }
    assert list(families.values()) == ["Cauchy", "LogNormal", "Normal", "LogNormal"]


NORMAL = priors.Normal(0.3, loc=1.0)


@pytest.mark.parametrize(
    "prior",
    [
        NORMAL,
        priors.HalfCauchyScale(loc=1.0),
        dist.Cauchy(1.0, 0.1),
        dist.HalfCauchy(1.0),
        dist.LogNormal(0.0, 0.3),
        dist.StudentT(3.0, 1.0, 0.1),
    ],
    ids=lambda prior: type(prior).__name__,
)
@pytest.mark.parametrize("on", SIDES)
def test_every_prior_serves_on_every_side(prior: Any, on: str) -> None:
    model, (x, y) = made(prior=prior, on=on), rows()
    torch.manual_seed(2)
    trace = traced(model, x, y)
    assert math.isfinite(trace.log_prob_sum().item())
    for i in range(2):
        for factor in ("r", "s"):
            assert (f"layers.{i}.{factor}" in trace.nodes) == (factor in SIDES[on])
    program = bnn.Program(model, x, y)
    assert bool(program.log_joint(program.initial, program.batch(x, y)).isfinite())


def test_every_factor_needs_a_prior() -> None:
    with pytest.raises(SiteError) as caught:
        Rank1MLP(3, prior={"*.r": NORMAL})
    assert str(caught.value) == (
        "no prior pattern matches layers.0.s, layers.1.s; every factor has a prior: add "
        '{"*": pyro_bnn.priors.Normal(loc=1.0, scale=0.1)} as the last pattern, or choose a side '
        "by on='inputs' or on='outputs'"
    )
    Rank1MLP(3, prior={"*.r": NORMAL}, on="outputs")


def test_a_pattern_of_a_side_without_factors_is_an_error() -> None:
    with pytest.raises(SiteError, match=r"the prior pattern '\*\.s' matches no parameter"):
        Rank1MLP(3, prior={"*.s": NORMAL, "*": NORMAL}, on="outputs")


# What is refused


def test_an_unknown_side_suggests_the_nearest() -> None:
    wrong: Any = "input"
    with pytest.raises(UnknownNameError) as caught:
        Rank1MLP(3, on=wrong)
    assert str(caught.value) == (
        "unknown side of the factors 'input': did you mean 'inputs'? "
        "known are both, inputs, outputs"
    )


@pytest.mark.parametrize(
    "prior", [dist.HalfNormal(1.0), dist.LogNormal(0.0, 1.0), dist.Uniform(0.0, 1.0)]
)
def test_a_weight_prior_without_negative_numbers_is_refused(prior: Any) -> None:
    torch.manual_seed(0)
    with pytest.raises(OptionError, match="has no density at the initial weights, which have both"):
        Rank1MLP(3, weight_prior=prior)


def test_a_hierarchy_over_point_estimates_is_refused() -> None:
    hierarchy = priors.HalfCauchyScale()
    with pytest.raises(OptionError) as caught:
        Rank1MLP(3, weight_prior=hierarchy)
    assert str(caught.value) == (
        "weight_prior is one distribution, as weights and biases are no sites, not the hierarchy "
        f"{hierarchy!r}: put the hierarchy on the factors by prior=..., and take priors.Normal() "
        "here"
    )


@pytest.mark.parametrize("shape", [(5, 4), (5,), (5, 3, 1)])
def test_x_of_another_width_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeError) as caught:
        Rank1MLP(3)(torch.zeros(shape))
    assert str(caught.value) == f"x has shape {shape}, but the model takes [N, 3]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": (5, 0)}, "the size of a layer is an integer of at least 1, not 0"),
        ({"clip": -1.0}, "clip is a positive number, not -1.0"),
        ({"activation": torch.nn.ReLU}, r"is the class ReLU, .* pass an instance, ReLU\(\)"),
        ({"likelihood": "normal"}, "likelihood is a pyro_bnn.likelihoods object"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Rank1MLP(3, **options)


# The rest of the collection


def test_double_moves_everything() -> None:
    model = Rank1MLP(3, prior=priors.HalfCauchyScale(loc=1.0)).double()
    nodes = traced(model, *rows()).nodes
    dtypes = {n["value"].dtype for n in nodes.values() if isinstance(n.get("value"), Tensor)}
    assert dtypes - {torch.int64} == {torch.float64}
    assert nodes["weight_prior"]["log_prob"].dtype == torch.float64


def test_two_models_of_one_prior_share_no_state() -> None:
    prior = dist.Normal(torch.tensor(1.0), torch.tensor(0.1))
    first, second = (Rank1MLP(3, prior=prior, weight_prior=prior) for _ in range(2))
    first.double()
    x = torch.zeros(2, 3)
    assert second(x).dtype == torch.float32
    assert first(x.double()).dtype == torch.float64
    assert prior.loc.dtype == torch.float32
    with pytest.raises(ValueError, match="within the support"):
        prior.log_prob(torch.tensor(math.nan))  # the user's own still checks its arguments


def test_a_prior_that_hands_out_its_own_distribution_keeps_its_checks() -> None:
    class OneEntry:
        def __init__(self) -> None:
            self.own: dict[torch.Size, Any] = {}

        def distribution(self, shape: torch.Size) -> Any:
            fn = dist.Normal(0.0, 1.0, validate_args=True).expand(shape).to_event(len(shape))
            return self.own.setdefault(shape, fn)

    prior = OneEntry()
    Rank1MLP(3, weight_prior=prior)
    for shape, fn in prior.own.items():
        with pytest.raises(ValueError, match="within the support"):
            fn.base_dist.log_prob(torch.full(shape, math.nan))


@pytest.mark.slow("about a second")
def test_stock_pyro_trains_weights_and_factors() -> None:
    torch.manual_seed(0)
    model = Rank1MLP(3, hidden=(8,), likelihood=likelihoods.Normal(0.5))
    x = torch.randn(40, 3)
    y = x[:, 0] - 2 * x[:, 1]
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pyro.get_param_store().scope():
        guide = pyro.infer.autoguide.AutoNormal(model)
        svi = pyro.infer.SVI(model, guide, Adam({"lr": 0.05}), pyro.infer.Trace_ELBO())
        losses = torch.tensor([svi.step(x, y) for _ in range(60)])
    assert float(losses[-10:].mean()) < 0.5 * float(losses[:10].mean())
    assert all(bool((p.detach() != before[name]).any()) for name, p in model.named_parameters())


def test_the_engine_trains_weights_and_factors() -> None:
    torch.manual_seed(0)
    model = Rank1MLP(3, hidden=(8,), likelihood=likelihoods.Normal(0.5))
    x = torch.randn(40, 3)
    y = x[:, 0] - 2 * x[:, 1]
    engine = bnn.SVI(guides.AutoNormal, num_steps=150, learning_rate=0.05)
    posterior = engine.run(model, (x, y), seed=0, progress=False)
    assert posterior.losses is not None
    assert float(posterior.losses[-20:].mean()) < 0.5 * float(posterior.losses[:20].mean())
    residual = posterior.predict(x).mean[:, 0] - y
    assert float(residual.square().mean()) < 0.1 * float(y.square().mean())


def test_the_registry_lists_it() -> None:
    assert registry.lookup("model", "rank1-mlp") is Rank1MLP
