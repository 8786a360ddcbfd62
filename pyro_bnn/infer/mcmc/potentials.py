"""What is sampled: minus the log joint and its gradient, of all chains at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pyro_bnn.errors import ModelError
from pyro_bnn.infer.mcmc.leapfrog import Potential
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch


class Target(NamedTuple):
    """A posterior that all chains sample, or one for each.

    Attributes:
        program: The model as tensor functions.
        potential: U and its gradient, of z ``[C, P]`` and ``data``.
        data: Inputs x, and targets y of all chains, or of each ``[C, ...]``.
        batches: The data of each chain ``[C]``, or of all ``[1]``.
    """

    program: Program
    potential: Potential
    data: Batch
    batches: Sequence[Batch]

    @property
    def has_many(self) -> bool:
        """Whether each chain has data of its own."""
        return len(self.batches) > 1


def of_one(program: Program, batch: Batch) -> Target:
    """The posterior of one data set."""
    params = {name: value.detach() for name, value in program.params.items()}

    def log_joint(z: Tensor, batch: Batch) -> Tensor:
        return program.log_joint(z, batch, params)

    return Target(program, _potential(log_joint), batch, [batch])


def of_each(program: Program, batches: Sequence[Batch]) -> Target:
    """The posteriors of data sets with the same inputs, one for each chain.

    Its potential raises ModelError if the model cannot be batched over data sets.
    """
    params = {name: value.detach() for name, value in program.params.items()}

    def log_joint(z: Tensor, batch: Batch) -> Tensor:
        def one(z: Tensor, y: Tensor) -> Tensor:
            return program.log_joint(z, Batch(batch.x, y), params)

        try:
            return torch.func.vmap(one)(z, batch.y)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ModelError(
                "the model cannot be batched over data sets: run it on one at a time "
                f"({str(error).strip().splitlines()[0]})"
            ) from error

    data = Batch(batches[0].x, torch.stack([batch.y for batch in batches]))
    return Target(program, _potential(log_joint), data, batches)


def _potential(log_joint: Callable[[Tensor, Batch], Tensor]) -> Potential:
    """U and its gradient as a pure function of z ``[C, P]`` and the data."""

    def potential(z: Tensor, *data: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            value = -log_joint(z, Batch(*data))
            (grad,) = torch.autograd.grad(value.sum(), z)
        return value.detach(), grad

    return potential
