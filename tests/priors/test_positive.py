"""Priors over positive weights against scipy."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from pyro_bnn.priors import HalfCauchy, LogNormal, PriorModule
from tests.priors.laws import assert_law

CASES = [
    (LogNormal(), stats.lognorm(1.0)),
    (LogNormal(0.1, loc=0.5), stats.lognorm(0.1, scale=math.exp(0.5))),
    (HalfCauchy(), stats.halfcauchy()),
    (HalfCauchy(3.0), stats.halfcauchy(scale=3.0)),
]


@pytest.mark.parametrize(("prior", "law"), CASES, ids=lambda value: repr(value)[:30])
@pytest.mark.parametrize("shape", [(600, 5), (3_000,)])
def test_density_and_draws(prior: Any, law: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    fn = PriorModule(prior.distribution(torch.Size(shape))).double()()
    assert (fn.batch_shape, fn.event_shape) == (torch.Size([]), torch.Size(shape))
    draws = fn.sample()
    assert draws.dtype == torch.float64
    assert bool((draws > 0).all())
    assert_law(draws, law.cdf)
    expected = torch.tensor(law.logpdf(draws.numpy()).sum())
    assert_close(fn.log_prob(draws), expected, rtol=1e-6, atol=0)  # options are float32 numbers


@pytest.mark.parametrize("prior", [LogNormal(0.3, loc=-1.0), HalfCauchy(2.0)])
def test_they_follow_their_module(prior: Any) -> None:
    module = PriorModule(prior.distribution(torch.Size([2, 3])))
    assert module().sample().dtype == torch.float32
    assert module.to("meta")().sample().device.type == "meta"
