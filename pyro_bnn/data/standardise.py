r"""Standardised units and the way back, :math:`z = (v - \mathrm{loc}) / \mathrm{scale}`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.errors import DataError


@dataclass(frozen=True, eq=False)
class Standardiser:
    r"""Affine map between the user's units and standardised ones.

    .. math:: z = (v - \mathrm{loc}) / \mathrm{scale}, \qquad v = \mathrm{loc} + \mathrm{scale}\, z

    A density of z becomes one of v by dividing it by ``scale``; a standard deviation by
    multiplying with it. Both ways are computed in the wider of the dtypes of the values and of
    ``loc``: with float64 units float32 values keep their precision beside a large ``loc``.

    Args:
        loc: Means in the user's units: ``[I]`` for inputs ``[N, I]``, ``[C, 1, 1]`` for images,
            ``[]`` for a target ``[N]``, ``[O]`` for ``[N, O]``.
        scale: Standard deviations in the same units and shape, > 0.

    Raises:
        DataError: If ``loc`` is not finite, ``scale`` not finite and positive, or their shapes
            differ.

    Example:
        >>> celsius = Standardiser(torch.tensor(20.0), torch.tensor(5.0))
        >>> celsius.transform(torch.tensor([25.0])), celsius.inverse(torch.tensor([-1.0]))
        (tensor([1.]), tensor([15.]))
    """

    loc: Tensor
    scale: Tensor

    def __post_init__(self) -> None:
        if self.loc.shape != self.scale.shape:
            raise DataError(
                f"loc and scale of a Standardiser must have one shape, got {list(self.loc.shape)} "
                f"and {list(self.scale.shape)}"
            )
        if not torch.isfinite(self.loc).all():
            raise DataError(f"loc of a Standardiser must be finite, got {self.loc.tolist()}")
        if not (torch.isfinite(self.scale) & (self.scale > 0)).all():
            raise DataError(
                f"scale of a Standardiser must be finite and positive, got {self.scale.tolist()}; "
                "a constant column takes scale 1"
            )

    @classmethod
    def fit(cls, values: Float[Tensor, "N ..."]) -> Standardiser:
        """Take mean and standard deviation (of the population, as divided by N) over the rows.

        Args:
            values: ``[N]``, ``[N, I]``, or ``[N, C, ...]``; from three dimensions on, one
                mean and scale a channel C. Pass float64 to lose nothing.

        Returns:
            A standardiser with shapes ``[]``, ``[I]``, or ``[C, 1, ...]``. A column without
            variation gets its value as ``loc`` and scale 1.
        """
        over = [0, *range(2, values.ndim)]
        loc = values.mean(over)
        scale = values.std(over, correction=0)
        low, high = values.amin(over), values.amax(over)
        constant = low == high  # the sd of equal numbers need not round to 0
        loc = torch.where(constant, low, loc)
        scale = torch.where(constant, torch.ones_like(scale), scale)
        trailing = (1,) * max(values.ndim - 2, 0)
        return cls(loc.reshape(loc.shape + trailing), scale.reshape(scale.shape + trailing))

    def transform(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Carry values in the user's units to standardised ones; the shape stays."""
        return (self._wide(values) - self.loc) / self.scale

    def inverse(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Carry standardised values back to the user's units; the shape stays."""
        return self.loc + self.scale * self._wide(values)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Standardiser:
        """Return the same map on another device or in another floating dtype.

        A device without float64, as MPS, takes float32.
        """
        if dtype is None and device is not None and torch.device(device).type == "mps":
            dtype = torch.float32
        return Standardiser(
            self.loc.to(device=device, dtype=dtype), self.scale.to(device=device, dtype=dtype)
        )

    def _wide(self, values: Tensor) -> Tensor:
        # said outright: a loc without dimensions does not widen a vector by torch's own rules
        return values.to(torch.promote_types(values.dtype, self.loc.dtype))
