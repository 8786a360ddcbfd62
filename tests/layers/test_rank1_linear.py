"""The rank-1 layer against the weight matrix it stands for, and against the moments it claims."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.errors import OptionError
from pyro_bnn.layers import Rank1Linear
from pyro_bnn.priors import Normal, PriorLike
from pyro_bnn.program.handlers import Evaluate

NUM_OUTPUTS, NUM_INPUTS = 2, 3
LOC_R = torch.tensor([1.2, -0.7], dtype=torch.float64)
LOC_S = torch.tensor([0.9, 1.1, -0.4], dtype=torch.float64)
SCALE_R = torch.tensor([0.3, 0.5], dtype=torch.float64)
SCALE_S = torch.tensor([0.2, 0.6, 0.4], dtype=torch.float64)
NEAR_ONE = Normal(0.1, loc=1.0)
SIDES = {"both": ["s", "r"], "inputs": ["s"], "outputs": ["r"], "none": []}


def made(side: str = "both", clip: float | None = 10.0) -> Rank1Linear:
    """A layer in float64 with Gaussian factors, and a bias that is not zero."""
    torch.manual_seed(0)
    input_prior: PriorLike | None = dist.Normal(LOC_S, SCALE_S) if "s" in SIDES[side] else None
    output_prior: PriorLike | None = dist.Normal(LOC_R, SCALE_R) if "r" in SIDES[side] else None
    layer = Rank1Linear(
        NUM_INPUTS, NUM_OUTPUTS, input_prior=input_prior, output_prior=output_prior, clip=clip
    )
    layer.bias.data.normal_()
    return layer.double()


def output(layer: Rank1Linear, x: Tensor, **factors: Tensor) -> Tensor:
    """The layer's output with its sites held at given factors, as a program holds them."""
    with Evaluate(factors, {}):
        value: Tensor = layer(x)
    return value


def factors(*shape: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Random r ``[*shape, O]`` and s ``[*shape, I]``, of both signs."""
    generator = torch.Generator().manual_seed(seed)
    r = torch.randn(*shape, NUM_OUTPUTS, generator=generator, dtype=torch.float64)
    return r, torch.randn(*shape, NUM_INPUTS, generator=generator, dtype=torch.float64)


def inputs(num_rows: int = 7) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(num_rows, NUM_INPUTS, generator=generator, dtype=torch.float64)


def materialised(layer: Rank1Linear, r: Tensor, s: Tensor) -> Tensor:
    """W' ``[O, I]``, an entry at a time."""
    entries = [
        [layer.weight[o, i] * r[o] * s[i] for i in range(NUM_INPUTS)] for o in range(NUM_OUTPUTS)
    ]
    return torch.stack([torch.stack(row) for row in entries])


# The forward pass


@pytest.mark.parametrize("side", SIDES)
def test_forward_is_a_linear_layer_with_the_materialised_weight(side: str) -> None:
    layer, x, (r, s) = made(side), inputs(), factors()
    given = {name: {"r": r, "s": s}[name] for name in SIDES[side]}
    weight = materialised(
        layer, given.get("r", torch.ones_like(r)), given.get("s", torch.ones_like(s))
    )
    expected = torch.stack([weight @ row + layer.bias for row in x])
    assert_close(output(layer, x, **given), expected, rtol=1e-12, atol=1e-12)


def test_rows_may_have_factors_of_their_own() -> None:
    layer, x, (r, s) = made(), inputs(7), factors(7)
    actual = torch.func.vmap(lambda row, r, s: output(layer, row, r=r, s=s))(x, r, s)
    expected = torch.stack(
        [materialised(layer, r[n], s[n]) @ x[n] + layer.bias for n in range(len(x))]
    )
    assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_members_in_one_batch_are_a_loop_over_members() -> None:
    layer, x, (r, s) = made(), inputs(), factors(4)
    batched = torch.func.vmap(lambda r, s: output(layer, x, r=r, s=s))(r, s)
    loop = torch.stack([output(layer, x, r=r[k], s=s[k]) for k in range(4)])
    assert batched.shape == (4, 7, NUM_OUTPUTS)
    assert_close(batched, loop, rtol=1e-12, atol=1e-12)


def test_members_with_biases_and_rows_of_their_own() -> None:
    layer, (r, s) = made(), factors(4, 5)
    x = torch.randn(4, 5, NUM_INPUTS, dtype=torch.float64)
    bias = torch.randn(4, NUM_OUTPUTS, dtype=torch.float64)

    def row(b: Tensor, x: Tensor, r: Tensor, s: Tensor) -> Tensor:
        with Evaluate({"r": r, "s": s}, {}):
            value: Tensor = torch.func.functional_call(layer, {"bias": b}, (x,))
        return value

    rows = torch.func.vmap(row, in_dims=(None, 0, 0, 0))
    actual = torch.func.vmap(rows)(bias, x, r, s)  # [K, N, O]
    for k, n in itertools.product(range(4), range(5)):
        expected = materialised(layer, r[k, n], s[k, n]) @ x[k, n] + bias[k]
        assert_close(actual[k, n], expected, rtol=1e-12, atol=1e-12)


def test_gradients_of_weight_and_bias() -> None:
    layer, x, (r, s) = made(), inputs(), factors()
    weights = torch.randn(7, NUM_OUTPUTS, dtype=torch.float64)
    (output(layer, x, r=r, s=s) * weights).sum().backward()
    by_hand = [
        [sum(weights[n, o] * r[o] * s[i] * x[n, i] for n in range(7)) for i in range(NUM_INPUTS)]
        for o in range(NUM_OUTPUTS)
    ]
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    assert_close(layer.weight.grad, torch.tensor(by_hand, dtype=torch.float64))
    assert_close(layer.bias.grad, weights.sum(0))


# Sites, parameters, start


@pytest.mark.parametrize("side", SIDES)
def test_a_side_without_prior_has_no_site(side: str) -> None:
    layer = made(side)
    trace = poutine.trace(layer).get_trace(inputs())
    nodes: Any = trace.nodes
    assert trace.stochastic_nodes == SIDES[side]
    shapes = {name: tuple(nodes[name]["value"].shape) for name in SIDES[side]}
    assert shapes == {name: {"r": (NUM_OUTPUTS,), "s": (NUM_INPUTS,)}[name] for name in SIDES[side]}
    parameters = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert parameters == {"weight": (NUM_OUTPUTS, NUM_INPUTS), "bias": (NUM_OUTPUTS,)}
    assert (layer.r is None) is ("r" not in SIDES[side])
    assert (layer.s is None) is ("s" not in SIDES[side])


@pytest.mark.parametrize(
    "prior",
    [
        Normal(0.2, loc=1.0),
        dist.Cauchy(1.0, 0.1),
        dist.HalfCauchy(1.0),
        dist.LogNormal(0.0, 0.3),
        dist.Laplace(1.0, 0.1),
    ],
    ids=lambda prior: type(prior).__name__,
)
def test_any_prior_serves_on_each_side(prior: PriorLike) -> None:
    layer = Rank1Linear(NUM_INPUTS, NUM_OUTPUTS, input_prior=prior, output_prior=prior)
    nodes: Any = poutine.trace(layer).get_trace(inputs().float()).nodes
    base: Any = dist.Normal(1.0, 0.2) if isinstance(prior, Normal) else prior
    for name, size in (("r", NUM_OUTPUTS), ("s", NUM_INPUTS)):
        fn, value = nodes[name]["fn"], nodes[name]["value"]
        assert (fn.batch_shape, fn.event_shape) == ((), (size,))
        assert_close(fn.log_prob(value), sum(base.log_prob(v) for v in value))


def test_a_hierarchy_of_scales_serves_too() -> None:
    from pyro_bnn.priors import HalfCauchyScale

    torch.manual_seed(0)
    layer = Rank1Linear(NUM_INPUTS, NUM_OUTPUTS, output_prior=HalfCauchyScale(loc=1.0)).double()
    x = inputs()
    trace = poutine.trace(layer).get_trace(x)
    nodes: Any = trace.nodes
    assert {"r.raw", "r"} < set(nodes)
    r = nodes["r"]["value"]
    expected = x @ materialised(layer, r.clamp(-10, 10), torch.ones(NUM_INPUTS)).T + layer.bias
    assert_close(nodes["_RETURN"]["value"], expected, rtol=1e-12, atol=1e-12)
    assert_close(
        (r - 1) / nodes["r.raw"]["value"],
        ((r - 1) / nodes["r.raw"]["value"])[:1].expand(NUM_OUTPUTS),
    )


def test_the_initial_weight_is_a_draw_of_variance_one_over_fan_in() -> None:
    torch.manual_seed(0)
    layer = Rank1Linear(50, 400)
    first, n = layer.weight.detach().clone(), 50 * 400
    assert abs(float(first.mean()) / math.sqrt(1 / 50 / n)) < 5
    assert abs((float(first.var()) * 50 - 1) / math.sqrt(2 / n)) < 5
    assert_close(layer.bias.detach(), torch.zeros(400))
    layer.bias.data.fill_(1.0)
    layer.reset_parameters()
    assert bool((layer.weight != first).all())
    assert_close(layer.bias.detach(), torch.zeros(400))


def test_everything_moves_with_the_layer() -> None:
    layer = Rank1Linear(
        NUM_INPUTS,
        NUM_OUTPUTS,
        input_prior=Normal(0.1, loc=1.0),
        output_prior=dist.Cauchy(1.0, 0.1),
    )
    nodes: Any = poutine.trace(layer.double()).get_trace(inputs()).nodes
    assert {nodes[name]["value"].dtype for name in ("r", "s", "_RETURN")} == {torch.float64}
    assert {p.dtype for p in layer.parameters()} == {torch.float64}


# The clip


def test_the_clip_acts_in_the_forward_pass_only() -> None:
    x = inputs()
    far = {
        "r": torch.tensor([40.0, -2.6], dtype=torch.float64),
        "s": torch.tensor([-2.5, 2.4, -70.0], dtype=torch.float64),
    }
    near = {
        "r": torch.tensor([2.5, -2.5], dtype=torch.float64),
        "s": torch.tensor([-2.5, 2.4, -2.5], dtype=torch.float64),
    }
    layer, free = made(clip=2.5), made(clip=None)
    assert_close(output(layer, x, **far), output(free, x, **near), rtol=1e-12, atol=1e-12)
    unclipped = x @ materialised(free, far["r"], far["s"]).T + free.bias
    assert_close(output(free, x, **far), unclipped, rtol=1e-12, atol=1e-12)

    trace = poutine.trace(poutine.condition(layer, data=far)).get_trace(x)
    trace.compute_log_prob()
    for name, (loc, scale) in {"r": (LOC_R, SCALE_R), "s": (LOC_S, SCALE_S)}.items():
        assert_close(trace.nodes[name]["value"], far[name], rtol=0, atol=0)
        by_hand = (
            -((far[name] - loc) ** 2) / (2 * scale**2) - (scale * math.sqrt(2 * math.pi)).log()
        )
        assert_close(trace.nodes[name]["log_prob"], by_hand.sum(), rtol=1e-12, atol=0)


def test_the_default_clip_is_ten() -> None:
    x, ones = inputs(), torch.ones(NUM_INPUTS, dtype=torch.float64)
    r = torch.tensor([10.5, -9.5], dtype=torch.float64)
    clipped = torch.tensor([10.0, -9.5], dtype=torch.float64)
    layer = Rank1Linear(NUM_INPUTS, NUM_OUTPUTS, input_prior=NEAR_ONE, output_prior=NEAR_ONE)
    layer.double()
    expected = x @ materialised(layer, clipped, ones).T + layer.bias
    assert_close(output(layer, x, r=r, s=ones), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("clip", [0, -1.0, math.inf, math.nan, "10"])
def test_a_clip_that_is_no_positive_number_is_refused(clip: Any) -> None:
    with pytest.raises(OptionError) as caught:
        Rank1Linear(NUM_INPUTS, NUM_OUTPUTS, clip=clip)
    assert str(caught.value) == (f"clip is a positive number, not {clip!r}")


def test_what_is_no_prior_is_refused() -> None:
    wrong: Any = 0.1
    with pytest.raises(OptionError, match=r"a prior is a pyro_bnn\.priors object, .* 0\.1 is"):
        Rank1Linear(NUM_INPUTS, NUM_OUTPUTS, input_prior=wrong)


# Moments of W' under independent Gaussian factors

PAIRS = list(itertools.product(*map(range, (NUM_OUTPUTS, NUM_INPUTS, NUM_OUTPUTS, NUM_INPUTS))))


def claimed_moments(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Mean ``[O, I]`` and covariance ``[O, I, O, I]`` of W' by the layer's docstring."""
    m_r, d_r, m_s, d_s = LOC_R, SCALE_R, LOC_S, SCALE_S
    covariance = torch.zeros(NUM_OUTPUTS, NUM_INPUTS, NUM_OUTPUTS, NUM_INPUTS, dtype=torch.float64)
    for i, j, k, m in PAIRS:
        means = m_r[i] * m_r[k] * m_s[j] * m_s[m]
        second = (m_r[i] * m_r[k] + (i == k) * d_r[i] ** 2) * (
            m_s[j] * m_s[m] + (j == m) * d_s[j] ** 2
        )
        covariance[i, j, k, m] = weight[i, j] * weight[k, m] * (second - means)
    return weight * m_r[:, None] * m_s[None, :], covariance


def weights_through_the_layer(layer: Rank1Linear, r: Tensor, s: Tensor) -> Tensor:
    """W' ``[S, O, I]`` of draws r ``[S, O]`` and s ``[S, I]``: the outputs at unit inputs."""
    units = torch.eye(NUM_INPUTS, dtype=torch.float64)
    with torch.no_grad():
        outputs = torch.func.vmap(lambda r, s: output(layer, units, r=r, s=s))(r, s)  # [S, I, O]
        return (outputs - layer.bias).transpose(1, 2)


def test_moments_are_exact_by_quadrature() -> None:
    """Three Gauss-Hermite nodes a factor integrate the second moments of W' exactly."""
    layer = made()
    nodes, masses = np.polynomial.hermite_e.hermegauss(3)
    points = torch.tensor(
        list(itertools.product(nodes, repeat=NUM_OUTPUTS + NUM_INPUTS))
    )  # [3^5, O + I]
    mass = torch.tensor(
        list(itertools.product(masses / masses.sum(), repeat=NUM_OUTPUTS + NUM_INPUTS))
    ).prod(1)
    r = LOC_R + SCALE_R * points[:, :NUM_OUTPUTS]
    s = LOC_S + SCALE_S * points[:, NUM_OUTPUTS:]
    w = weights_through_the_layer(layer, r, s)
    mean = (mass[:, None, None] * w).sum(0)
    centred = w - mean
    covariance = torch.einsum("n,nij,nkl->ijkl", mass, centred, centred)
    claimed_mean, claimed = claimed_moments(layer.weight.detach())
    assert_close(claimed_mean, mean, rtol=1e-12, atol=1e-12)
    assert_close(claimed, covariance, rtol=1e-12, atol=1e-12)
    for i, j, k, m in PAIRS:
        assert (abs(covariance[i, j, k, m]) < 1e-12) == (i != k and j != m)


def test_moments_of_draws_from_the_prior() -> None:
    layer, num_draws = made(clip=None), 100_000
    torch.manual_seed(3)
    draws = {name: getattr(layer, f"{name}_prior")().sample((num_draws,)) for name in ("r", "s")}
    w = weights_through_the_layer(layer, draws["r"], draws["s"])
    mean, covariance = claimed_moments(layer.weight.detach())
    error = w.std(0) / math.sqrt(num_draws)
    assert float(((w.mean(0) - mean) / error).abs().max()) < 5
    centred = (w - mean).flatten(1)
    products = centred[:, :, None] * centred[:, None, :]  # [S, O I, O I]
    error = products.std(0) / math.sqrt(num_draws)
    z_scores = (
        products.mean(0) - covariance.reshape(NUM_OUTPUTS * NUM_INPUTS, NUM_OUTPUTS * NUM_INPUTS)
    ) / error
    assert float(z_scores.abs().max()) < 5
