"""Arrays of the user made tensors: what may come in, and what is said when it may not."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from pyro_bnn.errors import DataError, ShapeError

ArrayLike = Any
"""A ``torch.Tensor``, a NumPy array, a pandas object or a (nested) list."""

EXACT = 2**53  # up to here float64 has every whole number
MOST_NAMES = 20  # most columns that a message lists
MOST_CHARACTERS = 80  # of a value that a message shows
HALF_BYTES = 4  # floating numbers of fewer bytes are of half precision or less
PIECE = 2**20  # numbers that are looked at at a time: a copy of all may exceed the memory


def to_tensor(values: ArrayLike, what: str) -> Tensor:
    """Convert ``values`` to a tensor without losing precision.

    Args:
        values: Numbers or truth values of any shape. Tensors are detached, not copied;
            everything else is copied.
        what: What the array is called in error messages, for instance ``"x"``.

    Returns:
        The same shape. Floating tensors keep their dtype, but half precision becomes float32,
        which has all its numbers; other floating numbers become float64, whole numbers and truth
        values int64.

    Raises:
        DataError: If the values are text, complex numbers, dates or other objects, whole numbers
            beyond 2^53, masked, or a tensor that is sparse or without values.
        ShapeError: If nested lists have different lengths.

    Example:
        >>> to_tensor([[1, 2], [3, 4]], "x").dtype
        torch.int64
    """
    if isinstance(values, Tensor) and values.is_floating_point():
        return _plain(values, what)
    array = to_numpy(values, what)
    if isinstance(values, Tensor) and not values.is_complex():
        return values.to(torch.int64)
    if array.dtype.kind == "O":
        array = _numbers(array, what)
    if array.dtype.kind not in "biuf":
        example = "" if array.size == 0 else f", for instance {reprlib.repr(array.ravel()[0])}"
        raise DataError(f"{what} must hold real numbers, got dtype {array.dtype}{example}")
    dtype = np.float64 if array.dtype.kind == "f" else np.int64
    return torch.tensor(array.astype(dtype))


def _plain(values: Tensor, what: str) -> Tensor:
    """A dense tensor without its graph, half precision widened."""
    if values.layout != torch.strided or values.is_quantized or values.is_meta:
        raise DataError(
            f"{what} is a tensor of {values.dtype}, {values.layout}, on {values.device}; expected "
            "a dense one of plain numbers, such as x.to_dense() or x.dequantize() gives"
        )
    is_half = values.is_floating_point() and values.itemsize < HALF_BYTES
    return values.detach().to(torch.float32) if is_half else values.detach()


def _numbers(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """Numbers among Python objects as float64; missing ones are NaN. Others stay what they are."""
    try:
        numbers: np.ndarray[Any, Any] = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return array
    whole = [value for value in array.flat if isinstance(value, int)]
    _check_whole(np.array(whole, dtype=object), what)
    return numbers


def _check_whole(values: Any, what: str) -> None:
    """Refuse whole numbers, of NumPy or a column of pandas, of which float64 does not have all."""
    if values.dtype.kind in "iuO" and values.size:
        largest = max(int(values.max()), int(values.min()), key=abs)
        if abs(largest) > EXACT:
            raise DataError(
                f"{what} holds whole numbers beyond 2^53, such as {largest}: float64 does not have "
                "all of these, so that different ones would become equal; subtract an offset, or "
                "drop it if it is an identifier"
            )


def plain_numbers(values: np.ndarray[Any, Any]) -> Float[np.ndarray[Any, Any], " N"] | None:
    """Numbers as float64, where all are finite and below 2^53; nothing of any other array."""
    if values.dtype.kind not in "fiu":
        return None
    numbers = values.astype(np.float64, copy=False)  # the least int64 has no absolute value
    return numbers if (np.abs(numbers) < EXACT).all() else None


def to_floating(values: Tensor) -> Tensor:
    """Numbers in float64, or in float32 on a device without it, as MPS."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)


def to_numpy(values: ArrayLike, what: str) -> np.ndarray[Any, Any]:
    """Convert anything to a NumPy array; missing values of pandas become NaN.

    Args:
        values: Tensor, NumPy array, pandas object or nested list; text is allowed.
        what: What the array is called in error messages.

    Returns:
        The same shape and, as far as NumPy has it, the same dtype.

    Raises:
        DataError: If a column of a data frame is not numeric (names the column), there are whole
            numbers beyond 2^53, or values are masked.
        ShapeError: If nested lists have different lengths.
    """
    if isinstance(values, Tensor):
        array = _plain(values, what).cpu().numpy()
    elif hasattr(values, "isna"):
        array = _of_pandas(values, what)
    elif np.ma.is_masked(values):
        raise DataError(
            f"{what} has {int(values.mask.sum())} masked values of {values.size}; fill "
            "these values or drop these rows"
        )
    else:
        if isinstance(values, list | tuple) and any(isinstance(value, Tensor) for value in values):
            values = [to_numpy(value, what) for value in values]
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise ShapeError(
                f"{what} is not rectangular: its rows have different lengths ({error})"
            ) from error
        if array.dtype.kind == "U" and not isinstance(values, np.ndarray):
            fields = np.asarray(values, dtype=object)  # a NaN has become the text "nan"
            is_missing = any(isinstance(f, float) and f != f for f in fields.flat)
            array = fields if is_missing else array
    if array.dtype.kind in "iu":
        _check_whole(array, what)
    return array


def _of_pandas(values: Any, what: str) -> np.ndarray[Any, Any]:
    """The numbers of a data frame; of a series or index, which may hold anything."""
    if not hasattr(values, "columns"):
        if values.dtype.kind not in "biuf":
            return np.asarray(values.to_numpy(dtype=object))
        return _of_pandas(values.to_frame(), what)[:, 0]
    for place, (name, dtype) in enumerate(zip(values.columns, values.dtypes, strict=True)):
        if dtype.kind not in "biuf":
            raise DataError(
                f"{what}: column {str(name)!r} holds {dtype}, not numbers; encode it "
                "(pandas.get_dummies) or let data.load read the CSV"
            )
        if dtype.kind in "iu":
            _check_whole(values.iloc[:, place].dropna(), what)
    is_whole = all(dtype.kind in "biu" for dtype in values.dtypes)
    if is_whole and not values.isna().any(axis=None):
        return np.asarray(values.to_numpy(dtype=np.int64))
    return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))


def column_names(values: ArrayLike) -> tuple[str, ...] | None:
    """Return the column names of a pandas data frame, None for everything else."""
    is_frame = hasattr(values, "columns") and hasattr(values, "dtypes")
    return tuple(map(str, values.columns)) if is_frame else None


def column_order(
    names: Sequence[str] | None, known: Sequence[str] | None, what: str
) -> list[int] | None:
    """Where the columns of a fit stand among the names that came.

    Args:
        names: Names of the columns that came; None where they have none.
        known: Names of the columns of the fit; None where they had none.
        what: What the columns are called in error messages, such as ``"x"``.

    Returns:
        The place of each column of the fit; None where they are in its order, or a side is without
        names and columns are taken as they stand.

    Raises:
        DataError: If the names are not those of the fit; names both lists.
    """
    if names is None or known is None or tuple(names) == tuple(known):
        return None
    if sorted(names) != sorted(known) or len(set(names)) < len(names):
        parts = (
            ("missing", [name for name in known if name not in names]),
            ("unknown", [name for name in names if name not in known]),
        )
        differs = ", ".join(f"{kind} are {listed(names)}" for kind, names in parts if names)
        raise DataError(
            f"{what} has the columns {listed(names)}, but the fit was to {listed(known)}: "
            f"{differs or 'a name stands twice'}; pass the columns of the fit, in any order, or a "
            "plain array in its order"
        )
    places = {name: place for place, name in enumerate(names)}
    return [places[name] for name in known]


def in_order(values: ArrayLike, known: Sequence[str] | None, what: str) -> ArrayLike:
    """A data frame with its columns in the order of a fit; everything else as it is.

    A frame whose columns are numbered from 0 has no names, as long as those of the fit are others.

    Args:
        values: What came.
        known: Names of the columns of the fit, or None.
        what: What the columns are called in error messages.

    Raises:
        DataError: If its names are not those of the fit; names both lists.
    """
    names = column_names(values)
    if names is not None and known is not None and set(names) != set(known):
        is_numbered = list(values.columns) == list(range(len(known)))
        names = None if is_numbered else names
    order = column_order(names, known, what)
    return values if order is None else values.iloc[:, order]


def series_name(values: ArrayLike) -> str | None:
    """Return the name of a pandas series, or of the only column of a frame; None for all else."""
    names = column_names(values) or ()
    name = names[0] if len(names) == 1 else getattr(values, "name", None)
    return name if hasattr(values, "isna") and isinstance(name, str) else None


def float_dtype(*values: ArrayLike) -> torch.dtype:
    """Return the dtype that floating data get: that of the tensors given, else torch's default.

    Half precision is widened to float32: too coarse to fit in, and every one of its numbers is one.

    Args:
        values: The user's arrays; only floating ``torch.Tensor`` objects have a say, so that
            NumPy's float64 does not turn a whole network into float64.

    Returns:
        The widest dtype of the floating tensors, or ``torch.get_default_dtype()``.

    Example:
        >>> float_dtype(torch.zeros(2, dtype=torch.float64), [1.0])
        torch.float64
    """
    dtypes = [v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()]
    if not dtypes:
        return torch.get_default_dtype()
    return reduce(torch.promote_types, dtypes, torch.float32)


def cast(values: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """Cast finite numbers to ``dtype``.

    Raises:
        DataError: If a number is too large for ``dtype``.
    """
    result = values.to(dtype)
    if result is not values and not is_finite(result):
        raise DataError(
            f"{what} does not fit {dtype}: its largest magnitude is "
            f"{float(values.abs().max()):.4g}; rescale it or pass float64 tensors"
        )
    return result


def check_rows(x: Tensor, y: Tensor) -> None:
    """Check that ``x [N, I]`` (or ``[N, C, H, W]``) and ``y [N]`` (or ``[N, O]``) are N > 0 rows.

    Args:
        x: Inputs.
        y: Targets.

    Raises:
        DataError: If there are no rows or no columns.
        ShapeError: If the shapes are not as above or the numbers of rows differ.
    """
    if x.ndim < 2:
        hint = "; write x[:, None] for one input" if x.ndim == 1 else ""
        raise ShapeError(
            f"x must be [N, I] (or [N, C, H, W] for images), got {list(x.shape)}{hint}"
        )
    if y.ndim not in (1, 2):
        raise ShapeError(f"y must be [N] or [N, O], got {list(y.shape)}")
    if x.shape[0] != y.shape[0]:
        raise ShapeError(
            f"x and y must have the same number of rows, got x {list(x.shape)} and "
            f"y {list(y.shape)}"
        )
    if x.numel() == 0 or y.numel() == 0:
        why = "the data are empty" if len(x) == 0 else "at least one column is needed"
        raise DataError(f"{why}: x is {list(x.shape)}, y is {list(y.shape)}")


def is_finite(values: Tensor) -> bool:
    """Whether all numbers of ``[N, ...]`` are finite; looks at a piece of the rows at a time."""
    num_rows = max(1, PIECE // max(1, values[:1].numel()))
    return all(bool(part.isfinite().all()) for part in values.split(num_rows))


def check_finite(values: Tensor, what: str, names: Sequence[str] | None = None) -> None:
    """Check that there is no NaN and no infinity.

    Args:
        values: ``[N]`` or ``[N, ...]``.
        what: What the array is called in the message.
        names: Names of the columns of ``[N, I]``, where known.

    Raises:
        DataError: Names up to five columns, how many rows of each, and the first row.
    """
    if is_finite(values):
        return
    bad = ~torch.isfinite(values).reshape(len(values), -1)  # [N, columns]
    counts, where = bad.sum(0).tolist(), count_rows(int(bad.any(1).sum()))
    if values.ndim > 1:
        columns = [column for column, count in enumerate(counts) if count]
        more = f" and {len(columns) - 5} more columns" if len(columns) > 5 else ""
        parts = (f"{_column(values, c, names)} ({count_rows(counts[c])})" for c in columns[:5])
        where = ", ".join(parts) + more
    raise DataError(
        f"{what} holds NaN or infinity in {where} of {len(values)}, first in row "
        f"{int(bad.any(1).nonzero()[0])}; fill these values or drop these rows"
    )


def _column(values: Tensor, column: int, names: Sequence[str] | None) -> str:
    if values.ndim > 2:
        place = np.unravel_index(column, tuple(values.shape[1:]))
        return f"element {[int(i) for i in place]}"
    return f"column {column}" if names is None else f"column {column} ({names[column]!r})"


def listed(names: Sequence[str]) -> str:
    """Names in quotes with commas between them, of many the first ones and how many more."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(map(shown, names[:MOST_NAMES])) + more


def shown(value: Any) -> str:
    """A value as code writes it, of a long text both ends."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = MOST_CHARACTERS
    return short.repr(value)


def count_rows(count: int) -> str:
    """A number of rows in words."""
    return "1 row" if count == 1 else f"{count} rows"
