"""A table in a Parquet file, read by pyarrow: the same data set as that of its CSV.

What it declares is bounded first, and columns are read one by one: a large table is never whole in
memory, and equal texts are one.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyro_bnn.data import on_disk
from pyro_bnn.data.csv_file import csv_fields
from pyro_bnn.data.fields import Fields
from pyro_bnn.data.frames import pandas_fields
from pyro_bnn.data.tables import check_packing
from pyro_bnn.errors import DataError, OptionError, OutputError

SUFFIXES = (".parquet", ".pq")


def read_fields(path: Path, *, once: bool = False) -> Fields:
    """Read the fields of a table: a Parquet file by its ending, anything else as a CSV.

    Args:
        path: The file.
        once: As in :func:`pyro_bnn.data.tables.read_text`, for a CSV.

    Raises:
        DataError: If the file cannot be read or used; as :func:`csv_fields`.
        OptionError: If it is a Parquet file and pyarrow is not installed.
    """
    if path.suffix.lower() in SUFFIXES:
        return parquet_fields(path)
    return csv_fields(path, once=once)


def parquet_fields(path: Path) -> Fields:
    """Read a Parquet file whose columns are numbers, truth values, text, categories or dates.

    Args:
        path: The file.

    Raises:
        DataError: If it is missing, damaged, declares far more than its size, or has a column of
            another type (names it); as :func:`csv_fields`.
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
        words = [field.name for field in schema if _is_text(field.type)]
        with pq.ParquetFile(path, read_dictionary=words) as file:
            return pandas_fields(
                _columns(file),
                set(words) - _categories(schema),
                place=lambda row: f"row {row}",
                source=repr(str(path)),
                name=path.name,
            )
    except (DataError, OutputError):
        raise
    except Exception as error:  # of Arrow, whatever a damaged file makes of it
        raise DataError(f"{str(path)!r} is truncated or no Parquet file: {error}") from error


def _columns(file: Any) -> Iterator[tuple[str, Any]]:
    """Each column as a series, read on its own; of a large table, numbers lie on the disk."""
    import pandas as pd

    schema = file.schema_arrow
    is_large = on_disk.is_large_table((file.metadata.num_rows, file.metadata.num_columns))
    index, categories = _index(schema), _categories(schema)
    for name in schema.names:
        if name in index:
            continue
        table = file.read(columns=[name])
        series = table.column(table.column_names.index(name)).to_pandas()
        if name in categories:
            series = series.astype("category")
        elif is_large and series.dtype.kind in "fiu":
            series = pd.Series(on_disk.stored(series.to_numpy()), copy=False)
        yield name, series


def _sizes(metadata: Any) -> Iterator[int]:
    """The number of fields, and the bytes of columns before they were packed."""
    yield metadata.num_rows * metadata.num_columns
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    yield sum(
        group.column(place).total_uncompressed_size
        for group in groups
        for place in range(group.num_columns)
    )


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
