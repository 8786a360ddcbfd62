"""Output is checked before the work and written whole."""

from pathlib import Path

import pytest

from pyro_bnn.errors import OutputError
from pyro_bnn.report.files import check_writable, file_names, write_text


def test_a_new_folder_is_made_with_its_parents_and_left_empty(tmp_path: Path) -> None:
    folder = check_writable(tmp_path / "a" / "b")
    assert folder.is_dir()
    assert list(folder.iterdir()) == []


def test_a_file_in_the_way_is_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    for path in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(
            OutputError, match=r"cannot write to the folder .*taken.*choose another"
        ):
            check_writable(path)
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
