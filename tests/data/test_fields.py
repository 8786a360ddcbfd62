"""Columns of a table: text once for each different field, numbers, and what is refused of both."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pyro_bnn.data.fields import TextColumn, text_columns
from pyro_bnn.data.frames import frame_fields
from pyro_bnn.errors import DataError
from tests.rows import read_csv


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


def test_each_different_field_stands_once() -> None:
    rows = [("Rome", "x"), (" Oslo", "y"), ("Rome ", "x")]
    town, letter = text_columns(iter(rows), [0, 1])
    assert list(town.values) == ["Rome", "Oslo"]
    assert town.codes.tolist() == [0, 1, 0]
    assert [letter[row] for row in range(3)] == ["x", "y", "x"]
    assert town.rows({"Rome", "Bonn"}).tolist() == [0, 2]
    assert town.places(["Bonn", "Oslo", "Rome"]).tolist() == [2, 1, 2]
    assert town.each(map(len, town.values)).tolist() == [4, 4, 4]
    assert len(TextColumn((), np.array([], int)).rows({"Rome"})) == 0


def test_numbers_of_a_frame_keep_their_dtype_and_never_become_text() -> None:
    whole, single = np.array([3, -7], "i1"), np.array([0.1, 2.0**60], "f4")
    frame = pd.DataFrame({"a": whole, "b": single, "c": pd.array([1, None], dtype="Int64")})
    fields = frame_fields(frame)
    assert not fields.text
    assert [fields.numeric[name].dtype for name in "abc"] == ["i1", "f4", "f8"]
    assert fields.numbers("b").tolist() == [float(value) for value in single]
    with pytest.raises(DataError, match="'c' in 1 row of 2, first in row 1; fill them"):
        fields.check_missing("abc")


def test_commas_in_text_are_no_decimal_commas(path: Path) -> None:
    path.write_text("a;b\n1,5;1\nx,y;2\nx,y;3\n1,5;4\n")
    assert read_csv(path).data.input_names == ("a=1,5", "a=x,y")


def test_a_long_field_is_shown_in_part(path: Path) -> None:
    path.write_text("x,y\n" + "1,2\n" * 9 + f"{'1' * 100_000},1\n")
    with pytest.raises(
        DataError, match=r"first '1{30,40}\.\.\.1{30,40}' in line 11; mend"
    ) as caught:
        read_csv(path)
    assert len(str(caught.value)) < 400
