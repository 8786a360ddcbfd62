"""Weights made of several sites: names, values, movement, densities by hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from pyro.nn import PyroModule
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn import likelihoods, models
from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.priors import (
    Cauchy,
    HalfCauchy,
    HalfCauchyScale,
    HierarchicalPrior,
    Hierarchy,
    Horseshoe,
    LogNormal,
    Normal,
    Prior,
    as_prior,
    assign_prior,
    match_priors,
    value_of,
)
from pyro_bnn.priors.hierarchy import hierarchies
from pyro_bnn.program import Program
from pyro_bnn.program.handlers import without_validation

SHAPE = torch.Size([5, 3])

HIERARCHIES: dict[str, Any] = {
    "layer": HalfCauchyScale(),
    "unit": HalfCauchyScale(0.7, per="unit", loc=1.0),
    "input": HalfCauchyScale(per="input", centred=True),
    "horseshoe": Horseshoe(),
    "slab": Horseshoe(0.1, slab_scale=2.0, slab_df=3.0, loc=-0.5),
    "centred slab": Horseshoe(slab_scale=2.0, centred=True),
}
PLAIN: dict[str, Any] = {
    "cauchy": Cauchy(),
    "log-normal": LogNormal(0.5, loc=-1.0),
    "half-cauchy": HalfCauchy(0.3),
}

every = pytest.mark.parametrize("name", HIERARCHIES)


class Twice(PyroModule):
    """A module that reads its weight twice, below another one."""

    def __init__(self, prior: Any) -> None:
        super().__init__()
        assign_prior(self, "w", prior, SHAPE)

    def forward(self) -> tuple[Tensor, Tensor]:
        return value_of(self.w), value_of(self.w)


class Above(PyroModule):
    def __init__(self, prior: Any) -> None:
        super().__init__()
        self.inner = Twice(prior)

    def forward(self) -> tuple[Tensor, Tensor]:
        both: tuple[Tensor, Tensor] = self.inner()
        return both


def nodes_of(model: Any) -> dict[str, Any]:
    nodes: Any = poutine.trace(model).get_trace().nodes
    return {name: node for name, node in nodes.items() if node["type"] == "sample"}


# --- names and values ----------------------------------------------------------------------------


@every
def test_sites_carry_the_full_name_and_the_weight_is_recorded(name: str) -> None:
    prior = HIERARCHIES[name]
    nodes = nodes_of(Above(prior))
    scales = ["scale"] if isinstance(prior, HalfCauchyScale) else ["global", "local"]
    if getattr(prior, "slab_scale", None) is not None:
        scales.append("slab")
    last = [f"inner.w.{'value' if prior.centred else 'raw'}", "inner.w"]
    assert list(nodes) == [f"inner.w.{scale}" for scale in scales] + last
    assert nodes["inner.w"]["infer"]["_deterministic"]


@every
def test_a_weight_read_twice_is_sampled_once_a_call(name: str) -> None:
    model = Above(HIERARCHIES[name])
    first, second = model()
    assert first is second
    assert first.shape == SHAPE
    assert bool((model()[0] != first).all())


@every
def test_a_weight_alone_has_a_name_of_its_own(name: str) -> None:
    assert "weight" in nodes_of(HIERARCHIES[name].hierarchy(SHAPE))


def test_non_centred_is_loc_plus_scale_times_raw() -> None:
    nodes = nodes_of(Twice(HIERARCHIES["unit"]))
    scale, raw, w = (nodes[key]["value"] for key in ("w.scale", "w.raw", "w"))
    assert_close(w, 1.0 + scale * raw, rtol=0, atol=0)


# --- assignment ----------------------------------------------------------------------------------


def test_a_plain_prior_becomes_a_sample_site() -> None:
    model = Twice(Normal(2.0, loc=3.0))
    nodes = nodes_of(model)
    assert list(nodes) == ["w"]
    assert_close(nodes["w"]["fn"].mean, torch.full(SHAPE, 3.0))
    first, second = model()
    assert first is second


def test_a_pyro_distribution_is_assigned_too() -> None:
    model = Twice(dist.Laplace(0.0, 2.0))
    assert_close(nodes_of(model)["w"]["fn"].variance, torch.full(SHAPE, 8.0))


def test_what_is_no_prior_is_not_assigned() -> None:
    with pytest.raises(OptionError, match=r"with distribution\(shape\) or hierarchy\(shape\), or"):
        assign_prior(PyroModule(), "w", 0.1, SHAPE)  # type: ignore[arg-type]


@every
def test_hierarchical_priors_are_matched_by_name(name: str) -> None:
    prior = HIERARCHIES[name]
    cls: Any = type(prior)
    assert isinstance(prior, HierarchicalPrior)
    assert not isinstance(prior, Prior)
    assert as_prior(prior) is prior
    matched = match_priors({"*.weight": prior, "*": Normal()}, ["0.weight", "0.bias"])
    assert matched == {"0.weight": prior, "0.bias": Normal()}
    with pytest.raises(OptionError, match=f"not the class {cls.__name__}: write"):
        as_prior(cls)


def test_a_user_can_write_a_hierarchy() -> None:
    class Constant(Hierarchy):
        def sample_scale(self, name: str) -> Tensor:
            return pyro.sample(f"{name}.scale", dist.Gamma(2.0, 3.0))

    class GammaScale:
        def hierarchy(self, shape: torch.Size) -> Hierarchy:
            return Constant(shape)

    assert list(nodes_of(Twice(GammaScale()))) == ["w.scale", "w.raw", "w"]


def test_a_hierarchy_without_scale_says_what_it_lacks() -> None:
    hierarchy = Hierarchy(SHAPE)
    with pytest.raises(NotImplementedError, match=r"Hierarchy has no sample_scale\(name\)"):
        hierarchy()
    with pytest.raises(NotImplementedError, match=r"Hierarchy has no scale_values\(deviation\)"):
        hierarchy.values_at(torch.zeros(SHAPE))


# --- movement ------------------------------------------------------------------------------------


@every
def test_it_moves_with_its_parent(name: str) -> None:
    model = Above(HIERARCHIES[name])
    model.double()
    for node in nodes_of(model).values():
        assert node["value"].dtype == torch.float64
        if not node["infer"].get("_deterministic"):
            assert node["fn"].log_prob(node["value"]).dtype == torch.float64
    assert model.float()()[0].dtype == torch.float32
    with without_validation():  # whose checks need numbers
        assert model.to("meta")()[0].device.type == "meta"


@every
def test_copies_are_apart(name: str) -> None:
    model = Above(HIERARCHIES[name])
    copied = copy.deepcopy(model).double()
    assert model()[0].dtype == torch.float32
    assert copied()[0].dtype == torch.float64
    assert list(nodes_of(copied)) == list(nodes_of(model))


# --- values at a given weight --------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5, 3), (4,), ()])
@every
def test_values_at_a_weight_give_the_weight(name: str, shape: tuple[int, ...]) -> None:
    hierarchy = HIERARCHIES[name].hierarchy(torch.Size(shape))
    w = 3.0 * torch.randn(shape)
    values = hierarchy.values_at(w)
    nodes = nodes_of(pyro.condition(hierarchy, data=values))
    assert set(values) == set(nodes) - {"weight"}
    for key, value in values.items():
        assert value.shape == nodes[key]["fn"].shape()
        assert bool(nodes[key]["fn"].support.check(value).all())
    assert_close(nodes["weight"]["value"], w)


@every
def test_values_at_its_mean_have_a_positive_scale(name: str) -> None:
    hierarchy = HIERARCHIES[name].hierarchy(SHAPE)
    w = torch.full(SHAPE, hierarchy.loc)
    values = hierarchy.values_at(w)
    assert all(bool(value.isfinite().all()) for value in values.values())
    assert_close(pyro.condition(hierarchy, data=values)(), w)


def test_the_scale_at_a_weight_is_its_root_mean_square() -> None:
    hierarchy = HalfCauchyScale(per="unit", loc=1.0).hierarchy(torch.Size([2, 2]))
    values = hierarchy.values_at(torch.tensor([[4.0, 5.0], [1.0, 1.0 - math.sqrt(2)]]))
    assert_close(values["weight.scale"], torch.tensor([[math.sqrt(12.5)], [1.0]]))


def test_a_value_of_another_shape_is_refused() -> None:
    layer = Twice(Horseshoe())
    with pytest.raises(
        ShapeError, match=r"the weight 'w' has shape \(5, 3\), the value has \(3, 5\)"
    ):
        hierarchies(layer)["w"].values_at(torch.zeros(3, 5))


def test_hierarchies_of_a_model_by_name() -> None:
    model = Above(Horseshoe())
    assert hierarchies(model) == {"inner.w": model.inner.w}
    assert hierarchies(lambda: None) == {}


# --- the log joint by hand -----------------------------------------------------------------------


def by_hand(prior: Any, name: str, values: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Log prior density and value of one weight, written with torch.distributions."""
    d = torch.distributions
    shape = next(
        values[key].shape for key in (f"{name}.raw", f"{name}.value", name) if key in values
    )  # [O, I] or [O]
    inputs = shape[1] if len(shape) == 2 else 1
    if isinstance(prior, Cauchy):
        return d.Cauchy(0.0, 1 / inputs).log_prob(values[name]).sum(), values[name]
    if isinstance(prior, LogNormal):
        return d.LogNormal(prior.loc, prior.scale).log_prob(values[name]).sum(), values[name]
    if isinstance(prior, HalfCauchy):
        w = values[name]
        return (math.log(2) + d.Cauchy(0.0, prior.scale).log_prob(w)).sum(), w
    if isinstance(prior, HalfCauchyScale):
        heavy = prior.per == "input" and len(shape) == 2
        fan_in = 1 / inputs if heavy else 1 / math.sqrt(inputs)
        median = fan_in if prior.scale == "fan_in" else float(prior.scale)
        scale = values[f"{name}.scale"]
        total = d.HalfCauchy(median).log_prob(scale).sum()
    else:
        median = 1 / inputs if prior.scale == "fan_in" else float(prior.scale)
        tau, lam = values[f"{name}.global"], values[f"{name}.local"]
        total = d.HalfCauchy(median).log_prob(tau) + d.HalfCauchy(1.0).log_prob(lam).sum()
        scale = tau * lam
        if prior.slab_scale is not None:
            slab = values[f"{name}.slab"]
            half = prior.slab_df / 2
            rate = half * prior.slab_scale**2
            total = total + half * math.log(rate) - math.lgamma(half)
            total = total - (half + 1) * slab.log() - rate / slab
            scale = tau * (slab * lam**2 / (slab + tau**2 * lam**2)).sqrt()
    if prior.centred:
        w = values[f"{name}.value"]
        return total + d.Normal(prior.loc, scale).log_prob(w).sum(), w
    raw = values[f"{name}.raw"]
    return total + d.Normal(0.0, 1.0).log_prob(raw).sum(), prior.loc + scale * raw


@pytest.mark.parametrize("name", [*HIERARCHIES, *PLAIN])
@pytest.mark.parametrize("kind", ["mlp", "bayesian"])
def test_log_joint_of_a_network_is_that_by_hand(name: str, kind: str) -> None:
    prior = {**HIERARCHIES, **PLAIN}[name]
    torch.manual_seed(0)
    x = torch.randn(6, 3, dtype=torch.float64)
    y = torch.randn(6, 1, dtype=torch.float64)
    likelihood = likelihoods.Normal(0.5)
    if kind == "mlp":
        model: Any = models.MLP(3, hidden=(4,), activation="tanh", prior=prior,
                                likelihood=likelihood)  # fmt: skip
        names = [f"layers.{i}.{part}" for i in (0, 1) for part in ("weight", "bias")]
    else:
        net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
        model = models.bayesian(net, prior, likelihood)
        names = ["0.weight", "0.bias", "2.weight", "2.bias"]
    program = Program(model.double(), x, y)
    z = 0.5 * torch.randn(3, program.num_latents, dtype=torch.float64)
    for row in z:
        values = program.constrain(row)
        total = torch.zeros((), dtype=torch.float64)
        weights = []
        for weight_name in names:
            log_prior, w = by_hand(prior, weight_name, values)
            total = total + log_prior
            weights.append(w)
        f = torch.tanh(x @ weights[0].T + weights[1]) @ weights[2].T + weights[3]
        total = total + torch.distributions.Normal(f, 0.5).log_prob(y).sum()
        assert_close(program.function(row, x), f, rtol=1e-10, atol=1e-12)
        batch = program.batch(x, y)
        # fan-in scales and options are float32 numbers
        assert_close(program.log_joint(row, batch, jacobian=False), total, rtol=1e-6, atol=0)
        log_det = sum(values[site.name].log().sum() for site in program.sites if not site.is_real)
        assert_close(program.log_joint(row, batch), total + log_det, rtol=1e-6, atol=0)
    whole = program.log_joint(z, program.batch(x, y))  # batched over draws
    rows = torch.stack([program.log_joint(row, program.batch(x, y)) for row in z])
    assert_close(whole, rows, rtol=1e-10, atol=0)


def test_raw_values_have_closed_forms_and_centred_weights_have_none() -> None:
    x, y = torch.randn(6, 3), torch.randn(6, 1)

    def covered(prior: Any) -> int:
        model = models.MLP(3, hidden=(4,), prior=prior, likelihood=likelihoods.Normal(0.5))
        program = Program(model, x, y)
        blocks = program.latents.closed_forms().expected
        return sum(len(program.initial[block.index]) for block, _ in blocks)

    num_weights = 4 * 3 + 4 + 4 + 1
    for prior in HIERARCHIES.values():
        assert covered(prior) == (0 if prior.centred else num_weights)
