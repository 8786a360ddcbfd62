"""Columns become inputs and targets: categories, classes, several targets, and what is refused."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.errors import DataError, OptionError, UnknownNameError
from tests.rows import read_csv

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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=b,a,y\n1,b,2\n2,c,3\n", "columns 'a=b' and 'a' both become an input 'a=b'"),
        ("a,a=b,y\nb,1,2\nc,2,3\n", "columns 'a' and 'a=b' both become an input 'a=b'"),
        ("a,a=b,y\nb=c,c,1\nx,d,2\n", "columns 'a' and 'a=b' both become an input 'a=b=c'"),
    ],
)
def test_two_inputs_of_one_name_are_refused(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(DataError, match=f"{re.escape(message)}.*: rename one of them"):
        read_csv(path)


def test_a_target_may_have_the_name_of_an_input(path: Path) -> None:
    path.write_text("a,a=b\nb,1\nc,2\n")
    assert read_csv(path).data.input_names == ("a=b", "a=c")


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
