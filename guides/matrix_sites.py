"""What guides over weight matrices share: which sites of a model are matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from pyro_bnn.errors import SiteError
from pyro_bnn.guides.guide import ScaledGuide
from pyro_bnn.guides.parts.matrices import Layout
from pyro_bnn.program.handlers import Evaluate
from pyro_bnn.sites import Site


class MatrixGuide(ScaledGuide, is_base=True):
    """Base of guides that treat weight matrices as matrices and all other sites entry by entry.

    A matrix is a real site ``[O, I]`` with O and I above 1. The names of the matrices are part of
    the guide's state.

    Attributes:
        takes_filters: Whether the weights ``[O, I, ...]`` of a convolution are matrices too: a row
            for each output channel, a column for each input channel and position.
        instead: The guides that a message names where a model has no matrix.
    """

    takes_filters: ClassVar[bool] = False
    instead: ClassVar[str] = "AutoNormal"
    own_state: ClassVar[Mapping[str, str]] = {"matrices": "_matrices"}
    _matrices: tuple[str, ...] = ()  # names of the sites
    _layout: Layout

    def check_model(self, sites: Sequence[Site], run: Evaluate) -> None:  # noqa: ARG002
        """Find the model's matrices.

        Raises:
            SiteError: If it has none.
        """
        matrices = tuple(site.name for site in sites if self._is_matrix(site))
        if not matrices:
            listed = (
                f"{site.name} {tuple(site.shape)}{'' if site.is_real else ' (not real)'}"
                for site in sites
            )
            filters = " or filters [O, I, ...]" if self.takes_filters else ""
            raise SiteError(
                f"{type(self).__name__} needs a real latent site whose value is a matrix [O, I]"
                f"{filters} with O and I above 1; there are {', '.join(listed)}: use {self.instead}"
            )
        if not self._shapes:  # else the loaded parameters bring them
            self._matrices = matrices

    def _is_matrix(self, site: Site) -> bool:
        fits = len(site.shape) == 2 or (self.takes_filters and len(site.shape) > 2)
        return site.is_real and fits and min(site.shape[0], site.shape[1:].numel()) > 1

    def by_site(self, factors: Sequence[tuple[Tensor, Tensor]]) -> dict[str, tuple[Tensor, Tensor]]:
        """The two factors of each matrix, detached, by the name of its site.

        Args:
            factors: Both factors ``[G, ...]`` of each group of G matrices of one shape.
        """
        of_shape = {
            shape: zip(A.detach(), B.detach(), strict=True)
            for shape, (A, B) in zip(self._layout.groups, factors, strict=True)
        }
        shapes = {name: (shape[0], n // shape[0]) for name, shape, n in self._shapes if shape}
        return {name: next(of_shape[shapes[name]]) for name in self._matrices}
