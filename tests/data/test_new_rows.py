"""New rows of a CSV: columns by name, categories and classes of the fit, faults by line."""

import gzip
import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data.new_rows import read_new_rows
from pyro_bnn.data.split import Column
from pyro_bnn.errors import DataError, UnknownNameError
from tests.rows import read_csv

DOUBLE = torch.float64
COLUMNS = (Column("age"), Column("town", ("01", "Oslo", "Rome")), Column("smoker"))


def read_columns(path: Path, target: str | None = None) -> tuple[Column, ...]:
    columns = read_csv(path, target).columns
    assert columns is not None
    return columns


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new.csv"


def test_columns_of_a_file(path: Path) -> None:
    path.write_text("age,smoker,town,cost\n30,True,Rome,1.5\n40,False,Oslo,2.5\n50,True,Oslo,3\n")
    columns = read_columns(path)
    assert columns == (Column("age"), Column("smoker"), Column("town", ("Oslo", "Rome")))
    names = tuple(name for column in columns for name in column.inputs)
    assert names == read_csv(path).data.input_names
    assert read_columns(path, "town")[-1] == Column("cost")
    with pytest.raises(UnknownNameError, match=r"unknown target column of new\.csv 'csot'"):
        read_columns(path, "csot")


def test_columns_are_found_by_name_in_any_order(path: Path) -> None:
    path.write_text("id;smoker;town;age\nx;TRUE;01;30\ny;0;Rome;4e1\n")
    rows = read_new_rows(path, COLUMNS, "cost")
    assert_close(rows.x, torch.tensor([[30, 1, 0, 0, 1], [40, 0, 0, 1, 0]], dtype=DOUBLE))
    assert rows.y is None
    assert (rows.separator, rows.unused) == (";", ("id",))
    assert rows.header == ["id", "smoker", "town", "age"]
    assert list(rows.text) == [["x", "TRUE", "01", "30"], ["y", "0", "Rome", "4e1"]]


def test_the_rows_of_the_fit_are_read_as_for_the_fit(path: Path) -> None:
    path.write_text("a,b,y\n1,u,2\n-3.5,v,1e3\n0.1,u,0\n")
    table, rows = read_csv(path), read_new_rows(path, read_columns(path), "y")
    assert_close(rows.x, table.data.x, rtol=0, atol=0)
    assert rows.y is not None
    assert_close(rows.y, table.data.y, rtol=0, atol=0)


def test_fields_of_other_columns_stay_as_they_are(path: Path) -> None:
    path.write_text('note,age,more\n"NA, 1",3,\n1.50,4,nan\n')
    rows = read_new_rows(path, COLUMNS[:1])
    assert list(rows.text) == [["NA, 1", "3", ""], ["1.50", "4", "nan"]]
    assert rows.unused == ("note", "more")


def test_one_column_is_enough(path: Path) -> None:
    path.write_text("age\n3\n4\n")
    assert_close(read_new_rows(path, COLUMNS[:1]).x, torch.tensor([[3], [4]], dtype=DOUBLE))


@pytest.mark.parametrize(
    ("names", "values", "labels"),
    [
        (("no", "yes"), ["yes", "no", "yes"], [1, 0, 1]),
        (("False", "True"), ["TRUE", "False", "true"], [1, 0, 1]),
        (("3", "8"), ["8", "3.0", "3"], [1, 0, 0]),
        (("01", "1"), ["1", "01", "1.0"], [1, 0, 1]),
    ],
)
def test_classes_are_those_of_the_fit(
    path: Path, names: tuple[str, ...], values: list[str], labels: list[int]
) -> None:
    path.write_text("age,kind\n" + "".join(f"1,{value}\n" for value in values))
    rows = read_new_rows(path, COLUMNS[:1], "kind", names)
    assert rows.y is not None
    assert_close(rows.y, torch.tensor(labels))
    assert rows.unused == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,town\n1,Rome\n", "lacks column 'smoker' of the fit; it has 'age', 'town'"),
        ("x,y\n1,2\n", "lacks columns 'age', 'town', 'smoker' of the fit; it has 'x', 'y'"),
        ("age,town,smoker\n1,Rome,1\n,Rome,0\n", "missing values: 'age' in 1 row of 2, first in l"),
        (
            "age,town,smoker\n1,Rome,1\n\n2,Paris,1\n2,Bonn,1\n",
            "column 'town' holds values that the fit has not seen, in 2 rows, first 'Paris' in "
            "line 4; known are '01', 'Oslo', 'Rome'",
        ),
        (
            "age,town,smoker\nold,Rome,1\n2,Rome,1\n",
            "column 'age' holds something else than finite numbers, in 1 row, first 'old' in line ",
        ),
        ("age,town,smoker\n1,Rome,1\ninf,Rome,1\n", "first 'inf' in line 3; mend these fields"),
        (
            "age,town,smoker,cost\n1,Rome,1,\n",
            "missing values: 'cost' in 1 row of 1, first in line 2",
        ),
        (
            'age,town,smoker\n"1,5",Rome,1\n',
            "column 'age' holds commas in its numbers, in 1 row, first '1,5' in line 2; write "
            "decimals with a point",
        ),
        ("age,town,smoker,cost\n1,Rome,1,?\n", "column 'cost' holds something else than finite"),
        ("age,town,smoker\n1,Rome\n", "line 2: expected 3 fields as in the header, got 2"),
        ("age,town,smoker\n", "has a header but no rows"),
        ("", "is empty"),
    ],
)
def test_rows_that_cannot_be_used(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        read_new_rows(path, COLUMNS, "cost")


def test_a_class_that_the_fit_has_not_seen(path: Path) -> None:
    path.write_text("age,kind\n1,ill\n2,well\n3,dead\n")
    expected = (
        "column 'kind' holds classes that the fit has not seen, in 1 row, first 'dead' in line 4; "
        "known are 'ill', 'well'"
    )
    with pytest.raises(DataError, match=expected):
        read_new_rows(path, COLUMNS[:1], "kind", ("ill", "well"))


@pytest.mark.parametrize("names", [("0", "1"), ("False", "True")])
def test_truth_values_are_zero_and_one_in_a_target_as_in_the_fit(
    path: Path, names: tuple[str, ...]
) -> None:
    path.write_text("age,sold\n1,True\n2,1\n3,0\n4,FALSE\n5,1.0\n")
    y = read_new_rows(path, COLUMNS[:1], "sold", names).y
    assert y is not None
    assert y.tolist() == [1, 1, 0, 0, 1]


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"no file {str(path)!r}")):
        read_new_rows(path, COLUMNS)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04\xff", "is an archive or a spreadsheet: unpack it, or save the table in it"),
        (gzip.compress(b"a\n1\n", mtime=0), "is packed by gzip: give it a name that ends in .gz"),
        (b"PAR1\xff", "is a Parquet file: give it a name that ends in .parquet"),
    ],
)
def test_files_of_other_kinds_are_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "new.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_new_rows(path, [Column("a")])


def test_packed_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "new.csv.gz"
    path.write_bytes(gzip.compress(b"a\n1\n2\n"))
    assert read_new_rows(path, [Column("a")]).x.tolist() == [[1], [2]]
