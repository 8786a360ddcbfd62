"""Running moments and log means against those of all values at once."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from pyro_bnn.predictive.moments import RunningLogMean, RunningMoments


def uneven(values: Tensor) -> list[Tensor]:
    """Values in chunks of 1, 2, 3, ... and what is left."""
    parts, start, size = [], 0, 1
    while start < len(values):
        parts.append(values[start : start + size])
        start, size = start + size, size + 1
    return parts


@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_moments_are_those_of_all_values(offset: float) -> None:
    """The offset would cost sums of squares all their digits."""
    values = offset + torch.arange(50.0, dtype=torch.float64).sin().reshape(25, 2)
    moments = RunningMoments()
    for part in uneven(values):
        moments.add(part)
    centred = values - values.mean(0)
    assert moments.count == 25
    assert_close(moments.mean, values.mean(0), rtol=1e-12, atol=0)
    assert_close(moments.variance, centred.square().mean(0), rtol=1e-7 if offset else 1e-13, atol=0)


def test_moments_of_two_chunks_by_hand() -> None:
    moments = RunningMoments()
    moments.add(torch.tensor([[1.0], [3.0]]))
    moments.add(torch.tensor([[8.0]]))
    assert_close(moments.mean, torch.tensor([4.0]))
    assert_close(moments.variance, torch.tensor([26 / 3]))  # (9 + 1 + 16) / 3
    assert moments.mean.dtype == torch.float32


@pytest.mark.parametrize(
    "values",
    [
        [1, math.inf, math.inf, 2],
        [math.inf, 1, 2],
        [1, -math.inf, 3],
        [math.inf, -math.inf, 1],
        [1, math.nan, 2],
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_moments_of_infinite_values_are_those_of_all_at_once(
    values: list[float], size: int
) -> None:
    stored = torch.tensor([[v, 5 + i] for i, v in enumerate(values)], dtype=torch.float64)
    moments = RunningMoments()
    for part in stored.split(size):
        moments.add(part)
    assert_close(moments.mean, stored.mean(0), rtol=1e-13, atol=0, equal_nan=True)
    variance = stored.var(0, correction=0)
    assert_close(moments.variance, variance, rtol=1e-13, atol=0, equal_nan=True)


def test_the_log_mean_is_that_of_all_values() -> None:
    """Densities of e^-2000 vanish unless the sum is taken in logs."""
    values = -2_000 + 30 * torch.arange(36.0, dtype=torch.float64).cos().reshape(12, 3)
    values[3, 0] = -math.inf
    log_mean = RunningLogMean()
    for part in uneven(values):
        log_mean.add(part)
    expected = (values + 2_000).exp().mean(0).log() - 2_000
    assert_close(log_mean.value, expected, rtol=1e-13, atol=0)
    log_mean.shift(torch.tensor(2.5))
    assert_close(log_mean.value, expected + 2.5, rtol=1e-13, atol=0)


def test_a_density_of_zero_at_every_draw_has_log_mean_minus_infinity() -> None:
    log_mean = RunningLogMean()
    for _ in range(2):
        log_mean.add(torch.full((3, 1), -math.inf))
    assert log_mean.value.tolist() == [-math.inf]
