r"""Standardised units and the way back, :math:`z = (v - \mathrm{loc}) / \mathrm{scale}`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pyro_bnn.data.arrays import to_floating
from pyro_bnn.data.on_disk import pieces
from pyro_bnn.errors import DataError, ShapeError

ROUNDING = 2  # how many relative roundings numbers that should be equal differ by

FEWEST_STEPS = 1_000  # of a dtype, over which numbers beyond its whole ones may range


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
        if (bad := ~self.loc.isfinite()).any():
            raise DataError(f"loc of a Standardiser must be finite, got {_first(self.loc, bad)}")
        if (bad := ~(self.scale.isfinite() & (self.scale > 0))).any():
            raise DataError(
                "scale of a Standardiser must be finite and positive, got "
                f"{_first(self.scale, bad)}; a constant column takes scale 1"
            )

    @classmethod
    def fit(
        cls, values: Float[Tensor, "N ..."], rows: Int[Tensor, " R"] | None = None
    ) -> Standardiser:
        """Take mean and standard deviation (of the population, as divided by N) over the rows.

        Both are those of distances to the middle of the range, in units of the largest: neither
        the square of 1e200 nor the small spread of large numbers is lost.

        Args:
            values: ``[N]``, ``[N, I]``, or ``[N, C, ...]``; from three dimensions on, one
                mean and scale a channel C. Pass float64 to lose nothing; whole numbers become that.
            rows: Numbers of those that are taken; None for all. They are read piece by piece.

        Returns:
            A standardiser with shapes ``[]``, ``[I]``, or ``[C, 1, ...]``. A column without
            variation gets its value as ``loc`` and scale 1; one that varies by rounding alone, see
            :func:`constant_columns`, its magnitude as scale, where that is more than 1.

        Raises:
            DataError: If there are no values, or a column varies by less than its dtype can hold.
        """
        num_rows = len(values) if rows is None else len(rows)

        def parts() -> Iterator[Tensor]:
            for piece in pieces(num_rows, values.shape[1:]):
                part = values[piece] if rows is None else values[rows[piece]]
                yield part if part.is_floating_point() else to_floating(part)

        ranges = [_range(part) for part in parts()] or [_range(values)]
        low, high = (torch.stack(ends) for ends in zip(*ranges, strict=True))
        low, high = low.amin(0), high.amax(0)
        over, count = _over(values), num_rows * math.prod(values.shape[2:])
        middle = low / 2 + high / 2
        most = torch.maximum(high - middle, middle - low)
        most = torch.where(most > 0, most, torch.ones_like(most))
        # distances [n, I] are within -1 .. 1; in place: they are large
        sums = [(part - middle).div_(most).sum(over, keepdim=True) for part in parts()]
        mean = torch.stack(sums).sum(0) / count
        loc = middle + most * mean
        squares = [
            (part - middle).div_(most).sub_(mean).square_().sum(over, keepdim=True)
            for part in parts()
        ]
        scale = most * (torch.stack(squares).sum(0) / count).sqrt()
        constant = _is_rounding(low, high)
        loc = torch.where(constant, low, loc)
        unit = torch.maximum(low.abs(), high.abs()).clamp(min=1)  # so that rounding stays small
        unit = torch.where(low == high, torch.ones_like(unit), unit)
        scale = torch.where(constant, unit, scale)
        return cls(loc.squeeze(0), scale.squeeze(0))

    def transform(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Carry values in the user's units to standardised ones; the shape stays.

        Raises:
            ShapeError: If the values do not have the columns of the units.
        """
        return (self._wide(values) - self.loc) / self.scale

    def inverse(self, values: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
        """Carry standardised values back to the user's units; the shape stays.

        Raises:
            ShapeError: If the values do not have the columns of the units.
        """
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
        units, shape = self.loc.shape, values.shape
        last = shape[len(shape) - len(units) :]
        if len(shape) < len(units) or any(
            o not in (1, v) for o, v in zip(units, last, strict=True)
        ):
            raise ShapeError(
                f"values have shape {list(shape)}, but these units are those of {list(units)}: one "
                "column for each, in the order of the training rows"
            )
        # torch alone would not widen a vector by a loc without dimensions
        return values.to(torch.promote_types(values.dtype, self.loc.dtype))


def constant_columns(values: Float[Tensor, "N ..."]) -> Bool[Tensor, "1 ..."]:
    """Which columns are one number, up to the last digits of its dtype, which are rounding.

    Args:
        values: ``[N]``, ``[N, I]``, or ``[N, C, ...]``.

    Returns:
        ``[1]``, ``[1, I]``, or ``[1, C, 1, ...]``.

    Example:
        >>> constant_columns(torch.tensor([[0.3, 1.0], [0.1 + 0.2, 2.0]], dtype=torch.float64))
        tensor([[ True, False]])
    """
    low, high = _range(values)
    return _is_rounding(low, high)


def check_steps(
    values: Float[Tensor, "N ..."], what: str, names: Sequence[str] | None = None
) -> None:
    """Refuse large numbers that differ by a few steps of their dtype, which has lost the others.

    Args:
        values: ``[N]``, ``[N, I]``, or ``[N, C, ...]``.
        what: What they are called in the message.
        names: Of the columns of ``[N, I]``, where known.

    Raises:
        DataError: Names the first such column.
    """
    low, high = _range(values)
    step = torch.finfo(low.dtype).eps * torch.maximum(low.abs(), high.abs()) / 2
    bad = (step > 1) & (low < high) & (high / 2 - low / 2 < FEWEST_STEPS * step / 2)
    if bad.any():
        place = int(bad.flatten().nonzero()[0])
        column = repr(names[place]) if names else f"column {place}"
        where = f", {column}," if values.ndim > 1 else ""
        raise DataError(
            f"{what}{where} holds numbers near {float(low[bad][0]):.4g}, of which "
            f"{str(low.dtype)[6:]} has one in about {float(step[bad][0]):.2g}: different ones have "
            "become equal; subtract an offset before they become floating numbers, or drop an "
            "identifier"
        )


def _range(values: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and largest value of each column."""
    if values.numel() == 0:
        raise DataError(f"values {list(values.shape)} have no mean: expected [N] or [N, I], N > 0")
    over = _over(values)
    return values.amin(over, keepdim=True), values.amax(over, keepdim=True)


def _over(values: Tensor) -> list[int]:
    """The dimensions that a column spans."""
    return [0, *range(2, values.ndim)]


def _is_rounding(low: Tensor, high: Tensor) -> Tensor:
    digits = ROUNDING * torch.finfo(low.dtype).eps
    return high / 2 - low / 2 <= digits * torch.maximum(low.abs(), high.abs()) / 2  # no overflow


def _first(values: Tensor, bad: Tensor) -> str:
    """The first bad value, with its column and the number of such columns."""
    first = f"{float(values[bad][0]):.4g}"
    if values.numel() == 1:
        return first
    column = int(bad.flatten().nonzero()[0])
    return f"{first} in column {column} ({int(bad.sum())} such columns of {values.numel()})"
