"""Closed forms of prior families against torch, quadrature and Monte Carlo."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.program.closed_forms import FAMILIES, PriorBlock, make_index

ARGUMENTS = torch.tensor(
    # mean, sd of q; loc, scale of the prior
    [
        [0.0, 1.0, 0.0, 1.0],
        [1.3, 0.4, 0.2, 0.7],
        [-2.0, 0.05, 1.0, 2.0],
        [0.5, 3.0, 0.5, 0.3],
        [4.0, 1e-3, -1.0, 1.5],
    ],
    dtype=torch.float64,
)

both = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
gaussian = pytest.mark.parametrize(
    "family",
    [family for family, known in FAMILIES.items() if "normal" in known.expected_log_prob],
    ids=lambda family: family.__name__,
)


@both
def test_log_density_is_that_of_torch(family: Any) -> None:
    z, _, loc, scale = ARGUMENTS.T
    expected = family(loc, scale).log_prob(z)
    assert_close(FAMILIES[family].log_prob(z, loc, scale), expected, rtol=1e-12, atol=0)


@gaussian
def test_expected_log_density_against_quadrature(family: Any) -> None:
    # Gauss-Legendre on each side of the kink at the prior's location, where both are smooth
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(200))
    for mean, sd, loc, scale in ARGUMENTS:
        low, high = mean - 12 * sd, mean + 12 * sd
        kink = loc.clamp(low, high)
        total = torch.zeros((), dtype=torch.float64)
        for a, b in ((low, kink), (kink, high)):
            z = (b - a) / 2 * nodes + (a + b) / 2
            density = torch.exp(-0.5 * ((z - mean) / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
            values = density * family(loc, scale).log_prob(z)
            total = total + (b - a) / 2 * (weights * values).sum()
        actual = FAMILIES[family].expected_log_prob["normal"](mean, sd, loc, scale)
        assert_close(actual, total, rtol=1e-10, atol=1e-10)


@gaussian
def test_expected_log_density_against_monte_carlo(family: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(100_000, 1, generator=generator, dtype=torch.float64)
    mean, sd, loc, scale = ARGUMENTS.T
    values = family(loc, scale).log_prob(mean + sd * noise)  # [S, n]
    error = values.std(0) / math.sqrt(len(noise))
    z_score = (
        values.mean(0) - FAMILIES[family].expected_log_prob["normal"](mean, sd, loc, scale)
    ) / error
    assert (z_score.abs() < 5).all()


@gaussian
def test_without_spread_the_expectation_is_the_density(family: Any) -> None:
    mean, _, loc, scale = ARGUMENTS.T
    tiny = torch.full_like(mean, 1e-12)
    expected = family(loc, scale).log_prob(mean)
    actual = FAMILIES[family].expected_log_prob["normal"](mean, tiny, loc, scale)
    assert_close(actual, expected, rtol=1e-9, atol=1e-9)


def test_cauchy_expectation_against_quadrature() -> None:
    # z = m + g tan(t), t uniform: the integrand is smooth and periodic, so the trapezium converges
    t = (torch.arange(200_000, dtype=torch.float64) + 0.5) / 200_000 * math.pi - math.pi / 2
    for m, g, loc, scale in ARGUMENTS:
        expected = dist.Cauchy(loc, scale).log_prob(m + g * t.tan()).mean()
        actual = FAMILIES[dist.Cauchy].expected_log_prob["cauchy"](m, g, loc, scale)
        assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_cauchy_divergence_by_its_closed_form() -> None:
    m, g, loc, scale = ARGUMENTS.T
    entropy = (4 * math.pi * g).log()
    kl = -entropy - FAMILIES[dist.Cauchy].expected_log_prob["cauchy"](m, g, loc, scale)
    expected = (((g + scale) ** 2 + (m - loc) ** 2) / (4 * g * scale)).log()
    assert_close(kl, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("index", [slice(1, 4), torch.tensor([0, 3, 4])])
def test_a_block_sums_over_its_own_entries(index: slice | torch.Tensor) -> None:
    loc, scale = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1.0, 2.0, 0.5])
    block = PriorBlock(FAMILIES[dist.Laplace], index, loc, scale)
    z = torch.arange(10.0).reshape(2, 5)
    expected = dist.Laplace(loc, scale).log_prob(z[:, index]).sum(-1)
    assert_close(block.log_prob(z), expected)
    tiny = torch.full_like(z, 1e-6)
    assert_close(block.expected_log_prob(z, tiny, "normal"), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("slices", "expected"),
    [
        ([slice(2, 5)], slice(2, 5)),
        ([slice(3, 5), slice(0, 3)], slice(0, 5)),
        ([slice(4, 6), slice(0, 2)], [0, 1, 4, 5]),
        ([slice(0, 1), slice(1, 2), slice(5, 6)], [0, 1, 5]),
    ],
)
def test_index_is_a_slice_where_slices_touch(
    slices: list[slice], expected: slice | list[int]
) -> None:
    index = make_index(slices, torch.device("cpu"))
    if isinstance(index, slice):
        assert index == expected
    else:
        assert index.tolist() == expected
