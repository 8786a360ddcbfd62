"""A step of SVI: in parts, its gradient a graph and the update outside, or whole as one graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor

from pyro_bnn.capture.captured import Captured, value_and_grad
from pyro_bnn.infer.steps.descent import Descent
from pyro_bnn.infer.svi.bound_step import BoundSteps
from pyro_bnn.infer.svi.step_loss import StepLoss
from pyro_bnn.program.terms import Batch


class StepInParts:
    """A step whose gradient is one graph; the optimiser does its update.

    Args:
        loss: What it minimises.
        parameters: What it moves.
        descent: The optimiser.
        capture: Makes the graph.
        compiled: Whether the graph is compiled.
        rows_vary: Whether batches have several numbers of rows.

    Attributes:
        graph: The gradient.
    """

    def __init__(
        self,
        loss: StepLoss,
        parameters: Sequence[Tensor],
        descent: Descent,
        capture: Callable[..., Captured],
        *,
        compiled: bool,
        rows_vary: bool,
    ) -> None:
        self._parameters, self._descent = parameters, descent
        self._like = loss.program.initial
        n = len(parameters)
        rows = loss.row_dims(n) if rows_vary else {}
        self.graph = capture(value_and_grad(loss, n), compiled=compiled, rows=rows)

    def make_graph(self, noise: Sequence[Tensor], batch: Batch) -> None:
        """The graph for so many rows, without the step."""
        self.graph.bind(*self.inputs(noise, batch, 1.0))

    def advance(
        self,
        step: int,
        noise: Sequence[Tensor],
        batch: Batch,
        held: Sequence[bool],
        kl_weight: float,
    ) -> Sequence[float]:
        """One step; the loss, minus the ELBO and the sampled part, which may not be finite.

        Args:
            step: Its number, from 0.
            noise: All of its noise.
            batch: Its rows.
            held: Which parameters stay as they are.
            kl_weight: Weight of the KL.
        """
        out = self.gradient(*self.inputs(noise, batch, kl_weight))
        values = [float(value) for value in out[:3]]
        if not all(map(math.isfinite, values)):
            return values
        for parameter, gradient, is_held in zip(self._parameters, out[3:], held, strict=True):
            if is_held:  # without a gradient an optimiser neither moves nor counts the step
                parameter.grad = None
                continue
            # clipping scales in place, and a graph's gradients may be one tensor
            parameter.grad = gradient.clone() if self._descent.clips else gradient
        self._descent.step(step)
        return values

    def gradient(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Loss, minus the ELBO, the loss's sampled part, and the gradients."""
        return self.graph(*inputs)

    def inputs(self, noise: Sequence[Tensor], batch: Batch, kl_weight: float) -> tuple[Tensor, ...]:
        """What the gradient is a function of."""
        return (*self._parameters, *noise, *batch, self._like.new_tensor(kl_weight))


class WholeStep:
    """A step as one graph, the update of Adam in it, bound to its tensors where it is in C.

    Args:
        loss: What it minimises.
        parameters: What it moves.
        descent: The optimiser, after ``make_pure``.
        capture: Makes the graph.
        whole: All rows, which are not copied.
        rows_vary: Whether batches have several numbers of rows.

    Attributes:
        graph: The step; it is not compiled any more once that has failed.
    """

    def __init__(
        self,
        loss: StepLoss,
        parameters: Sequence[Tensor],
        descent: Descent,
        capture: Callable[..., Captured],
        whole: Batch,
        *,
        rows_vary: bool,
    ) -> None:
        self._loss, self._parameters, self._descent = loss, parameters, descent
        self._like = loss.program.initial
        n = len(parameters)
        rows = loss.row_dims(3 * n) if rows_vary else {}
        self.graph = capture(self._updated, compiled=True, rows=rows, num_state=3 * n)
        self._bound = BoundSteps(whole)

    def make_graph(self, noise: Sequence[Tensor], batch: Batch) -> None:
        """The graph for so many rows, without the step."""
        controls = [1.0] * (1 + 3 * len(self._parameters))
        self.graph.bind(*self._inputs(noise, batch, controls))

    def advance(
        self,
        step: int,
        noise: Sequence[Tensor],
        batch: Batch,
        held: Sequence[bool],
        kl_weight: float,
    ) -> Sequence[float]:
        """One step; see :meth:`StepInParts.advance`."""
        controls = [kl_weight, *self._descent.controls(step, held)]
        state, inputs = self._state(), (*noise, *batch)
        if (values_in_c := self._bound.go(state, inputs, controls)) is not None:
            return values_in_c
        (values,) = self.graph(*self._inputs(noise, batch, controls))
        if self.graph.is_compiled:
            self._bound.add(self.graph, state, inputs, len(controls))
        return cast(list[float], values.tolist())

    def _state(self) -> list[Tensor]:
        assert self._descent.adam is not None
        return [*self._parameters, *self._descent.adam.moments]

    def _inputs(
        self, noise: Sequence[Tensor], batch: Batch, controls: Sequence[float]
    ) -> tuple[Tensor, ...]:
        return (*self._state(), *noise, *batch, self._like.new_tensor(controls))

    def _updated(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Loss, minus the ELBO, the loss's sampled part ``[3]``, then new parameters and moments.

        Args:
            args: The n parameters, their 2n moments, the noise, x, y, and the controls
                ``[1 + 3n]``: the KL's weight, then those of the optimiser.
        """
        n = len(self._parameters)
        parameters, moments, (*noise, x, y, controls) = args[:n], args[n : 3 * n], args[3 * n :]
        weight, *rest = controls.unbind()
        gradient = value_and_grad(self._loss, n)
        value, loss, sampled, *gradients = gradient(*parameters, *noise, x, y, weight)
        with torch.no_grad():
            values = torch.stack([value, loss, sampled])
            state = self._descent.update(parameters, gradients, moments, rest, sampled.isfinite())
        return (values, *state)
