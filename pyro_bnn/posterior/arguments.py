"""Arguments of a model as a file holds them: NumPy arrays and frames of pandas beside tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyro_bnn.errors import FileFormatError, OutputError

if TYPE_CHECKING:
    import pandas as pd

ARRAY, SCALAR, INDEX, SERIES, FRAME = "$array", "$scalar", "$index", "$series", "$frame"
NUMBERS, VIEWED = "bif", "umM"  # kinds of NumPy's dtypes, and those seen as signed numbers
OF_TORCH = frozenset(["bool", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])


def packed(value: Any, name: str) -> Any:
    """An argument without arrays and frames, which :func:`unpacked` makes again.

    Args:
        value: The argument; what is no array, frame or container of these stays as it is.
        name: Of the argument, for messages.

    Raises:
        OutputError: If an array or a column holds neither numbers, strings nor times.
    """
    if isinstance(value, np.generic):
        return {SCALAR: _packed_array(np.asarray(value), name)}
    if isinstance(value, np.ndarray):
        return {ARRAY: _packed_array(value, name)}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(packed(item, f"{name}[{i}]") for i, item in enumerate(value))
    if isinstance(value, Mapping):
        return {key: packed(item, f"{name}[{key!r}]") for key, item in value.items()}
    if type(value).__module__.partition(".")[0] != "pandas":
        return value
    import pandas as pd

    if isinstance(value, pd.DataFrame):
        if not value.columns.is_unique:
            twice = value.columns[value.columns.duplicated()].unique().tolist()
            raise OutputError(
                f"{name} has several columns of the name {', '.join(map(repr, twice))}, which the "
                "file cannot hold: give each column a name of its own, as in "
                "frame.set_axis(names, axis=1)"
            )
        columns = [(label, _packed_column(value[label], name)) for label in value.columns]
        return {FRAME: {"columns": columns, "index": _packed_column(value.index, name)}}
    if isinstance(value, pd.Series):
        index = _packed_column(value.index, name)
        return {SERIES: {"values": _packed_column(value, name), "index": index}}
    if isinstance(value, pd.Index):
        return {INDEX: _packed_column(value, name)}
    return value


def unpacked(value: Any) -> Any:
    """The argument that :func:`packed` took apart.

    Raises:
        FileFormatError: If it holds what :func:`packed` never makes.
    """
    if isinstance(value, list | tuple):
        return type(value)(map(unpacked, value))
    if not isinstance(value, dict):
        return value
    if not (value.keys() & {ARRAY, SCALAR, INDEX, SERIES, FRAME}):
        return {key: unpacked(item) for key, item in value.items()}
    try:
        return _made(value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileFormatError(f"an argument that was saved is damaged: {error}") from error


def _made(value: dict[str, Any]) -> Any:
    ((kind, parts),) = value.items()
    if kind == ARRAY:
        return _array(parts)
    if kind == SCALAR:
        return _array(parts)[()]
    import pandas as pd

    if kind == INDEX:
        return pd.Index(_column(parts))
    if kind == SERIES:
        return _column(parts["values"]).set_axis(pd.Index(_column(parts["index"])))
    columns = {label: _column(column) for label, column in parts["columns"]}
    frame = pd.DataFrame(columns, columns=list(columns))
    return frame.set_axis(pd.Index(_column(parts["index"])), axis=0)


def _packed_array(value: NDArray[Any], name: str) -> dict[str, Any]:
    """Numbers as a tensor, strings as a list, times as whole numbers."""
    kind, dtype, shape = value.dtype.kind, value.dtype.str, list(value.shape)
    items = np.array(value.reshape(-1), dtype=value.dtype.newbyteorder("="))
    if kind in VIEWED:
        items = items.view(f"i{items.itemsize}")
    if items.dtype.name in OF_TORCH:
        return {"dtype": dtype, "shape": shape, "numbers": torch.from_numpy(items)}
    listed = items.tolist()
    if kind in "UO" and all(map(_is_word, listed)):
        return {"dtype": dtype, "shape": shape, "strings": listed}
    raise OutputError(
        f"{name} is an array of {value.dtype}, which the file cannot hold: pass numbers, strings "
        "or times to the model"
    )


def _array(parts: dict[str, Any]) -> NDArray[Any]:
    dtype, shape = np.dtype(parts["dtype"]), parts["shape"]
    if "strings" in parts:
        if not all(map(_is_word, parts["strings"])):
            raise TypeError("its strings are none")
        return np.array(parts["strings"], dtype=dtype).reshape(shape)
    if dtype.kind not in NUMBERS + VIEWED:
        raise TypeError(f"its numbers are of {dtype}")
    numbers: NDArray[Any] = parts["numbers"].numpy()
    whole = numbers.view(dtype.newbyteorder("=")) if dtype.kind in VIEWED else numbers
    return whole.astype(dtype).reshape(shape)


def _is_word(item: Any) -> bool:
    """Whether an item is a string, or stands for one that is missing."""
    return item is None or type(item) is str or (type(item) is float and math.isnan(item))


def _packed_column(column: pd.Series | pd.Index, name: str) -> dict[str, Any]:
    """A column or an index: its name, its dtype, and its values as an array."""
    import pandas as pd

    where = name if column.name is None else f"{name}[{column.name!r}]"
    label, dtype = column.name, column.dtype
    if not (label is None or type(label) in (int, str)) or isinstance(column, pd.MultiIndex):
        raise OutputError(
            f"{name} has an index of several levels, or labels that are neither strings nor whole "
            "numbers, which the file cannot hold: pass frame.reset_index() with plain names"
        )
    found: dict[str, Any] = {"name": label, "dtype": str(dtype)}
    if isinstance(dtype, pd.CategoricalDtype):
        codes: Any = column.cat.codes if isinstance(column, pd.Series) else column.codes
        categories = _packed_column(dtype.categories, where)
        return found | {
            "categories": categories,
            "ordered": bool(dtype.ordered),
            "values": _packed_array(np.asarray(codes), where),
        }
    if isinstance(dtype, pd.DatetimeTZDtype | pd.PeriodDtype):
        plain = "to_timestamp()" if isinstance(dtype, pd.PeriodDtype) else "tz_localize(None)"
        raise OutputError(
            f"{where} is {dtype}, which the file cannot hold: pass plain times, by "
            f"{'' if isinstance(column, pd.Index) else '.dt'}.{plain}"
        )
    if column.isna().any() and not isinstance(dtype, np.dtype) and dtype != "str":
        raise OutputError(
            f"{where} is {dtype} with missing values, which the file cannot hold: pass them as "
            'NaN, frame.astype("float64")'
        )
    values = column.to_numpy()
    if not isinstance(dtype, np.dtype) and values.dtype == object:
        values = np.array(
            [None if item is None or item != item else item for item in values]
        )  # NaN
        values = values.astype(object)
    return found | {"values": _packed_array(values, where)}


def _column(parts: dict[str, Any]) -> pd.Series:
    import pandas as pd

    values = _array(parts["values"])
    if "categories" in parts:
        of = pd.Index(_column(parts["categories"]))
        made: Any = pd.Categorical.from_codes(values, of, ordered=parts["ordered"])
        return pd.Series(made, name=parts["name"])
    return pd.Series(values, name=parts["name"]).astype(parts["dtype"])
