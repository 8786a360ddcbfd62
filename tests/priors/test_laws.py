"""The distribution function that other tests compare with, against its closed-form density."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from tests.priors.laws import assert_law, horseshoe_cdf


@pytest.mark.parametrize("w", [0.2, 1.0, 5.0])
def test_horseshoe_cdf_is_the_integral_of_its_density(w: float) -> None:
    """Carvalho, Polson & Scott (2010), theorem 1: the density by the exponential integral."""

    def density(t: float) -> float:
        return float(np.exp(t**2 / 2) * special.exp1(t**2 / 2)) / math.sqrt(2 * math.pi**3)

    half = integrate.quad(density, 0, w)[0]
    cdf = horseshoe_cdf(np.array([w, -w]))
    np.testing.assert_allclose(cdf, [0.5 + half, 0.5 - half], rtol=0, atol=1e-4)


def test_another_law_is_told_apart() -> None:
    torch.manual_seed(0)
    draws = torch.randn(4_000)
    assert_law(draws, stats.norm.cdf)
    with pytest.raises(AssertionError):
        assert_law(1.3 * draws, stats.norm.cdf)
