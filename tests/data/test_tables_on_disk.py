"""Tables that are too large for the memory lie on the disk, and are the same data sets."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from pyro_bnn.data import load, on_disk, tables
from pyro_bnn.data.new_rows import read_new_rows
from pyro_bnn.data.split import Split, all_rows, from_arrays
from pyro_bnn.data.standardise import Standardiser
from pyro_bnn.errors import DataError, OutputError
from pyro_bnn.files.mapped import MappedFile
from tests.command_line import run

NUM_ROWS = 200


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], list[str]]:
    """A function that lowers the bounds, and gives the list of what is stored from then on."""
    stored: list[str] = []

    class Told(MappedFile):
        def __init__(self, num_bytes: int, *, what: str) -> None:
            super().__init__(num_bytes, what=what)
            stored.append(what)

    def lower() -> list[str]:
        folder = tmp_path / "temporary"
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        monkeypatch.setattr(on_disk, "MOST_IN_MEMORY", 50)
        monkeypatch.setattr(on_disk, "NUMBERS_AT_ONCE", 40)
        monkeypatch.setattr(on_disk, "MappedFile", Told)
        monkeypatch.setattr(tables, "BLOCK", 7)  # letters and ends of lines are in two blocks
        return stored

    return lower


def frame() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    town = generator.choice(["Åre", "Oslo", 'a "b", c'], NUM_ROWS)
    area = generator.normal(50, 9, NUM_ROWS).round(2)
    rooms, new = generator.integers(1, 9, NUM_ROWS), generator.random(NUM_ROWS) < 0.5
    cost = (area + 7 * rooms).round(1)
    return pd.DataFrame({"area": area, "town": town, "rooms": rooms, "new": new, "cost": cost})


def text(columns: list[str] | None = None, **options: Any) -> bytes:
    own = frame() if columns is None else frame()[columns]
    return str(own.to_csv(index=False, **options)).encode()


FILES = {
    "numbers.csv": text(["area", "rooms", "cost"]),
    "text.csv": text(),
    "packed.csv.gz": gzip.compress(text()),
    "mark.csv": b"\xef\xbb\xbf" + text(lineterminator="\r\n"),
    "old.tsv": text(["area", "rooms", "cost"], sep="\t", lineterminator="\r"),
    "sheet.csv": b"sep=;\r\n" + text(sep=";", lineterminator="\r\n"),
    "table.parquet": b"",
}


def write(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(FILES[name])
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
        frame().to_parquet(path)
    return path


def check_same(found: Split, expected: Split) -> None:
    for name in ("train", "test"):
        own, other = getattr(found, name), getattr(expected, name)
        assert_close(own.x, other.x, rtol=1e-6, atol=1e-6)
        assert_close(own.y, other.y, rtol=0, atol=0)
        assert_close(own.inputs.loc, other.inputs.loc, rtol=1e-13, atol=1e-13)
        assert_close(own.inputs.scale, other.inputs.scale, rtol=1e-13, atol=1e-13)
        assert (own.input_names, own.target_name) == (other.input_names, other.target_name)
    assert found.columns == expected.columns


@pytest.mark.parametrize("name", FILES)
def test_a_table_on_the_disk_is_that_in_memory(
    name: str, tmp_path: Path, small: Callable[[], list[str]]
) -> None:
    path = write(tmp_path, name)
    expected = load(path, target="cost")
    stored = small()
    found = load(path, target="cost")
    assert len(stored) >= 3 + 2  # the inputs of all, of the training and the test rows; columns
    assert not list((tmp_path / "temporary").iterdir())  # the files have no names
    check_same(found, expected)
    check_same(all_rows(found), all_rows(expected))


@pytest.mark.parametrize("name", FILES)
def test_new_rows_on_the_disk_are_those_in_memory(
    name: str, tmp_path: Path, small: Callable[[], list[str]]
) -> None:
    path = write(tmp_path, name)
    columns = load(path, target="cost").columns
    assert columns is not None
    expected = read_new_rows(path, columns, "cost")
    assert small() is not None
    found = read_new_rows(path, columns, "cost")
    assert_close(found.x, expected.x, rtol=0, atol=0)
    assert_close(found.y, expected.y, rtol=0, atol=0)
    assert list(found.text.lines()) == list(expected.text.lines())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n \r\n",
        text() + b"1,2\n",
        text().replace("Å".encode(), b"\xff", 1),
        text() + b"7,\xc3",  # a letter that is cut
        text() + b"7,,3,True,4\n",
        text(["area", "cost"]) + b"x,1\n",
        text(["area", "cost"]) + b"1e400,1\n",
        text(["area", "cost"]).replace(b"area", b"cost"),
        b"PK\x03\x04" + text(),
        b'area,cost\n"1,2\n' * 60,
    ],
)
def test_what_cannot_be_used_is_refused_in_the_same_words(
    content: bytes, tmp_path: Path, small: Callable[[], list[str]]
) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    messages = []
    for lower in (list, small):
        lower()
        with pytest.raises(DataError) as error:
            load(path, target="cost")
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_units_are_found_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean and sd of NumPy, of rows and of the channels of images."""
    monkeypatch.setattr(on_disk, "NUMBERS_AT_ONCE", 30)
    generator = np.random.default_rng(0)
    rows, images = generator.normal(3, 2, (101, 4)), generator.normal(3, 2, (101, 2, 3, 3))
    some = generator.permutation(101)[:70]
    for values, over in ((rows, 0), (images, (0, 2, 3))):
        found = Standardiser.fit(torch.tensor(values), torch.tensor(some))
        np.testing.assert_allclose(found.loc.flatten(), values[some].mean(over), rtol=1e-13)
        np.testing.assert_allclose(found.scale.flatten(), values[some].std(over), rtol=1e-13)


def test_arrays_stay_in_memory(small: Callable[[], list[str]]) -> None:
    stored = small()
    from_arrays(np.eye(50), np.arange(50.0))
    assert not stored


def test_a_disk_without_room_is_named(
    tmp_path: Path, small: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "numbers.csv")
    small()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100))
    match = r"of rows of a table to .*temporary, which has .*TMPDIR.*, or take fewer rows$"
    with pytest.raises(OutputError, match=match):
        load(path, target="cost")


def test_a_fit_of_rows_on_the_disk_says_so_and_is_that_in_memory(
    tmp_path: Path, small: Callable[[], list[str]]
) -> None:
    path = write(tmp_path, "text.csv")
    asked = ("--target", "cost", "--method", "auto-normal", "--steps", "20", "--hidden", "3")
    given = ("fit", "--data", path, *asked, "--out")
    assert "lie on the disk" not in run(*given, tmp_path / "memory").err
    small()
    said = run(*given, tmp_path / "disk")
    assert said.code == 0
    assert (
        f"The inputs of text, 200 rows, lie on the disk in {tmp_path / 'temporary'} until this "
        "command ends; TMPDIR names another folder"
    ) in said.err
    assert not list((tmp_path / "temporary").iterdir())
    memory, disk = (
        load_file(tmp_path / name / "posterior.safetensors") for name in ("memory", "disk")
    )
    assert memory.keys() == disk.keys()
    for name, values in memory.items():
        assert_close(disk[name], values, rtol=1e-5, atol=1e-5, msg=name)
