"""CSV files: encoding, the target, the task, and faults by column and line."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data.csv_file import Fields, read_csv
from pyro_bnn.errors import DataError, OptionError, UnknownNameError

DOUBLE = torch.float64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


def test_numbers_truth_values_and_text(path: Path) -> None:
    path.write_text("age,smoker,town,cost\n30,True,Rome,1.5\n40,False,Oslo,2.5\n50,True,Oslo,3\n")
    table = read_csv(path)
    expected = [[30, 1, 0, 1], [40, 0, 1, 0], [50, 1, 1, 0]]
    assert_close(table.data.x, torch.tensor(expected, dtype=DOUBLE))
    assert table.data.input_names == ("age", "smoker", "town=Oslo", "town=Rome")
    assert_close(table.data.y, torch.tensor([1.5, 2.5, 3.0], dtype=DOUBLE))
    assert (table.task, table.data.target_name, table.name) == ("regression", "cost", "table")
    assert table.note == "The target is the last column, 'cost'; target= takes another."


def test_another_target(path: Path) -> None:
    path.write_text("a,b,c\n1,2,3\n4,5,6\n")
    table = read_csv(path, target="b")
    assert_close(table.data.x, torch.tensor([[1, 3], [4, 6]], dtype=DOUBLE))
    assert_close(table.data.y, torch.tensor([2, 5], dtype=DOUBLE))
    assert (table.data.input_names, table.data.target_name, table.note) == (("a", "c"), "b", "")


@pytest.mark.parametrize("target", [["d", "b"], ("d", "b"), "d,b", "d, b"])
def test_several_targets_are_columns_of_y_in_the_order_given(path: Path, target: Any) -> None:
    path.write_text("a,b,c,d\n1,2,Rome,7\n4,5,Oslo,8\n")
    table = read_csv(path, target=target)
    assert_close(table.data.y, torch.tensor([[7, 2], [8, 5]], dtype=DOUBLE))
    assert table.data.input_names == ("a", "c=Oslo", "c=Rome")
    assert (table.task, table.data.target_name, table.note) == ("regression", "d, b", "")
    assert [column.name for column in table.columns or ()] == ["a", "c"]


def test_a_name_with_a_comma_goes_before_names_that_it_separates(path: Path) -> None:
    path.write_text('a,b,"a,b"\n1,2,3\n4,5,6\n')
    assert_close(read_csv(path, target="a,b").data.y, torch.tensor([3, 6], dtype=DOUBLE))
    assert_close(
        read_csv(path, target=["a", "b"]).data.y, torch.tensor([[1, 2], [4, 5]], dtype=DOUBLE)
    )
    assert read_csv(path, target=["b"]).data.y.shape == (2,)


def test_binary_targets_stay_as_they_are(path: Path) -> None:
    path.write_text("a,b,c\n1,True,0\n4,False,1\n")
    table = read_csv(path, target="b,c", task="counts")
    assert_close(table.data.y, torch.tensor([[1, 0], [0, 1]], dtype=DOUBLE))
    with pytest.raises(DataError, match="several targets are numbers, but 'b' is of classes: pred"):
        read_csv(path, target="b,c")


@pytest.mark.parametrize(
    ("target", "kind", "message"),
    [
        ("b,e", UnknownNameError, "unknown target column of table.csv 'e'"),
        (["b", "b"], OptionError, r"target names each column once, not \['b', 'b'\]"),
        ([], OptionError, r"target names each column once, not \[\]"),
        ("a,b,c", DataError, "the targets are all columns, and none is left as an input"),
        ("a,c", DataError, "several targets are numbers, but 'c' is of classes"),
    ],
)
def test_several_targets_that_cannot_be_are_refused(
    path: Path, target: Any, kind: type[Exception], message: str
) -> None:
    path.write_text("a,b,c\n1,2,Rome\n4,5,Oslo\n")
    with pytest.raises(kind, match=message):
        read_csv(path, target=target)


@pytest.mark.parametrize(
    ("values", "task", "labels", "names"),
    [
        (["no", "yes", "no"], None, [0, 1, 0], ("no", "yes")),
        (["True", "False", "True"], None, [1, 0, 1], ("False", "True")),
        (["10", "9", "10"], "classification", [1, 0, 1], ("9", "10")),
    ],
)
def test_classes(
    path: Path, values: list[str], task: None, labels: list[int], names: tuple[str, ...]
) -> None:
    path.write_text("x,kind\n" + "".join(f"{i},{v}\n" for i, v in enumerate(values)))
    table = read_csv(path, task=task)
    assert table.task == "classification"
    assert_close(table.data.y, torch.tensor(labels))
    assert table.data.class_names == names


def test_whole_numbers_and_truth_values_can_be_regressed(path: Path) -> None:
    path.write_text("x,y\n1,0\n2,1\n")
    assert read_csv(path).task == "regression"
    path.write_text("x,y\n1,False\n2,True\n")
    table = read_csv(path, task="regression")
    assert_close(table.data.y, torch.tensor([0, 1], dtype=DOUBLE))


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
        ("a,b\n1,yes\n2,yes\n", "target 'b' of table.csv holds one class only, 'yes'"),
    ],
)
def test_files_that_cannot_be_used(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(DataError, match=re.escape(message)):
        read_csv(path)


def test_commas_in_text_are_no_decimal_commas(path: Path) -> None:
    path.write_text("a;b\n1,5;1\nx,y;2\nx,y;3\n1,5;4\n")
    assert read_csv(path).data.input_names == ("a=1,5", "a=x,y")


def test_targets_that_do_not_suit_the_task(path: Path) -> None:
    path.write_text("a,b\n1,yes\n2,no\n")
    expected = "target 'b' of table.csv is text, for instance 'yes'; regression needs numbers"
    with pytest.raises(DataError, match=expected):
        read_csv(path, task="regression")
    path.write_text("a,b\n1,0.5\n2,1\n")
    with pytest.raises(DataError, match=r"class labels must be whole numbers, got 0\.5 in row 0"):
        read_csv(path, task="classification")


def test_an_unknown_target_suggests_the_nearest(path: Path) -> None:
    path.write_text("age,cost\n1,2\n")
    expected = "unknown target column of table.csv 'csot': did you mean 'cost'? known are age, cost"
    with pytest.raises(UnknownNameError, match=re.escape(expected)):
        read_csv(path, target="csot")


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
    fields = Fields.read(path)
    assert set(fields.plain) == {"a", "b", "y"}
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
    fields = Fields.read(path)
    assert set(fields.plain) == plain
    assert set(fields.text) == {"a", "b"} - plain
    rows = list(fields.rows)
    assert len(fields) == len(rows) == 2
    for place, name in enumerate(("a", "b")):
        assert fields.column(name).tolist() == [row[place] for row in rows]


def test_a_row_is_found_by_its_line(path: Path) -> None:
    path.write_text('a,b\n\n1,"x\ny"\n3,\n')
    with pytest.raises(DataError, match="missing values: 'b' in 1 row of 2, first in line 5"):
        read_csv(path)
    assert Fields.read(path).place(0) == "line 4"


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


def test_text_of_many_values_is_refused_before_it_takes_the_memory(path: Path) -> None:
    rows = [f"n{i // 2},{i}" for i in range(12_000)]  # 6,000 values, 72 million zeros and ones
    path.write_text("name,y\n" + "\n".join(rows))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"'name' is text with 6000 different values, each of whi"):
        read_csv(path)
    assert tracemalloc.get_traced_memory()[1] < 200 * path.stat().st_size
    tracemalloc.stop()


def test_each_value_of_text_is_an_input(path: Path) -> None:
    towns = [f"t{i:03}" for i in np.random.default_rng(0).integers(0, 300, 1_000)]
    path.write_text("town,y\n" + "\n".join(f"{town},{i}" for i, town in enumerate(towns)))
    expected = pd.get_dummies(pd.Series(towns), dtype=float).to_numpy()
    assert_close(read_csv(path).data.x, torch.tensor(expected), rtol=0, atol=0)


def test_one_long_label_among_many_takes_no_more_than_its_own_memory(path: Path) -> None:
    """In an array of text each value takes the room of the longest: 1.6 GB here."""
    long, size = "q" * 100_000, 4_000
    path.write_text("x,y\n" + "".join(f"{i},{'ab'[i % 2]}\n" for i in range(size)) + f"1,{long}\n")
    tracemalloc.start()
    table = read_csv(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert table.data.class_names == ("a", "b", long)
    assert table.data.y.tolist() == [0, 1] * (size // 2) + [2]
    assert peak < 50e6


def test_a_long_field_is_shown_in_part(path: Path) -> None:
    path.write_text("x,y\n" + "1,2\n" * 9 + f"{'1' * 100_000},1\n")
    with pytest.raises(
        DataError, match=r"first '1{30,40}\.\.\.1{30,40}' in line 11; mend"
    ) as caught:
        read_csv(path)
    assert len(str(caught.value)) < 400
