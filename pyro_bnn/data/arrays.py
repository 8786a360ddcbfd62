"""Arrays of the user made tensors: what may come in, and what is said when it may not."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.errors import DataError, ShapeError

ArrayLike = Any
"""A ``torch.Tensor``, a NumPy array, a pandas object or a (nested) list."""

EXACT = 2**53  # up to here float64 has every whole number
MOST_NAMES = 20  # of columns that a message lists
HALF_BYTES = 4  # floating numbers of fewer bytes are of half precision or less


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
            that int64 does not have, masked, or a tensor that is sparse or without values.
        ShapeError: If nested lists have different lengths.

    Example:
        >>> to_tensor([[1, 2], [3, 4]], "x").dtype
        torch.int64
    """
    if isinstance(values, Tensor):
        return _plain(values, what)
    array = to_numpy(values, what)
    if array.dtype.kind == "O":
        array = _numbers(array, what)
    if array.dtype.kind not in "biuf":
        raise DataError(_not_numbers(what, array))
    if array.dtype == np.uint64:
        _check_int64(int(array.max(initial=0)), what)
    return torch.tensor(array.astype(np.float64 if array.dtype.kind == "f" else np.int64))


def _plain(values: Tensor, what: str) -> Tensor:
    """The values of a tensor of any kind, dense and without its graph."""
    if values.is_complex():
        raise DataError(f"{what} holds complex numbers ({values.dtype}); expected real numbers")
    if values.layout != torch.strided or values.is_quantized or values.is_meta:
        kind = "without values" if values.is_meta else f"of layout {values.layout}"
        raise DataError(
            f"{what} is a tensor {kind} ({values.dtype}); expected a dense one of plain numbers, "
            "such as x.to_dense() or x.dequantize() gives"
        )
    tensor: Tensor = values.detach()
    if tensor.is_floating_point():
        return tensor if tensor.itemsize >= HALF_BYTES else tensor.to(torch.float32)
    if tensor.dtype == torch.uint64 and tensor.numel():
        _check_int64(int(tensor.cpu().numpy().max()), what)
    return tensor.to(torch.int64)


def _numbers(array: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """Numbers among Python objects as float64; missing ones are NaN."""
    try:
        numbers: np.ndarray[Any, Any] = array.astype(np.float64)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise DataError(_not_numbers(what, array)) from None
    for given, number in zip(array.ravel(), numbers.ravel(), strict=True):
        if isinstance(given, int) and int(number) != given:
            raise DataError(_inexact(what, given))
    return numbers


def _check_whole(series: Any, what: str) -> None:
    """Refuse a column of whole numbers that floating columns beside it would round."""
    if series.dtype.kind in "iu":
        present = series.dropna()
        for value in present[(present > EXACT) | (present < -EXACT)]:
            if int(float(value)) != int(value):
                raise DataError(_inexact(what, int(value)))


def _check_int64(largest: int, what: str) -> None:
    if largest > torch.iinfo(torch.int64).max:
        raise DataError(
            f"{what} holds whole numbers beyond int64, the largest {largest}; subtract an offset, "
            "or pass floating numbers"
        )


def to_floating(values: Tensor, what: str) -> Tensor:
    """Numbers in float64, or in float32 on a device without it, as MPS.

    Args:
        values: Floating or whole numbers of any shape.
        what: What the array is called in error messages.

    Raises:
        DataError: If a whole number has no float64: equal ones might be different numbers.
    """
    if values.device.type == "mps":
        return values.to(torch.float32)
    result = values.to(torch.float64)
    if values.is_floating_point() or int(result.abs().max() if result.numel() else 0) < EXACT:
        return result
    lost = (result.to(torch.int64) != values).flatten()
    if bool(lost.any()):
        raise DataError(_inexact(what, int(values.flatten()[lost][0])))
    return result


def to_numpy(values: ArrayLike, what: str) -> np.ndarray[Any, Any]:
    """Convert anything but a tensor to a NumPy array; missing values of pandas become NaN.

    Args:
        values: NumPy array, pandas object or nested list; text is allowed.
        what: What the array is called in error messages.

    Returns:
        The same shape and, as far as NumPy has it, the same dtype.

    Raises:
        DataError: If a column of a data frame is not numeric; names the column.
        ShapeError: If nested lists have different lengths.
    """
    if isinstance(values, Tensor):
        tensor = _plain(values, what).cpu()
        return np.asarray(tensor.bool() if values.dtype == torch.bool else tensor)
    if np.ma.is_masked(values):
        raise DataError(
            f"{what} has {int(values.mask.sum())} masked values of {values.size}; fill "
            "these values or drop these rows"
        )
    if hasattr(values, "columns") and hasattr(values, "dtypes"):  # a pandas data frame
        for name, dtype in zip(values.columns, values.dtypes, strict=True):
            if dtype.kind not in "biuf":
                raise DataError(
                    f"{what}: column {str(name)!r} holds {dtype}, not numbers; encode it "
                    "(pandas.get_dummies) or let data.load read the CSV"
                )
        if all(dtype.kind in "biu" for dtype in values.dtypes) and not values.isna().any(axis=None):
            _check_int64(int(values.max(axis=None)) if values.size else 0, what)
            return np.asarray(values.to_numpy(dtype=np.int64))
        for column in range(values.shape[1]):
            _check_whole(values.iloc[:, column], what)
        return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    if hasattr(values, "isna") and hasattr(values, "dtype"):  # a pandas series or index
        if values.dtype.kind not in "biuf":
            return np.asarray(values.to_numpy(dtype=object))
        if values.isna().any():
            _check_whole(values, what)
            return np.asarray(values.to_numpy(dtype=np.float64, na_value=np.nan))
    if isinstance(values, list | tuple) and any(isinstance(value, Tensor) for value in values):
        values = [to_numpy(value, what) for value in values]
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ShapeError(
            f"{what} is not rectangular: its rows have different lengths ({error})"
        ) from error


def column_names(values: ArrayLike) -> tuple[str, ...] | None:
    """Return the column names of a pandas data frame, None for everything else."""
    if hasattr(values, "columns") and hasattr(values, "dtypes"):
        return tuple(str(name) for name in values.columns)
    return None


def column_order(
    given: Sequence[str] | None, known: Sequence[str] | None, what: str
) -> list[int] | None:
    """Where the columns of a fit stand among those given, found by name.

    Args:
        given: Names of the columns that came; None where they have none.
        known: Names of the columns of the fit; None where they had none.
        what: What the columns are called in error messages, such as ``"x"``.

    Returns:
        The place of each column of the fit; None where they are in its order, or a side is without
        names and columns are taken as they stand.

    Raises:
        DataError: If the names are not those of the fit; names both lists.
    """
    if given is None or known is None or tuple(given) == tuple(known):
        return None
    if sorted(given) != sorted(known) or len(set(given)) < len(given):
        parts = (
            ("missing", [name for name in known if name not in given]),
            ("unknown", [name for name in given if name not in known]),
        )
        differs = ", ".join(f"{kind} are {listed(names)}" for kind, names in parts if names)
        raise DataError(
            f"{what} has the columns {listed(given)}, but the fit was to {listed(known)}: "
            f"{differs or 'a name stands twice'}; pass the columns of the fit, in any order, or a "
            "plain array in its order"
        )
    places = {name: place for place, name in enumerate(given)}
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
    given = column_names(values)
    if given is not None and known is not None and set(given) != set(known):
        numbers = list(range(len(given)))
        if len(given) == len(known) and list(values.columns) == numbers:
            return values
    order = column_order(given, known, what)
    return values if order is None else values.iloc[:, order]


def series_name(values: ArrayLike) -> str | None:
    """Return the name of a pandas series, or of the only column of a frame; None for all else."""
    names = column_names(values) or ()
    name = names[0] if len(names) == 1 else getattr(values, "name", None)
    return name if hasattr(values, "isna") and isinstance(name, str) else None


def float_dtype(*given: ArrayLike) -> torch.dtype:
    """Return the dtype that floating data get: that of the tensors given, else torch's default.

    Half precision is widened to float32: too coarse to fit in, and every one of its numbers is one.

    Args:
        given: The user's arrays; only floating ``torch.Tensor`` objects have a say, so that
            NumPy's float64 does not turn a whole network into float64.

    Returns:
        The widest dtype of the floating tensors, or ``torch.get_default_dtype()``.

    Example:
        >>> float_dtype(torch.zeros(2, dtype=torch.float64), [1.0])
        torch.float64
    """
    dtypes = [v.dtype for v in given if isinstance(v, Tensor) and v.is_floating_point()]
    if not dtypes:
        return torch.get_default_dtype()
    return reduce(torch.promote_types, dtypes, torch.float32)


def cast(values: Tensor, dtype: torch.dtype, what: str) -> Tensor:
    """Cast finite numbers to ``dtype``.

    Raises:
        DataError: If a number is too large for ``dtype``.
    """
    result = values.to(dtype)
    if not torch.isfinite(result).all():
        raise DataError(
            f"{what} does not fit {dtype}: its largest magnitude is "
            f"{float(values.abs().max()):.4g}; rescale it or pass float64 tensors"
        )
    return result


def check_rows(x: Tensor, y: Tensor, what: str = "") -> None:
    """Check that ``x [N, I]`` (or ``[N, C, H, W]``) and ``y [N]`` (or ``[N, O]``) are N > 0 rows.

    Args:
        x: Inputs.
        y: Targets.
        what: Put before the message, for instance ``"training rows: "``.

    Raises:
        DataError: If there are no rows or no columns.
        ShapeError: If the shapes are not as above or the numbers of rows differ.
    """
    if x.ndim < 2:
        hint = "; write x[:, None] for one input" if x.ndim == 1 else ""
        raise ShapeError(
            f"{what}x must be [N, I] (or [N, C, H, W] for images), got {list(x.shape)}{hint}"
        )
    if y.ndim not in (1, 2):
        raise ShapeError(f"{what}y must be [N] or [N, O], got {list(y.shape)}")
    if x.shape[0] != y.shape[0]:
        raise ShapeError(
            f"{what}x and y must have the same number of rows, got x {list(x.shape)} and "
            f"y {list(y.shape)}"
        )
    if x.shape[0] == 0:
        raise DataError(f"{what}the data are empty: x is {list(x.shape)}, y is {list(y.shape)}")
    if x.numel() == 0 or y.numel() == 0:
        raise DataError(
            f"{what}at least one column is needed: x is {list(x.shape)}, y is {list(y.shape)}"
        )


def check_finite(values: Tensor, what: str, names: Sequence[str] | None = None) -> None:
    """Check that there is no NaN and no infinity.

    Args:
        values: ``[N]`` or ``[N, ...]``.
        what: What the array is called in the message.
        names: Names of the columns of ``[N, I]``, where known.

    Raises:
        DataError: Names up to five columns, how many rows of each, and the first row.
    """
    bad = ~torch.isfinite(values)
    if not bad.any():
        return
    num_rows = values.shape[0]
    bad = bad.reshape(num_rows, -1)  # [N, columns]
    counts = bad.sum(0)
    columns = counts.nonzero().flatten().tolist()
    first = int(bad.any(1).nonzero()[0])
    if values.ndim == 1:
        where = _rows(int(counts[0]))
    else:
        parts = [f"{_column(values, c, names)} ({_rows(int(counts[c]))})" for c in columns[:5]]
        more = f" and {len(columns) - 5} more columns" if len(columns) > 5 else ""
        where = ", ".join(parts) + more
    raise DataError(
        f"{what} holds NaN or infinity in {where} of {num_rows}, first in row {first}; "
        "fill these values or drop these rows"
    )


def _column(values: Tensor, column: int, names: Sequence[str] | None) -> str:
    if values.ndim > 2:
        place = np.unravel_index(column, tuple(values.shape[1:]))
        return f"element {[int(i) for i in place]}"
    if names is None:
        return f"column {column}"
    return f"column {column} ({names[column]!r})"


def listed(names: Sequence[str]) -> str:
    """Names in quotes with commas between them, of many the first ones and how many more."""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return ", ".join(map(repr, names[:MOST_NAMES])) + more


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _inexact(what: str, number: int) -> str:
    return (
        f"{what} holds whole numbers that float64 does not have, such as {number}: different ones "
        "would become equal; subtract an offset, or drop it if it is an identifier"
    )


def _not_numbers(what: str, array: np.ndarray[Any, Any]) -> str:
    example = "" if array.size == 0 else f", for instance {reprlib.repr(array.ravel()[0])}"
    return f"{what} must hold real numbers, got dtype {array.dtype}{example}"
