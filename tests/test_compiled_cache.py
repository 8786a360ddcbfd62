"""Compiled code that is kept: what others planted or a full disk cut is not run, but made again."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from pyro_bnn.capture import cache
from pyro_bnn.capture.c import library
from pyro_bnn.capture.c.library import compile_c
from pyro_bnn.errors import CaptureError, OutputError
from pyro_bnn.files.private import is_kept, keep, private_folder

STRANGER = 12_345  # a user


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is named to both compilers."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    cache._until_the_end.cache_clear()
    return tmp_path / "cache"


def times(factor: int) -> float:
    """What a step makes of one; each test has a factor, as no library is loaded twice."""
    z = torch.ones(3)
    compile_c(lambda z: (factor * z,), [z], num_state=1)(z)
    return float(z[0])


def kept_file(folder: Path) -> Path:
    (path,) = (folder / cache.STEPS).iterdir()
    return path


def test_folders_and_file_are_the_users_alone(folder: Path) -> None:
    assert times(3) == 3
    for path in (folder, folder / cache.STEPS, kept_file(folder)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700, path


def test_without_the_variable_it_is_the_users_cache_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    assert times(3) == 3
    assert kept_file(tmp_path / "home" / "pyro_bnn" / "compiled").suffix == ".so"
    cache.use_for_inductor()
    assert os.environ[cache.VARIABLE] == str(tmp_path / "home" / "pyro_bnn" / "compiled")


def test_a_user_without_a_home_has_a_folder_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container that is run by a number; its first compiled fit ended in a traceback."""
    for variable in (cache.VARIABLE, "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with caplog.at_level(logging.WARNING, "pyro_bnn"):
        assert times(3) == 3
        cache.use_for_inductor()
    (line,) = caplog.messages
    assert "could not determine the home directory" in line
    assert f"set {cache.VARIABLE} to a folder of your own" in line


def as_it_is(path: Path) -> None:
    """A file that passes: what is planted here would be run."""


def written_by_others(path: Path) -> None:
    path.chmod(0o722)


def linked(path: Path) -> None:
    there = path.parents[1] / "elsewhere.so"
    path.replace(there)
    path.symlink_to(there)


def of_a_stranger(path: Path) -> None:
    try:
        os.chown(path, STRANGER, -1)
    except PermissionError:
        pytest.skip("only root gives files away")


@pytest.mark.parametrize(
    ("plant", "factor", "expected"),
    [(as_it_is, 11, 99), (written_by_others, 12, 12), (linked, 13, 13), (of_a_stranger, 14, 14)],
)
def test_a_planted_file_is_not_loaded(
    plant: Callable[[Path], None],
    factor: int,
    expected: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though its checksum is right, which anyone can compute."""
    seen: dict[str, str] = {}

    def key_of(path: Path, key: str) -> bool:
        seen.update(name=path.name, key=key)
        return False

    def text_of(compiler: str, text: str) -> bytes:
        seen.update(compiler=compiler, text=text)
        raise CaptureError("not yet")

    with monkeypatch.context() as patch:
        patch.setattr(library, "is_kept", key_of)
        patch.setattr(library, "_compiled", text_of)
        with pytest.raises(CaptureError, match="not yet"):
            times(factor)
    path = folder / cache.STEPS / seen["name"]
    evil = library._compiled(seen["compiler"], seen["text"].replace(f"{factor}.0", "99.0"))
    keep(path, evil, seen["key"])
    plant(path)
    assert times(factor) == expected
    assert not path.is_symlink()
    assert path.stat().st_uid == os.geteuid()
    assert evil not in path.read_bytes() or plant is as_it_is


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.6, 0.99, 1.0])
def test_a_file_cut_or_damaged_is_made_again(share: float, folder: Path) -> None:
    """A cut one was mapped, and the process that came to its end got SIGBUS."""
    times(3)
    path = kept_file(folder)
    content = path.read_bytes()
    place = int(share * (len(content) - 1))
    for damaged in (content[:place], content[:place] + b"\xff\x00" + content[place + 2 :]):
        path.unlink()  # this process has mapped it
        path.write_bytes(damaged)
        path.chmod(0o700)
        assert times(3) == 3
        assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


def test_a_file_under_another_name_is_made_again(folder: Path) -> None:
    times(3)
    path = kept_file(folder)
    content = path.read_bytes()
    times(5)
    (other,) = {*path.parent.iterdir()} - {path}
    other.replace(path)
    assert times(3) == 3
    assert path.read_bytes() == content


def no_mode(folder: Path) -> str:
    folder.mkdir()
    folder.chmod(0o777)
    return "can be written to by others"


def no_folder(folder: Path) -> str:
    folder.write_text("")
    return "is no folder: File exists"


def link(folder: Path) -> str:
    real = folder.with_name("real")
    real.mkdir(mode=0o700)
    folder.symlink_to(real)
    return "is a link"


def other_owner(folder: Path) -> str:
    folder.mkdir(mode=0o700)
    try:
        os.chown(folder, STRANGER, -1)
    except PermissionError:
        pytest.skip("only root gives folders away")
    return "belongs to another user"


def test_a_name_that_is_too_long_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / ("x" * 300)))
    with caplog.at_level(logging.WARNING, "pyro_bnn"):
        assert times(3) == 3
    (line,) = caplog.messages
    assert "is no folder: File name too long" in line


@pytest.mark.parametrize("inside", ["", cache.STEPS])
@pytest.mark.parametrize("make", [no_mode, no_folder, link, other_owner])
def test_a_folder_of_others_is_not_used_and_said_so(
    make: Callable[[Path], str], inside: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if inside:
        folder.mkdir(mode=0o700)
    reason = make(folder / inside)
    with pytest.raises(OutputError, match=reason), private_folder(folder / inside):
        pass
    with caplog.at_level(logging.WARNING, "pyro_bnn"):
        assert times(3) == 3
        cache.use_for_inductor()
    (line,) = caplog.messages  # once, for both compilers
    assert reason in line
    assert f"set {cache.VARIABLE} to a folder of your own" in line
    assert not list(folder.parent.rglob("*.so"))
    assert stat.S_IMODE(Path(os.environ[cache.VARIABLE]).stat().st_mode) == 0o700


def test_what_is_run_is_what_was_checked(tmp_path: Path) -> None:
    """Whoever can rename a parent folder puts nothing in the way between check and use."""
    with private_folder(tmp_path / "parent" / "own") as folder:
        keep(folder / "file", b"good", "key")
        (tmp_path / "parent").rename(tmp_path / "moved")
        (tmp_path / "parent" / "own").mkdir(parents=True)
        (tmp_path / "parent" / "own" / "file").write_bytes(b"planted")
        assert is_kept(folder / "file", "key")
        assert not is_kept(folder / "file", "other key")
        assert (folder / "file").read_bytes().startswith(b"good")


def test_a_library_of_inductor_that_was_cut_is_dropped(folder: Path) -> None:
    """One that a compiler writes at this moment stays: it holds the lock."""
    times(3)
    whole = kept_file(folder).read_bytes()
    library = folder / "ab" / "abc.main.so"
    for part in (library.parent, folder / "locks"):
        part.mkdir()
    for size in (len(whole), 9_000, 50, 0):
        library.write_bytes(whole[:size])
        with FileLock(folder / "locks" / "abc.lock"):
            cache.use_for_inductor()
            assert library.exists()
        cache.use_for_inductor()
        assert library.exists() == (size == len(whole))
