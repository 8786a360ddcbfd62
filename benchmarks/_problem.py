"""The problem that all solve; here without torch, which not everyone needs.

It is one for all: a ReLU network, a prior N(0, 1) on every weight and bias, Gaussian noise of
known standard deviation, N rows of which a step sees a batch of B, scaled by N/B, one draw a step,
Adam.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

LEARNING_RATE = 1e-2
NOISE_SD = 0.1
PRIOR_SD = 1.0
INIT_SCALE = 0.1  # sd at the start, of Pyro's and NumPyro's guides, whose means start at 0


@dataclass(frozen=True)
class Problem:
    """A network and its data.

    Attributes:
        num_inputs: Columns I of x.
        hidden: Units of each hidden layer.
        batch: Rows B of a step.
        num_data: Rows N of the data set.
    """

    num_inputs: int
    hidden: tuple[int, ...]
    batch: int
    num_data: int = 10_000

    @property
    def sizes(self) -> tuple[int, ...]:
        """Units of every layer, inputs and the one output included."""
        return (self.num_inputs, *self.hidden, 1)

    @property
    def net(self) -> str:
        """The network in short, ``"10-50-1"``."""
        return "-".join(map(str, self.sizes))

    @property
    def num_weights(self) -> int:
        """Weights and biases P."""
        return sum((i + 1) * o for i, o in itertools.pairwise(self.sizes))

    def arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """x ``[N, I]`` and y ``[N]``, float32, the same in every call."""
        generator = np.random.default_rng(0)
        x = generator.standard_normal((self.num_data, self.num_inputs), dtype=np.float32)
        noise = generator.standard_normal(self.num_data, dtype=np.float32)
        return x, np.sin(x[:, 0]) + np.float32(NOISE_SD) * noise

    def data(self, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """:meth:`arrays` as tensors."""
        import torch

        x, y = (torch.from_numpy(values).to(device) for values in self.arrays())
        return x, y

    def batch_of(self, device: str = "cpu") -> tuple[Tensor, Tensor]:
        """The rows of every step: x ``[B, I]`` and y ``[B]``, the first of the data."""
        x, y = self.data(device)
        return x[: self.batch].clone(), y[: self.batch].clone()


@dataclass(frozen=True)
class Contender:
    """One library on one problem, set up.

    Attributes:
        name: For the tables.
        advance: Makes some optimiser steps.
        setup: Seconds from imported libraries to the end of the first step: tracing, capture,
            compiling.
        copies: How often a step evaluates each row of its batch.
    """

    name: str
    advance: Callable[[int], None]
    setup: float
    copies: int = 1
