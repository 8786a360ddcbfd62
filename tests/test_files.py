"""Every file that is written: whole or not at all, where a link leads, into devices and pipes."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from pyro_bnn.arviz_io import datatree, save_netcdf
from pyro_bnn.errors import OutputError
from pyro_bnn.files.atomic import check_file, output, whole, write_text
from pyro_bnn.files.tensors import write_tensors
from pyro_bnn.report.plots.prior import save_picture

WRITERS: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "text": (lambda path: write_text(path, "größe\n"), "größe\n".encode()),
    "picture": (lambda path: save_picture(Figure(), path), b"\x89PNG"),
    "tensors": (lambda path: write_tensors({"t": torch.arange(3.0)}, path), b"\xa8\0\0\0\0\0\0\0{"),
    "tree": (
        lambda path: save_netcdf(datatree({"posterior": {"z": np.zeros((1, 5))}}), path),
        b"\x89HDF",
    ),
}
writers = pytest.mark.parametrize(("write", "start"), WRITERS.values(), ids=WRITERS)
Write = Callable[[Path], object]


@writers
def test_a_link_is_followed(write: Write, start: bytes, tmp_path: Path) -> None:
    there, link = tmp_path / "there", tmp_path / "link.png"
    there.mkdir()
    link.symlink_to(Path("there", "file.png"))
    for _ in range(2):  # to what is not there yet, and to what is
        check_file(link)
        write(link)
        assert link.is_symlink()
        assert (there / "file.png").read_bytes().startswith(start)
        (there / "file.png").write_text("old")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file.png", "link.png", "there"]


@writers
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_stays_and_gets_the_bytes(write: Write, start: bytes, tmp_path: Path) -> None:
    pipe, found = tmp_path / "pipe.png", list[bytes]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: found.append(pipe.read_bytes()), daemon=True)
    reader.start()
    check_file(pipe)
    write(pipe)
    assert stat.S_ISFIFO(pipe.stat().st_mode)  # else the reader waits for ever
    reader.join(20)
    write(tmp_path / "file.png")
    assert found[0].startswith(start)
    assert len(found[0]) == (tmp_path / "file.png").stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.png", "pipe.png"]


@writers
def test_a_device_stays_a_device(write: Write, start: bytes, tmp_path: Path) -> None:
    """One like /dev/null, of its own, which root would replace by a file."""
    device = tmp_path / "device.png"
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        device.write_bytes(start)
    except (AttributeError, PermissionError):
        pytest.skip("no devices can be made here")
    write(device)
    assert stat.S_ISCHR(device.stat().st_mode)
    assert list(tmp_path.iterdir()) == [device]


@pytest.mark.parametrize("manager", [whole, output])
def test_what_was_there_stays_after_an_error(
    manager: Callable[[Path], AbstractContextManager[Path]], tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def fail_half_way(partial: Path) -> None:
        assert not partial.exists()
        partial.write_text("half")
        assert path.read_text() == "old"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), manager(path) as partial:
        fail_half_way(partial)
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("file", "old")]


def test_a_link_is_replaced_where_none_is_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("of somebody else")
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    with whole(tmp_path / "file") as partial:
        partial.write_text("new")
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "victim").read_text() == "of somebody else"


def test_what_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OutputError, match=r"cannot write to the folder '.*file'"):
        check_file(tmp_path / "file" / "out")
    with pytest.raises(OutputError, match=r"cannot write '.*loop': Too many levels of symbolic li"):
        check_file(tmp_path / "loop")
    with pytest.raises(OutputError, match=r"cannot write '.*loop': Too many levels of symbolic li"):
        write_text(tmp_path / "loop", "text")
    check_file(tmp_path / "new" / "out")
    assert not (tmp_path / "new").exists()
    write_text(tmp_path / "new" / "out", "text")
    assert (tmp_path / "new" / "out").read_text() == "text"
