"""Rows of inputs and targets in the units a network sees, with the way back to the user's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from pyro_bnn.data import arrays
from pyro_bnn.data.arrays import ArrayLike
from pyro_bnn.data.labels import coded
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.errors import DataError, OptionError, ShapeError

LARGEST_ROUNDING = 0.01  # with more, whole numbers cannot be told from others


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Dataset:
    """Inputs x and targets y, N rows each, checked once.

    Floating data get the dtype of the floating tensors given, so float64 tensors stay float64, and
    half precision becomes float32; NumPy arrays, pandas objects and lists get torch's default
    dtype, float32. Whole numbers and truth values become int64: in y they are class labels or
    counts; in x an embedding looks them up, and any other model casts them to floating numbers.

    Args:
        x: Inputs ``[N, I]``, or ``[N, C, H, W]`` for convolutions, finite, in standardised units if
            ``inputs`` is given.
        y: Targets ``[N]`` or ``[N, O]``: floating for regression, in standardised units if
            ``target`` is given; class labels ``[N]`` int64 from 0, or text: the ``class_names``,
            without which those in y are the classes, in alphabetical order.
        inputs: Carries x back to the user's units; None if they are the user's.
        target: The same for y; None for class labels.
        input_names: The I names, taken from a pandas data frame where not given.
        target_name: Name of y with its unit, taken from a pandas series where not given.
        class_names: The C names of the classes, for labels 0 .. C-1.
        target_names: The O names of several targets, taken from a pandas data frame where not
            given.

    Raises:
        DataError: If there are no rows, a value is NaN or infinite or not a number, or a
            label is negative or beyond ``class_names``, or a text is not among them.
        ShapeError: If shapes do not fit each other.

    Example:
        >>> data = Dataset([[0.0], [1.0], [2.0]], [0.1, 0.9, 2.1])
        >>> data
        Dataset(x [3, 1] float32, y [3] float32)
        >>> len(data), data.num_classes
        (3, None)
    """

    x: Tensor
    y: Tensor
    inputs: Standardiser | None = None
    target: Standardiser | None = None
    input_names: tuple[str, ...] | None = None
    target_name: str | None = None
    class_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None

    def __init__(
        self,
        x: ArrayLike,
        y: ArrayLike,
        inputs: Standardiser | None = None,
        target: Standardiser | None = None,
        input_names: Sequence[str] | None = None,
        target_name: str | None = None,
        class_names: Sequence[str] | None = None,
        target_names: Sequence[str] | None = None,
    ) -> None:
        dtype = arrays.float_dtype(x, y)
        input_names = arrays.column_names(x) if input_names is None else tuple(input_names)
        target_names = arrays.column_names(y) if target_names is None else tuple(target_names)
        target_name = arrays.series_name(y) if target_name is None else target_name
        y, class_names = coded(y, class_names)
        x = arrays.to_tensor(x, "x")
        y = arrays.to_tensor(y, "y").to(x.device)
        arrays.check_rows(x, y)
        if input_names is not None and len(input_names) != x.shape[1]:
            raise ShapeError(f"x has {x.shape[1]} columns but {len(input_names)} input_names")
        arrays.check_finite(x, "x", input_names)
        arrays.check_finite(y, "y")
        if x.is_floating_point() or inputs is not None:
            x = arrays.cast(x, dtype, "x")
        if y.is_floating_point():
            y = arrays.cast(y, dtype, "y")
        else:
            _check_whole(y, target, class_names)
        for units, values in ((inputs, x), (target, y)):
            if units is not None:
                units.transform(values[:1])  # refuses those of other columns
        if y.ndim < 2 or y.shape[1] == 1:
            target_names = None
        elif target_names is not None and len(target_names) != y.shape[1]:
            raise ShapeError(f"y has {y.shape[1]} columns, but {len(target_names)} target_names")
        class_names = None if class_names is None else tuple(class_names)
        _check_names(*(input_names or ()), *(target_names or ()), *(class_names or ()), target_name)
        values = (x, y, inputs, target, input_names, target_name, class_names, target_names)
        self.__dict__.update(zip((field.name for field in fields(self)), values, strict=True))

    def __len__(self) -> int:
        return int(self.x.shape[0])

    def __repr__(self) -> str:
        parts = [
            f"{name} {list(values.shape)} {str(values.dtype)[6:]}"
            for name, values in (("x", self.x), ("y", self.y))
        ]
        name = "" if self.target_name is None else f", target_name={self.target_name!r}"
        return f"Dataset({', '.join(parts)}{name})"

    @property
    def num_classes(self) -> int | None:
        """Number of classes C, from ``class_names`` or the largest label; None for regression."""
        if self.y.is_floating_point():
            return None
        return int(self.y.max()) + 1 if self.class_names is None else len(self.class_names)

    def rows(
        self, index: Int[Tensor, " B"] | Bool[Tensor, " N"] | Sequence[int] | Sequence[bool]
    ) -> Dataset:
        """Return some rows with the same units and names.

        Args:
            index: Numbers ``[B]`` of the rows, negative ones from the end, or a mask ``[N]``.

        Raises:
            DataError: If there are no rows.
            OptionError: If ``index`` is neither, or names a row that does not exist.
        """
        numbers = np.asarray(index.cpu() if isinstance(index, Tensor) else index)
        if not numbers.size:  # an empty list is of floats
            numbers = numbers.astype(np.int64)
        try:
            kept = torch.as_tensor(np.arange(len(self))[numbers], device=self.x.device)
        except IndexError as error:
            raise OptionError(
                f"index has numbers of {len(self)} rows, or as many truth values: {error}"
            ) from error
        return replace(self, x=self.x[kept], y=self.y[kept])

    def raw(self) -> tuple[Tensor, Tensor]:
        """Return x and y in the user's units, in the dtype of the units; labels stay unchanged."""
        x = self.x if self.inputs is None else self.inputs.inverse(self.x)
        y = self.y if self.target is None else self.target.inverse(self.y)
        return x, y

    def split(self, fraction: float, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Hold random rows out for validation.

        The units stay those of the whole: nothing is standardised anew. The global random state is
        not touched.

        Args:
            fraction: Share of the rows in the validation part, between 0 and 1; rounded to rows.
            seed: Of the permutation, >= 0.

        Returns:
            The training part and the validation part.

        Raises:
            OptionError: If ``fraction`` or ``seed`` is out of range.
            DataError: If a part would have no row.

        Example:
            >>> train, validation = Dataset([[float(i)] for i in range(10)], [0.0] * 10).split(0.2)
            >>> len(train), len(validation)
            (8, 2)
        """
        train, validation = random_rows(len(self), fraction, seed, "fraction")
        return self.rows(train), self.rows(validation)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Dataset:
        """Return the data on another device or in another floating dtype.

        Whole numbers stay int64, and units keep their dtype.
        """
        return replace(
            self,
            x=self.x.to(device=device, dtype=dtype if self.x.is_floating_point() else None),
            y=self.y.to(device=device, dtype=dtype if self.y.is_floating_point() else None),
            inputs=None if self.inputs is None else self.inputs.to(device),
            target=None if self.target is None else self.target.to(device),
        )


def whole_columns(data: Dataset) -> Bool[np.ndarray, " I"]:
    """Which inputs are whole numbers in the user's units, up to the rounding of standardised ones.

    Example:
        >>> whole_columns(Dataset([[0.0, 0.5], [3.0, 1.0]], [0.1, 0.9])).tolist()
        [True, False]
    """
    x, _ = data.raw()  # [N, I], floating
    eps = torch.finfo(data.x.dtype).eps
    loc = torch.zeros(()) if data.inputs is None else data.inputs.loc.abs()
    rounding = 2 * eps * (loc + x.abs().amax(0))  # [I]
    is_near = ((x - x.round()).abs() <= rounding).all(0) & (rounding < LARGEST_ROUNDING)
    return np.asarray(is_near.cpu())


def random_rows(
    num_rows: int, fraction: float, seed: int, what: str
) -> tuple[Int[Tensor, " A"], Int[Tensor, " B"]]:
    """Part ``num_rows`` rows at random, ``round(fraction * num_rows)`` of them held out.

    Args:
        num_rows: N.
        fraction: Share held out, between 0 and 1.
        seed: Of the permutation, >= 0.
        what: What the fraction is called in error messages.

    Returns:
        Rows that are kept and rows that are held out, in random order.

    Raises:
        OptionError: If ``fraction`` or ``seed`` is out of range.
        DataError: If a part would have no row.
    """
    is_number = isinstance(fraction, int | float | np.floating)
    if not (is_number and math.isfinite(fraction) and 0 < fraction < 1):
        raise OptionError(f"{what} must be between 0 and 1, both excluded, got {fraction!r}")
    if not isinstance(seed, int | np.integer) or seed < 0:
        raise OptionError(f"seed must be a whole number >= 0, got {seed!r}")
    held_out = round(float(fraction) * num_rows)
    if not 0 < held_out < num_rows:
        raise DataError(
            f"{what}={fraction} of {num_rows} rows leaves {num_rows - held_out} and {held_out} "
            "rows; both parts need at least one"
        )
    order = torch.tensor(np.random.default_rng(seed).permutation(num_rows))
    return order[held_out:], order[:held_out]


def _check_names(*names: str | None) -> None:
    """Refuse names with a NUL character, which files of a fit or a report cannot hold."""
    if bad := [name for name in names if isinstance(name, str) and "\0" in name]:
        raise DataError(
            f"the name {bad[0]!r} of a column, category or class has a NUL character: rename it; "
            "in a file, save it as UTF-8"
        )


def _check_whole(y: Tensor, target: Standardiser | None, class_names: Sequence[str] | None) -> None:
    if target is not None:
        raise DataError(
            "y holds whole numbers (class labels or counts), which are not standardised: "
            "leave target=None, or pass floating y for regression"
        )
    if int(y.min()) < 0:
        raise DataError(
            f"y: class labels must be 0 .. C-1, got {int(y.min())}; pass floating y for regression"
        )
    if class_names is not None and int(y.max()) >= len(class_names):
        raise DataError(
            f"y: class labels must be 0 .. {len(class_names) - 1} for {len(class_names)} "
            f"class_names, got {int(y.max())}"
        )
