"""Sample sites of a model: their shapes, supports, and places in the flat vector z."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.distributions import biject_to, constraints

from pyro_bnn.errors import SiteError


@dataclass(frozen=True)
class Site:
    """One latent site of a model, and its slice of the flat unconstrained vector z.

    Attributes:
        name: Name of the sample site.
        shape: Shape of the value, batch and event together.
        support: Constraint that the value obeys.
        start: First entry of the site in z.
        stop: One past its last entry in z.
        unconstrained_shape: Shape of the unconstrained value.
        is_dependent: Whether the support depends on another site or on a parameter, as that of
            ``Uniform(0, high)`` does where ``high`` is a site. Then ``support`` is the one of the
            traced draw, and methods here need that of the run at hand.
    """

    name: str
    shape: torch.Size
    support: constraints.Constraint
    start: int
    stop: int
    unconstrained_shape: torch.Size
    is_dependent: bool = False

    @property
    def is_real(self) -> bool:
        """Whether the unconstrained value is the value itself."""
        return not self.is_dependent and is_real(self.support)

    def unconstrained(self, z: Tensor) -> Tensor:
        """The site's unconstrained value ``[..., *shape]`` out of z ``[..., P]``."""
        return self._shaped(z[..., self.start : self.stop])

    def value(self, z: Tensor) -> Tensor:
        """The site's value ``[..., *shape]`` out of z ``[..., P]``."""
        return self.value_of(z[..., self.start : self.stop])

    def value_of(self, entries: Tensor, support: constraints.Constraint | None = None) -> Tensor:
        """The site's value ``[..., *shape]`` from its entries of z alone.

        Args:
            entries: ``[..., stop - start]``.
            support: Of a dependent site: its support in the run at hand.

        Raises:
            SiteError: If the site is dependent and no support is given.
        """
        u = self._shaped(entries)
        return u if self.is_real else cast("Tensor", biject_to(self._in_run(support))(u))

    def _in_run(self, support: constraints.Constraint | None) -> constraints.Constraint:
        if support is None and self.is_dependent:
            raise SiteError(
                f"the support of the site {self.name!r} depends on other sites or parameters, so "
                "that its entries of z alone do not tell its value: use joint.constrain(z) and "
                "joint.unconstrain(values), which run the model"
            )
        return self.support if support is None else support

    def _shaped(self, entries: Tensor) -> Tensor:
        return entries.reshape((*entries.shape[:-1], *self.unconstrained_shape))

    def log_abs_det_jacobian(self, z: Tensor) -> Tensor:
        r""":math:`\log|\partial\,\mathrm{value}/\partial z|` ``[...]`` of z ``[..., P]``."""
        return self.log_abs_det_jacobian_of(z[..., self.start : self.stop])

    def log_abs_det_jacobian_of(
        self, entries: Tensor, support: constraints.Constraint | None = None
    ) -> Tensor:
        """The same, from the site's entries of z alone; see :meth:`value_of`."""
        if self.is_real:
            return entries.new_zeros(entries.shape[:-1])
        u = self._shaped(entries)
        transform = biject_to(self._in_run(support))
        log_det = transform.log_abs_det_jacobian(u, transform(u))
        return cast("Tensor", log_det.reshape((*entries.shape[:-1], -1)).sum(-1))

    def flatten(self, value: Tensor, support: constraints.Constraint | None = None) -> Tensor:
        """The unconstrained entries ``[..., stop - start]`` of values ``[..., *shape]``."""
        batch = value.shape[: value.ndim - len(self.shape)]
        u = value if self.is_real else biject_to(self._in_run(support)).inv(value)
        return u.reshape((*batch, self.stop - self.start))

    def require_shape(self, shape: torch.Size, support: constraints.Constraint) -> None:
        """Check that the site has its shape in another run, too, and as many entries of z.

        Raises:
            SiteError: If it has not: z would have another length there.
        """
        if shape != self.shape or shape_of_entries(support, shape) != self.unconstrained_shape:
            raise SiteError(
                f"the site {self.name!r} has shape {tuple(self.shape)} and support {self.support} "
                f"in one run of the model, and {tuple(shape)} and {support} in another: the number "
                "of unknowns depends on the value of a site. Sample the site at its largest shape, "
                "and take the part that is needed"
            )


def require_sites(covered: Collection[str], sites: Sequence[Site]) -> None:
    """Check that a guide covers every latent site of a model.

    Raises:
        SiteError: If it misses one.
    """
    if missing := [site.name for site in sites if site.name not in covered]:
        raise SiteError(
            f"the guide does not cover {', '.join(map(repr, missing))}: every latent site of the "
            "model needs a sample statement of the same name in the guide"
        )


def is_real(support: constraints.Constraint) -> bool:
    """Whether values under this constraint are any real numbers."""
    return type(base_support(support)) is type(constraints.real)  # a copy has the same type


def shape_of_entries(support: constraints.Constraint, shape: torch.Size) -> torch.Size:
    """Shape of the unconstrained value of a value of this support and shape."""
    return torch.Size(biject_to(support).inverse_shape(shape))


def base_support(support: constraints.Constraint) -> constraints.Constraint:
    """The support of one entry, inside ``independent``."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support
