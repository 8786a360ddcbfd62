"""A step in C at tensors that stay where they are, so that a call costs no look at its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pyro_bnn.capture.captured import Captured


class BoundStep:
    """One compiled step, of inputs of given shapes.

    Args:
        steps: Does so many steps.
        returned: What each of them returns.
        state: Parameters and moments, which it overwrites.
        inputs: What it reads; those of ``whole`` are not copied.
        controls: The numbers that it is told ``[C]``.
    """

    def __init__(
        self,
        steps: Callable[[int], None],
        returned: Sequence[Tensor],
        state: Sequence[Tensor],
        inputs: Sequence[Tensor],
        controls: Tensor,
    ) -> None:
        self._steps, self._inputs = steps, inputs
        (self._values,) = returned
        self._controls, self._places = controls.numpy(), _places(state)

    @classmethod
    def of(
        cls,
        step: Captured,
        state: Sequence[Tensor],
        inputs: Sequence[Tensor],
        num_controls: int,
        whole: Sequence[Tensor],
    ) -> BoundStep | None:
        """The step at a state and copies of its inputs; None where it is not in C."""
        kept = [value if any(value is x for x in whole) else value.clone() for value in inputs]
        controls = torch.zeros(num_controls, dtype=state[0].dtype)
        found = step.bind_compiled(*state, *kept, controls)
        return None if found is None else cls(*found, state, kept, controls)

    def is_at(self, state: Sequence[Tensor]) -> bool:
        """Whether the state lies where it lay."""
        return self._places == _places(state)

    def __call__(self, inputs: Sequence[Tensor], controls: Sequence[float]) -> list[float]:
        """One step; what it returns."""
        for kept, value in zip(self._inputs, inputs, strict=True):
            if kept is not value:
                kept.copy_(value)
        self._controls[:] = controls
        self._steps(1)
        values: list[float] = self._values.tolist()
        return values


class BoundSteps:
    """The steps that are bound, by number of rows; None where one is not in C.

    Args:
        whole: All rows, which are not copied.
    """

    def __init__(self, whole: Sequence[Tensor]) -> None:
        self._whole = whole
        self._found: dict[int, BoundStep | None] = {}

    def go(
        self, state: Sequence[Tensor], inputs: Sequence[Tensor], controls: Sequence[float]
    ) -> list[float] | None:
        """One step, and what it returns; None where none is bound at this state."""
        found = self._found.get(len(inputs[-1]))
        return found(inputs, controls) if found is not None and found.is_at(state) else None

    def add(
        self, step: Captured, state: Sequence[Tensor], inputs: Sequence[Tensor], num_controls: int
    ) -> None:
        """Bind a step for so many rows, unless it was found not to be in C."""
        num_rows = len(inputs[-1])
        if num_rows in self._found and self._found[num_rows] is None:
            return
        self._found[num_rows] = BoundStep.of(step, state, inputs, num_controls, self._whole)


def _places(state: Sequence[Tensor]) -> list[int]:
    return [value.data_ptr() for value in state]
