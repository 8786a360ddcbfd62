"""The contract of an estimator: the likelihood term of the ELBO under a factorised Gaussian."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from pyro_bnn.guides import AutoNormal
from pyro_bnn.program.program import Program
from pyro_bnn.program.terms import RowEstimate


def is_factorised(guide: object) -> bool:
    """Whether draws of a guide, or of a class, are those of ``AutoNormal``: independent normal."""
    cls = guide if isinstance(guide, type) else type(guide)
    return issubclass(cls, AutoNormal) and cls.transport is AutoNormal.transport


class Estimator(RowEstimate):
    """An estimate of the likelihood term under a factorised Gaussian.

    Args:
        program: The model as tensor functions.

    Attributes:
        name: As ``SVI(estimator=...)`` takes it.
        nodes: Noise ``[S, M]`` of the draws in the KL where these are fixed, or None.
        row_numbers: Numbers of noise a row and particle.
    """

    name: ClassVar[str]
    nodes: Tensor | None = None
    row_numbers: int = 0

    def __init__(self, program: Program) -> None:
        self.program = program

    def row_noise(self, num_particles: int, num_rows: int, generator: torch.Generator) -> Tensor:
        """Noise ``[S, B, R]`` of rows, beside that of the draws of z."""
        size = (num_particles, num_rows, self.row_numbers)
        like = self.program.initial
        return torch.randn(size, generator=generator, dtype=like.dtype, device=like.device)
