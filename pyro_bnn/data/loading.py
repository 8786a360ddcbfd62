"""``data.load``: a registered name, or a file or folder of the user's."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pyro_bnn.data.encoding import Target, table_of
from pyro_bnn.data.fashion_mnist import FASHION_SETS, load_fashion
from pyro_bnn.data.folders import load_folder
from pyro_bnn.data.idx_files import MNIST_SETS, load_mnist
from pyro_bnn.data.labels import Task, check_task
from pyro_bnn.data.npz_file import load_npz
from pyro_bnn.data.parquet_file import SUFFIXES, read_fields
from pyro_bnn.data.sklearn_sets import SKLEARN_SETS, load_sklearn
from pyro_bnn.data.split import Split, published_split
from pyro_bnn.data.uci import load_uci, uci_sets
from pyro_bnn.errors import DataError, OptionError, UnknownNameError

TEXTS = (".csv", ".tsv", ".txt")
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods", ".numbers")


def names() -> list[str]:
    """Return the names of all registered data sets, sorted.

    Example:
        >>> "diabetes" in names(), "uci/yacht" in names()
        (True, True)
    """
    return sorted(_loaders())


def load(
    name_or_path: str | os.PathLike[str],
    *,
    target: Target | None = None,
    task: Task | None = None,
    split: int = 0,
) -> Split:
    """Load one split of a data set, inputs and target standardised by the training rows.

    Splits follow the published protocol of the UCI benchmark for every source that does not bring
    its own: 90 % training rows, split k is the (k+1)-th permutation of a generator of seed 1.
    The result has torch's default dtype, float32; the global random state is not touched.

    Args:
        name_or_path: A registered name (see :func:`names`), which goes before a file of that name;
            or the path of a CSV, TSV or TXT file with a header, which may be packed by gzip, of a
            Parquet file (with pyarrow, the extra ``parquet``), of an NPZ file with arrays ``x`` and
            ``y`` (or ``x_train, y_train, x_test, y_test``), or of a folder in the UCI layout.
            UCI sets are read from ``$PYRO_BNN_DATA/uci`` or downloaded once, MNIST and a part of
            Fashion-MNIST are read from there, all by checksum.
        target: Column of a CSV or Parquet file that is predicted, or several (``["a", "b"]`` or
            ``"a,b"``), which are numbers; the last one by default.
        task: ``"regression"``, ``"classification"`` or ``"counts"`` (whole numbers from 0 for a
            Poisson likelihood, not standardised) for files. By default text and truth values
            are classification, numbers in text files regression; in an NPZ whole numbers
            are classes.
        split: Number of the split, from 0.

    Returns:
        The split.

    Raises:
        UnknownNameError: If the name is not registered or the target column is unknown; suggests
            the nearest.
        DataError: If a file is missing, truncated, fails its checksum or cannot be downloaded, or
            its values cannot be used; says where.
        ShapeError: If arrays do not fit each other.
        OptionError: If ``split`` is out of range, ``target`` or ``task`` do not apply, or a target
            is named twice.

    Example:
        >>> split = load("diabetes", split=0)
        >>> split.train, split.task
        (Dataset(x [398, 10] float32, y [398] float32, target_name='progression after one year'), \
'regression')
        >>> load("diabets")
        Traceback (most recent call last):
        pyro_bnn.errors.UnknownNameError: unknown data set 'diabets': did you mean 'diabetes'? ...
    """
    check_task(task)
    name = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and name in _loaders():
        return _registered(name, target, task, split)
    # that of pathlib fails where there is no such user
    path = Path(os.path.expanduser(name))  # noqa: PTH111
    if not _is_there(path):
        if isinstance(name_or_path, str) and not _looks_like_path(name):
            raise UnknownNameError("data set", name, names())
        raise DataError(f"no file or folder {str(path)!r}; check the path")
    suffix = path.suffix.lower()
    if is_table(path) and path.is_file():
        name = path.name.split(".")[0] if suffix == ".gz" else path.stem
        table = table_of(read_fields(path), target, task, name)
        return published_split(table, split, path.name)
    if suffix == ".zip":
        raise DataError(f"{str(path)!r} is an archive: unpack it, and give the table in it")
    if suffix in SPREADSHEETS:
        raise DataError(
            f"{str(path)!r} is a spreadsheet: save its sheet as CSV and give that, or in Python "
            "read it by pandas.read_excel, and pass the frame to pyro_bnn.data.from_frame"
        )
    if target is not None:
        raise OptionError(f"target= names a column of a CSV or Parquet file; {str(path)!r} is none")
    if path.is_dir():
        return load_folder(path, task, split)
    if suffix == ".npz":
        return load_npz(path, task, split)
    raise DataError(
        f"{str(path)!r} cannot be read: expected .csv, .tsv, .txt (or these with "
        ".gz), .parquet, .npz or a folder in the UCI layout"
    )


def _registered(name: str, target: Target | None, task: Task | None, split: int) -> Split:
    if target is not None:
        raise OptionError(f"{name} has its own target; target= is for a CSV")
    result = _loaders()[name](name, split)
    if task not in (None, result.task):
        raise OptionError(f"{name} is a {result.task} set, it cannot be loaded for {task!r}")
    return result


def _loaders() -> dict[str, Callable[[str, int], Split]]:
    """What loads each registered data set, by its name."""
    return {
        **dict.fromkeys(FASHION_SETS, load_fashion),
        **dict.fromkeys(MNIST_SETS, load_mnist),
        **dict.fromkeys(SKLEARN_SETS, load_sklearn),
        **dict.fromkeys(uci_sets(), load_uci),
    }


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:  # a name that is too long, a folder of another user
        raise DataError(
            f"{str(path)!r} cannot be read: {error.strerror}; check the path"
        ) from error


def is_table(path: Path) -> bool:
    """Whether a file is a table with named columns, by its ending."""
    name = path.name.lower()
    return name.removesuffix(".gz").endswith(TEXTS) or name.endswith(SUFFIXES)


def _looks_like_path(name: str) -> bool:
    if name.startswith("uci/") and not Path(name).suffix:
        return False
    return "/" in name or os.sep in name or name.startswith("~") or Path(name).suffix != ""
