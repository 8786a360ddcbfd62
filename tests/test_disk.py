"""Files of numbers that are mapped: with a name they outlive the process, without one they do not.

What a file without a name does on a full disk is tested where draws are stored in one.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from pyro_bnn.errors import FileFormatError, OutputError
from pyro_bnn.files.mapped import MappedFile

MIB = 1 << 20


def test_a_named_file_is_made_and_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "draws"
    first = MappedFile(24, path)
    assert path.read_bytes() == bytes(24)
    first.write(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T, 8)  # in the order of its numbers
    first.sync()
    del first
    again = MappedFile(24, path)
    numbers = again.map(torch.float32)
    assert numbers.tolist() == [0, 0, 1, 3, 2, 4]
    again.write(torch.tensor(7, dtype=torch.int64), 0)
    assert again.map(torch.int64)[0] == 7
    assert torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.float32)[2:].tolist() == [
        *(1, 3, 2, 4)
    ]


def test_a_file_that_was_not_finished_grows(tmp_path: Path) -> None:
    path = tmp_path / "draws"
    path.write_bytes(b"\x01\x02")
    assert MappedFile(4, path).map(torch.uint8).tolist() == [1, 2, 0, 0]


def test_a_larger_file_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "draws"
    path.write_bytes(b"precious")
    with pytest.raises(FileFormatError, match="holds 8 bytes, but 4 of draws belong there"):
        MappedFile(4, path)
    assert path.read_bytes() == b"precious"


def test_a_named_file_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutputError, match=r"of draws to .*: No such file or directory; choose a"):
        MappedFile(4, tmp_path / "none" / "draws")
    path = tmp_path / "draws"
    usage = shutil.disk_usage(tmp_path)
    MappedFile(4 * MIB, path)  # whose room counts as free for itself
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=3 * MIB))
    MappedFile(4 * MIB, path)
    message = f"cannot write 4.00 MiB of draws to {tmp_path / 'other'}, which has 3.00"
    with pytest.raises(OutputError, match=re.escape(message)):
        MappedFile(4 * MIB, tmp_path / "other")
