"""Folders in the UCI layout: columns, given and regenerated splits, faults."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data.folders import load_folder
from pyro_bnn.data.split import published_rows
from pyro_bnn.errors import DataError, OptionError

ROWS = np.round(np.random.default_rng(1).normal(20.0, 4.0, (30, 4)), 3)
ROWS[:, 2] = np.arange(30) % 3 + 5


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder ``toy`` with inputs 3 and 0 and target 1."""
    folder = tmp_path / "toy"
    folder.mkdir()
    np.savetxt(folder / "data.txt", ROWS)
    write(folder, "index_features", [3, 0])
    write(folder, "index_target", [1])
    return folder


def write(folder: Path, name: str, numbers: list[int]) -> None:
    (folder / f"{name}.txt").write_text("".join(f"{n}\n" for n in numbers))


def test_columns_are_taken_and_splits_regenerated(folder: Path) -> None:
    split = load_folder(folder, index=4)
    train, test = published_rows(30, 4)
    rows = torch.tensor(ROWS, dtype=torch.float32)
    assert_close(split.train.raw()[0].float(), rows[train][:, [3, 0]])
    assert_close(split.test.raw()[1].float(), rows[test, 1])
    assert (split.name, split.task, split.index) == ("toy", "regression", 4)
    with pytest.raises(OptionError, match=r"split of toy must be a whole number 0 \.\. 19, got 20"):
        load_folder(folder, index=20)


def test_given_splits_are_used(folder: Path) -> None:
    write(folder, "index_train_0", [4, 2, 9])
    write(folder, "index_test_0", [0, 29])
    split = load_folder(folder)
    assert_close(split.train_rows, torch.tensor([4, 2, 9]))
    expected = torch.tensor(ROWS[[0, 29], 1], dtype=torch.float32)
    assert_close(split.test.raw()[1].float(), expected)
    with pytest.raises(OptionError, match="split of toy must be 0, the only one, got 1"):
        load_folder(folder, index=1)


def test_the_number_of_splits_is_read(folder: Path) -> None:
    write(folder, "n_splits", [5])
    assert load_folder(folder, index=4).index == 4
    with pytest.raises(OptionError, match=r"0 \.\. 4, got 5"):
        load_folder(folder, index=5)


def test_several_targets_and_classes(folder: Path) -> None:
    write(folder, "index_target", [2])
    split = load_folder(folder, "classification")
    assert split.train.class_names == ("5", "6", "7")
    assert_close(split.train.y, published_rows(30, 0)[0] % 3)
    write(folder, "index_target", [1, 2])
    assert load_folder(folder).train.y.shape == (27, 2)


@pytest.mark.parametrize("name", ["data", "index_features", "index_target"])
def test_a_missing_file(folder: Path, name: str) -> None:
    (folder / f"{name}.txt").unlink()
    with pytest.raises(DataError, match=f"no file .*{name}"):
        load_folder(folder)


def test_a_truncated_file(folder: Path) -> None:
    text = (folder / "data.txt").read_text()
    (folder / "data.txt").write_text(text[: -len(text.splitlines()[-1]) // 2])
    with pytest.raises(DataError, match="line 30: expected 4 columns as in the lines above, got"):
        load_folder(folder)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"index_features": [0, 4]},
            "index_features.txt' must hold whole numbers from 0 .. 3, got 4 (number 2)",
        ),
        (
            {"index_features": [0, 0]},
            "a column stands twice in index_features.txt and index_target.txt",
        ),
        (
            {"index_features": [0, 1]},
            "a column stands twice in index_features.txt and index_target.txt",
        ),
        (
            {"index_train_0": [0, 30], "index_test_0": [1]},
            "index_train_0.txt' must hold whole numbers from 0 .. 29, got 30 (number 2)",
        ),
        (
            {"index_train_0": [0, 2], "index_test_0": [31]},
            "index_test_0.txt' must hold whole numbers from 0 .. 29, got 31 (number 1)",
        ),
        (
            {"index_train_0": [0, 1, 2], "index_test_0": [1, 2, 3]},
            "row 1 is in index_train_0.txt and in index_test_0.txt (2 such rows)",
        ),
        ({"n_splits": [0]}, "n_splits.txt' says 0 splits; expected at least 1"),
        ({"index_train_0": [0, 1]}, "index_test_0.txt'; check the path"),
    ],
)
def test_indices_that_do_not_fit(folder: Path, files: dict[str, list[int]], message: str) -> None:
    for name, numbers in files.items():
        write(folder, name, numbers)
    with pytest.raises(DataError, match=re.escape(message)):
        load_folder(folder)
