"""Gaussian noise of fixed, learned and input-dependent standard deviation."""

from __future__ import annotations

import math
from typing import Any

import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch.testing import assert_close

from pyro_bnn.errors import OptionError
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
def test_a_learned_scale_is_one_latent_site(prior: Any) -> None:
    trace = poutine.trace(Normal(prior)).get_trace(F)
    nodes: Any = trace.nodes
    assert trace.stochastic_nodes[0] == "scale"
    scale = nodes["scale"]["value"]
    expected = (dist.HalfNormal(1.0) if prior is None else prior).log_prob(scale)
    assert_close(nodes["scale"]["fn"].log_prob(scale), expected)
    assert_close(nodes["y"]["fn"].variance, (scale**2).expand_as(F))


@pytest.mark.parametrize("scale", [0, -0.5, math.inf, math.nan, "learned", torch.tensor(1.0)])
def test_scales_that_are_none_are_refused(scale: Any) -> None:
    with pytest.raises(OptionError) as caught:
        Normal(scale)
    assert str(caught.value) == (
        f"scale is a positive noise sd or a Pyro distribution over it, not {scale!r}"
    )


@pytest.mark.parametrize(
    "prior",
    [dist.Normal(0.0, 1.0), dist.Uniform(-2.0, 1.0), dist.HalfNormal(torch.ones(2)).to_event(1)],
    ids=["real", "interval", "vector"],
)
def test_priors_over_something_else_than_a_noise_sd_are_refused(prior: Any) -> None:
    with pytest.raises(
        OptionError, match=r"the prior over the noise sd is univariate and positive, not .*HalfN"
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
    with pytest.raises(OptionError, match=f"min_scale is a positive noise sd, not {min_scale!r}"):
        HeteroscedasticNormal(min_scale)
