"""Class labels: which target is one, how it is coded 0 .. C-1, and what is refused."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pyro_bnn.data.arrays import ArrayLike, to_numpy
from pyro_bnn.errors import DataError, OptionError, ShapeError

Task = Literal["regression", "classification"]


def check_task(task: str | None) -> None:
    """Check the option ``task``.

    Raises:
        OptionError: If it is not None, ``"regression"`` or ``"classification"``.
    """
    if task not in (None, "regression", "classification"):
        raise OptionError(f"task must be 'regression', 'classification' or None, got {task!r}")


def infer_task(y: ArrayLike) -> Task:
    """Infer the task from the dtype of an array: floating numbers are regression, the rest classes.

    Args:
        y: Targets as the user gave them.

    Returns:
        ``"regression"`` for floating numbers, ``"classification"`` for whole numbers, truth
        values and text.

    Example:
        >>> infer_task([0.5, 1.5]), infer_task([0, 1]), infer_task(["ill", "well"])
        ('regression', 'classification', 'classification')
    """
    if isinstance(y, Tensor):
        return "regression" if y.is_floating_point() else "classification"
    return "regression" if to_numpy(y, "y").dtype.kind in "fc" else "classification"


def array_labels(y: ArrayLike) -> tuple[Int[Tensor, " N"], tuple[str, ...]]:
    """Take class labels as arrays hold them: 0 .. C-1, truth values, or text.

    Args:
        y: ``[N]`` or ``[N, 1]``. Floating numbers are allowed if they are whole.

    Returns:
        Labels ``[N]`` int64 and the C class names; text is coded in alphabetical order.

    Raises:
        ShapeError: If ``y`` has another shape.
        DataError: If numbers are not 0 .. C-1 with every class present, or there is one class only.

    Example:
        >>> array_labels(["well", "ill", "well"])
        (tensor([1, 0, 1]), ('ill', 'well'))
    """
    array = _one_column(to_numpy(y, "y"))
    if array.dtype.kind not in "biufc":
        return encode_labels(array)
    labels = torch.tensor(_whole(array))
    check_labels(labels)
    if array.dtype.kind == "b":
        return labels, ("False", "True")
    return labels, tuple(str(c) for c in range(int(labels.max()) + 1))


def encode_labels(
    y: np.ndarray[Any, Any], what: str = "y"
) -> tuple[Int[Tensor, " N"], tuple[str, ...]]:
    """Code whatever values a target has as 0 .. C-1, in their order.

    Args:
        y: ``[N]`` or ``[N, 1]``: text, truth values or whole numbers, not necessarily from 0.
        what: What the target is called in error messages.

    Returns:
        Labels ``[N]`` int64 and the C values as text.

    Raises:
        ShapeError: If ``y`` has another shape.
        DataError: If a value is missing or not whole, or there is one class only.

    Example:
        >>> encode_labels(np.array([3, 8, 3]))
        (tensor([0, 1, 0]), ('3', '8'))
    """
    y = _one_column(y, what)
    if y.dtype.kind in "fc":
        y = _whole(y, what)
    if y.dtype.kind == "O":
        missing = [i for i, value in enumerate(y) if value is None or value != value]
        if missing:
            raise DataError(
                f"{what} has {len(missing)} missing of {len(y)} values, first in row {missing[0]}; "
                "drop these rows"
            )
        y = y.astype(str) if any(isinstance(value, str) for value in y) else np.array(y.tolist())
    values, labels = np.unique(y, return_inverse=True)
    if len(values) < 2:
        raise DataError(_one_class(what, str(values[0]), len(y)))
    return torch.tensor(labels.reshape(-1).astype(np.int64)), tuple(str(v) for v in values)


def check_labels(labels: Int[Tensor, " N"], what: str = "y") -> None:
    """Check that labels are 0 .. C-1, every class present, C > 1.

    Args:
        labels: ``[N]``, N > 0, whole numbers.
        what: What the target is called in error messages.

    Raises:
        DataError: Names the labels that came, or the only class.
    """
    values = labels.unique().tolist()
    num_classes = len(values)
    if values != list(range(num_classes)):
        shown = ", ".join(str(v) for v in values[:8]) + (", ..." if num_classes > 8 else "")
        raise DataError(
            f"{what}: class labels must be 0 .. C-1 with every class present, got {num_classes} "
            f"different labels: {shown}; recode them with numpy.unique(y, return_inverse=True)[1], "
            "or set task='regression'"
        )
    if num_classes < 2:
        raise DataError(_one_class(what, str(values[0]), len(labels)))


def _one_column(y: np.ndarray[Any, Any], what: str = "y") -> np.ndarray[Any, Any]:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ShapeError(f"{what}: class labels must be [N], got {list(y.shape)}")
    if len(y) == 0:
        raise DataError(f"{what}: the data are empty, there are no class labels")
    return y


def _whole(y: np.ndarray[Any, Any], what: str = "y") -> np.ndarray[Any, Any]:
    if y.dtype.kind in "biu":
        return y.astype(np.int64)
    bad = np.flatnonzero(~(np.isfinite(y) & (y == np.round(y))))
    if len(bad):
        raise DataError(
            f"{what}: class labels must be whole numbers, got {y[bad[0]]} in row {bad[0]} "
            f"({len(bad)} of {len(y)} rows); is this a regression?"
        )
    return y.astype(np.int64)


def _one_class(what: str, label: str, num_rows: int) -> str:
    return (
        f"{what} holds one class only, {label!r}, in all {num_rows} rows; "
        "classification needs at least two"
    )
