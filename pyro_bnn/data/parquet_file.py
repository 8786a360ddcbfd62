"""A table in a Parquet file, read by pyarrow: the same data set as that of its CSV."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pyro_bnn.data import on_disk
from pyro_bnn.data.csv_file import Fields
from pyro_bnn.data.frames import frame_fields
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
    return Fields.read(path, min_columns=min_columns, once=once)


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
            _check_types(file.schema_arrow, path)
            check_packing(file.metadata.num_rows * file.metadata.num_columns, path)
            shape = file.metadata.num_rows, file.metadata.num_columns
            frame: pd.DataFrame = (
                _by_column(file)
                if on_disk.is_large_table(shape)
                else file.read(use_pandas_metadata=True).to_pandas(split_blocks=True)
            )
            frame = frame.astype(dict.fromkeys(_categorical(file.schema_arrow), "category"))
    except (DataError, OutputError):
        raise
    except Exception as error:  # of Arrow, whatever a damaged file makes of it
        raise DataError(f"{str(path)!r} is truncated or no Parquet file: {error}") from error
    return frame.reset_index(drop=True)


def _by_column(file: Any) -> pd.DataFrame:
    """A large table, whose columns of numbers lie on the disk."""
    import pandas as pd

    columns = {}
    index = (file.schema_arrow.pandas_metadata or {}).get("index_columns", ())
    for name in file.schema_arrow.names:
        if name in index:
            continue
        own = file.read(columns=[name], use_pandas_metadata=False).to_pandas()[name]
        is_plain = own.dtype.kind in "fiu" and isinstance(own.dtype, np.dtype)
        columns[name] = on_disk.stored(own.to_numpy()) if is_plain else own
    return pd.DataFrame(columns, copy=False)


def _categorical(schema: Any) -> list[str]:
    """Columns that pandas wrote as categories: Parquet itself has those of text only."""
    known = (schema.pandas_metadata or {}).get("columns", ())
    categorical = {one["field_name"] for one in known if one["pandas_type"] == "categorical"}
    return [name for name in schema.names if name in categorical]


def _check_types(schema: Any, path: Path) -> None:
    from pyarrow import types

    known = (
        *(types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null),
        *(types.is_string, types.is_large_string, types.is_dictionary, types.is_temporal),
    )
    for field in schema:
        if not any(is_known(field.type) for is_known in known):
            raise DataError(
                f"{str(path)!r}: column {field.name!r} is of type {field.type}; expected numbers, "
                "truth values, text or categories: make columns of these, or drop it"
            )
