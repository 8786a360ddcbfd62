"""What is sampled: U, minus the log joint, and its gradient, of all chains at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from pyro_bnn.errors import ModelError
from pyro_bnn.program.batched import without_vmap_warnings
from pyro_bnn.program.joint import Joint
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import Batch

Potential: TypeAlias = Callable[..., tuple[Tensor, Tensor]]
"""Maps z ``[C, P]``, and maybe data, to U ``[C]``, minus the log density, and its gradient."""


class TargetDensity(NamedTuple):
    """A posterior that all chains sample, or one for each.

    Attributes:
        program: The model as tensor functions.
        potential: U and its gradient, of z ``[C, P]`` and ``data``.
        data: Inputs x, and targets y of all chains, or of each ``[C, ...]``; nothing where the
            arguments of the model are fixed.
        batches: The model's arguments of each chain ``[C]``, or of all ``[1]``; None for fixed
            ones.
    """

    program: Joint
    potential: Potential
    data: Sequence[Tensor]
    batches: Sequence[Sequence[Any] | None]

    @property
    def has_many(self) -> bool:
        """Whether each chain has data of its own."""
        return len(self.batches) > 1


def of_one(joint: Joint, rows: Batch) -> TargetDensity:
    """The posterior of one data set, or of a model at its arguments, whose plate takes rows."""
    return TargetDensity(joint, _of_rows(joint, rows.x.ndim), rows, [joint.arguments(rows)])


def of_call(joint: Joint) -> TargetDensity:
    """The posterior of a model at the arguments that it was traced with."""
    params = {name: value.detach() for name, value in joint.params.items()}
    potential = _potential(lambda z: joint.log_joint(z, params=params))
    return TargetDensity(joint, potential, (), [None])


def of_each(program: Program, batches: Sequence[Batch]) -> TargetDensity:
    """The posteriors of data sets with the same inputs, one for each chain.

    Its potential raises ModelError if the model cannot be batched over data sets.
    """
    log_joint = _log_joint(program)

    def log_joints(z: Tensor, x: Tensor, y: Tensor) -> Tensor:  # [C]
        try:
            return torch.func.vmap(log_joint, in_dims=(0, None, 0))(z, x, y)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise ModelError(
                "the model cannot be batched over data sets: run it on one at a time "
                f"({str(error).strip().splitlines()[0]})"
            ) from error

    data = Batch(batches[0].x, torch.stack([batch.y for batch in batches]))
    return TargetDensity(program, _potential(log_joints), data, batches)


def potential_of(program: Program) -> Potential:
    """U and its gradient as a pure function of z ``[C, P]`` and rows; see :func:`of_one`."""
    return _of_rows(program, program.example.x.ndim)


def _of_rows(joint: Joint, ndim: int) -> Potential:
    """U and its gradient as a pure function of z ``[C, P]`` and rows x and y.

    Rows are those of all chains ``[B, ...]``, or of each ``[C, B, ...]``; the likelihood is scaled
    to all rows.

    Args:
        joint: The model.
        ndim: Number of dimensions of rows x of all chains.
    """
    log_joint = _log_joint(joint)

    def log_joints(z: Tensor, x: Tensor, y: Tensor) -> Tensor:  # [C]
        if x.ndim == ndim:
            return log_joint(z, x, y)
        if joint.is_batched:
            with without_vmap_warnings():
                return torch.func.vmap(log_joint)(z, x, y)
        return torch.stack([log_joint(*chain) for chain in zip(z, x, y, strict=True)])

    return _potential(log_joints)


def _log_joint(joint: Joint) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    params = {name: value.detach() for name, value in joint.params.items()}
    return lambda z, x, y: joint.log_joint(z, joint.arguments(Batch(x, y)), params)


def _potential(log_joints: Callable[..., Tensor]) -> Potential:
    def potential(z: Tensor, *data: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            value = -log_joints(z, *data)
            (grad,) = torch.autograd.grad(value.sum(), z)
        return value.detach(), grad

    return potential
