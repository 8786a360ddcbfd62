"""Distances and distribution functions that the tests of priors share."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats
from torch import Tensor

Cdf = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def assert_law(draws: Tensor, cdf: Cdf) -> None:
    """Kolmogorov-Smirnov: sqrt(n) times the distance exceeds 2.7 once in a million."""
    values = draws.detach().double().flatten().numpy()
    assert stats.kstest(values, cdf).statistic * math.sqrt(values.size) < 2.7


def horseshoe_cdf(w: NDArray[np.float64]) -> NDArray[np.float64]:
    r"""Of :math:`w \sim \mathcal N(0, \tau^2)` with :math:`\tau \sim \mathrm{HalfCauchy}(1)`.

    It is the mean of :math:`\Phi(w / \tan(\pi u / 2))` over uniform u, here by quadrature.
    """
    nodes, weights = np.polynomial.legendre.leggauss(400)
    tau = np.tan(0.25 * np.pi * (nodes + 1))
    cdf: NDArray[np.float64] = special.ndtr(np.asarray(w)[..., None] / tau) @ (0.5 * weights)
    return cdf
