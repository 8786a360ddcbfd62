"""One gradient step: clipping, the step-size schedule, any ``torch.optim`` optimiser."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from pyro_bnn.errors import OptionError

MakeOptimizer: TypeAlias = Callable[..., torch.optim.Optimizer]
Schedule: TypeAlias = Literal["cosine", "constant"]


class Descent:
    r"""An optimiser with a schedule, :math:`\eta_t = \tfrac12 \eta_0 (1 + \cos(\pi t / T))`.

    Args:
        parameters: Leaves to optimise; their ``.grad`` is read.
        optimizer: A ``torch.optim`` class or a partial of one, called with the parameters and
            ``lr``, or a callable of the parameters, which sets its own; None for Adam.
        learning_rate: Step size at the start.
        schedule: ``"cosine"`` or ``"constant"``.
        num_steps: Steps T of the whole run.
        clip_norm: Largest norm of the gradient, or None.

    Raises:
        OptionError: If ``optimizer`` makes something else, or LBFGS.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        optimizer: MakeOptimizer | None,
        learning_rate: float,
        schedule: Schedule,
        num_steps: int,
        clip_norm: float | None,
    ) -> None:
        self._parameters = list(parameters)
        self._schedule, self._num_steps, self._clip_norm = schedule, num_steps, clip_norm
        if optimizer is None:
            made: object = torch.optim.Adam(self._parameters, lr=learning_rate, fused=True)
        elif takes_learning_rate(optimizer):
            made = optimizer(self._parameters, lr=learning_rate)
        else:
            made = optimizer(self._parameters)
        if not isinstance(made, torch.optim.Optimizer):
            raise OptionError(
                f"optimizer is a torch.optim class or makes a torch optimizer, not {made!r}"
            )
        if isinstance(made, torch.optim.LBFGS):
            raise OptionError(
                "LBFGS evaluates the loss many times a step, which SVI does not offer"
            )
        self._optimizer = made
        self._rates = [group["lr"] for group in made.param_groups]

    @property
    def learning_rate(self) -> float:
        """Step size of the first group at the start."""
        return float(self._rates[0])

    def add(self, parameters: Sequence[Tensor]) -> None:
        """Optimise more leaves, at the first group's step size."""
        self._parameters += parameters
        self._optimizer.add_param_group({"params": list(parameters), "lr": self._rates[0]})
        self._rates.append(self._rates[0])

    def step(self, step: int) -> None:
        """Step number ``step``, from 0, with the gradients in ``.grad``."""
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
        if self._schedule == "cosine":
            factor = 0.5 * (1 + math.cos(math.pi * step / self._num_steps))
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor
        self._optimizer.step()


def takes_learning_rate(optimizer: MakeOptimizer | None) -> bool:
    """Whether the engine's learning rate is passed on: to a class, or a partial without its own."""
    if isinstance(optimizer, functools.partial):
        return isinstance(optimizer.func, type) and "lr" not in optimizer.keywords
    return optimizer is None or isinstance(optimizer, type)
