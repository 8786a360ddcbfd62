"""Output is checked before the work and written whole."""

from pathlib import Path

import pytest

from pyro_bnn.errors import BNNWarning, OutputError
from pyro_bnn.files.atomic import check_writable, made_folder, write_text
from pyro_bnn.report.output.names import file_names, warn_of_others


def test_a_new_folder_is_checked_before_the_work_and_made_after_it(tmp_path: Path) -> None:
    """A run that fails between the two leaves nothing behind."""
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    folder = made_folder(tmp_path / "a" / "b")
    assert list(folder.iterdir()) == []
    write_text(tmp_path / "c" / "d.txt", "text")
    assert (tmp_path / "c" / "d.txt").read_text() == "text"


def test_a_file_in_the_way_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    for path in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(
            OutputError, match=r"cannot write to the folder .*taken.*choose another"
        ):
            check_writable(path)
        with pytest.raises(OutputError, match="cannot write to the folder"):
            made_folder(path)
    assert (tmp_path / "taken").read_text() == "mine"


def test_text_replaces_an_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    path.write_text("old")
    write_text(path, "neu ü")
    assert path.read_text(encoding="utf-8") == "neu ü"
    assert list(tmp_path.iterdir()) == [path]


def test_text_that_cannot_be_written_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "index.html").mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*index.html.*choose another output path"):
        write_text(tmp_path / "index.html", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["index.html"]


def test_names_of_any_script_become_different_files() -> None:
    names = file_names(["AutoIAFNormal", "α", "β", "a b", "A_B"])
    assert list(names.values()) == ["auto-iaf-normal", "method", "method-2", "a-b", "a-b-2"]


def test_what_another_run_left_is_named_and_nothing_else(tmp_path: Path) -> None:
    for name in ("old.nc", "nuts.nc", "table.csv", "split-notes-seed-.txt"):
        (tmp_path / name).write_text("")
    for name in ("split-0-seed-0", "split-3-seed-0", "other"):
        (tmp_path / name).mkdir()
    words = "also holds old.nc, split-3-seed-0, which this run did not write: left from an earlier"
    with pytest.warns(BNNWarning, match=words):
        warn_of_others(tmp_path, ["nuts.nc", "split-0-seed-0"])
    warn_of_others(tmp_path, ["nuts.nc", "old.nc", "split-0-seed-0", "split-3-seed-0"])
