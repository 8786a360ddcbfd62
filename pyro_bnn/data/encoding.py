"""The columns of a table become a data set: inputs and targets, text as categories and classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from pyro_bnn.data.arrays import shown
from pyro_bnn.data.dataset import Dataset
from pyro_bnn.data.fields import TRUTH_VALUES, Fields
from pyro_bnn.data.labels import Task, check_several, encode_labels
from pyro_bnn.data.on_disk import is_large_table
from pyro_bnn.data.split import Column, Table
from pyro_bnn.data.written import padded_codes
from pyro_bnn.errors import DataError, OptionError, UnknownNameError

Target: TypeAlias = "str | Sequence[str]"
MOST_CODED = 1 << 24  # numbers that text may become, whatever the size of the table
CODED = 100  # a larger table may become so many inputs for each of its columns


def table_of(
    fields: Fields, target: Target | None, task: Task | None, name: str | None = None
) -> Table:
    """The data set of the columns of a file or a data frame.

    Columns of text are one-hot encoded, a column ``"colour=red"`` for each value in alphabetical
    order; True and False are 1 and 0.

    Args:
        fields: The columns.
        target: Column that is predicted, or several, as a sequence or separated by commas; the last
            one if None. Several are numbers, y ``[N, O]``.
        task: ``"classification"``, ``"regression"`` or ``"counts"``; by default a target of text or
            True and False is classification and numbers are regression. Classes are coded 0 .. C-1
            in the order of their values; counts 0, 1, 2, ... stay as they are.
        name: Of the data set; that of the columns if None.

    Returns:
        The data set, unsplit; its ``note`` says which column was taken as the target by default.

    Raises:
        DataError: If the header cannot be used, two inputs get one name, or there is no row;
            if there are missing values (names columns and rows), text among numbers, commas in
            numbers, text that differs in most rows, or a target that does not suit the task; or if
            several targets are not all numbers, or leave no input.
        OptionError: If a target is named twice.
        UnknownNameError: If there is no column ``target``; suggests the nearest.
    """
    fields.check_header(min_columns=2)
    header, last = fields.header, fields.header[-1]
    notes = [] if target else [f"The target is the last column, {last!r}; target= takes another."]
    chosen = _chosen([last] if target is None else target, fields)
    fields.check_missing(header)
    y, task, class_names = _targets(fields, chosen, task)
    columns = tuple(fields.describe(column) for column in header if column not in chosen)
    _check_size(fields, columns)
    _check_names(fields, columns)
    data = Dataset(
        fields.inputs(columns),
        y,
        input_names=[name for column in columns for name in column.inputs],
        target_name=", ".join(chosen),
        class_names=class_names,
        target_names=chosen if len(chosen) > 1 else None,
    )
    notes += [
        f"Column {column.name!r} is of codes with leading zeros, such as "
        f"{shown(codes[0])}: categories, not numbers."
        for column in columns
        if (codes := padded_codes(column.categories or ()))
    ]
    is_on_disk = is_large_table(data.x.shape)
    return Table(data, task, name or fields.name, " ".join(notes), columns, is_on_disk)


def _check_size(fields: Fields, columns: Sequence[Column]) -> None:
    """Refuse text whose values, each an input of its own, are far more than the table has fields.

    Raises:
        DataError: Names the column with the most values.
    """
    num_rows, num_inputs = len(fields), sum(len(column.inputs) for column in columns)
    if num_rows * num_inputs > max(MOST_CODED, CODED * num_rows * len(columns)):
        column = max(columns, key=lambda column: len(column.inputs))
        raise DataError(
            f"{fields.source}: column {column.name!r} is text with {len(column.inputs)} different "
            f"values, each of which would be an input of {num_rows} rows: drop it, or put rare "
            "values into one"
        )


def _check_names(fields: Fields, columns: Sequence[Column]) -> None:
    """Refuse two inputs of one name, of a column ``"a=b"`` and of text ``"b"`` in column ``"a"``.

    Raises:
        DataError: Names both columns.
    """
    of: dict[str, Column] = {}
    for column in columns:
        for name in column.inputs:
            other = of.setdefault(name, column)
            if other is not column:
                raise DataError(
                    f"{fields.source}: columns {other.name!r} and {column.name!r} both become an "
                    f"input {name!r}, the name of a value of a column of text: rename one of them"
                )


def _chosen(target: Target, fields: Fields) -> list[str]:
    """Columns that are predicted; a name with commas goes before names that they separate.

    Raises:
        DataError: If no other column is left.
        OptionError: If there is none, or one is named twice.
        UnknownNameError: If there is no such column; suggests the nearest.
    """
    header = fields.header
    several = isinstance(target, str) and target not in header and "," in target
    names = [target] if isinstance(target, str) else list(target)
    if several:
        names = [name.strip() for name in str(target).split(",")]
    for name in names:
        if name not in header:
            raise UnknownNameError(f"target column of {fields.name}", name, header)
    if not names or len(set(names)) < len(names):
        raise OptionError(f"target names each column once, not {target!r}")
    if len(names) == len(header):
        raise DataError(
            f"{fields.source}: the targets are all columns, and none is left as an input"
        )
    return names


def _targets(
    fields: Fields, names: list[str], task: Task | None
) -> tuple[Tensor, Task, tuple[str, ...] | None]:
    """The one target ``[N]``, or several ``[N, O]``, which are numbers."""
    targets = [_target(fields, name, task) for name in names]
    if len(targets) == 1:
        return targets[0]
    for name, (_, what, _) in zip(names, targets, strict=True):
        if what == "classification":
            raise DataError(
                f"{fields.name}: several targets are numbers, but {name!r} is of classes: "
                "predict it alone, or write 0 and 1 and pass task='counts' for a Bernoulli "
                "likelihood"
            )
    return torch.stack([y for y, _, _ in targets], 1), targets[0][1], None


def _target(
    fields: Fields, name: str, task: Task | None
) -> tuple[Tensor, Task, tuple[str, ...] | None]:
    text, what = fields.text.get(name), f"target {name!r} of {fields.name}"
    classes = fields.describe(name, are_classes=task == "classification").categories
    are_truths = text is not None and all(value.lower() in TRUTH_VALUES for value in text.values)
    task = task or ("classification" if classes is not None or are_truths else "regression")
    if task != "classification":
        if text is not None and text.categories is not None:
            raise DataError(
                f"{what} is of dtype category; {task} needs numbers: convert it with "
                "astype(float), or pass task='classification'"
            )
        if text is not None and classes is not None:
            raise DataError(
                f"{what} is text, for instance {shown(text[0])}; regression needs numbers"
            )
        return torch.tensor(fields.numbers(name).astype(np.float64)), task, None
    if text is not None and classes is not None:
        check_several(classes, len(text), what)
        return torch.tensor(text.places(classes)), task, classes
    values = fields.numbers(name)
    labels, class_names = encode_labels(values == 1 if are_truths else values, what)
    return labels, task, class_names
