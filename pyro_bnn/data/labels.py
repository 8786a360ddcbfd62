"""Class labels: which target is one, how it is coded 0 .. C-1, and what is refused.

Numbering is `numpy.unique`, as in scikit-learn's `LabelEncoder`; the rest is what neither refuses.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pyro_bnn.data.arrays import EXACT, ArrayLike, listed, shown, to_numpy
from pyro_bnn.errors import DataError, OptionError, ShapeError

Task = Literal["regression", "classification", "counts"]
"""What a target is; counts are a regression whose target is not standardised."""


def check_task(task: str | None) -> None:
    """Check the option ``task``.

    Raises:
        OptionError: If it is not None, ``"regression"``, ``"classification"`` or ``"counts"``.
    """
    if task not in (None, "regression", "classification", "counts"):
        raise OptionError(
            f"task must be 'regression', 'classification', 'counts' or None, got {task!r}"
        )


def check_counts(y: Tensor, what: str = "y") -> None:
    """Check that a target ``[N]`` or ``[N, O]`` holds counts 0, 1, 2, ...

    Raises:
        DataError: Names the first value that is none, and its row.
    """
    bad = ~is_count(y).reshape(len(y), -1).all(1)  # [N]
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise DataError(
            f"{what}: counts are whole numbers from 0, got {y[row].tolist()} in row {row} "
            f"({int(bad.sum())} of {len(y)} rows); is this task='regression'?"
        )


def is_count(y: Tensor) -> Tensor:
    """Whether values are whole numbers from 0, entry by entry."""
    return (y >= 0) & (y == y.floor())


def infer_task(y: ArrayLike) -> Task:
    """Infer the task from the dtype of an array: floating numbers are regression, the rest classes.

    Args:
        y: Targets as the user gave them.

    Returns:
        ``"regression"`` for floating numbers, ``"classification"`` for whole numbers, truth
        values, text and categories of pandas, whatever their levels are; ``"counts"`` for several
        columns of 0 and 1 or truth values, which are binary targets.

    Raises:
        DataError: If each row of several columns has a single 1, as classes in one-hot code.

    Example:
        >>> infer_task([0.5, 1.5]), infer_task([0, 1]), infer_task(["ill", "well"])
        ('regression', 'classification', 'classification')
    """
    if isinstance(y, Tensor) and (y.is_floating_point() or y.is_complex()):
        return "regression"
    if is_categorical(y):
        return "classification"
    array = to_numpy(y, "y")
    if array.dtype.kind == "O":  # Python objects: floating as soon as one of several numbers is
        is_number = all(value is None or isinstance(value, Real) for value in array.flat)
        is_floating = any(not isinstance(value, Integral | None) for value in array.flat)
        return "regression" if is_number and is_floating else "classification"
    is_wide = array.dtype.kind in "biu" and array.ndim == 2 and array.shape[1] > 1
    if not is_wide or not np.isin(array, (0, 1)).all():
        return "regression" if array.dtype.kind in "fc" else "classification"
    if len(array) and (array.sum(1) == 1).all():
        raise DataError(
            f"y: each row of {list(array.shape)} has a single 1: of classes pass the labels, "
            "y.argmax(1); of binary targets, any number of which may be 1, set task='counts'"
        )
    return "counts"


def array_labels(y: ArrayLike) -> tuple[Int[Tensor, " N"], tuple[str, ...]]:
    """Take class labels as arrays hold them: 0 .. C-1, truth values, text, or categories.

    Args:
        y: ``[N]`` or ``[N, 1]``. Floating numbers are allowed if they are whole.

    Returns:
        Labels ``[N]`` int64 and the C class names; text is coded in alphabetical order, categories
        of pandas in that of their levels.

    Raises:
        ShapeError: If ``y`` has another shape.
        DataError: If numbers are not 0 .. C-1 with every class present, or there is one class only.

    Example:
        >>> array_labels(["well", "ill", "well"])
        (tensor([1, 0, 1]), ('ill', 'well'))
    """
    if is_categorical(y):
        return _level_labels(y, "y")
    array = _one_column(to_numpy(y, "y"))
    labels, names = encode_labels(array)
    num_classes = len(names)
    if array.dtype.kind in "iufc" and names != tuple(map(str, range(num_classes))):
        shown = ", ".join(names[:8]) + (", ..." if num_classes > 8 else "")
        raise DataError(
            f"y: class labels must be 0 .. C-1 with every class present, got {num_classes} "
            f"different labels: {shown}; recode them with numpy.unique(y, return_inverse=True)[1], "
            "or set task='regression'"
        )
    return labels, names


def is_categorical(values: Any) -> bool:
    """Whether values are a series of pandas whose dtype is of categories."""
    return type(getattr(values, "dtype", None)).__name__ == "CategoricalDtype"


def _level_labels(y: Any, what: str) -> tuple[Int[Tensor, " N"], tuple[str, ...]]:
    """Categories as labels ``[N]`` int64 and the levels that occur, in their order."""
    import pandas as pd

    levels = pd.Series(y).cat.remove_unused_categories().cat
    labels = torch.tensor(levels.codes.to_numpy(np.int64))
    _refuse_missing((labels < 0).nonzero().flatten().tolist(), len(labels), what)
    names = tuple(map(str, levels.categories))
    check_several(names, len(labels), what)
    return labels, names


def encode_labels(
    y: np.ndarray[Any, Any], what: str = "y"
) -> tuple[Int[Tensor, " N"], tuple[str, ...]]:
    """Code whatever values a target has as 0 .. C-1, in their order.

    Args:
        y: ``[N]`` or ``[N, 1]``: text (bytes are UTF-8), truth values or whole numbers, not
            necessarily from 0.
        what: What the target is called in error messages.

    Returns:
        Labels ``[N]`` int64 and the C values as text.

    Raises:
        ShapeError: If ``y`` has another shape.
        DataError: If a value is missing, not whole or neither of the above, such as a date, or
            there is one class only.

    Example:
        >>> encode_labels(np.array([3, 8, 3]))
        (tensor([0, 1, 0]), ('3', '8'))
    """
    y = _one_column(y, what)
    if y.dtype.kind == "O":
        import pandas as pd

        _refuse_missing(np.flatnonzero(pd.isna(y)).tolist(), len(y), what)
        if all(isinstance(value, Real | np.bool_) for value in y):
            y = np.array(y.tolist())
    if y.dtype.kind in "fc":
        y = _whole(y, what)
    # text stays an array of objects: one of text gives each value the room of the longest
    if y.dtype.kind not in "biuU" and not all(isinstance(value, str) for value in y):
        kinds = sorted({type(value).__name__ for value in y.flat})
        raise DataError(
            f"{what}: classes are text, truth values or whole numbers, all of one kind, got "
            f"{' and '.join(kinds)}, for instance {reprlib.repr(y.flat[0])}"
        )
    values, labels = np.unique(y, return_inverse=True)
    check_several(values, len(y), what)
    return torch.tensor(labels.reshape(-1).astype(np.int64)), tuple(str(v) for v in values)


def _refuse_missing(rows: Sequence[int], num_rows: int, what: str) -> None:
    if rows:
        raise DataError(
            f"{what} has {len(rows)} missing of {num_rows} values, first in row {rows[0]}; "
            "drop these rows"
        )


def coded(
    y: ArrayLike, class_names: Sequence[str] | None, what: str = "y"
) -> tuple[ArrayLike, Sequence[str] | None]:
    """Code class labels that are text; everything else stays as it is.

    Args:
        y: Targets as the user gave them.
        class_names: Names of the classes 0 .. C-1; None for those that y has, in order.
        what: What the target is called in error messages.

    Returns:
        Labels ``[N]`` int64 where y is text, else y, and the names.

    Raises:
        ShapeError: If text has another shape than ``[N]`` or ``[N, 1]``.
        DataError: If a text is no class name; without names, as :func:`encode_labels`.

    Example:
        >>> coded(["well", "ill", "well"], ("ill", "odd", "well"))[0]
        tensor([2, 0, 2])
    """
    if isinstance(y, Tensor):
        return y, class_names
    if is_categorical(y):
        labels, names = _level_labels(y, what)
        if class_names is None:
            return labels, names
        y = np.array(names, dtype=object)[labels.numpy()]
    array = to_numpy(y, what)
    is_text = array.dtype.kind in "SU"
    if array.dtype.kind == "O":
        is_text = any(isinstance(value, str | bytes) for value in array.flat)
    if not is_text:
        return y, class_names
    if class_names is None:
        return encode_labels(array, what)
    texts = _one_column(array, what).tolist()
    places = {name: label for label, name in enumerate(class_names)}
    unknown = [value for value in texts if value not in places]
    if unknown:
        raise DataError(
            f"{what} holds {shown(unknown[0])}, which is no class, in {len(unknown)} of "
            f"{len(texts)} rows: known are {listed(class_names)}"
        )
    return torch.tensor([places[value] for value in texts]), class_names


def named(y: ArrayLike, class_names: Sequence[str]) -> ArrayLike:
    """Numbers as names of classes, where these are numbers; everything else as it is.

    Args:
        y: Targets in the user's units. A tensor holds labels 0 .. C-1, as those of a data set.
        class_names: The C names.

    Example:
        >>> named([2, 3], ("1", "2", "3")).tolist(), named([1, 0], ("ill", "well"))
        (['2', '3'], [1, 0])
    """
    if isinstance(y, Tensor) or (array := to_numpy(y, "y")).dtype.kind not in "iuf":
        return y
    try:
        names = {float(name): name for name in class_names}
    except ValueError:
        return y
    texts = [names.get(value, str(value)) for value in array.ravel().tolist()]
    return np.array(texts, dtype=str).reshape(array.shape)


def check_same_classes(names: Sequence[str] | None, known: Sequence[str] | None, what: str) -> None:
    """Check that labels mean the same classes as those of a fit, where both have names.

    Raises:
        DataError: If they do not, as of rows without one of the classes that were coded alone.
    """
    if names is not None and known is not None and tuple(names) != tuple(known):
        raise DataError(
            f"{what} have the classes {listed(names)}, but those of the fit are {listed(known)}: "
            "pass class_names, those of the fit, to their Dataset"
        )


def _one_column(y: np.ndarray[Any, Any], what: str = "y") -> np.ndarray[Any, Any]:
    """Values ``[N]``; bytes are taken for text in UTF-8."""
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise ShapeError(
            f"{what}: class labels must be [N], got {list(y.shape)}; several binary targets, or "
            "counts, have task='counts', several numbers are floating"
        )
    if len(y) == 0:
        raise DataError(f"{what}: the data are empty, there are no class labels")
    try:
        return np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
    except UnicodeDecodeError as error:
        raise DataError(f"{what} holds bytes that are no UTF-8 text: {error}") from error


def _whole(y: np.ndarray[Any, Any], what: str) -> np.ndarray[Any, Any]:
    """Labels ``[N]`` that are whole numbers, as int64."""
    is_whole = np.isfinite(y) & (y == np.round(y)) & (np.abs(y) <= EXACT) & np.isreal(y)
    bad = np.flatnonzero(~is_whole)
    if len(bad):
        raise DataError(
            f"{what}: class labels must be whole numbers, got {y[bad[0]]} in row {bad[0]} "
            f"({len(bad)} of {len(y)} rows); is this a regression?"
        )
    return y.real.astype(np.int64)


def check_several(values: Any, num_rows: int, what: str = "y") -> None:
    """Check that a target in so many rows has more than one of the values.

    Raises:
        DataError: Names the only class.
    """
    if len(values) < 2:
        raise DataError(
            f"{what} holds one class only, {shown(str(values[0]))}, in all {num_rows} rows; "
            "classification needs at least two"
        )
