"""Log means of values in chunks against those of all values at once."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.predictive.moments import log_mean


def uneven(values: Tensor) -> list[Tensor]:
    """Values in chunks of 1, 2, 3, ... and what is left."""
    parts, start, size = [], 0, 1
    while start < len(values):
        parts.append(values[start : start + size])
        start, size = start + size, size + 1
    return parts


def test_the_log_mean_is_that_of_all_values() -> None:
    """Densities of e^-2000 vanish unless the sum is taken in logs."""
    values = -2_000 + 30 * torch.arange(36.0, dtype=torch.float64).cos().reshape(12, 3)
    values[3, 0] = -math.inf
    expected = (values + 2_000).exp().mean(0).log() - 2_000
    assert_close(log_mean(uneven(values)), expected, rtol=1e-13, atol=0)


def test_a_density_of_zero_at_every_draw_has_log_mean_minus_infinity() -> None:
    assert log_mean([torch.full((3, 1), -math.inf)] * 2).tolist() == [-math.inf]
