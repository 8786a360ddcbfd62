"""Files of a checkpoint: whole or not there, and nothing in them is run or believed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pyro_bnn.errors import FileFormatError, OptionError, OutputError
from pyro_bnn.infer.checkpoints import state_files
from pyro_bnn.infer.checkpoints.state_files import (
    Written,
    check_json,
    read_json,
    read_state,
    write_json,
    write_state,
)

STATE: dict[str, Any] = {
    "a": torch.arange(3.0, dtype=torch.float64),
    "nested": [{0: None, "flag": True}, (1, 2.5, "text")],
    "empty": torch.zeros(0, 4),
}


def written(content: bytes, path: Path) -> Written:
    path.write_bytes(content)
    return Written(len(content), hashlib.sha256(content).hexdigest())


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state"
    expected = write_state(STATE, path)
    content = path.read_bytes()
    assert expected == (len(content), hashlib.sha256(content).hexdigest())
    back = read_state(path, expected)
    assert torch.equal(back["a"], STATE["a"])
    assert back["a"].dtype == torch.float64
    assert back["nested"] == STATE["nested"]
    assert back["empty"].shape == (0, 4)
    assert list(tmp_path.iterdir()) == [path]


def test_the_disk_has_a_file_before_it_is_moved_and_its_name_before_the_call_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    sync, move = os.fsync, os.replace

    def synced(handle: int) -> None:
        held = os.fstat(handle)
        is_folder = os.path.samestat(held, tmp_path.stat())
        calls.append("sync the folder" if is_folder else held.st_size)
        sync(handle)

    def moved(source: Path, target: Path) -> None:
        calls.append(f"move to {target.name}")
        move(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", moved)
    size = write_state(STATE, tmp_path / "state").size
    last = ["sync the folder"] if hasattr(os, "O_DIRECTORY") else []
    assert calls == [size, "move to state", *last]


def test_of_a_part_of_a_tensor_the_part_is_written(tmp_path: Path) -> None:
    base = nn.Parameter(torch.arange(1e6).reshape(1000, 1000))
    size = write_state({"a": base[3, :5], "b": base.detach().T[:2]}, tmp_path / "state")
    assert size.size < 20_000
    back = read_state(tmp_path / "state", size)
    assert back["a"].tolist() == [3000, 3001, 3002, 3003, 3004]
    assert torch.equal(back["b"], base.detach().T[:2])
    assert not back["a"].requires_grad


@pytest.mark.parametrize("value", [object(), {1.5: 0}, {"a": {3}}, lambda: 0])
def test_what_needs_pickle_is_refused_before_a_file_is_made(value: Any, tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"a checkpoint cannot hold this state, .*: 'v.*' is a .*, neither"
    ):
        write_state({"v": value}, tmp_path / "state")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("after", [0, 1])
def test_a_disk_that_is_full_is_an_error_that_says_so(
    after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "state").write_text("the old one")

    write = state_files._Sink.write

    def full(sink: Any, content: Any) -> None:
        if sink.size >= after:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(sink, content)

    monkeypatch.setattr(state_files._Sink, "write", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_state(STATE, tmp_path / "state")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"state": "the old one"}


def test_a_link_in_place_of_a_state_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("of somebody else")
    (tmp_path / "state").symlink_to(victim)
    expected = write_state(STATE, tmp_path / "state")
    assert victim.read_text() == "of somebody else"
    read_state(tmp_path / "state", expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state", "victim"]


def test_a_damaged_state_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state"
    expected = write_state(STATE, path)
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    with pytest.raises(FileFormatError, match=f"damaged: it has {len(content) - 1} bytes, and its"):
        read_state(path, expected)
    half = len(content) // 2
    path.write_bytes(content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :])
    with pytest.raises(FileFormatError, match="damaged: its checksum is not that of its manifest"):
        read_state(path, expected)
    path.unlink()
    with pytest.raises(FileFormatError, match="state cannot be read: No such file or directory"):
        read_state(path, expected)


def test_a_link_a_pipe_and_a_folder_are_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "state"
    expected = write_state(STATE, tmp_path / "real")
    path.symlink_to(tmp_path / "real")
    with pytest.raises(FileFormatError, match="state is a link"):
        read_state(path, expected)
    path.unlink()
    path.mkdir()
    with pytest.raises(FileFormatError, match="state is not a file"):
        read_state(path, expected)
    path.rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        with pytest.raises(FileFormatError, match="state is not a file"):
            read_state(path, expected)


def test_a_file_larger_than_declared_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "state"
    expected = write_state(STATE, path)
    os.truncate(path, 1 << 40)  # a hole of a terabyte
    start = time.perf_counter()
    with pytest.raises(FileFormatError, match="it has 1099511627776 bytes, and its manifest names"):
        read_state(path, expected)
    assert time.perf_counter() - start < 1


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("run_by_a_pickle",)


def test_code_in_a_state_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"evil": Evil()}, "evil")
    contents = [Path("evil").read_bytes(), pickle.dumps(Evil()), b"\x80\x02", b"", b"no tensors"]
    for content in contents:
        expected = written(content, tmp_path / "state")
        with pytest.raises(FileFormatError, match=r"state is (of torch.save|truncated, or is not)"):
            read_state(tmp_path / "state", expected)
    assert not Path("run_by_a_pickle").exists()


# The manifest


def test_a_manifest_that_would_not_be_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_json({"a": 1}, path)
    before = path.read_bytes()
    with pytest.raises(OutputError, match="bytes, and a manifest has at most 1048576: run a model"):
        write_json({"a": "x" * (1 << 20)}, path)
    assert path.read_bytes() == before


def test_json_comes_back_with_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    assert read_json(path) is None
    values = {"a": [1, 2.5, None, float("nan")], "b": {"c": "ä"}}
    write_json(values, path)
    back = read_json(path)
    assert back is not None
    check_json(back, path)
    back["b"] = 1
    with pytest.raises(FileFormatError, match="is damaged: its checksum is not that of its conte"):
        check_json(back, path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": "pyro_bnn', "is truncated, or is no manifest of a checkpoint: "),
        ("", "is truncated, or is no manifest of a checkpoint: "),
        ("\x00\xff", "is truncated, or is no manifest"),
        ("[" * 100_000, "is truncated, or is no manifest"),
        ("1" * 10_000, "is truncated, or is no manifest"),
        ("[1, 2]", "is no manifest of a checkpoint"),
        (json.dumps("x" * (1 << 20)), "has 1048578 bytes, and a manifest at most 1048576"),
    ],
    ids=["half", "empty", "bytes", "nested", "a long number", "a list", "large"],
)
def test_other_text_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(FileFormatError, match=message):
        read_json(path)
