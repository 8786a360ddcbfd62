"""Shapes, checked before a mismatch can broadcast, and rows that stand for all of them."""

from __future__ import annotations

import numpy as np

from pyro_bnn.errors import DataError, ShapeError


def check_axes(name: str, array: np.ndarray, axes: str) -> np.ndarray:
    """Returns ``array`` as a float array after a check of its number of axes.

    Args:
        name: What the array is called in the message.
        array: Any array, or what NumPy makes one of.
        axes: Names of the expected axes, such as ``"S N"``.

    Raises:
        ShapeError: If the number of axes differs, or an axis is empty.

    Example:
        >>> check_axes("draws", [[0.5, 1.0]], "S N").shape
        (1, 2)
    """
    array = np.asarray(array)
    if array.ndim != len(axes.split()) or 0 in array.shape:
        raise ShapeError(
            f"{name} must have shape [{', '.join(axes.split())}] with no empty axis, "
            f"got {list(array.shape)}"
        )
    return array.astype(float, copy=False)


def check_rows(name: str, array: np.ndarray, num_rows: int, of: str) -> np.ndarray:
    """Returns ``array`` [N] as an array after a check against the ``num_rows`` of another one.

    Args:
        name: What the array is called in the message.
        array: Values ``[N]``.
        num_rows: N.
        of: The array that N comes from.

    Raises:
        ShapeError: If the shape is not exactly ``[N]``; ``[N, 1]`` would broadcast to ``[N, N]``.

    Example:
        >>> check_rows("y", [1, 0, 2], 3, of="probs")
        array([1, 0, 2])
    """
    array = np.asarray(array)
    if array.shape != (num_rows,):
        raise ShapeError(
            f"{name} must have shape [{num_rows}] to match {of}, got {list(array.shape)}"
        )
    return array


def check_observed(
    name: str, array: np.ndarray, axes: str, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """An array as `check_axes` returns it, and the observations y ``[N]`` of its axis N.

    Args:
        name: What the array is called in the message.
        array: Any array.
        axes: Names of its axes, N among them.
        y: Observations.

    Raises:
        ShapeError: If the array has other axes, or y another shape.

    Example:
        >>> check_observed("draws", np.zeros((3, 2)), "S N", [1, 0])[1]
        array([1, 0])
    """
    array = check_axes(name, array, axes)
    return array, check_rows("y", y, array.shape[axes.split().index("N")], of=name)


def check_classes(name: str, array: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """An array ``[N, C]`` over classes as `check_axes` returns it, and the observed classes.

    Args:
        name: What the array is called in the message.
        array: Any array.
        y: Observed classes ``[N]``.

    Raises:
        DataError: If y holds anything but 0..C-1; it would be a class that no row can have.
        ShapeError: If the array has other axes, or y another shape.

    Example:
        >>> check_classes("probs", [[0.2, 0.8]], [1])[1]
        array([1])
    """
    array, y = check_observed(name, array, "N C", y)
    is_wrong = ~np.isin(y, np.arange(array.shape[1]))
    if is_wrong.any():
        raise DataError(
            f"y must hold the classes 0 .. {array.shape[1] - 1}, the places of the columns of "
            f"{name}, got {y[is_wrong][0]} in row {int(is_wrong.argmax()) + 1} ({is_wrong.sum()} "
            f"of {len(y)} rows are wrong)"
        )
    return array, y


def evenly_spread(total: int, most: int) -> list[int]:
    """At most so many of the numbers below ``total``, evenly spread, first and last among them.

    Example:
        >>> evenly_spread(40, 4), evenly_spread(2, 4)
        ([0, 13, 26, 39], [0, 1])
    """
    return [int(place) for place in np.linspace(0, total - 1, min(most, total)).round()]
