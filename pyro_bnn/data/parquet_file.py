"""A table in a Parquet file, read by pyarrow: the same data set as that of its CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_bnn.data import on_disk
from pyro_bnn.data.csv_file import csv_fields
from pyro_bnn.data.fields import Fields
from pyro_bnn.data.frames import frame_fields
from pyro_bnn.data.labels import is_categorical
from pyro_bnn.data.tables import check_packing
from pyro_bnn.errors import DataError, OptionError, OutputError

if TYPE_CHECKING:
    import pandas as pd

SUFFIXES = (".parquet", ".pq")


def read_fields(path: Path, *, min_columns: int = 2, once: bool = False) -> Fields:
    """Read the fields of a table: a Parquet file by its ending, anything else as a CSV.

    Args:
        path: The file.
        min_columns: Fewest columns that it may have.
        once: As in :func:`pyro_bnn.data.tables.read_text`, for a CSV.

    Raises:
        DataError: If the file cannot be read or used; as :class:`Fields`.
        OptionError: If it is a Parquet file and pyarrow is not installed.
    """
    if path.suffix.lower() in SUFFIXES:
        return frame_fields(read_parquet(path), min_columns, source=repr(str(path)), name=path.name)
    return csv_fields(path, min_columns=min_columns, once=once)


def read_parquet(path: Path) -> pd.DataFrame:
    """Read a Parquet file whose columns are numbers, truth values, text, categories or dates.

    Args:
        path: The file.

    Raises:
        DataError: If it is missing, damaged, declares far more than its size, or has a column of
            another type (names it).
        OptionError: If pyarrow is not installed.
    """
    try:
        import pyarrow.parquet as pq
    except ImportError as error:
        raise OptionError(
            f"{str(path)!r} is a Parquet file, which pyarrow reads: pip install 'pyro-bnn[parquet]'"
        ) from error
    if not path.is_file():
        raise DataError(f"no file {str(path)!r}; check the path")
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            _check_types(schema, path)
            check_packing(max(_sizes(file.metadata)), path)
            shape = file.metadata.num_rows, file.metadata.num_columns
        categories = _categories(schema)
        text = [field.name for field in schema if _is_text(field.type)]
        with pq.ParquetFile(path, read_dictionary=text) as file:
            is_large, index = on_disk.is_large_table(shape), _index(schema)
            frame = _by_column(file, index) if is_large else _whole(file, index)
    except (DataError, OutputError):
        raise
    except Exception as error:  # of Arrow, whatever a damaged file makes of it
        raise DataError(f"{str(path)!r} is truncated or no Parquet file: {error}") from error
    for place, name in enumerate(frame.columns):
        if name in categories:
            frame.isetitem(place, frame.iloc[:, place].astype("category"))
        elif name in text:
            frame.isetitem(place, _one_by_one(frame.iloc[:, place]))
    return frame


def _whole(file: Any, index: Sequence[str]) -> pd.DataFrame:
    table = file.read().drop_columns(index)
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True, split_blocks=True)
    return frame


def _by_column(file: Any, index: Sequence[str]) -> pd.DataFrame:
    """A large table, whose columns of numbers lie on the disk."""
    import pandas as pd

    columns = {}
    for name in file.schema_arrow.names:
        if name in index:
            continue
        own = file.read(columns=[name]).to_pandas(ignore_metadata=True)[name]
        is_plain = own.dtype.kind in "fiu" and isinstance(own.dtype, np.dtype)
        columns[name] = on_disk.stored(own.to_numpy()) if is_plain else own
    return pd.DataFrame(columns, copy=False)


def _sizes(metadata: Any) -> Iterator[int]:
    """The number of fields, and the bytes of columns before they were packed."""
    yield metadata.num_rows * metadata.num_columns
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    yield sum(
        group.column(place).total_uncompressed_size
        for group in groups
        for place in range(group.num_columns)
    )


def _one_by_one(column: Any) -> Any:
    """Text that Arrow has read as categories, so that equal fields are one text in memory."""
    if not is_categorical(column):
        return column
    values = np.array([*column.cat.categories, None], dtype=object)
    return type(column)(values[column.cat.codes], dtype=object)


def _categories(schema: Any) -> set[str]:
    """Columns that pandas wrote as categories: Parquet itself has those of text only."""
    known = (schema.pandas_metadata or {}).get("columns", ())
    return {one["field_name"] for one in known if one["pandas_type"] == "categorical"}


def _index(schema: Any) -> list[str]:
    """Columns that hold the index of pandas."""
    known = (schema.pandas_metadata or {}).get("index_columns", ())
    return [name for name in known if name in schema.names]


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_string(kind) or types.is_large_string(kind))


def _check_types(schema: Any, path: Path) -> None:
    from pyarrow import types

    known = (
        *(types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null),
        *(types.is_temporal, _is_text),
    )
    for field in schema:
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if not any(is_known(kind) for is_known in known):
            raise DataError(
                f"{str(path)!r}: column {field.name!r} is of type {field.type}; expected numbers, "
                "truth values, text or categories: make columns of these, or drop it"
            )
