"""Training and test rows of one data set, standardised by the training rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from pyro_bnn.checks import check_positive_int
from pyro_bnn.data import arrays, labels
from pyro_bnn.data.arrays import ArrayLike
from pyro_bnn.data.dataset import Dataset, random_rows
from pyro_bnn.data.labels import Task
from pyro_bnn.data.on_disk import Numbers, is_large_table, pieces
from pyro_bnn.data.standardise import Standardiser, check_steps, constant_columns
from pyro_bnn.errors import BNNWarning, DataError, OptionError

NUM_SPLITS = 20
"""Splits that a data set has where nothing else is said."""


@dataclass(frozen=True, eq=False)
class Split:
    """One partition of a data set into training and test rows.

    Args:
        train: Training rows; x and, for regression, y have mean 0 and standard deviation 1.
        test: Test rows in the same units, so standardised by the TRAINING rows.
        task: ``"regression"`` or ``"classification"``; a regression without units of the target
            (``train.target`` is None) is one of counts.
        name: Of the data set.
        index: Number of the split, from 0.
        train_rows: Where the training rows stood in the source, int64.
        test_rows: The same for the test rows.
        note: What a reader of results on these data should know; may be empty.
        columns: Columns of the file or data frame that x was made of; None for arrays.

    Raises:
        DataError: If the classes of the test rows have other names than those of the training rows.
    """

    train: Dataset
    test: Dataset
    task: Task
    name: str
    index: int = 0
    train_rows: Tensor | None = None
    test_rows: Tensor | None = None
    note: str = ""
    columns: tuple[Column, ...] | None = None

    def __post_init__(self) -> None:
        labels.check_same_classes(self.test.class_names, self.train.class_names, "the test rows")

    def __repr__(self) -> str:
        return (
            f"Split({self.name!r}, {self.task}, index={self.index}, train={self.train!r}, "
            f"test={self.test!r})"
        )

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Split:
        """Return the split on another device or in another floating dtype."""
        return replace(self, train=self.train.to(device, dtype), test=self.test.to(device, dtype))

    def first(self, num_rows: int) -> Split:
        """The first training rows and the first test rows, in the units of the whole.

        Args:
            num_rows: How many of each; all of those that are fewer.

        Raises:
            OptionError: If it is no positive integer, or both are fewer.
        """
        check_positive_int("num_rows", num_rows)
        counts = len(self.train), len(self.test)
        if num_rows >= max(counts):
            raise OptionError(
                f"the first {num_rows:,} rows of {self.name} are all: it has {counts[0]:,} "
                f"training and {counts[1]:,} test rows"
            )
        kept = {}
        for name, count in zip(("train", "test"), counts, strict=True):
            rows, source = torch.arange(min(num_rows, count)), getattr(self, f"{name}_rows")
            kept[name] = getattr(self, name).rows(rows)
            kept[f"{name}_rows"] = None if source is None else source[rows]
        note = (
            f"{self.note} The first {len(kept['train']):,} of {counts[0]:,} training and "
            f"{len(kept['test']):,} of {counts[1]:,} test rows."
        )
        return replace(self, note=note.strip(), **kept)


def holds_counts(split: Split) -> bool:
    """Whether the target is of counts: numbers that were not standardised."""
    is_raw = split.task == "regression" and split.train.target is None
    return is_raw and bool(labels.is_count(split.train.y).all())


@dataclass(frozen=True)
class Column:
    """One input column of a file.

    Args:
        name: Its header.
        categories: Values of a column of text, each an input of its own (1 where the row has it,
            else 0); None for numbers and truth values.

    Example:
        >>> Column("age").inputs, Column("town", ("Oslo", "Rome")).inputs
        (('age',), ('town=Oslo', 'town=Rome'))
    """

    name: str
    categories: tuple[str, ...] | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs that the column becomes."""
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={value}" for value in self.categories)


@dataclass(frozen=True, eq=False)
class Table:
    """A whole data set in the user's units, before it is split.

    Args:
        data: All rows, their names and classes; floating where they are no labels.
        task: What y is.
        name: Of the data set.
        note: What a reader should know.
        columns: Columns of the file or data frame that x was made of; None for arrays.
        is_on_disk: Whether x is in a file, and that of a split is to be in one too.
    """

    data: Dataset
    task: Task
    name: str
    note: str = ""
    columns: tuple[Column, ...] | None = None
    is_on_disk: bool = False


def from_arrays(
    x: ArrayLike,
    y: ArrayLike,
    *,
    test_fraction: float = 0.1,
    seed: int = 0,
    rows: tuple[ArrayLike, ArrayLike] | None = None,
    task: Task | None = None,
) -> Split:
    """Split and standardise arrays.

    Args:
        x: Inputs ``[N, I]``, or ``[N, C, H, W]`` for convolutions (standardised by channel), in any
            units: tensor, NumPy array, data frame or nested list.
        y: Targets ``[N]`` or ``[N, O]``, in any units. Text and truth values are classes; class
            labels that are numbers must be 0 .. C-1. Several columns of 0 and 1, or truth values,
            are binary targets, ``"counts"`` for a ``Bernoulli`` likelihood.
        test_fraction: Share of the rows for the test, between 0 and 1; rounded to rows.
        seed: Of the permutation, >= 0; the global random state is not touched.
        rows: Numbers of the training and of the test rows, in place of ``test_fraction`` and
            ``seed``: ``(train, test)`` as a splitter of scikit-learn gives them.
        task: ``"regression"``, ``"classification"`` or ``"counts"``; by default floating y is
            regression, several binary targets are counts, and anything else is classification.
            Counts 0, 1, 2, ... are a regression whose y stays as it is.

    Returns:
        A split called ``"arrays"``.

    Raises:
        DataError: If the data are empty, hold NaN or infinity, or labels that are not 0 .. C-1, or
            the training rows hold one class only.
        ShapeError: If shapes do not fit each other.
        OptionError: If ``test_fraction``, ``seed`` or ``task`` is not allowed, or ``rows`` are not
            of the data, or one is named twice.

    Example:
        >>> split = from_arrays([[1.0], [2.0], [3.0], [4.0]], [1.0, 4.0, 9.0, 16.0],
        ...                     test_fraction=0.25)
        >>> len(split.train), len(split.test), split.task
        (3, 1, 'regression')
    """
    table = table_of_arrays(x, y, task)
    train, test = rows_of_split(len(table.data), rows, test_fraction, seed)
    return make_split(table, train, test, dtype=arrays.float_dtype(x, y))


def rows_of_split(
    num_rows: int, rows: tuple[ArrayLike, ArrayLike] | None, test_fraction: float, seed: int
) -> tuple[Int[Tensor, " train"], Int[Tensor, " test"]]:
    """Training and test rows: those that are named, else at random by :func:`random_rows`.

    Args:
        num_rows: N.
        rows: As in :func:`from_arrays`.
        test_fraction: Share of the test where rows is None.
        seed: Of the permutation where rows is None.

    Raises:
        OptionError: As in :func:`from_arrays`.
    """
    if rows is None:
        return random_rows(num_rows, test_fraction, seed, "test_fraction")
    refusal = OptionError(
        f"rows is (train, test), each with whole numbers 0 .. {num_rows - 1} and no row twice, "
        "as a splitter of scikit-learn gives them: next(KFold(5).split(x))"
    )
    try:
        train, test = (_row_numbers(part, num_rows) for part in rows)
    except (TypeError, ValueError) as error:
        raise refusal from error
    if len({*train.tolist(), *test.tolist()}) < len(train) + len(test):
        raise refusal
    return train, test


def _row_numbers(part: ArrayLike, num_rows: int) -> Int[Tensor, " rows"]:
    numbers = np.asarray(part)
    if numbers.ndim != 1 or not numbers.size or numbers.dtype.kind not in "iu":
        raise ValueError("not a row of whole numbers")
    if numbers.min() < 0 or numbers.max() >= num_rows:
        raise ValueError("not of these rows")
    return torch.from_numpy(numbers.astype(np.int64))


def table_of_arrays(x: ArrayLike, y: ArrayLike, task: Task | None, name: str = "arrays") -> Table:
    """Check arrays and take y for what ``task``, or its dtype, says.

    Args:
        x: As in :func:`from_arrays`.
        y: As in :func:`from_arrays`.
        task: As in :func:`from_arrays`.
        name: Of the data set.

    Returns:
        The data set, unsplit.

    Raises:
        DataError: As in :func:`from_arrays`.
        ShapeError: As in :func:`from_arrays`.
        OptionError: If ``task`` is unknown.
    """
    labels.check_task(task)
    task, class_names, values = task or labels.infer_task(y), None, y
    if task == "classification":
        values, class_names = labels.array_labels(y)
    else:
        values = arrays.to_floating(arrays.to_tensor(y, "y"))
    data = Dataset(
        arrays.to_floating(arrays.to_tensor(x, "x")),
        values,
        input_names=arrays.column_names(x),
        target_name=arrays.series_name(y),
        class_names=class_names,
        target_names=arrays.column_names(y),
    )
    return Table(data, task, name)


def published_rows(
    num_rows: int, index: int, name: str = "the data"
) -> tuple[Int[Tensor, " train"], Int[Tensor, " test"]]:
    """Regenerate split number ``index`` of the protocol of the UCI regression benchmark.

    One generator of seed 1 draws a permutation of all rows for each split in turn; the first
    ``round(0.9 * N)`` of the permutation train, the rest test. Test sets of different splits
    overlap: this is repeated holdout, not cross-validation.

    Args:
        num_rows: N.
        index: Number of the split, from 0.
        name: What the data are called in the message of an error.

    Returns:
        Training rows and test rows.

    Raises:
        DataError: If there are too few rows for a test row.

    References:
        Hernandez-Lobato & Adams, "Probabilistic Backpropagation for Scalable Learning of Bayesian
        Neural Networks", ICML 2015, arXiv:1502.05336.

    Example:
        >>> train, test = published_rows(506, 0)
        >>> len(train), len(test), train[:2].tolist()
        (455, 51, [307, 343])
    """
    num_train = round(0.9 * num_rows)
    if not 0 < num_train < num_rows:
        raise DataError(
            f"{name}: {num_rows} {'row is' if num_rows == 1 else 'rows are'} too few for 90 % "
            "training and 10 % test rows; at least 5 rows are needed"
        )
    random = np.random.RandomState(1)  # the published splits used this generator
    order = random.permutation(num_rows)
    for _ in range(index):
        order = random.permutation(num_rows)
    rows = torch.tensor(order)
    return rows[:num_train], rows[num_train:]


def published_split(table: Table, index: int, source: str = "") -> Split:
    """Split number ``index`` of a data set, by :func:`published_rows`.

    Args:
        table: The data set.
        index: Number of the split.
        source: What errors call it; by default its name.

    Raises:
        DataError: If there are too few rows, or as :func:`make_split`.
        OptionError: If there is no such split of 20.
    """
    source = source or table.name
    check_index(index, NUM_SPLITS, source)
    return make_split(table, *published_rows(len(table.data), index, source), index=index)


def check_index(index: int, num_splits: int, name: str) -> None:
    """Check the number of a split.

    Raises:
        OptionError: If it is not a whole number from 0 to ``num_splits - 1``.
    """
    whole = isinstance(index, int | np.integer) and not isinstance(index, bool)
    if not whole or not 0 <= index < num_splits:
        only = "0, the only one" if num_splits == 1 else f"a whole number 0 .. {num_splits - 1}"
        raise OptionError(f"split of {name} must be {only}, got {index!r}")


def make_split(
    table: Table,
    train: Int[Tensor, " train"],
    test: Int[Tensor, " test"],
    *,
    index: int = 0,
    dtype: torch.dtype | None = None,
) -> Split:
    """Take rows of a data set and standardise them by the training rows.

    Args:
        table: The whole, in the user's units.
        train: Training rows.
        test: Test rows.
        index: Number of the split.
        dtype: Of x and y; torch's default if None. The units stay in that of the table.

    Returns:
        The split; constant columns of the training rows get scale 1.

    Raises:
        DataError: If a value is NaN or infinite, numbers beyond 2^53 differ by what float64 has
            lost, or the training rows hold one class only.

    Warns:
        BNNWarning: If a class has no training row, or a target is constant in the training rows.
    """
    dtype = dtype or torch.get_default_dtype()
    data = table.data
    check_steps(data.x, f"{table.name}: x", data.input_names)
    if table.task == "regression":
        check_steps(data.y, f"{table.name}: the target", data.target_names)
    inputs = Standardiser.fit(data.x, train)
    target, is_number = None, table.task != "classification"
    if table.task == "counts":
        labels.check_counts(data.y, f"target of {table.name}")
    if is_number:
        _warn_of_constant_target(table, train)
    else:
        _check_training_classes(table, train)
    if table.task == "regression":
        target = Standardiser.fit(data.y[train])
        _check_squares(table.name, target)
    y = data.y if target is None else target.transform(data.y)
    y = arrays.cast(y, dtype, "y") if is_number else y
    of_train, of_test = (
        replace(
            data,
            x=_standardised(table, inputs, rows, dtype),
            y=y[rows],
            inputs=inputs,
            target=target,
        )
        for rows in (train, test)
    )
    task: Task = "regression" if is_number else "classification"
    return Split(
        of_train, of_test, task, table.name, int(index), train, test, table.note, table.columns
    )


def _standardised(table: Table, units: Standardiser, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """The inputs of some rows in these units, made piece by piece."""
    x = table.data.x
    in_units = Numbers((len(rows), *x.shape[1:]), dtype, is_large=table.is_on_disk, device=x.device)
    for piece in pieces(len(rows), x.shape[1:]):
        in_units.append(arrays.cast(units.transform(x[rows[piece]]), dtype, "x"))
    return in_units.whole()


def require_split(data: object) -> None:
    """Check that data are a Split, which has held-out rows.

    Raises:
        DataError: If they are not.
    """
    if not isinstance(data, Split):
        raise DataError(
            "data with held-out rows are a pyro_bnn.data.Split, such as data.from_arrays(x, y) "
            f"makes, not {type(data).__name__}"
        )


def all_rows(split: Split) -> Split:
    """The training and held-out rows of a split together, standardised anew, as training rows.

    Counts stay as they are.

    Returns:
        A split whose ``train`` and ``test`` both are all rows.
    """
    parts = (split.train, split.test)
    shape = (sum(map(len, parts)), *split.train.x.shape[1:])
    is_on_disk = is_large_table(shape)
    x = Numbers(shape, torch.float64, is_large=is_on_disk, device=split.train.x.device)
    for part in parts:
        for piece in pieces(len(part), shape[1:]):
            x.append(_raw(part.x[piece], part.inputs))
    y = torch.cat([_raw(part.y, part.target) for part in parts])
    data = replace(split.train, x=x.whole(), y=y, inputs=None, target=None)
    task = "counts" if holds_counts(split) else split.task
    every = torch.arange(len(y))
    table = Table(data, task, split.name, split.note, split.columns, is_on_disk)
    return make_split(table, every, every, index=split.index)


def _raw(values: Tensor, units: Standardiser | None) -> Tensor:
    """Values in the user's units, in double precision; labels as they are."""
    values = values.double() if values.is_floating_point() else values
    return values if units is None else units.inverse(values)


def _warn_of_constant_target(table: Table, train: Tensor) -> None:
    y = table.data.y[train]
    constant = constant_columns(y).flatten()  # one for each target
    if bool(constant.any()):
        place = int(constant.nonzero()[0])
        name = "y" if table.data.target_name is None else repr(table.data.target_name)
        if len(constant) > 1 and table.data.target_names is not None:
            name = repr(table.data.target_names[place])
        elif len(constant) > 1:
            name += f", column {place} (from 0),"
        warnings.warn(
            f"{table.name}: the target {name} has one value in all {len(y)} training rows: "
            "there is nothing to learn from it",
            BNNWarning,
            stacklevel=4,
        )


def _check_squares(name: str, target: Standardiser) -> None:
    """Refuse a target whose variance, or that of its predictions, would be infinite or 0."""
    bound = torch.finfo(target.scale.dtype).max ** 0.5 / 1e4  # squares of outliers too
    bad = (target.scale > bound) | (target.scale < 1 / bound)
    if bool(bad.any()):
        raise DataError(
            f"{name}: the target's standard deviation is {float(target.scale[bad][0]):.4g}, whose "
            f"square {target.scale.dtype} cannot hold; choose units in which it is between "
            f"{1 / bound:.0e} and {bound:.0e}"
        )


def _check_training_classes(table: Table, train: Tensor) -> None:
    names: Sequence[str] = table.data.class_names or ()
    present = table.data.y[train].unique().tolist()
    if len(present) < 2:
        raise DataError(
            f"{table.name}: the training rows hold one class only, {names[present[0]]!r}; "
            "classification needs at least two"
        )
    absent = [names[label] for label in sorted({*range(len(names))} - {*present})]
    if absent:
        warnings.warn(
            f"{table.name}: no training row of class {', '.join(repr(n) for n in absent[:5])}",
            BNNWarning,
            stacklevel=4,
        )
