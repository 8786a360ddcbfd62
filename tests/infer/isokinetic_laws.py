r"""Isokinetic leapfrog on Gaussians of many dimensions, in closed form.

With curvatures :math:`\lambda_i` and P large the squared gradient is P g^2 to order :math:`\sqrt
P`, so that both half kicks have the size :math:`\delta = h g / 2`. Momenta :math:`p = \sqrt P v` of
a direction become :math:`p / \cosh\delta - (\tanh\delta / g) \lambda x` in the first. The drift
leaves the velocity at the cosine :math:`-\tanh\delta` to the force, whence the second is
:math:`\cosh\delta\, p - (\sinh\delta / g) \lambda x`. For :math:`p / \cosh\delta` this is a
leapfrog step H of the harmonic oscillator, with :math:`H^2 = h^2 \tanh(\delta) / \delta`. Its
ellipse, with :math:`E p^2 = 1`, has

.. math:: \lambda_i E x_i^2 = \frac{2 \delta / \sinh 2 \delta}{1 - \lambda_i H^2 / 4},
          \qquad g^2 = \langle \lambda_i^2 E x_i^2 \rangle

However much of the velocity is refreshed between steps, :math:`E p^2 = 1` and the ellipse stay.
Steps turn (x, p) on it by an angle :math:`\theta` with :math:`\cos\theta = 1 - \lambda H^2 / 2`.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from torch import Tensor


def isotropic(step_size: float, num_latents: int) -> tuple[float, float]:
    """Relative error of variances, and a step's energy variance a dimension, at curvature 1.

    The distance from the centre and the cosine of the velocity to the force close on themselves;
    linear in what they differ by from their means, the energy error has this variance.
    """
    delta = _kick(step_size, num_latents)
    t = math.tanh(delta)
    r = delta / t - 1
    return r, 4 * r**2 * t**2 * (1 - t**2) / (1 - delta * t)


def _kick(step_size: float, num_latents: int) -> float:
    """Size of a half kick at curvature 1."""
    h = step_size / math.sqrt(num_latents - 1)
    return float(brentq(lambda d: 4 * d * math.tanh(d) - h**2, 1e-9, 10))


def autocorrelations(
    step_size: float, num_latents: int, apart: int, memory: int, lags: int
) -> NDArray[np.float64]:
    """Of an entry of draws so many steps apart, by lag ``[lags]``, at curvature 1.

    Between two draws (x, p) turns, and then p is forgotten in part, as the memory says.
    """
    # H^2 = h^2 tanh(delta) / delta, and h^2 = 4 delta tanh(delta)
    angle = apart * math.acos(1 - 2 * math.tanh(_kick(step_size, num_latents)) ** 2)
    keep, (cos, sin) = math.exp(-apart / memory), (math.cos(angle), math.sin(angle))
    move = np.array([[cos, sin], [-keep * sin, keep * cos]])
    return np.array([np.linalg.matrix_power(move, lag)[0, 0] for lag in range(lags)])


def variances(curvature: Tensor, step_size: float) -> Tensor:
    """Variances of directions over the true ones ``[P]``, by their curvatures ``[P]``."""
    h = step_size / math.sqrt(len(curvature) - 1)

    def at(delta: float) -> Tensor:
        over = curvature * h**2 * math.tanh(delta) / (4 * delta)
        return 2 * delta / math.sinh(2 * delta) / (1 - over)

    def miss(delta: float) -> float:
        return float((curvature * at(delta)).mean()) * h**2 / 4 - delta**2

    return at(brentq(miss, 1e-9, h * float(curvature.mean().sqrt())))
