r"""Length of trajectories by expected squared jumps a gradient, found in the warm-up.

Within a window trajectories have mean lengths :math:`\bar L` of a few sizes in turn, and each its
own length n around it. For every :math:`\bar L` the trajectories with
:math:`\bar L / 2 \le n \le 3 \bar L / 2`, whatever they were meant for, estimate

.. math:: J(\bar L) = \frac{1}{E\, n} \sqrt{E\, |y' - y|^2 \cdot
          E\, \bigl(|y' - m|^2 - |y - m|^2\bigr)^2}

from one draw y of a chain to the next y', in coordinates whitened by the mass matrix, with the
chain's mean m. The largest J is the middle of the next window's lengths. A rejected trajectory
counts with its jumps of zero. Jumps are within chains, so that it does not matter in which of their
equal modes these are.

Of the two jumps the first is largest for slow directions, at half their period; the second, which
does not take an end opposite to the start for a far one, at a quarter. Each alone misses the most
effective draws of a network's output a gradient by up to twice, on one side: two moons, 2-20-20-1,
has most at 16 steps, where the first jump has its best at 16 and the second at 8; diabetes,
10-50-1, at 12, the first at 48 and the second at 12 to 24. Jumps of the output itself do worse:
what it has of slow directions is a small part of its variance, so that its jumps a gradient are
largest at two steps.

References:
    Pasarica & Gelman, "Adaptively Scaling the Metropolis Algorithm Using Expected Squared Jumped
    Distance", Statistica Sinica 2010. Wang, Mohamed & de Freitas, "Adaptive Hamiltonian and Riemann
    Manifold Monte Carlo Samplers", ICML 2013, arXiv:1302.6182 (of trajectories, per step). Hoffman,
    Radul & Sountsov, "An Adaptive-MCMC Scheme for Setting Trajectory Lengths in Hamiltonian Monte
    Carlo", AISTATS 2021 (the second jump).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pyro_bnn.errors import FileFormatError
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.store import turns_of

FACTORS = (0.5, 0.5**0.5, 1.0, 2**0.5, 2.0)  # of the middle length
FIRST = 16  # steps in the mean, before there are draws
MOST = 512


class LengthSearch:
    """Mean number of steps of trajectories, window by window.

    Args:
        starts: Where the chains start ``[C, P]``.

    Attributes:
        steps: The best mean number of steps so far; of the lengths in turn, the middle.
    """

    def __init__(self, starts: Tensor) -> None:
        self.steps = FIRST
        self._last, self._mean = torch.zeros_like(starts), torch.zeros_like(starts)
        self._count = np.zeros(len(starts))  # of draws, of each chain
        self._start_over()

    def _start_over(self) -> None:
        self._turn = 0
        self._count[:] = 0
        self._jumps, self._radial, self._gradients = np.zeros((3, len(FACTORS)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Mean lengths that take turns, ascending."""
        lengths: NDArray[np.float64] = np.rint(self.steps * np.array(FACTORS))
        return lengths.clip(1, MOST).astype(np.int64)

    def next(self) -> int:
        """Mean length of the trajectories that begin now."""
        self._turn += 1
        return int(self.lengths[self._turn % len(FACTORS)])

    def add(
        self,
        places: NDArray[np.int64],
        z: Tensor,
        mass: Mass,
        num_steps: NDArray[np.float64],
        diverging: NDArray[np.bool_],
    ) -> None:
        """Take in draws of chains at ascending places, those of one chain in their order.

        Args:
            places: Of their chains ``[K]``.
            z: The draws ``[K, P]``.
            mass: The mass matrix, or that of each chain.
            num_steps: Steps of their trajectories ``[K]``.
            diverging: Which diverged ``[K]``: they tell of the step size, not of the length.
        """
        turns = turns_of(places)
        for turn in range(int(turns.max(initial=-1)) + 1):
            rows = np.flatnonzero(turns == turn)
            at = torch.from_numpy(places[rows]).to(z.device)
            own = mass if mass.scale.ndim == 1 else Mass(mass.scale[at])
            squared, radial = self._jumps_to(places[rows], at, z[torch.from_numpy(rows)], own)
            known = (self._count[places[rows]] > 1) & ~diverging[rows]
            known &= np.isfinite(squared + radial)
            steps = num_steps[rows]
            for place, length in enumerate(self.lengths):
                near = known & (2 * steps >= length) & (2 * steps <= 3 * length)
                # lengths of all turns are even in their logs: by n, each range is even in n
                self._jumps[place] += steps[near] @ squared[near]
                self._radial[place] += steps[near] @ radial[near]
                self._gradients[place] += (steps[near] ** 2).sum()

    def _jumps_to(
        self, places: NDArray[np.int64], at: Tensor, z: Tensor, mass: Mass
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Squares of the jumps of chains to draws ``[K, P]``, and of those of their distances."""
        self._count[places] += 1
        weight = torch.from_numpy(1 / self._count[places]).to(z).unsqueeze(-1)
        self._mean[at] += weight * (z - self._mean[at])
        jump = mass.whitened(z - self._last[at])
        middle = mass.whitened(0.5 * (z + self._last[at]) - self._mean[at])
        self._last[at] = z
        both = torch.stack([jump.square().sum(-1), (2 * (jump * middle).sum(-1)).square()])
        squared, radial = both.double().cpu().numpy()
        return squared, radial

    def end_window(self) -> None:
        """Choose the length by the draws since the last choice; it stays where nothing moved."""
        with np.errstate(divide="ignore", invalid="ignore"):
            gain = np.sqrt(self._jumps * self._radial) / self._gradients
        if np.nanmax(gain, initial=0) > 0:
            self.steps = int(self.lengths[np.nanargmax(gain)])
        self._start_over()

    # Between two steps

    def state(self) -> dict[str, Any]:
        """All that the choice depends on, for :meth:`restore`."""
        return {
            "steps": self.steps,
            "turn": self._turn,
            "last": self._last,
            "mean": self._mean,
            "count": torch.from_numpy(self._count),
            "jumps": torch.from_numpy(self._jumps),
            "radial": torch.from_numpy(self._radial),
            "gradients": torch.from_numpy(self._gradients),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        Raises:
            FileFormatError: If the state is of other chains.
        """
        own = {name: value for name, value in self.state().items() if isinstance(value, Tensor)}
        steps, turn = state["steps"], state["turn"]
        are_numbers = type(turn) is int and type(steps) is int and 0 < steps <= MOST
        if not are_numbers or any(state[name].shape != own[name].shape for name in own):
            raise FileFormatError("the state is of another search for the length of trajectories")
        self.steps, self._turn = steps, turn
        for name, value in own.items():  # which share their memory with what they are the state of
            value.copy_(state[name])
