"""One gradient step: clipping, the step-size schedule, any ``torch.optim`` optimiser."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from pyro_bnn.errors import OptionError
from pyro_bnn.infer.steps.adam import Adam, PlainAdam, clip, without_traces
from pyro_bnn.infer.steps.rounds import ends_of_rounds, step_size_factor

LEARNING_RATE = 1e-2
AVERAGES = {"exp_avg": 1, "momentum_buffer": 1, "exp_avg_sq": 2, "square_avg": 2}
"""Moving averages in the states of torch's optimisers, of which power of the gradient."""
FADING = 10  # steps between two checks of fading averages
MakeOptimizer: TypeAlias = Callable[..., torch.optim.Optimizer]
Schedule: TypeAlias = Literal["rounds", "cosine", "constant"]


class Descent:
    r"""An optimiser with a schedule, :math:`\eta_t = \tfrac12 \eta_0 (1 + \cos(\pi t / T))`.

    Args:
        parameters: Leaves to optimise; their ``.grad`` is read.
        learning_rate: Step size at the start.
        num_steps: Steps T of the whole run.
        optimizer: A ``torch.optim`` class or a partial of one, called with the parameters and
            ``lr``, or a callable of the parameters, which sets its own; None for Adam.
        schedule: ``"cosine"``, ``"constant"`` or ``"rounds"`` (:mod:`pyro_bnn.infer.steps.rounds`).
        clip_norm: Largest norm of the gradient, or None.

    Raises:
        OptionError: If ``optimizer`` makes something else, or LBFGS.

    Attributes:
        adam: The update as a pure function, after :meth:`make_pure`.
        peak: Largest step size of a round, relative to that at the start.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        learning_rate: float,
        num_steps: int,
        optimizer: MakeOptimizer | None = None,
        schedule: Schedule = "cosine",
        clip_norm: float | None = None,
    ) -> None:
        self._parameters = list(parameters)
        self._schedule, self._num_steps, self._clip_norm = schedule, num_steps, clip_norm
        self.peak = 1.0
        self._ends = ends_of_rounds(num_steps) if schedule == "rounds" else ()
        if optimizer is None:
            made: object = PlainAdam(self._parameters, lr=learning_rate, fused=True)
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
        self.adam: Adam | None = None

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped, in place."""
        return self._clip_norm is not None

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
        for parameter in self._parameters:
            if parameter.grad is not None:
                gradient = without_traces(parameter.grad)
                # fused optimisers ignore strides
                laid_out = gradient.stride() == parameter.stride()
                parameter.grad = gradient if laid_out else _like(gradient, parameter)
        if step % FADING == 0:
            self._forget_traces()
        if self._clip_norm is not None:
            nn.utils.clip_grad_norm_(self._parameters, self._clip_norm)
        if self._schedule != "constant":
            factor = self._factor(step)
            for group, rate in zip(self._optimizer.param_groups, self._rates, strict=True):
                group["lr"] = rate * factor
        if self.adam is None:
            self._optimizer.step()
            return
        self.adam.store_counts()
        self._optimizer.step()
        self.adam.read_counts()

    def _forget_traces(self) -> None:
        for state in self._optimizer.state.values():
            for name in AVERAGES.keys() & state.keys():
                if isinstance(state[name], Tensor):  # SGD without momentum has None
                    state[name].copy_(without_traces(state[name], AVERAGES[name]))

    def parked(self) -> dict[str, Any]:
        """A copy of what the steps of one start depend on, for :meth:`take`."""
        if self.adam is not None:
            return self.adam.parked()
        return copy.deepcopy(self._optimizer.state_dict())

    def take(self, parked: Mapping[str, Any] | None) -> None:
        """Go on from where :meth:`parked` was called, or for None from before the first step."""
        if self.adam is not None:
            self.adam.take(parked)
            return
        state = self._optimizer.state_dict()
        self._optimizer.load_state_dict(
            {**state, "state": {}} if parked is None else copy.deepcopy(dict(parked))
        )

    # A checkpoint's two methods

    def state(self) -> dict[str, Any]:
        """The optimiser's state, and its step sizes at the start."""
        if self.adam is not None:
            self.adam.store_counts()
        return {
            "rates": self._rates,
            "peak": self.peak,
            "optimizer": self._optimizer.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go to the state of an optimiser with the same options.

        Raises:
            OptionError: If it has others.
            ValueError: If its tensors have not the shapes of the parameters.
        """
        saved, self.peak = state["optimizer"], float(state["peak"])
        theirs = _options(saved["param_groups"], state["rates"])
        ours = _options(self._optimizer.state_dict()["param_groups"], self._rates)
        if ours != theirs:
            raise OptionError(
                f"the checkpoint is of a run whose optimizer has {_differing(theirs, ours)}, but "
                f"this one has {_differing(ours, theirs)}: pass the same optimizer"
            )
        # fused optimisers do not check shapes
        if any(group.get("fused") for group in saved["param_groups"]):
            self._check_shapes(saved)
        self._optimizer.load_state_dict(self._laid_out(saved))
        if self.adam is not None:
            assert isinstance(self._optimizer, torch.optim.Adam)
            self.adam = Adam(self._optimizer, self._parameters)

    def _check_shapes(self, saved: Mapping[str, Any]) -> None:
        ours = [p for group in self._optimizer.param_groups for p in group["params"]]
        for i, values in saved["state"].items():
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape not in (ours[i].shape, torch.Size()):
                    raise ValueError(
                        f"{name} of a parameter {tuple(ours[i].shape)} is {tuple(value.shape)}"
                    )

    def _laid_out(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """Moments in the layout of their parameters, by which fused optimisers go through both."""
        ours = [p for group in self._optimizer.param_groups for p in group["params"]]
        state = {
            i: {name: _like(value, ours[i]) for name, value in values.items()}
            for i, values in saved["state"].items()
        }
        return {**saved, "state": state}

    # A step as a pure function

    def make_pure(self) -> bool:
        """Make ready for steps inside a graph; False where the optimiser has no such form."""
        if not Adam.suits(self._optimizer, self._parameters):
            return False
        if self.adam is None:
            assert isinstance(self._optimizer, torch.optim.Adam)
            self.adam = Adam(self._optimizer, self._parameters)
        return True

    def controls(self, step: int, held: Sequence[bool]) -> list[float]:
        """What step number ``step`` needs to be told; for :meth:`update`, after ``make_pure``.

        Args:
            step: From 0; the step is counted.
            held: Which parameters stay as they are.
        """
        assert self.adam is not None
        return self.adam.controls(self._rates[0] * self._factor(step), held)

    def update(
        self,
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        moments: Sequence[Tensor],
        controls: Sequence[Tensor],
        is_finite: Tensor,
    ) -> list[Tensor]:
        """New parameters, then new moments; arguments as of ``Adam.update``."""
        assert self.adam is not None
        if self._clip_norm is not None:
            gradients = clip(gradients, self._clip_norm, controls[2::3])
        return self.adam.update(parameters, gradients, moments, controls, is_finite)

    def _factor(self, step: int) -> float:
        if self._schedule == "constant":
            return 1.0
        if self._schedule == "rounds":
            return self.peak * step_size_factor(step, self._ends)
        return 0.5 * (1 + math.cos(math.pi * step / self._num_steps))


def _like(value: Any, parameter: Tensor) -> Any:
    if not isinstance(value, Tensor) or value.shape != parameter.shape:
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)


def _options(groups: Sequence[Mapping[str, Any]], rates: Sequence[float]) -> list[dict[str, Any]]:
    """The options of each group, with the step size of the start, as text."""
    return [
        {name: repr(value) for name, value in {**group, "lr": rate}.items()}
        for group, rate in zip(groups, rates, strict=True)
    ]


def _differing(these: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]]) -> str:
    if len(these) != len(others):
        return f"{len(these)} groups"
    return ", ".join(
        f"{name}={value}"
        for group, other in zip(these, others, strict=True)
        for name, value in group.items()
        if other.get(name) != value
    )


def takes_learning_rate(optimizer: MakeOptimizer | None) -> bool:
    """Whether the engine's learning rate is passed on: to a class, or a partial without its own."""
    if isinstance(optimizer, functools.partial):
        return isinstance(optimizer.func, type) and "lr" not in optimizer.keywords
    return optimizer is None or isinstance(optimizer, type)
