"""Windows of a warm-up: how long they are, and a mass matrix from the draws of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.errors import FileFormatError
from pyro_bnn.infer.mcmc import mass as masses
from pyro_bnn.infer.mcmc.lockstep import BlockDraws
from pyro_bnn.infer.mcmc.mass import Mass
from pyro_bnn.infer.steps.store import turns_of

FIRST_WINDOW = 10  # draws a chain; each further window is this much longer
LAST_WINDOW = 50  # for the final step size, and at most a third of all
RANK = 10  # of the low-rank part of a mass matrix
WINDOW_BYTES = 1 << 28  # of draws that a mass matrix is estimated from
LEAST_ROWS = 5  # of a chain, whatever they take


class Window:
    """Draws of a window, which ends when the chains together have theirs.

    Of draws that take more than ``WINDOW_BYTES`` every second, third, ... of a chain is taken.

    Args:
        num_chains: Number of chains C.
        length: Draws a chain, on average.
        like: A draw ``[P]``, for its dtype and device.
    """

    def __init__(self, num_chains: int, length: int, like: Tensor) -> None:
        self._wanted, self._like = num_chains * length, like
        num_bytes = 2 * self._wanted * like.nbytes
        self._every = min(-(-num_bytes // WINDOW_BYTES), max(1, length // LEAST_ROWS))
        self._num_drawn = np.zeros(num_chains, np.int64)
        self._rows: list[tuple[Tensor, Tensor, Tensor]] = []  # z, gradients, places of chains

    @property
    def is_over(self) -> bool:
        """Whether the draws are there."""
        return bool(self._num_drawn.sum() >= self._wanted)

    def add(self, drawn: BlockDraws) -> None:
        """Take in draws with their gradients."""
        assert drawn.grad is not None
        number = self._num_drawn[drawn.places] + turns_of(drawn.places)
        if (is_taken := number % self._every == 0).any():
            taken = torch.from_numpy(is_taken)
            rows = drawn.z[taken], drawn.grad[taken], torch.from_numpy(drawn.places[is_taken])
            self._rows.append(rows)
        np.add.at(self._num_drawn, drawn.places, 1)

    def mass(self, previous: Mass) -> Mass:
        """A mass matrix of the kind of the previous one."""
        z, grad, places = (torch.cat(values) for values in zip(*self._rows, strict=True))
        return masses.of_draws(z, grad, previous, places.to(z.device))

    def state(self) -> dict[str, Any]:
        """The draws so far, for :meth:`restore`."""
        return {
            "num_drawn": torch.from_numpy(self._num_drawn),
            "rows": [torch.cat(values) for values in zip(*self._rows, strict=True)],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of a window of the same length.

        Raises:
            FileFormatError: If the state is of no such window.
        """
        np.copyto(self._num_drawn, state["num_drawn"].numpy())
        if self._num_drawn.min() < 0 or self._num_drawn.max() >= self._wanted or self.is_over:
            raise FileFormatError(f"the state is of another window: it has {self._num_drawn} draws")
        self._rows = []
        num_rows = int((-(-self._num_drawn // self._every)).sum())
        if num_rows:
            z, grad, places = state["rows"]  # places stay on the CPU, as those of later draws
            self._check_rows(num_rows, z, grad, places)
            self._rows.append((z.to(self._like), grad.to(self._like), places))

    def _check_rows(self, num_rows: int, z: Tensor, grad: Tensor, places: Tensor) -> None:
        size = (num_rows, len(self._like))
        fits = z.shape == grad.shape == size and places.shape == size[:1]
        fits = fits and places.dtype == torch.int64
        if not fits or not set(places.tolist()) <= set(range(len(self._num_drawn))):
            raise FileFormatError("the state is of another window: its draws do not fit")


def windows_of(warmup_steps: int) -> list[int]:
    """Lengths of the windows of a warm-up, in draws a chain; the last tunes the step size alone.

    Each window before it is ``FIRST_WINDOW`` draws longer than the one before, and a rest too short
    for one goes to the last of them. The last window has a third of all draws, at most
    ``LAST_WINDOW``.

    Example:
        >>> windows_of(90), windows_of(300)
        ([10, 20, 30, 30], [10, 20, 30, 40, 50, 100, 50])
    """
    last = min(LAST_WINDOW, (warmup_steps + 2) // 3)
    left = warmup_steps - last
    lengths: list[int] = []
    while left >= FIRST_WINDOW * (len(lengths) + 1):
        lengths.append(FIRST_WINDOW * (len(lengths) + 1))
        left -= lengths[-1]
    if lengths:
        lengths[-1] += left
    else:
        last += left
    return [*lengths, last]
