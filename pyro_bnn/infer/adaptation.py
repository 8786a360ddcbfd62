r"""Warm-up of a chain: its diagonal mass matrix, and when to estimate it."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from pyro.infer.mcmc.adaptation import BlockMassMatrix, adapt_window
from pyro.ops.welford import WelfordCovariance
from torch import Tensor

SITE = "z"  # the one site that Pyro's adaptation sees: the flat vector
FIRST_STEPS = 10  # before the first window
FIRST_WINDOW = 10  # draws; each further window is twice as long
LAST_STEPS = 50  # for the final step size
SMALLEST, LARGEST = 1e-10, 1e10  # bounds of the inverse mass matrix


class GradientMassMatrix(BlockMassMatrix):
    r"""Diagonal mass matrix from the draws and their gradients, a window at a time.

    .. math:: M^{-1}_j = \sqrt{ \mathrm{Var}(z_j) / \mathrm{Var}(\partial_j U) }

    Exact for independent Gaussians like the plain variance, but steadier from few draws, because
    noise common to both variances cancels; the rule of nutpie.

    References:
        Seyboldt, Carlson & Carpenter, "Preconditioning Hamiltonian Monte Carlo by Minimizing
        Fisher Divergence", 2026, arXiv:2603.18845.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws: Any = WelfordCovariance()
        self._gradients: Any = WelfordCovariance()

    def update(self, z: dict[str, Tensor], z_grad: dict[str, Tensor]) -> None:
        """Take in one draw and its gradient."""
        self._draws.update(z[SITE])
        self._gradients.update(z_grad[SITE])

    def end_adaptation(self) -> None:
        """Set the mass matrix by the window's draws, and forget them."""
        variance = self._draws.get_covariance(regularize=False)
        gradient_variance = self._gradients.get_covariance(regularize=False)
        ratio = (variance / gradient_variance).sqrt()
        known = ratio.isfinite() & (ratio > 0)  # an entry that never moved keeps its old mass
        old = self.inverse_mass_matrix[(SITE,)]
        new = torch.where(known, ratio, old).clamp(SMALLEST, LARGEST)
        self.inverse_mass_matrix = {(SITE,): new}
        self._draws.reset()
        self._gradients.reset()


def adaptation_windows(warmup_steps: int) -> list[Any]:
    """Pyro's list of warm-up windows: step size only, mass matrix windows, step size only.

    Windows of 10, 20, 40, ... draws, after 10 steps, replace the identity matrix early, because
    trees are long under it; a rest too short for the next window goes to the last one. The last 50
    steps, a sixth of a shorter warm-up, tune the step size alone.

    Args:
        warmup_steps: Number of warm-up steps.

    Example:
        >>> [(window.start, window.end) for window in adaptation_windows(300)]
        [(0, 9), (10, 19), (20, 39), (40, 79), (80, 249), (250, 299)]
    """
    if warmup_steps < FIRST_STEPS + FIRST_WINDOW:
        return [adapt_window(0, warmup_steps - 1)]
    last = warmup_steps - min(LAST_STEPS, max(1, warmup_steps // 6))
    edges, length = [0, FIRST_STEPS], FIRST_WINDOW
    while edges[-1] + 3 * length <= last:
        edges.append(edges[-1] + length)
        length *= 2
    edges += [last, warmup_steps]
    return [adapt_window(a, b - 1) for a, b in itertools.pairwise(edges)]
