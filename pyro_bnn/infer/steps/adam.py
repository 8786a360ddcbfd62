r"""Adam as a pure function of tensors, so that a whole step of descent is one graph.

.. math:: m \leftarrow m + (1 - \beta_1)(g - m), \quad
          v \leftarrow v + (1 - \beta_2)(g^2 - v), \quad
          \theta \leftarrow \theta - \frac{\eta_t}{1 - \beta_1^t}
          \frac{m}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

Kingma & Ba, ICLR 2015, arXiv:1412.6980.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

SMALLEST = {dtype: torch.finfo(dtype).tiny for dtype in (torch.float32, torch.float64)}
_PLAIN = ("weight_decay", "amsgrad", "maximize", "decoupled_weight_decay", "differentiable")


class PlainAdam(torch.optim.Adam):
    """``torch.optim.Adam`` without the wrappers that tell Dynamo to trace none of it.

    They import it, in up to a second, though nothing is traced here, and take half of the time of a
    small network's step.
    """

    add_param_group = inspect.unwrap(torch.optim.Adam.add_param_group)
    state_dict = inspect.unwrap(torch.optim.Adam.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Adam.load_state_dict)
    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class Adam:
    """The update of a ``torch.optim.Adam`` as a function of its parameters, gradients and moments.

    The moments and counts of steps are those in the optimiser's own state, so that steps in a
    graph and steps of the optimiser itself can follow each other.

    Args:
        optimizer: An Adam with one group, without weight decay or variants: see :meth:`suits`.
        parameters: Its parameters.

    Attributes:
        moments: First moments m of all parameters, then second moments v.
    """

    def __init__(self, optimizer: torch.optim.Adam, parameters: Sequence[Tensor]) -> None:
        group = optimizer.param_groups[0]
        self._beta1, self._beta2 = map(float, group["betas"])
        self._eps = float(group["eps"])
        for p in parameters:
            state = optimizer.state[p]
            if not state:
                on_device = group["fused"] or group["capturable"]
                state["step"] = torch.zeros((), device=p.device if on_device else None)
                state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        states = [optimizer.state[p] for p in parameters]
        self._steps = [state["step"] for state in states]
        self._counts = [int(step) for step in self._steps]
        self.moments = [s["exp_avg"] for s in states] + [s["exp_avg_sq"] for s in states]

    @staticmethod
    def suits(optimizer: torch.optim.Optimizer, parameters: Sequence[Tensor]) -> bool:
        """Whether an optimiser is such an Adam, of exactly these parameters."""
        if type(optimizer) not in (torch.optim.Adam, PlainAdam) or len(optimizer.param_groups) != 1:
            return False
        group = optimizer.param_groups[0]
        hooks = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
        if hooks or {id(p) for p in group["params"]} != {id(p) for p in parameters}:
            return False
        plain = not any(group.get(option) for option in _PLAIN)
        return plain and not any(isinstance(v, Tensor) for v in (group["lr"], *group["betas"]))

    def controls(self, rate: float, held: Sequence[bool]) -> list[float]:
        """Count a step; the numbers that the update needs of it, three for each parameter.

        Args:
            rate: Step size.
            held: Which parameters stay as they are.
        """
        controls = []
        for i, is_held in enumerate(held):
            if is_held:
                controls += [0.0, 1.0, 0.0]
                continue
            self._counts[i] += 1
            t = self._counts[i]
            correction = math.sqrt(1 - self._beta2**t)
            controls += [rate / (1 - self._beta1**t), 1 / correction, 1.0]
        return controls

    def store_counts(self) -> None:
        """Write the counts of steps into the optimiser's state."""
        for step, count in zip(self._steps, self._counts, strict=True):
            step.fill_(count)

    def read_counts(self) -> None:
        """Take the counts of steps from the optimiser's state."""
        self._counts = [int(step) for step in self._steps]

    def parked(self) -> dict[str, Any]:
        """A copy of moments and counts, for :meth:`take`."""
        return {"moments": [m.clone() for m in self.moments], "counts": list(self._counts)}

    def take(self, parked: Mapping[str, Any] | None) -> None:
        """Go to moments and counts of before, in place; to those of no step for None."""
        if parked is None:
            for moment in self.moments:
                moment.zero_()
            self._counts = [0] * len(self._counts)
            return
        for moment, value in zip(self.moments, parked["moments"], strict=True):
            moment.copy_(value)
        self._counts = [int(count) for count in parked["counts"]]

    def update(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        moments: Sequence[Tensor],
        controls: Sequence[Tensor],
        is_finite: Tensor,
    ) -> list[Tensor]:
        """New parameters, then new moments; a step whose loss is not finite changes nothing.

        Args:
            parameters: Values of the n parameters.
            gradients: Gradients of the loss by them.
            moments: The 2n moments.
            controls: Numbers of :meth:`controls`, each ``[]``.
            is_finite: Whether the loss is finite, ``[]``.
        """
        n = len(parameters)
        new: list[list[Tensor]] = [[], [], []]
        for i, (p, gradient) in enumerate(zip(parameters, gradients, strict=True)):
            rate, inverse_root, on = controls[3 * i : 3 * i + 3]
            m, v = moments[i], moments[n + i]
            g = without_traces(gradient)
            # the form of the two whose terms do not cancel
            near_m, near_g = m + (1 - self._beta1) * (g - m), g + self._beta1 * (m - g)
            new_m = near_m if self._beta1 >= 0.5 else near_g
            new_v = v + (1 - self._beta2) * (g * g - v)
            new_m, new_v = without_traces(new_m), without_traces(new_v, power=2)
            new_p = p - rate * new_m / (new_v.sqrt() * inverse_root + self._eps)
            moves = is_finite & (on > 0)
            pairs = ((new_p, p), (new_m, m), (new_v, v))
            for values, (moved, stays) in zip(new, pairs, strict=True):
                values.append(torch.where(moves, moved, stays))
        return [*new[0], *new[1], *new[2]]


def without_traces(values: Tensor, power: int = 1) -> Tensor:
    """Gradients or their averages, 0 where they are so small that their squares are not normal.

    Weights that the data do not need shrink for ever, by the same share a step, as do the averages
    of gradients that have ceased. Below 1e-38 a processor takes a hundred times as long for each.
    A gradient of 1e-16 moves Adam by 1e-8 of its step size.

    Args:
        values: The numbers.
        power: Of the gradients: 2 for averages of their squares.
    """
    tiny = SMALLEST.get(values.dtype, 0.0)
    # squares times 1 - beta2 are normal, and squares fade by a tenth in 10 steps or more
    least = 1e3 * math.sqrt(tiny) if power == 1 else 1.2 * tiny
    return torch.nn.functional.hardshrink(values, least)


def clip(gradients: Sequence[Tensor], max_norm: float, weights: Sequence[Tensor]) -> list[Tensor]:
    """Gradients scaled down to a norm of at most ``max_norm``.

    As ``torch.nn.utils.clip_grad_norm_`` does it, over the gradients of weight 1, not those of
    weight 0.

    Args:
        gradients: Gradients.
        max_norm: Largest norm.
        weights: 0 or 1 for each of them, ``[]``.
    """
    squares = [
        torch.where(w > 0, g.square().sum(), torch.zeros_like(w))
        for g, w in zip(gradients, weights, strict=True)
    ]
    norm = torch.stack(squares).sum().sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return [g * factor for g in gradients]
