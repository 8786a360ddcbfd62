r"""Rounds of a descent: each as long as all before it, so that its end can be told from its half.

.. math:: \eta_t = \eta_0 \min\Bigl(1, \frac{1 - u}{0.5}\Bigr), \qquad
          u = \frac{t - t_\text{begin}}{t_\text{end} - t_\text{begin}} \in [0, 1)

Within a round the step size is constant, and falls to 0 over its second half. So each round ends
at an iterate without the noise of its steps, as a run that was planned to end there does, and what
two such iterates differ by is what the steps between them gained. A run that goes on loses little
against one cosine of the same length: a constant step size with a short fall serves any length
(Hägele et al., "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations", NeurIPS
2024, arXiv:2405.18392). Where the noise of the steps costs several times what the last round
gained, the next round begins at half its step size, so that step sizes fall as 1/t at the end.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

from torch import Tensor

FIRST_ROUND = 1_000  # steps at least, where the run has several thousand
SHORTEST_RUN = 200  # steps of two rounds: in less there is nothing to compare
NOISY = 4.0  # times the gain of a round, from which on its noise halves the step size
FALL = 0.5  # share of a round over which the step size falls
AUTO: Literal["auto"] = "auto"
NumSteps: TypeAlias = int | Literal["auto"]


class Length:
    """How long the run of an engine is, by its options.

    Attributes:
        num_steps: Steps, or ``"auto"`` for a run that ends by itself.
        max_steps: Most steps of such a run; None for ``most_steps_of_all``.
    """

    most_steps_of_all: ClassVar[int]
    num_steps: NumSteps
    max_steps: int | None

    @property
    def ends_by_itself(self) -> bool:
        """Whether the run goes on until there is nothing more to gain."""
        return self.num_steps == AUTO

    @property
    def planned_steps(self) -> int:
        """Most steps from one start."""
        if self.num_steps == AUTO:
            return self.max_steps or self.most_steps_of_all
        return self.num_steps

    @property
    def length(self) -> str:
        """The option that says how long the run is."""
        name = "max_steps" if self.ends_by_itself else "num_steps"
        return f"{name}={self.planned_steps}"


def advice_on_length(options: Mapping[str, Any]) -> str:
    """What makes a run longer that has ended with these options: by the one that ended it."""
    most = options.get("max_steps")
    ended_there = most is not None and options.get("num_steps") == most
    return "double max_steps" if ended_there else "double num_steps"


class Rounds:
    """The rounds of a run.

    Args:
        ends: Steps after which they end.

    Attributes:
        before: Values of the parameters at the end of the last one; None before the first end.
    """

    def __init__(self, ends: Sequence[int]) -> None:
        self.ends = ends
        self.before: dict[str, Tensor] | None = None

    def begin_of(self, end: int) -> int:
        """The step at which the round began that ends after a step."""
        place = self.ends.index(end)
        return self.ends[place - 1] if place else 0

    def next_end(self, step: int) -> int:
        """Where the round ends that a step is in."""
        return next(end for end in self.ends if end > step)

    def is_noisy(self, losses: Sequence[float], end: int, gain: float) -> bool:
        """Whether the noise of a round's steps costs much more than the round has gained.

        It costs what the objective rose by while the step size fell.
        """
        begin = self.begin_of(end)
        length = end - begin
        level = losses[begin + length // 4 : begin + length // 2]
        last = losses[end - max(length // 20, 1) :]
        if not level:
            return False
        noise = sum(level) / len(level) - sum(last) / len(last)
        return noise > NOISY * max(gain, 0.0)


def ends_of_rounds(num_steps: int) -> tuple[int, ...]:
    """Steps after which the rounds of a run end: halves of halves of it, in ascending order.

    Args:
        num_steps: Steps of the whole run.

    Example:
        >>> ends_of_rounds(10_000)
        (1250, 2500, 5000, 10000)
    """
    ends = [num_steps]
    while ends[0] >= 2 * FIRST_ROUND or (len(ends) == 1 and num_steps >= SHORTEST_RUN):
        ends.insert(0, ends[0] // 2)
    return tuple(ends)


def step_size_factor(step: int, ends: Sequence[int]) -> float:
    """Step size of a step, from 0, relative to that at the start."""
    place = bisect.bisect_right(ends, step)
    if place == len(ends):  # after the last round
        return 0.0
    begin, end = ends[place - 1] if place else 0, ends[place]
    return min(1.0, (end - step) / (end - begin) / FALL)
