"""The contract of an estimator: another likelihood term of the ELBO than that of draws of z."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pyro_bnn.guides import AutoNormal, Guide
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import RowEstimate


def is_factorised(guide: object) -> bool:
    """Whether draws of a guide, or of a class, are those of ``AutoNormal``: independent normal."""
    cls = guide if isinstance(guide, type) else type(guide)
    return issubclass(cls, AutoNormal) and cls.transport is AutoNormal.transport


def has_own_noise(guide: object) -> bool:
    """Whether entries of z are independent Gaussians given the rest of the noise of a draw.

    A subclass that draws in another way than the class that told so does not.
    """
    cls = guide if isinstance(guide, type) else type(guide)
    if not issubclass(cls, Guide) or cls.own_noise is Guide.own_noise:
        return False
    told = next(base for base in cls.__mro__ if "own_noise" in vars(base))
    drawn = next(base for base in cls.__mro__ if "transport" in vars(base))
    return issubclass(told, drawn)


class Estimator(RowEstimate):
    """An estimate of the likelihood term under guides of one kind.

    Args:
        program: The model as tensor functions.

    Attributes:
        name: As ``SVI(estimator=...)`` takes it.
        takes: Which guides it serves, for messages.
        compares: Whether snapshots of a fit are compared by it, whatever the default of the guide.
        is_bound: Whether it is below the expectation: what is maximised is below the ELBO.
        is_exact: Whether noise changes nothing.
        numbers_a_row: Intermediate numbers for a row and particle, where these are many.
        nodes: Noise ``[S, M]`` of the draws in the KL where these are fixed, or None.
        row_numbers: Numbers of noise a row and particle.
    """

    name: ClassVar[str]
    takes: ClassVar[str] = "independent Gaussian weights, as guides.AutoNormal has them"
    compares: ClassVar[bool] = False
    is_bound: bool = False
    is_exact: bool = False
    numbers_a_row: int = 0
    nodes: Tensor | None = None
    row_numbers: int = 0

    def __init__(self, program: Program) -> None:
        self.program = program

    @classmethod
    def serves(cls, guide: object) -> bool:
        """Whether it serves a guide, or a class of guides."""
        return is_factorised(guide)

    @classmethod
    def of(cls, program: Program, guide: Guide) -> Estimator:  # noqa: ARG003
        """The estimator for one model and guide."""
        return cls(program)

    def row_noise(self, num_particles: int, num_rows: int, generator: torch.Generator) -> Tensor:
        """Noise ``[S, B, R]`` of rows, beside that of the draws of z."""
        size = (num_particles, num_rows, self.row_numbers)
        like = self.program.initial
        return torch.randn(size, generator=generator, dtype=like.dtype, device=like.device)
