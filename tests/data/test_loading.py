"""``data.load``: the way from a name or path to a split, and options that do not apply."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from pyro_bnn import data
from pyro_bnn.data.loading import load
from pyro_bnn.data.split import published_rows
from pyro_bnn.errors import BNNWarning, DataError, OptionError, UnknownNameError

HEADER = "age,cost,kind\n"
CSV = HEADER + "".join(f"{i},{i * i},{'ab'[i % 2]}\n" for i in range(10))


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(CSV)
    return path


def test_the_names_are_those_of_the_documentation() -> None:
    assert data.names() == [
        "breast-cancer", "diabetes", "digits", "fashion-mnist",
        "fashion-mnist-images", "mnist", "mnist-images", "moons",
        "uci/boston", "uci/concrete", "uci/energy", "uci/kin8nm", "uci/naval", "uci/power-plant",
        "uci/protein", "uci/wine-red", "uci/yacht",
        "wine-cultivars",
    ]  # fmt: skip


def test_a_registered_name() -> None:
    split = data.load("diabetes", split=1)
    assert (split.name, split.index, split.task) == ("diabetes", 1, "regression")
    assert isinstance(split, data.Split)
    assert isinstance(split.train, data.Dataset)
    assert isinstance(split.train.inputs, data.Standardiser)


def test_a_csv_with_target_task_and_split(csv: Path) -> None:
    split = data.load(csv, target="age", split=2)
    assert (split.name, split.task, split.index) == ("table", "regression", 2)
    assert split.train.input_names == ("cost", "kind=a", "kind=b")
    train = published_rows(10, 2)[0]
    assert_close(split.train.raw()[1].float(), train.float())
    assert data.load(str(csv)).task == "classification"


def test_a_class_outside_the_training_rows_still_counts(csv: Path) -> None:
    with pytest.warns(BNNWarning, match="table: no training row of class '5'"):
        split = data.load(csv, target="age", task="classification")
    assert published_rows(10, 0)[1].tolist() == [5]
    assert split.train.num_classes == split.test.num_classes == 10


def test_npz_and_folder(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(20, 3))
    np.savez(tmp_path / "a.NPZ", x=rows[:, :2], y=rows[:, 2])
    (tmp_path / "a.NPZ.npz").rename(tmp_path / "a.NPZ")
    folder = tmp_path / "f"
    folder.mkdir()
    np.savetxt(folder / "data.txt", rows)
    (folder / "index_features.txt").write_text("0\n1\n")
    (folder / "index_target.txt").write_text("2\n")
    one, two = data.load(tmp_path / "a.NPZ", split=1), data.load(folder, split=1)
    assert_close(one.test.x, two.test.x)
    assert_close(one.test.y, two.test.y)
    assert (one.name, two.name) == ("a", "f")


def test_a_registered_name_goes_before_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "moons").mkdir()
    monkeypatch.chdir(tmp_path)
    assert len(data.load("moons").train) == 180
    for path in ("./moons", Path("moons")):
        with pytest.raises(DataError, match=r"no file 'moons/data\.txt'"):
            data.load(path)


def test_the_home_folder_is_known(csv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(csv.parent))
    assert data.load("~/table.csv").name == "table"


@pytest.mark.parametrize(
    ("name", "nearest"), [("diabets", "diabetes"), ("uci/yach", "uci/yacht"), ("Moons", "moons")]
)
def test_an_unknown_name_suggests_the_nearest(name: str, nearest: str) -> None:
    expected = f"unknown data set {name!r}: did you mean {nearest!r}? known are breast-cancer, "
    with pytest.raises(UnknownNameError, match=re.escape(expected)):
        data.load(name)


@pytest.mark.parametrize(
    "path",
    ["nothing.csv", "some/folder", Path("nothing"), "~/no-such-file", "~no-such-user/table.csv"],
)
def test_a_missing_path(path: Any) -> None:
    with pytest.raises(DataError, match=r"no file or folder '.*'; check the path"):
        data.load(path)


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.touch()
    with pytest.raises(
        DataError,
        match=r"cannot be read: expected \.csv, \.tsv, \.txt \(or these with \.gz\), \.parquet, ",
    ):
        data.load(path)


def test_options_that_do_not_apply(csv: Path) -> None:
    with pytest.raises(OptionError, match="diabetes has its own target; target= is for a CSV"):
        data.load("diabetes", target="bmi")
    with pytest.raises(
        OptionError, match=r"target= names a column of a CSV or Parquet file; .* is none"
    ):
        data.load(csv.parent, target="bmi")
    with pytest.raises(OptionError, match="diabetes is a regression set, it cannot be loaded for"):
        data.load("diabetes", task="classification")
    assert data.load("diabetes", task="regression").task == "regression"
    with pytest.raises(OptionError, match="task must be"):
        data.load("diabetes", task="ranking")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"split of table.csv must be .* 0 \.\. 19, got -1"):
        data.load(csv, split=-1)


def test_the_default_dtype_is_followed(csv: Path) -> None:
    import torch

    torch.set_default_dtype(torch.float64)
    try:
        split = data.load(csv)
    finally:
        torch.set_default_dtype(torch.float32)
    assert split.train.x.dtype == torch.float64


@pytest.mark.slow("a process of its own")
def test_importing_the_room_loads_nothing_heavy() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import pyro_bnn.data; "
        "print(*{'pandas', 'sklearn', 'pooch', 'scipy'} & (set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
    )
    assert done.stdout.strip() == ""


@pytest.mark.parametrize("name", ["t.csv.gz", "t.CSV.GZ", "t.tsv.gz", "t.txt", "t.txt.gz"])
def test_text_files_of_other_endings_are_read_as_their_csv(tmp_path: Path, name: str) -> None:
    frame = pd.DataFrame({"a": np.arange(20.0), "town": ["Rome", "Oslo"] * 10, "y": np.arange(20)})
    frame.to_csv(tmp_path / "t.csv", index=False)
    text = frame.to_csv(index=False, sep="\t" if ".t" in name else ",")
    packed = gzip.compress(text.encode()) if name.lower().endswith(".gz") else text.encode()
    (tmp_path / name).write_bytes(packed)
    found, expected = load(tmp_path / name), load(tmp_path / "t.csv")
    assert (found.name, found.note, found.train.input_names) == (
        *(expected.name, expected.note, expected.train.input_names),
    )
    assert torch.equal(found.train.x, expected.train.x)
    assert torch.equal(found.train.y, expected.train.y)


def test_archives_and_damaged_or_bursting_packed_files_are_refused(tmp_path: Path) -> None:
    whole = gzip.compress(b"a,b\n" + b"1,2\n" * 100)
    for name, content, message in (
        ("t.zip", b"PK", "is an archive: unpack it"),
        ("t.csv.gz", b"a,b\n1,2\n", "is truncated or not of gzip"),
        ("t.csv.gz", whole[:-12], "is truncated or not of gzip"),
        ("t.csv.gz", gzip.compress(b"a,b\n" + b"1,2\n" * 2**23), "unpacks to more than 200 times"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            load(tmp_path / name)


@pytest.mark.parametrize("ending", ["xlsx", "XLSX", "xls", "ods"])
@pytest.mark.parametrize("target", [None, "y"])
def test_a_spreadsheet_is_refused_with_what_to_do(
    tmp_path: Path, ending: str, target: str | None
) -> None:
    path = tmp_path / f"table.{ending}"
    path.write_bytes(b"PK")
    with pytest.raises(DataError, match=r"is a spreadsheet: save its sheet as CSV .*read_excel"):
        load(path, target=target)
