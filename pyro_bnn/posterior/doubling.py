r"""Has a fit converged? What the last doubling of its steps gained, by paired ELBOs.

.. math:: \delta_s = \mathcal L(\theta_{2n}; \epsilon_s) - \mathcal L(\theta_n; \epsilon_s), \qquad
          \text{gain} = \bar\delta \pm \mathrm{sd}(\delta) / \sqrt S

Both snapshots see the same noise, so what the noise does to both drops out: the error is a fraction
of that of two separate estimates. Where the gap to the optimum falls as 1/n, another doubling
gains half of the last one; where it falls faster, less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIN_GAIN = 0.5  # nats: a smaller gain changes no posterior that is worth reporting
STANDARD_ERRORS = 2.0
LARGEST_ERROR = 1.5  # nats: with a larger one a fit that is 5 nats short can pass


@dataclass(frozen=True)
class Doubling:
    """What the second half of a run's steps gained.

    Attributes:
        gain: Rise of the objective on all rows from half of the steps to all, nats.
        error: Its Monte Carlo standard error; 0 where the objective is exact.
        num_steps: Number of steps at the end.
    """

    gain: float
    error: float
    num_steps: int

    @property
    def limit(self) -> float:
        """Gain from which on the fit is called unfinished: half a nat, or 2 errors."""
        return max(MIN_GAIN, STANDARD_ERRORS * self.error)

    @property
    def is_rising(self) -> bool:
        """Whether it gained that much."""
        return not self.gain < self.limit

    @property
    def is_falling(self) -> bool:
        """Whether it lost that much: the steps were too large."""
        return self.gain <= -self.limit

    @property
    def is_unfinished(self) -> bool:
        """Whether it gained or lost that much."""
        return self.is_rising or self.is_falling

    @property
    def is_judged(self) -> bool:
        """Whether a fit that is 5 nats short would have been called unfinished."""
        return self.is_unfinished or (math.isfinite(self.error) and self.error <= LARGEST_ERROR)

    @property
    def has_converged(self) -> bool:
        """Whether it changed less, by an error that is small enough to say so."""
        return self.is_judged and not self.is_unfinished
