"""Parquet files: the data set of the CSV bit for bit, and what is refused."""

import builtins
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data import load
from pyro_bnn.errors import DataError, OptionError
from tests.command_line import run

pytest.importorskip("pyarrow")
NUM_ROWS = 60


@pytest.fixture
def frame() -> pd.DataFrame:
    random = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "area": random.lognormal(0, 5, NUM_ROWS),
            "rooms": random.integers(-(2**53), 2**53, NUM_ROWS),
            "floor": pd.array(random.integers(0, 9, NUM_ROWS), dtype="Int64"),
            "old": random.random(NUM_ROWS) < 0.5,
            "town": random.choice(["Oslo", "Rome", "Zürich"], NUM_ROWS),
            "kind": pd.Categorical(random.choice(["b", "a"], NUM_ROWS)),
            "rent": random.normal(1_000, 100, NUM_ROWS),
        }
    )


@pytest.mark.parametrize("target", ["rent", "town", "old", "floor", "kind", "area,rent"])
@pytest.mark.parametrize("name", ["flats.parquet", "flats.pq"])
def test_a_parquet_file_is_its_csv_bit_for_bit(
    frame: pd.DataFrame, target: str, name: str, tmp_path: Path
) -> None:
    frame.to_csv(tmp_path / "flats.csv", index=False)
    frame.to_parquet(tmp_path / name)
    expected, found = (load(tmp_path / each, target=target) for each in ("flats.csv", name))
    assert (found.task, found.name, found.note) == (expected.task, expected.name, expected.note)
    assert found.columns == expected.columns
    for part, known in ((found.train, expected.train), (found.test, expected.test)):
        for field in ("input_names", "target_name", "target_names", "class_names"):
            assert getattr(part, field) == getattr(known, field)
        pairs = [(part.x, known.x), (part.y, known.y)]
        for units, those in ((part.inputs, known.inputs), (part.target, known.target)):
            assert (units is None) == (those is None)
            if units is not None and those is not None:
                pairs += [(units.loc, those.loc), (units.scale, those.scale)]
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def test_the_last_column_is_the_target_and_missing_values_are_told(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "flats.parquet"
    frame.to_parquet(path)
    assert load(path).train.target_name == "rent"
    frame.astype({"town": object}).assign(town=[None, *frame["town"][1:]]).to_parquet(path)
    with pytest.raises(DataError, match=r"flats.parquet' has missing values: 'town' in 1 row"):
        load(path)


@pytest.mark.parametrize("levels", [[10, 9], [0.5, 1.5], ["x", "b"], [True, False]])
def test_columns_of_dtype_category_are_of_categories(levels: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"kind": pd.Categorical(levels * 9), "y": np.arange(18.0)}).to_parquet(path)
    names = tuple(f"kind={level}" for level in sorted(levels))
    assert load(path, target="y").train.input_names == names
    assert load(path, target="kind").train.class_names == tuple(map(str, sorted(levels)))


@pytest.mark.parametrize("values", [[[1, 2]] * 9, [{"a": 1}] * 9, [b"ab"] * 9])
def test_columns_of_other_types_are_refused_by_name(values: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"what": values, "y": np.arange(9.0)}).to_parquet(path)
    with pytest.raises(DataError, match=r"column 'what' is of type .*; expected numbers, truth va"):
        load(path)


def test_damaged_files_and_files_that_declare_too_much(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame({"a": np.zeros(10_000_000, "i1"), "y": 0.0}).to_parquet(path)
    with pytest.raises(DataError, match="unpacks to more than 200 times its size"):
        load(path)
    pd.DataFrame({"a": np.arange(50.0), "y": 0.0}).to_parquet(path)
    for damage in (path.read_bytes()[:-9], b"", b"a,b\n1,2\n"):
        path.write_bytes(damage)
        with pytest.raises(DataError, match="is truncated or no Parquet file"):
            load(path)


LONG = 200_000  # characters of a field


@pytest.mark.parametrize("dtype", [object, "category"])
@pytest.mark.parametrize("target", ["kind", "y"])
def test_long_text_that_repeats_is_one_text_in_memory(
    dtype: Any, target: str, tmp_path: Path
) -> None:
    """A file of 12 KB took 2 GB: a copy of a text of 200 KB for each of its rows, twice."""
    path = tmp_path / "t.parquet"
    values = [letter * LONG for letter in "abc"]
    kind = pd.Categorical.from_codes([0, 1, 2] * 300, values).astype(dtype)
    pd.DataFrame({"kind": kind, "y": np.arange(900.0)}).to_parquet(path)
    del kind
    pyarrow = pytest.importorskip("pyarrow")
    pool = pyarrow.system_memory_pool()
    before = pyarrow.default_memory_pool()
    pyarrow.set_memory_pool(pool)
    tracemalloc.start()
    try:
        split = load(path, target=target)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pyarrow.set_memory_pool(before)
    assert peak < 50e6
    assert pool.max_memory() < 50e6
    names = tuple(f"kind={value}" for value in values) if target == "y" else ("y",)
    assert split.train.input_names == names
    assert split.train.class_names == (None if target == "y" else tuple(values))


def test_text_that_is_packed_closely_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    text = [f"{i}{'x' * 1_000_000}" for i in range(40)]
    pd.DataFrame({"a": text, "y": np.arange(40.0)}).to_parquet(path, compression="gzip")
    with pytest.raises(DataError, match="unpacks to more than 200 times its size"):
        load(path)


def test_a_file_without_columns_and_categories_of_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pd.DataFrame().to_parquet(path)
    with pytest.raises(DataError, match=r"t.parquet' has no columns"):
        load(path)
    pd.DataFrame({"a": pd.Categorical([b"x", b"y"] * 9), "y": np.arange(18.0)}).to_parquet(path)
    with pytest.raises(DataError, match=r"column 'a' is of type dictionary.*binary"):
        load(path)


def test_columns_are_told_apart_where_one_name_begins_another_or_is_another(tmp_path: Path) -> None:
    pyarrow, path = pytest.importorskip("pyarrow"), tmp_path / "t.parquet"
    pq, columns = pytest.importorskip("pyarrow.parquet"), [np.arange(9.0) + i for i in range(3)]
    pq.write_table(pyarrow.table(columns, names=["a.b", "a", "a.b.c"]), path)
    x, y = load(path).train.raw()
    ones = torch.ones(len(x), dtype=torch.float64)
    assert_close(x[:, 1] - x[:, 0], ones, rtol=1e-5, atol=0)
    assert_close(y - x[:, 0], 2 * ones, rtol=1e-5, atol=0)
    pq.write_table(pyarrow.table(columns, names=["a", "b", "a"]), path)
    with pytest.raises(DataError, match="a header in which several columns are called 'a'"):
        load(path)


@pytest.mark.parametrize("forged", ["{", "[1]", '{"columns": [{}]}', '{"columns": 1}'])
def test_what_a_file_says_of_pandas_is_not_trusted(forged: str, tmp_path: Path) -> None:
    pyarrow, path = pytest.importorskip("pyarrow"), tmp_path / "t.parquet"
    pq = pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"a": np.arange(9.0), "y": np.arange(9.0)})
    pq.write_table(table.replace_schema_metadata({"pandas": forged}), path)
    with pytest.raises(DataError, match="is truncated or no Parquet file"):
        load(path)


def test_the_index_of_a_frame_is_no_input(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    frame = pd.DataFrame({"a": np.arange(18.0), "y": np.arange(18.0)})
    pairs = pd.MultiIndex.from_product([["u", "v"], range(9)], names=["a of", None])
    for index in (pd.Index(["row"] * 18), pd.Index(range(18), name="b"), pairs):
        frame.set_index(index).to_parquet(path)
        assert load(path).train.input_names == ("a",)


def test_without_pyarrow_the_message_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.parquet"
    path.touch()
    whole = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return whole(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(OptionError, match=re.escape("pip install 'pyro-bnn[parquet]'")):
        load(path)


@pytest.mark.slow("runs whole commands")
def test_fit_and_predict_of_parquet_are_those_of_csv(frame: pd.DataFrame, tmp_path: Path) -> None:
    frame = frame.drop(columns="rooms").assign(area=np.log(frame["area"]))
    frame.to_csv(tmp_path / "flats.csv", index=False)
    frame.to_parquet(tmp_path / "flats.parquet")
    written = []
    for ending in ("csv", "parquet"):
        data, fit = tmp_path / f"flats.{ending}", tmp_path / ending
        options = ("--method", "auto-normal", "--steps", "20", "--hidden", "3", "--out", fit)
        done = run("fit", "--data", data, *options)
        assert (done.code, done.err) == (0, "")
        table = tmp_path / f"of_{ending}.csv"
        done = run("predict", data, "--posterior", fit, "--out", table, "--samples", "20")
        assert (done.code, done.err) == (0, "")
        written.append(pd.read_csv(table))
    pd.testing.assert_frame_equal(*written, check_exact=True)
