"""A step on a Gaussian as a matrix: what a method does there follows without a single draw."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor

from pyro_bnn.infer.sgmcmc.dynamics import ChainState, StepInputs


class Affine(NamedTuple):
    """New state = ``move`` @ state + ``noise`` * xi + ``slope`` * eta, eta the gradient's noise."""

    move: NDArray[np.float64]
    noise: NDArray[np.float64]
    slope: NDArray[np.float64]

    @property
    def radius(self) -> float:
        """Spectral radius: stable below 1."""
        return float(np.abs(np.linalg.eigvals(self.move)).max())

    def covariance(self, variance: float = 0.0) -> NDArray[np.float64]:
        """Stationary covariance of the state, at a gradient of this variance."""
        added = np.outer(self.noise, self.noise) + variance * np.outer(self.slope, self.slope)
        found: NDArray[np.float64] = solve_discrete_lyapunov(self.move, added)
        return found


def told(z: Tensor, h: float, temperature: float = 1.0, variance: float = 0.0) -> StepInputs:
    """What a step after the warm-up is told, as tensors like z ``[C, P]``."""
    numbers = (z.new_tensor(h), z.new_tensor(temperature), z.new_tensor(0.0))
    return StepInputs(*numbers, torch.full_like(z, variance))


def affine(
    method: Any,
    h: float,
    curvature: float,
    *,
    temperature: float = 1.0,
    held: ChainState | None = None,
    variance: float = 0.0,
) -> Affine:
    """The step of a method in one direction of U = curvature z^2 / 2.

    Args:
        method: The method.
        h: Step size.
        curvature: lambda.
        temperature: T.
        held: Entries of the state that are numbers and no part of it, such as a friction.
        variance: The estimate of the gradient's variance that the method is given.
    """
    z = torch.zeros(1, 1, dtype=torch.float64)
    held = held or {}
    start = method.begin(z, z, torch.ones(1, dtype=torch.float64))
    names = [name for name in start if name not in held]
    given = told(z, h, temperature, variance)

    def stepped(values: list[float], xi: float, eta: float) -> NDArray[np.float64]:
        state = {name: z + value for name, value in zip(names, values, strict=True)}
        slope = curvature * state["z"] + eta
        new = method.step({**state, **held}, slope, z + xi, given)
        return np.array([float(new[name]) for name in names])

    zero = [0.0] * len(names)
    assert not stepped(zero, 0.0, 0.0).any()
    columns = [
        stepped([float(i == j) for j in range(len(names))], 0.0, 0.0) for i in range(len(names))
    ]
    return Affine(np.stack(columns, 1), stepped(zero, 1.0, 0.0), stepped(zero, 0.0, 1.0))
