"""NPZ files: arrays, given splits, and nothing unpickled."""

import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.data import npz_file
from pyro_bnn.data.npz_file import load_npz
from pyro_bnn.data.split import published_rows
from pyro_bnn.errors import DataError, OptionError, ShapeError

X = np.arange(40.0).reshape(20, 2) ** 2
Y = np.arange(20.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "arrays.npz"


def test_arrays_are_split_by_the_protocol(path: Path) -> None:
    np.savez(path, x=X, y=Y)
    split = load_npz(path, index=3)
    train, test = published_rows(20, 3)
    assert_close(split.train.raw()[1].float(), torch.tensor(Y, dtype=torch.float32)[train])
    assert_close(split.test.raw()[0].float(), torch.tensor(X, dtype=torch.float32)[test])
    assert (split.name, split.task, split.index) == ("arrays", "regression", 3)


def test_a_given_split_is_kept(path: Path) -> None:
    y = np.arange(20) % 3
    np.savez_compressed(path, x_train=X[:15], y_train=y[:15], x_test=X[15:], y_test=y[15:])
    split = load_npz(path)
    assert split.task == "classification"
    assert split.train.y.tolist() == y[:15].tolist()
    assert split.test.y.tolist() == y[15:].tolist()
    expected = (X[15:] - X[:15].mean(0)) / X[:15].std(0)
    assert_close(split.test.x, torch.tensor(expected, dtype=torch.float32))
    with pytest.raises(OptionError, match="split of arrays must be 0, the only one, got 1"):
        load_npz(path, index=1)


def test_task_and_number_of_the_split(path: Path) -> None:
    np.savez(path, x=X, y=np.arange(20))
    assert load_npz(path, task="regression").train.y.dtype == torch.float32
    with pytest.raises(OptionError, match=r"0 \.\. 19, got 20"):
        load_npz(path, index=20)


class Trap:
    """Would fail the test if it were unpickled."""

    def __reduce__(self) -> Any:
        return pytest.fail, ("unpickled",)


def test_python_objects_are_never_unpickled(path: Path) -> None:
    np.savez(path, x=np.array([Trap()], dtype=object), y=Y)
    with pytest.raises(DataError, match="Python objects, which are never unpickled: "):
        load_npz(path)
    np.savez(path, x=X, y=Y, other=np.array([Trap()], dtype=object))  # not needed, not read
    assert len(load_npz(path).train) == 18


def test_a_pickle_in_disguise_is_refused(path: Path) -> None:
    np.array([Trap()], dtype=object).dump(path)
    with pytest.raises(
        DataError, match=r"is truncated or no NPZ file, or .* File is not a zip file"
    ):
        load_npz(path)


def test_truncated_and_missing_files(path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"no file {str(path)!r}; check the path")):
        load_npz(path)
    np.savez(path, x=X, y=Y)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(DataError, match="is truncated or no NPZ file"):
        load_npz(path)


def test_a_damaged_array(path: Path) -> None:
    np.savez(path, x=X, y=Y)
    content = bytearray(path.read_bytes())
    content[200] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"is truncated or no NPZ file, or .* Bad CRC-32"):
        load_npz(path)


@pytest.mark.parametrize(
    ("arrays", "error", "message"),
    [
        (
            {"X": X, "y": Y},
            DataError,
            "must hold the arrays x and y, or x_train, y_train, x_test, ",
        ),
        ({"X": X, "y": Y}, DataError, "y_test; it holds X, y"),
        ({}, DataError, "it holds none"),
        ({"x": X, "y": Y[:5]}, ShapeError, "x [20, 2] and y [5]"),
        ({"x": X, "y": np.where(Y == 4, np.nan, Y)}, DataError, "y holds NaN or infinity in 1 row"),
    ],
)
def test_arrays_that_cannot_be_used(
    path: Path, arrays: dict[str, Any], error: type[Exception], message: str
) -> None:
    np.savez(path, **arrays)
    with pytest.raises(error, match=re.escape(message)):
        load_npz(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y_train": Y[:4]}, "got x_train [15, 2], y_train [4], x_test [5, 2], y_test [5]"),
        ({"x_test": X[:0], "y_test": Y[:0]}, "same number of rows, at least one, and rows for"),
        ({"x_train": np.float64(0.0)}, "got x_train [], y_train [15], "),
        (
            {"x_test": X[15:, :1]},
            "the same shape, got x_train [15, 2], y_train [15], x_test [5, 1]",
        ),
        ({"y_test": Y[15:, None]}, "x_test [5, 2], y_test [5, 1]"),
    ],
)
def test_given_splits_whose_shapes_do_not_fit(
    path: Path, change: dict[str, Any], message: str
) -> None:
    arrays = {"x_train": X[:15], "y_train": Y[:15], "x_test": X[15:], "y_test": Y[15:]}
    np.savez(path, **(arrays | change))
    with pytest.raises(ShapeError, match=re.escape(message)):
        load_npz(path)


@pytest.mark.parametrize(("dtype", "size"), [("uint8", 480), ("float32", 496), ("float64", 736)])
def test_arrays_are_counted_as_three_copies_in_float64(
    path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, size: int
) -> None:
    """60 numbers, or where this is more the members of the file, with two headers of 128 bytes."""
    np.savez(path, x=(X % 200).astype(dtype), y=(Y % 2).astype(dtype))
    needed = 3 * size
    monkeypatch.setattr(npz_file, "machine_bytes", lambda: needed)
    assert len(load_npz(path, task="regression").train) == 18
    monkeypatch.setattr(npz_file, "machine_bytes", lambda: needed - 1)
    with pytest.raises(DataError, match=r"needs about 0\.0 GiB of memory, and this machine has"):
        load_npz(path, task="regression")


def test_an_array_that_memory_cannot_hold_in_float64_is_refused_unread(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(path, x=np.zeros((1_000_000, 20), np.uint8), y=np.zeros(1_000_000, np.int8))
    monkeypatch.setattr(npz_file, "machine_bytes", lambda: 3 * 8 * 21_000_000 - 1)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"needs about 0\.5 GiB of memory"):
        load_npz(path)
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_arrays_that_are_packed_closely_are_refused_before_they_are_read(tmp_path: Path) -> None:
    """Text of a fixed width too: one long label among others is written as long for each row."""
    path, x = tmp_path / "bomb.npz", np.arange(600.0)[:, None]
    y = np.array(["a", "b"] * 299 + ["c" * 20_000, "d"])
    np.savez_compressed(path, x=x, y=y)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"200 times its size.*write it by numpy\.savez"):
        load_npz(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5e6
    np.savez(path, x=x, y=y)
    assert load_npz(path).train.class_names == ("a", "b", "c" * 20_000, "d")
