"""Several starts of one run, of which after each round the better half goes on.

The ELBO of a network has optima that differ by tens of nats, and the start decides which of them a
fit ends in. A short round tells the worst starts. Successive halving: Jamieson & Talwalkar,
AISTATS 2016, arXiv:1502.07943.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Checked = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
RankStarts = Callable[[Sequence[Mapping[str, Tensor]], int], list[int]]


@dataclass
class ParkedStart:
    """Where the steps from one start have come to.

    Attributes:
        values: Of the parameters, by name; at the beginning those of the guide alone.
        optimizer: What its next step depends on; None before the first.
        position: Number of its steps.
        losses: Of each.
        before: The values at the end of the round before, or None.
    """

    values: dict[str, Tensor]
    optimizer: Any = None
    position: int = 0
    losses: list[float] = field(default_factory=list)
    before: dict[str, Tensor] | None = None


class Starts:
    """The starts that are left, and the one that the run is at.

    Args:
        count: Number of starts, a power of 2.
        ends: Where rounds end.
        make: Values of the guide's parameters at a start, from number 1 on.

    Attributes:
        first_values: Values of all parameters at the first start, the model's among them.
        num_extra: Steps of all starts but the one that goes on.
    """

    def __init__(
        self,
        count: int,
        ends: Sequence[int],
        make: Callable[[int], dict[str, Tensor]] | None,
    ) -> None:
        self.count, self._make = count, make
        self.first_values: dict[str, Tensor] = {}
        self._left, self._done = count, list[ParkedStart]()
        self._waiting: list[ParkedStart] = []
        rounds, self.num_extra, begin = count, 0, 0
        for end in ends:
            self.num_extra += (rounds - 1) * (end - begin)
            rounds, begin = max(rounds // 2, 1), end

    @property
    def are_several(self) -> bool:
        """Whether more than one start is left."""
        return self._left > 1

    @property
    def has_others(self) -> bool:
        """Whether there is a start beside the one that the run is at."""
        return bool(self._waiting or self._done)

    def begin(self, values: dict[str, Tensor]) -> None:
        """Before the first step, at the values of the first start."""
        if self.count > 1:
            assert self._make is not None
            self.first_values = values
            self._waiting = [ParkedStart(self._make(k)) for k in range(1, self.count)]

    def park(
        self,
        values: dict[str, Tensor],
        optimizer: Any,
        losses: Sequence[float],
        before: dict[str, Tensor] | None,
    ) -> None:
        """At the end of a start's round."""
        self._done.append(ParkedStart(values, optimizer, len(losses), list(losses), before))

    def next(self, rank: RankStarts) -> tuple[ParkedStart, bool]:
        """The start that makes its round next, and whether it is the last one that is left.

        Of those that have not made this round, or of the best that have. A start that is not parked
        before, as it diverged, is left out.
        """
        if not self._waiting:
            chosen = rank([start.values for start in self._done], self._left // 2)
            self._waiting = [self._done[k] for k in chosen]
            if len(self._waiting) > 1:  # each round begins where its own last one ended
                for start in self._waiting:
                    start.before = start.values
            self._done, self._left = [], len(chosen)
        return self._waiting.pop(0), self._left == 1

    # Of a checkpoint

    def state(self) -> dict[str, Any]:
        """What is left to do; see ``Resumable``."""
        return {
            "left": self._left,
            "own": self.first_values,
            "done": [_plain(start) for start in self._done],
            "waiting": [_plain(start) for start in self._waiting],
        }

    def restore(self, state: Mapping[str, Any], checked: Checked) -> None:
        """Go to a state.

        Raises:
            ValueError: If its values are those of another run.
        """
        self._left = int(state["left"])
        self.first_values = checked(state["own"]) if state["own"] else {}
        self._done, self._waiting = (
            [_start_of(saved, checked) for saved in state[name]] for name in ("done", "waiting")
        )


def _plain(start: ParkedStart) -> dict[str, Any]:
    losses = torch.tensor(start.losses, dtype=torch.float64)
    return {**vars(start), "losses": losses}


def _start_of(saved: Mapping[str, Any], checked: Checked) -> ParkedStart:
    before, position = saved["before"], int(saved["position"])
    if saved["losses"].shape != (position,):
        raise ValueError(f"{saved['losses'].numel()} losses of a start's {position} steps")
    return ParkedStart(
        checked(saved["values"]) if position else dict(saved["values"]),
        saved["optimizer"],
        position,
        saved["losses"].tolist(),
        None if before is None else checked(before),
    )
