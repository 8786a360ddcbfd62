"""The Gaussian prior: its scale is a standard deviation, by number or by fan-in."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pyro_bnn.errors import OptionError
from pyro_bnn.priors import Normal
from pyro_bnn.priors.scales import fan_in


@pytest.mark.parametrize(
    ("shape", "expected"), [((7,), 1), ((7, 5), 5), ((8, 3, 2, 4), 24), ((), 1), ((1, 1), 1)]
)
def test_fan_in_counts_the_inputs_of_a_unit(shape: tuple[int, ...], expected: int) -> None:
    assert fan_in(torch.Size(shape)) == expected


@pytest.mark.parametrize("shape", [(400, 25), (10_000,), (40, 10, 5, 5)])
@pytest.mark.parametrize(
    ("prior", "loc"), [(Normal(), 0.0), (Normal(2.5, loc=-1.0), -1.0), (Normal(1), 0.0)]
)
def test_draws_have_the_scale_they_claim(prior: Normal, loc: float, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    fn = prior.distribution(torch.Size(shape))
    assert (fn.batch_shape, fn.event_shape) == (torch.Size([]), torch.Size(shape))
    draws = fn.sample()
    if prior.scale == "fan_in":
        variance = {(400, 25): 1 / 25, (10_000,): 1.0, (40, 10, 5, 5): 1 / 250}[shape]
    else:
        variance = float(prior.scale) ** 2
    n = draws.numel()
    z_variance = (float(draws.var()) / variance - 1) / math.sqrt(2 / n)
    z_mean = (float(draws.mean()) - loc) / math.sqrt(variance / n)
    assert abs(z_variance) < 5
    assert abs(z_mean) < 5


@pytest.mark.parametrize("scale", [0, 0.0, -1.0, math.inf, math.nan, "fan-in", None])
def test_scales_that_are_none_are_refused(scale: Any) -> None:
    with pytest.raises(OptionError, match=f"scale is a positive number or 'fan_in', not {scale!r}"):
        Normal(scale)
