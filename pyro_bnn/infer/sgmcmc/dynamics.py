"""What every method is: its options, and one step of its own maths on a batch of chains."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_bnn.checks import check_positive, check_positive_int
from pyro_bnn.errors import OptionError
from pyro_bnn.infer.compiling import check_compile

ChainState: TypeAlias = dict[str, Tensor]
"""Tensors of all chains by name, ``"z"`` ``[C, P]`` the first of them."""

Control: TypeAlias = Literal["mode", "svrg"]
HEAT = 0.05  # by which the noise of batches may raise the temperature, on average over coordinates


class StepInputs(NamedTuple):
    """What a step takes beside the state and the gradient.

    Attributes:
        step_size: The step h, ``[]``.
        temperature: Temperature T of the noise, ``[]``; 0 where a cycle explores.
        adapts: 1 in the warm-up, in which a method may change what it goes by, else 0, ``[]``.
        variance: Variance V of the gradient's entries over batches ``[C, P]``.
    """

    step_size: Tensor
    temperature: Tensor
    adapts: Tensor
    variance: Tensor


@dataclass(frozen=True, kw_only=True)
class Dynamics(ABC):
    r"""Options that all methods share, and what a method writes: its state and its step.

    The target is :math:`\exp(-U(z) / T)`, U minus the log joint. A step gets the gradient of U at
    z, estimated from a batch.
    """

    num_chains: int = 4
    warmup_steps: int = 5_000
    num_samples: int = 1_000
    thin: int = 20
    step_size: float | None = None
    batch_size: int | None = None
    control: Control | None = None
    temperature: float = 1.0
    compile: Literal["auto"] | bool = "auto"

    step_power: ClassVar[float] = (
        0.5  # of a schedule's factor, which is of h^2 where there are momenta
    )
    has_own_scale: ClassVar[bool] = False  # whether it finds steps for each coordinate by itself
    uses_variance: ClassVar[bool] = False  # whether its noise makes room for that of the batches
    undoes_noise: ClassVar[bool] = False  # whether it assumes the noise of batches independent

    def __post_init__(self) -> None:
        for name in ("num_chains", "num_samples", "thin"):
            check_positive_int(name, getattr(self, name))
        check_positive_int("warmup_steps", self.warmup_steps, minimum=0)
        if self.batch_size is not None:
            check_positive_int("batch_size", self.batch_size)
        if self.step_size is not None:
            check_positive("step_size", self.step_size)
        check_positive("temperature", self.temperature)
        if self.control not in (None, "mode", "svrg"):
            raise OptionError(f'control is "mode", "svrg" or None, not {self.control!r}')
        check_compile(self.compile)

    @abstractmethod
    def begin(self, z: Tensor, normal: Tensor, curvature: Tensor) -> ChainState:
        """The state of chains that start at z.

        Args:
            z: Where ``[C, P]``, in the coordinates of the steps.
            normal: Normal numbers of variance T ``[C, P]``.
            curvature: Of U along each coordinate ``[P]``.
        """

    @abstractmethod
    def step(
        self, state: ChainState, slope: Tensor, noise: Tensor, inputs: StepInputs
    ) -> ChainState:
        """The state after a step: a pure function of tensors.

        Args:
            state: That before it.
            slope: Estimate of the gradient of U at its z ``[C, P]``.
            noise: Normal numbers ``[C, P]``.
            inputs: Step size, temperature, and what else a step takes.
        """

    @abstractmethod
    def largest_step(self, curvature: float, variance: float) -> float:
        """The step size that a warm-up chooses, where none is given.

        Args:
            curvature: Largest eigenvalue of the Hessian of U.
            variance: Variance of the gradient's entries over batches, their mean, over T.
        """

    def scale(self, state: ChainState) -> Tensor:
        """Scales ``[C, P]`` of coordinates in which the steps are all alike; else ones."""
        return torch.ones_like(state["z"])

    def lacks_room(self, step_size: float, variance: Tensor) -> float:
        """Share of coordinates in which batches are noisier than a step's own noise may be."""
        del step_size, variance
        return 0.0
