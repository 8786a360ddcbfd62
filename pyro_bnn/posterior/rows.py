"""Rows that a posterior is asked about, their columns in the order of its fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from pyro_bnn.data import Dataset
from pyro_bnn.data.arrays import ArrayLike, column_order, in_order, listed, to_tensor
from pyro_bnn.data.frames import encoded
from pyro_bnn.data.labels import check_same_classes
from pyro_bnn.errors import DataError
from pyro_bnn.predictive.prediction import Names

if TYPE_CHECKING:
    from torch import Tensor

    from pyro_bnn.posterior.provenance import Provenance

Data: TypeAlias = "Dataset | tuple[ArrayLike, ArrayLike]"


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


def pair(data: Data, fit: Provenance) -> tuple[Tensor, Tensor]:
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
