"""The fully connected layer against matrix algebra."""

from __future__ import annotations

from typing import Any

import pyro.distributions as dist
import torch
from pyro import poutine
from torch.testing import assert_close

from pyro_bnn.layers import Linear
from pyro_bnn.priors import HalfCauchyScale, Horseshoe, Normal, as_prior


def layer() -> Linear:
    return Linear(3, 2, Normal(), as_prior(dist.Laplace(0.5, 2.0)))


def test_output_is_x_times_the_weight_transposed_plus_the_bias() -> None:
    x = torch.randn(5, 3)
    trace = poutine.trace(layer()).get_trace(x)
    nodes: Any = trace.nodes
    weight, bias = nodes["weight"]["value"], nodes["bias"]["value"]
    assert (weight.shape, bias.shape) == ((2, 3), (2,))
    expected = torch.stack([weight @ row + bias for row in x])
    assert_close(nodes["_RETURN"]["value"], expected)


def test_weight_and_bias_have_their_own_priors() -> None:
    nodes: Any = poutine.trace(layer()).get_trace(torch.zeros(1, 3)).nodes
    assert_close(nodes["weight"]["fn"].variance, torch.full((2, 3), 1 / 3))
    assert_close(nodes["bias"]["fn"].mean, torch.full((2,), 0.5))
    assert_close(nodes["bias"]["fn"].variance, torch.full((2,), 8.0))


def test_both_are_sampled_once_a_call_and_are_no_parameters() -> None:
    linear = layer()
    assert not list(linear.parameters())
    trace = poutine.trace(linear).get_trace(torch.zeros(1, 3))
    assert trace.stochastic_nodes == ["weight", "bias"]


def test_priors_move_with_the_layer() -> None:
    assert layer().double()(torch.zeros(1, 3, dtype=torch.float64)).dtype == torch.float64


def test_hierarchical_priors_make_several_sites_of_one_weight() -> None:
    x = torch.randn(5, 3)
    linear = Linear(3, 2, HalfCauchyScale(per="unit"), Horseshoe(loc=1.0))
    nodes: Any = poutine.trace(linear).get_trace(x).nodes
    w = nodes["weight.scale"]["value"] * nodes["weight.raw"]["value"]
    b = nodes["bias.global"]["value"] * nodes["bias.local"]["value"] * nodes["bias.raw"]["value"]
    assert nodes["weight.scale"]["value"].shape == (2, 1)
    assert_close(nodes["_RETURN"]["value"], x @ w.T + (1.0 + b))
