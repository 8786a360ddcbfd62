"""CSV files: encoding, the target, the task, and faults by column and line."""

import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data.csv_file import csv_fields
from pyro_bnn.errors import DataError
from tests.rows import read_csv

DOUBLE = torch.float64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_in_quotes_separate_nothing(path: Path, separator: str) -> None:
    frame = pd.DataFrame({'length, mm; outside, (5") \t\t': [1, 3], 'height in "': [2, 4]})
    frame.to_csv(path, sep=separator, index=False)
    table = read_csv(path)
    assert table.data.input_names == (frame.columns[0].strip(),)
    assert table.data.y.tolist() == [2, 4]


@pytest.mark.parametrize(
    "text",
    [
        "a;b\n1;2\n3;4\n",
        "a\tb\n1\t2\n3\t4\n",
        "a, b\n1, 2\n3, 4\n",
        "\ufeffa,b\r\n1,2\r\n\r\n3,4\r\n",
        '"a","b"\n"1",2\n3,4',
    ],
)
def test_separators_quotes_and_line_ends(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", newline="")
    table = read_csv(path)
    assert_close(table.data.x, torch.tensor([[1], [3]], dtype=DOUBLE))
    assert_close(table.data.y, torch.tensor([2, 4], dtype=DOUBLE))
    assert (table.data.input_names, table.data.target_name) == (("a",), "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("a,b\n", "has a header but no rows"),
        ("a\n1\n", "has one column, 'a'; expected inputs and a target, separated by commas"),
        ("1.5,2\n3,4\n", "has no header: its first line is all numbers"),
        (
            ",a,b\n0,1,2\n",
            "has a header in which column 0 has no name; if pandas wrote its index there",
        ),
        ("\ta\n0\t1\n1\t2\n", "has a header in which column 0 has no name; if pandas wrote its"),
        ("a,b,a\n1,2,3\n", "several columns are called 'a'"),
        ("a,b\n1,2\n\n3\n", "line 4: expected 2 fields as in the header, got 1; is the file trunc"),
        ("a,b\n1,2\n3,4,5\n", "line 3: expected 2 fields as in the header, got 3"),
        (
            "a,b,c\n1,,2\n\n3,4,NA\n5,,6\n",
            "has missing values: 'b' in 2 rows, 'c' in 1 row of 3, first in line 2; fill them",
        ),
        (
            ",".join("abcdefg") + "\n" + "," * 6 + "\n",
            "'e' in 1 row and 2 more columns of 1, first in line 2",
        ),
        (
            "a,b\n1,2\n2,2\n\n?,3\n3,4\n",
            "column 'a' holds numbers, but not in 1 row, first '?' in line 5; mend these fields",
        ),
        (
            "a,b\n1,2\n2,2\n1,?\n3,4\n",
            "column 'b' holds numbers, but not in 1 row, first '?' in line 4; mend these fields",
        ),
        (
            "a,b\n" + "".join(f"n{i},{i}\n" for i in range(30)),
            "column 'a' is text with 30 different values in 30 rows; an identifier",
        ),
        (
            "a,b\n" + "".join(f"{i},n{i}\n" for i in range(30)),
            "column 'b' is text with 30 different values in 30 rows; an identifier",
        ),
        (
            "a,b\n1,2\ninf,3\n",
            "column 'a' holds something else than finite numbers, in 1 row, first 'inf' in line 3",
        ),
        (
            "a,b\n1,2\n\n2,-inf\n",
            "column 'b' holds something else than finite numbers, in 1 row, first '-inf' in line 4",
        ),
        (
            "a;b\n1;2\n1,5;3\n2,5;4\n",
            "column 'a' holds commas in its numbers, in 2 rows, first '1,5' in line 3; write decim",
        ),
        (
            "a;b\n1;2,5\n2;3,5\n3;2,5\n",
            "column 'b' holds commas in its numbers, in 3 rows, first '2,5' in line 2; write decim",
        ),
        (
            'a,b\n1,"1,288,193"\n2,"300,000"\n3,7\n',
            "column 'b' holds commas in its numbers, in 2 rows, first '1,288,193' in line 2; write",
        ),
        (
            "a;y\n1;-1,5\n2;,5\n3;1.234,5\n",
            "column 'y' holds commas in its numbers, in 3 rows, first '-1,5' in line 2; write dec",
        ),
        ("a|b|y\n1,5|2|3\n4,5|5|6\n", "header, got 2; are fields separated by '|'? Save the"),
        ("a||y\n1||2\n3||4,4\n", "header, got 2; are fields separated by '|'? Save the file"),
        ("a|b, c|y\n1|2|3\n4|5|6\n", "header, got 1; are fields separated by '|'? Save the f"),
        ("a|b|y\n1|x, z|3\n4|5|6\n", "header, got 2; are fields separated by '|'? Save the f"),
        ("a b y\n1,5 2 3\n4 5 6\n", "header, got 2; are fields separated by ' '? Save the file"),
        ("a:b\n1,5:2\n4,1:5\n", "header, got 2; are fields separated by ':'? Save the file"),
        ("Rents 2020\nthe area,b\n1,2\n", "is the first line, 'Rents 2020', a comment or"),
        ("sep=|\na|b\n1|2\n", "has fields separated by '|': Save the file with commas, semi"),
        ("a|b,y\n1,2\n3\n", "line 3: expected 2 fields as in the header, got 1; is the file t"),
        ("a,b\n1,yes\n2,yes\n", "target 'b' of table.csv holds one class only, 'yes'"),
    ],
)
def test_files_that_cannot_be_used(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        read_csv(path)


def test_an_unclosed_quote_and_a_field_too_long(path: Path) -> None:
    path.write_text('a,b\n1,"2\n3,4\n')
    with pytest.raises(DataError, match="line 3: unexpected end of data"):
        read_csv(path)
    path.write_text("a,b\n1," + "2" * 200_000 + "\n")
    with pytest.raises(DataError, match=r"line 2: field larger than field limit"):
        read_csv(path)


def test_a_missing_file(path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"no file {str(path)!r}")):
        read_csv(path)


def test_numbers_are_those_of_python_to_the_last_bit(path: Path) -> None:
    """Where pandas reads a column, and where one more field makes the package read it."""
    values = torch.randn(2_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    texts = [repr(v * 10.0**k) for k, v in enumerate(values.tolist(), start=-1_000) if k < 15]
    texts = [text for text in texts if 0 < abs(float(text)) < 2**53]
    path.write_text("a,b,y\n" + "".join(f"{text}, {text},1\n" for text in texts))
    found = read_csv(path).data.x[:, 0].tolist()
    assert len(found) > 300
    assert found == [float(text) for text in texts]
    fields = csv_fields(path)
    assert set(fields.numeric) == {"a", "b", "y"}
    assert list(fields.rows) == [[text, text, "1"] for text in texts]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("a,b\n1,2\n3,4\n", {"a", "b"}),
        ("a,b\n1,007\n3,4\n", set()),  # a code: neither whole number is taken for plain
        ("a,b\n1.0,007\n3.0,4\n", {"a"}),
        ("a,b\n1,inf\n3,4\n", {"a"}),
        ("a,b\n1,9007199254740993\n3,4\n", {"a"}),
        ("a,b\n1,-9223372036854775808\n3,4\n", {"a"}),
        ("a,b\n1,True\n3,False\n", {"a"}),
        ('a,b\n"1",2\n3,4\n', {"a", "b"}),
        ("a;b\n1;2\n\n3;4\n", {"a", "b"}),
        ("a\tb\r\n1\t2\r\n3\t4", {"a", "b"}),
        ("a,b\n1,\n3,4\n", {"a"}),
    ],
)
def test_what_is_no_plain_number_is_kept_as_it_stands(
    path: Path, text: str, plain: set[str]
) -> None:
    path.write_bytes(text.encode())
    fields = csv_fields(path)
    assert set(fields.numeric) == plain
    assert set(fields.text) == {"a", "b"} - plain
    rows = list(fields.rows)
    assert len(fields) == len(rows) == 2
    for place, name in enumerate(("a", "b")):
        column = fields.as_text(name)
        assert [column[i] for i in range(2)] == [row[place] for row in rows]


def test_a_row_is_found_by_its_line(path: Path) -> None:
    path.write_text('a,b\n\n1,"x\ny"\n3,\n')
    with pytest.raises(DataError, match="missing values: 'b' in 1 row of 2, first in line 5"):
        read_csv(path)
    assert csv_fields(path).place(0) == "line 4"


@pytest.mark.parametrize("text", ["a,b\n1,2,\n3,4,\n", "a,b\n1,2,3\n4,5,6\n", "a,b\n1,2\n3\n"])
def test_rows_of_another_length_are_refused(path: Path, text: str) -> None:
    """Pandas takes a first column for an index, or drops a last one, where lines are too long."""
    path.write_text(text)
    with pytest.raises(DataError, match=r"line [23]: expected 2 fields as in the header, got [13]"):
        read_csv(path)


@pytest.mark.parametrize("line", ["sep=,\n", "SEP=,\r\n", '"sep=,"\n'])
def test_a_line_with_the_separator_is_no_header(path: Path, line: str) -> None:
    path.write_text(f"{line}a;b,y\n1,2\n3,4\n", newline="")
    table = read_csv(path)
    assert (table.data.input_names, table.data.target_name) == (("a;b",), "y")
    assert table.data.y.tolist() == [2, 4]
    path.write_text(f"{line}a,b\n1,2\n3\n", newline="")
    with pytest.raises(DataError, match="line 4: expected 2 fields"):
        read_csv(path)


@pytest.mark.parametrize("first", ["# made by hand", "Flats of 2024", "# a, b, c, d"])
def test_a_comment_or_title_on_top_is_named(path: Path, first: str) -> None:
    path.write_text(f"{first}\na,b\n1,2\n")
    with pytest.raises(DataError, match=re.escape(f"is the first line, {first!r}, a comment or")):
        read_csv(path)


@pytest.mark.parametrize(
    "text", ["a\0,b\n1,2\n3,4\n", "a,b\0\n1,2\n3,4\n", "a,b\nx\0,2\ny,4\n", "a,b\n1,x\0z\n2,y\n"]
)
def test_a_nul_in_a_name_is_refused_before_a_fit(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(DataError, match=r"has a NUL character: rename it"):
        read_csv(path)
