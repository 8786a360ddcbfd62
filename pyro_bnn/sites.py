r"""Sample sites of a model: their shapes, supports, and places in the flat vector z.

Torch's ``biject_to`` maps unconstrained numbers onto supports, but for triangular and positive
definite matrices, for which its maps take more numbers than there are entries. Those are here: L
is lower triangular with :math:`L_{ii} = \exp u_{ii}` and :math:`L_{ij} = u_{ij}` for
:math:`j < i`, and :math:`\Sigma = L L^\top` of n rows has, over the entries on and below the
diagonal,

.. math:: \log|\det \partial L / \partial u| = \sum_i u_{ii}, \qquad
          \log|\det \partial \Sigma / \partial L|
          = n \log 2 + \sum_{i=1}^n (n - i + 1) \log L_{ii}

References:
    Stan Development Team, "Stan Reference Manual", chapter "Constraint Transforms", section
    "Covariance Matrices".
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributions import ComposeTransform, Transform, biject_to, constraints

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
        return u if self.is_real else cast("Tensor", bijection(self._in_run(support))(u))

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
        transform = bijection(self._in_run(support))
        log_det = transform.log_abs_det_jacobian(u, transform(u))
        return cast("Tensor", log_det.reshape((*entries.shape[:-1], -1)).sum(-1))

    def flatten(self, value: Tensor, support: constraints.Constraint | None = None) -> Tensor:
        """The unconstrained entries ``[..., stop - start]`` of values ``[..., *shape]``."""
        batch = value.shape[: value.ndim - len(self.shape)]
        u = value if self.is_real else bijection(self._in_run(support)).inv(value)
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
    return torch.Size(bijection(support).inverse_shape(shape))


def base_support(support: constraints.Constraint) -> constraints.Constraint:
    """The support of one entry, inside ``independent``."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def bijection(support: constraints.Constraint) -> Any:
    """The map from unconstrained numbers onto a support, as a transform of torch.

    Raises:
        NotImplementedError: If there is none.
    """
    try:
        return biject_to(support)
    except NotImplementedError:
        return _own(support)


def _own(support: Any) -> Any:
    if isinstance(support, constraints.independent):
        return bijection(support.base_constraint)
    if isinstance(support, constraints.MixtureSameFamilyConstraint):
        base = support.base_constraint  # of all components, if its bounds are numbers
        if not any(isinstance(bound, Tensor) for bound in vars(base).values()):
            return bijection(base)
    if type(support).__name__ in ("_LowerCholesky", "_SoftplusLowerCholesky"):  # torch's, Pyro's
        return LowerCholesky()
    if type(support) is type(constraints.positive_definite):
        return ComposeTransform([LowerCholesky(), Gram()])
    raise NotImplementedError(f"no numbers map one to one onto {support}")


class LowerCholesky(Transform):
    """From n (n + 1) / 2 numbers, row by row, to a triangle with the exponential on its diagonal.

    Example:
        >>> LowerCholesky()(torch.tensor([0.0, 5.0, math.log(2.0)]))
        tensor([[1., 0.],
                [5., 2.]])
    """

    domain = constraints.real_vector
    codomain = constraints.lower_cholesky
    bijective = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LowerCholesky)

    __hash__ = Transform.__hash__

    def _call(self, u: Tensor) -> Tensor:
        size = _num_rows(u.shape[-1])
        row = torch.arange(size, device=u.device)
        places = (row * (row + 1) // 2)[:, None] + row  # [n, n], past the row above the diagonal
        matrix = u[..., places.tril()]
        return matrix.tril(-1) + matrix.diagonal(dim1=-2, dim2=-1).exp().diag_embed()

    def _inverse(self, tril: Tensor) -> Tensor:
        size = tril.shape[-1]
        logs = tril.diagonal(dim1=-2, dim2=-1).log().diag_embed()
        rows, columns = torch.tril_indices(size, size, device=tril.device)
        return (tril.tril(-1) + logs)[..., rows, columns]

    def log_abs_det_jacobian(self, u: Tensor, tril: Tensor) -> Tensor:
        """Sum of the logarithms of the diagonal."""
        row = torch.arange(tril.shape[-1], device=u.device)
        return u[..., row * (row + 3) // 2].sum(-1)

    def forward_shape(self, shape: Any) -> Any:
        """Shape ``[..., n, n]`` from ``[..., n (n + 1) / 2]``."""
        size = _num_rows(shape[-1])
        return torch.Size((*shape[:-1], size, size))

    def inverse_shape(self, shape: Any) -> Any:
        """The reverse."""
        return torch.Size((*shape[:-2], shape[-1] * (shape[-1] + 1) // 2))


class Gram(Transform):
    """From a triangle L with a positive diagonal to L L^T.

    Example:
        >>> Gram()(torch.tensor([[1.0, 0.0], [5.0, 2.0]]))
        tensor([[ 1.,  5.],
                [ 5., 29.]])
    """

    domain = constraints.lower_cholesky
    codomain = constraints.positive_definite
    bijective = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Gram)

    __hash__ = Transform.__hash__

    def _call(self, tril: Tensor) -> Tensor:
        matrix: Tensor = tril @ tril.mT
        return matrix

    def _inverse(self, matrix: Tensor) -> Tensor:
        tril: Tensor = torch.linalg.cholesky(matrix)
        return tril

    def log_abs_det_jacobian(self, tril: Tensor, matrix: Tensor) -> Tensor:
        """Over the entries on and below the diagonal."""
        size = matrix.shape[-1]
        powers = torch.arange(size, 0, -1, device=tril.device)
        logs: Tensor = powers * tril.diagonal(dim1=-2, dim2=-1).log()
        return logs.sum(-1) + size * math.log(2.0)


def _num_rows(count: int) -> int:
    """Rows n of a triangle of n (n + 1) / 2 entries."""
    return (math.isqrt(8 * count + 1) - 1) // 2
