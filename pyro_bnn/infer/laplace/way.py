"""The precisions of a run of Laplace: those by which the mode is found, and that at the mode."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeAlias

from torch import Tensor

from pyro_bnn.infer.laplace.bar import Bar
from pyro_bnn.infer.laplace.curvature import CurvatureOf
from pyro_bnn.infer.laplace.hessian import HessianOf

AnyCurvature: TypeAlias = CurvatureOf | HessianOf


class AnyWay(Protocol):
    """What gives them, once the steps of Adam are done."""

    def to_mode(self, z: Tensor, bar: Bar) -> AnyCurvature:
        """Those on the way from z ``[P]``, whose objective tells a bar which rows it reads."""

    def at_mode(self, z: Tensor) -> AnyCurvature | None:
        """That of the Gaussian at a mode z ``[P]``; None where its entries are to be found."""


class Way(NamedTuple):
    """Precisions that do not depend on the steps.

    Attributes:
        on_the_way: That by which the mode is found.
        of_mode: That of the Gaussian; None where its entries are to be found.
    """

    on_the_way: AnyCurvature
    of_mode: AnyCurvature | None

    def to_mode(self, z: Tensor, bar: Bar) -> AnyCurvature:  # noqa: ARG002
        """The same from anywhere."""
        self.on_the_way.objective.bar = bar
        return self.on_the_way

    def at_mode(self, z: Tensor) -> AnyCurvature | None:  # noqa: ARG002
        """The same at any mode."""
        return self.of_mode
