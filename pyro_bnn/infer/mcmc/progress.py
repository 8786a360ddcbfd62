"""One progress bar for all chains of a sampler."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm.auto import tqdm

SECONDS = 0.1  # between two looks at the chains


class Progress:
    """Draws, divergences, what steps are tuned by, and step size of chains that run side by side.

    Args:
        title: Name in front of the bar.
        num_chains: Number of chains C.
        num_draws: Draws of each chain, warm-up included.
        show: Whether there is a bar.
        aim: What step sizes are tuned by.
    """

    def __init__(
        self,
        title: str,
        num_chains: int,
        num_draws: int,
        *,
        show: bool,
        aim: str = "acceptance_rate",
    ) -> None:
        self._bar = tqdm(total=num_chains * num_draws, disable=not show, desc=title, unit="draw")
        self._aim = aim.removesuffix("_rate").replace("_", " ")
        self._next = 0.0
        self._num_draws = num_draws
        self._drawn = np.zeros(num_chains, np.int64)
        self._step_size = 0.0
        self.start_over()

    def start_over(self) -> None:
        """Forget divergences and acceptance: the kept draws begin."""
        self._count, self._accepted, self._divergences = 0, 0.0, 0

    def add(
        self,
        chains: NDArray[np.int64],
        acceptance: NDArray[np.float64],
        diverging: NDArray[np.bool_],
        step_size: NDArray[np.float64],
    ) -> None:
        """Take in draws of some chains ``[K]``."""
        np.add.at(self._drawn, chains, 1)
        self._count += len(chains)
        self._accepted += float(acceptance.sum())
        self._divergences += int(diverging.sum())
        self._step_size = float(step_size.mean())
        if self._bar.disable or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + SECONDS
        self._update()

    @property
    def num_drawn(self) -> int:
        """Draws of the slowest chain."""
        return int(np.minimum(self._drawn, self._num_draws).min())

    def complete(self) -> None:
        """All draws are made, also where a chain made fewer than others in the warm-up."""
        self._drawn[:] = self._num_draws

    def state(self) -> dict[str, Any]:
        """What the bar shows, for :meth:`restore`."""
        return {
            "drawn": torch.from_numpy(self._drawn),
            "count": self._count,
            "accepted": self._accepted,
            "divergences": self._divergences,
            "step_size": self._step_size,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        np.copyto(self._drawn, state["drawn"].numpy())
        self._count, self._accepted = int(state["count"]), float(state["accepted"])
        self._divergences, self._step_size = int(state["divergences"]), float(state["step_size"])
        self._bar.initial = int(np.minimum(self._drawn, self._num_draws).sum())  # none of this run
        self._bar.n = self._bar.initial

    def close(self) -> None:
        """End the bar."""
        self._update()
        self._bar.close()

    def _update(self) -> None:
        if self._count:
            mean = self._accepted / self._count
            told = f"{mean:.2f}" if self._aim == "acceptance" else f"{mean:.2g}"
            self._bar.set_postfix_str(
                f"{self._divergences} divergences, {self._aim} {told}, step {self._step_size:.2g}",
                refresh=False,
            )
        drawn = np.minimum(self._drawn, self._num_draws).sum()
        self._bar.update(int(drawn) - self._bar.n)
