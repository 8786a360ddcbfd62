"""Gaussian noise of fixed, learned and input-dependent standard deviation."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.testing import assert_close

from pyro_bnn.errors import OptionError, ShapeError
from pyro_bnn.likelihoods import HeteroscedasticNormal, Normal

F = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 30.0]])


def test_a_fixed_scale_is_a_buffer_and_a_standard_deviation() -> None:
    likelihood = Normal(0.25)
    assert list(dict(likelihood.named_buffers())) == ["scale"]
    fn = likelihood.distribution(F)
    assert (fn.batch_shape, fn.event_shape) == ((3,), (2,))
    assert_close(fn.mean, F)
    assert_close(fn.variance, torch.full_like(F, 0.0625))
    assert likelihood.double().distribution(F.double()).mean.dtype == torch.float64


@pytest.mark.parametrize("prior", [None, dist.HalfNormal(1.0), dist.LogNormal(-1.0, 0.3)])
@pytest.mark.parametrize(("num_targets", "shape"), [(1, ()), (2, (2,))])
def test_a_learned_scale_is_one_latent_site_with_a_number_a_target(
    prior: Any, num_targets: int, shape: tuple[int, ...]
) -> None:
    f = F[:, :num_targets]
    trace = poutine.trace(Normal(prior)).get_trace(f)
    nodes: Any = trace.nodes
    assert trace.stochastic_nodes[0] == "scale"
    scale = nodes["scale"]["value"]
    assert scale.shape == shape
    expected = (dist.HalfNormal(1.0) if prior is None else prior).log_prob(scale).sum()
    assert_close(nodes["scale"]["fn"].log_prob(scale), expected)
    assert_close(nodes["y"]["fn"].variance, (scale**2).expand_as(f))


def test_a_prior_over_a_vector_correlates_the_scales() -> None:
    joint = dist.LogNormal(torch.zeros(2), torch.tensor([0.1, 1.0])).to_event(1)
    nodes: Any = poutine.trace(Normal(joint)).get_trace(F).nodes
    scale = nodes["scale"]["value"]
    assert_close(nodes["scale"]["fn"].log_prob(scale), joint.log_prob(scale))


@pytest.mark.parametrize("scale", [[0.5, 2.0], (0.5, 2), torch.tensor([0.5, 2.0])])
def test_a_vector_of_scales_holds_each_target_at_its_own(scale: Any) -> None:
    fn = Normal(scale).distribution(F)
    assert_close(fn.variance, torch.tensor([0.25, 4.0]).expand(3, 2))


@pytest.mark.parametrize("scale", [[0.5, 1.0, 2.0], dist.HalfNormal(torch.ones(3)).to_event(1)])
def test_scales_of_another_number_of_targets_are_refused(scale: Any) -> None:
    with pytest.raises(
        ShapeError, match=r"scale of the Normal likelihood is for 3 targets, but .*2"
    ):
        Normal(scale)(F)
    with pytest.raises(ShapeError, match="for 3 targets, but the network has outputs for 1"):
        Normal(scale)(F[:, :1])  # would broadcast to three


@pytest.mark.parametrize(
    "scale", [0, -0.5, math.inf, math.nan, "learned", [1.0, 0.0], [[1.0]], [1.0, None]]
)
def test_scales_that_are_none_are_refused(scale: Any) -> None:
    with pytest.raises(OptionError) as caught:
        Normal(scale)
    assert str(caught.value) == (
        "scale is a positive noise sd, one for each target in a vector [O], or a Pyro distribution "
        f"over it, not {scale!r}"
    )


@pytest.mark.parametrize(
    "prior",
    [
        dist.Normal(0.0, 1.0),
        dist.Uniform(-2.0, 1.0),
        dist.Uniform(-0.5, 2.0),
        dist.Uniform(-3.0, -2.0),
        dist.Poisson(3.0),
        dist.HalfNormal(torch.ones(2)),
    ],
    ids=["real", "interval", "interval-near-zero", "below-zero", "counts", "batch"],
)
def test_priors_over_something_else_than_a_noise_sd_are_refused(prior: Any) -> None:
    with pytest.raises(
        OptionError, match=r"the prior over the noise sd is univariate .*positive, not .*HalfN"
    ):
        Normal(prior)


def test_the_second_half_of_f_is_the_raw_scale() -> None:
    fn = HeteroscedasticNormal(min_scale=0.1).distribution(F)
    assert (fn.batch_shape, fn.event_shape) == ((3,), (1,))
    assert_close(fn.mean, F[:, :1])
    expected = [[math.log1p(math.exp(raw)) + 0.1] for raw in (1.0, -1.0, 30.0)]
    assert_close(fn.variance.sqrt(), torch.tensor(expected))


def test_two_targets_have_means_first_then_scales() -> None:
    f = torch.tensor([[1.0, 2.0, 0.0, 50.0]])
    fn = HeteroscedasticNormal(min_scale=1e-3).distribution(f)
    assert_close(fn.mean, torch.tensor([[1.0, 2.0]]))
    assert_close(fn.variance.sqrt(), torch.tensor([[math.log(2) + 1e-3, 50.001]]))


@pytest.mark.parametrize("min_scale", [0, -1.0, math.inf, "small"])
def test_smallest_scales_that_are_none_are_refused(min_scale: Any) -> None:
    with pytest.raises(OptionError, match=f"min_scale is a positive number, not {min_scale!r}"):
        HeteroscedasticNormal(min_scale)
