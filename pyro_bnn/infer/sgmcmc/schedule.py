r"""How the step changes from one to the next, and which draws are kept for it.

Averages over a chain whose steps :math:`\epsilon_t` change weigh draws by them,
:math:`\sum_t \epsilon_t f(z_t) / \sum_t \epsilon_t` (Welling & Teh 2011). A draw is kept whenever
:math:`\sum_t \epsilon_t` passes a multiple of a constant, so that kept draws have equal weights.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from pyro_bnn.errors import OptionError


class StepSchedule:
    """Factors of the step size, by the number t of a step after the warm-up, from 0; here ones."""

    def factors(self, t: NDArray[np.int64], num_steps: int) -> Float[np.ndarray, " T"]:
        """Factors of the step in z squared at steps t ``[T]`` of so many, at least 0."""
        del num_steps
        return np.ones(t.shape)

    def samples(self, t: NDArray[np.int64], num_steps: int) -> NDArray[np.bool_]:
        """Whether steps t ``[T]`` are noisy and may be kept; others explore."""
        del num_steps
        return np.ones(t.shape, dtype=np.bool_)


class Decay(StepSchedule):
    r"""Welling and Teh's :math:`\epsilon_t = a (b + t)^{-\gamma}`, as factors of its first step.

    Args:
        power: gamma, in (1/2, 1].
        delay: b, in steps, > 0.
    """

    def __init__(self, power: float, delay: float) -> None:
        self.power, self.delay = power, delay

    def factors(self, t: NDArray[np.int64], num_steps: int) -> Float[np.ndarray, " T"]:
        """See the base class."""
        del num_steps
        return np.asarray((1 + t / self.delay) ** -self.power)


class Cycles(StepSchedule):
    r"""Cosine cycles, :math:`\epsilon_k = (\epsilon_0 / 2) [\cos(\pi r) + 1]`.

    With :math:`r = \mathrm{mod}(k - 1, \lceil n/M \rceil) / \lceil n/M \rceil` of step k = t + 1 of
    n in M cycles. Where r < beta a cycle explores.

    Args:
        num_cycles: M.
        exploration: beta, in [0, 1).
    """

    def __init__(self, num_cycles: int, exploration: float) -> None:
        self.num_cycles, self.exploration = num_cycles, exploration

    def factors(self, t: NDArray[np.int64], num_steps: int) -> Float[np.ndarray, " T"]:
        """See the base class."""
        return np.asarray((np.cos(math.pi * self._place(t, num_steps)) + 1) / 2)

    def samples(self, t: NDArray[np.int64], num_steps: int) -> NDArray[np.bool_]:
        """See the base class."""
        return self._place(t, num_steps) >= self.exploration

    def _place(self, t: NDArray[np.int64], num_steps: int) -> Float[np.ndarray, " T"]:
        length = math.ceil(num_steps / self.num_cycles)
        return (t % length) / length


class Plan:
    """The factors of all steps, and how many times each is kept.

    Args:
        schedule: The schedule.
        num_steps: Steps n after the warm-up.
        num_samples: Draws S that are kept.
        power: Of a factor in the step itself: 1 where it is in z squared, 1/2 where its square is.

    Raises:
        OptionError: If no step samples.

    Attributes:
        factors: Factors of the step ``[n]``.
        samples: Whether a step is noisy ``[n]``.
        counts: How many draws are kept after each ``[n]``; more than one where a long step passes
            several multiples.
    """

    def __init__(
        self, schedule: StepSchedule, num_steps: int, num_samples: int, power: float
    ) -> None:
        t = np.arange(num_steps)
        self.factors = schedule.factors(t, num_steps) ** power
        self.samples = schedule.samples(t, num_steps)
        if not self.samples.any():
            raise OptionError(
                f"all {num_steps} steps explore, so that none is left to sample: raise num_samples "
                "or thin, or lower num_cycles or exploration"
            )
        passed = np.cumsum(self.factors * self.samples)
        # a share of its own length short of the multiple counts as there: sums are rounded
        multiples = np.floor(passed * (num_samples / passed[-1]) * (1 + 1e-12)).astype(np.int64)
        self.counts = np.diff(multiples, prepend=0)
