"""Rows that a posterior is asked about, their columns in the order of its fit."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from pyro_bnn.data import Dataset
from pyro_bnn.data.arrays import ArrayLike, column_order, in_order, listed, to_tensor
from pyro_bnn.data.frames import encoded
from pyro_bnn.data.labels import check_same_classes
from pyro_bnn.errors import BNNWarning, DataError
from pyro_bnn.predictive.prediction import Names

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_bnn.posterior.provenance import Provenance

DatasetOrPair: TypeAlias = "Dataset | tuple[ArrayLike, ArrayLike]"
MOST_ROWS = 10_000  # at which all draws are kept
MOST_NUMBERS = 1 << 27  # of one array of draws and rows
MOST_DENSITIES = 1 << 25  # log likelihoods of single rows that one estimate adds up
FEWEST_DRAWS = 32  # of such an estimate


def in_order_of_fit(x: ArrayLike, fit: Provenance, *, raw: bool = False) -> Tensor:
    """Inputs as a tensor, the columns of a data frame in the order of the fit.

    Args:
        x: What came.
        fit: Of the posterior.
        raw: Whether x is in the user's units, so that columns of text may be encoded.

    Raises:
        DataError: If a data frame has other columns than the fit, or fields that it cannot use.
    """
    if raw:
        x = encoded(x, fit.input_names)
    return to_tensor(in_order(x, fit.input_names, "x"), "x")


def pair(data: DatasetOrPair, fit: Provenance) -> tuple[Tensor, Tensor]:
    """X and y of rows of data, their columns in the order of the fit.

    Raises:
        DataError: If data are of another kind, or the columns have names, and these are not
            those of the fit.
    """
    if isinstance(data, Dataset):
        check_names(data, fit)
        return data.x, data.y
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise DataError(
            f"data is a pyro_bnn.data.Dataset or a pair (x, y), not {type(data).__name__}; of "
            "a Split pass split.train or split.test"
        )
    names = Names(fit.target_names, fit.class_names)
    return in_order_of_fit(data[0], fit), names.observed(data[1])


def require_dataset(rows: object) -> None:
    """Check that rows are a Dataset, which has the names of columns and classes.

    Raises:
        DataError: If they are not.
    """
    if not isinstance(rows, Dataset):
        pair = "" if not isinstance(rows, tuple | list) else ": of a pair make Dataset(x, y)"
        raise DataError(
            f"rows are a pyro_bnn.data.Dataset, such as split.train, not {type(rows).__name__}"
            f"{pair}"
        )


def check_names(data: Dataset, fit: Provenance) -> None:
    """Check that columns and classes which have names are those of the fit, in its order.

    Raises:
        DataError: If they are not.
    """
    check_same_classes(data.class_names, fit.class_names, "these rows")
    given, known = data.input_names, fit.input_names
    if column_order(given, known, "x") is not None:
        raise DataError(
            f"x has the columns of the fit, {listed(known or ())}, in another order, "
            f"{listed(given or ())}: make the Dataset of a frame with the order of the fit"
        )


def rows_with_draws(data: Dataset, num_draws: int) -> Dataset:
    """The rows at which an array has all draws: all, or of a large table some, evenly spread.

    They are at most 10,000, and fewer where draws times rows times classes exceed 2^27. A share
    that is estimated from 10,000 rows has a standard error of at most 0.005.

    Args:
        data: The rows.
        num_draws: Number of draws S.
    """
    numbers = data.num_classes or (1 if data.y.ndim == 1 else data.y.shape[1])
    most = max(1, min(MOST_ROWS, MOST_NUMBERS // (num_draws * numbers)))
    if len(data) <= most:
        return data
    return data.rows(np.linspace(0, len(data) - 1, most).round().astype(int).tolist())


def draws_with_densities(num_rows: int, num_draws: int) -> int:
    """How many draws have a log density over all rows, each of which is read once for each draw.

    Args:
        num_rows: Number of rows N.
        num_draws: Number of draws S, which is the answer up to 33,554 rows of 1,000 draws.

    Returns:
        The number, at least 32 of those that there are.

    Example:
        >>> draws_with_densities(10_000, 1_000), draws_with_densities(1_000_000, 1_000)
        (1000, 33)
    """
    return min(num_draws, max(FEWEST_DRAWS, MOST_DENSITIES // num_rows))


def tell_of_left_out(train: Dataset, test: Dataset | None, num_draws: int) -> None:
    """Say where an array of draws has some rows only.

    Warns:
        BNNWarning: If it leaves out any.
    """
    named = {"training": train, "held-out": test}
    counts = [
        f"{len(kept):,} of {len(rows):,} {name}"
        for name, rows in named.items()
        if rows is not None and (kept := rows_with_draws(rows, num_draws)) is not rows
    ]
    if counts:
        warnings.warn(
            f"all {num_draws:,} draws are kept at {' and '.join(counts)} rows, evenly spread",
            BNNWarning,
            stacklevel=3,
        )
