"""The list of deliberate bugs fits the code, and the script names the test that sees one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutations import ALWAYS, FORKS, HANGS, ROOT, SURVIVED, Mutation, Tree, copy_of, read

MUTATIONS = read()


def test_there_are_bugs_of_every_room() -> None:
    assert len(MUTATIONS) >= 120
    rooms = {Path(mutation.file).parent.as_posix() for mutation in MUTATIONS}
    folders = {path.parent for path in (ROOT / "pyro_bnn").glob("*/__init__.py")} - {
        ROOT / "pyro_bnn" / "guides"
    }
    assert {path.relative_to(ROOT).as_posix() for path in folders} | {"guides"} <= rooms


def test_each_bug_is_one_change_of_code_that_is_there() -> None:
    for mutation in MUTATIONS:
        text = (ROOT / mutation.file).read_text("utf-8")
        compile(mutation.applied(text), mutation.file, "exec")
        assert mutation.old != mutation.new, mutation
        assert mutation.breaks.endswith("."), mutation
        assert mutation.tests, mutation
        assert [name for name in mutation.tests if not (ROOT / name).exists()] == [], mutation
        assert not mutation.by or Tree(ROOT).has(mutation.by), mutation


def test_text_that_is_not_there_once_is_refused() -> None:
    mutation = Mutation("All.", "code.py", "a", "b", ("test_code.py",))
    for text in ("", "a a"):
        with pytest.raises(ValueError, match=r"code.py has \d times, not once: 'a'"):
            mutation.applied(text)


CODE = "def twice(x):\n    return 2 * x\n"
TESTS = """
from time import sleep

from code_of import twice

def test_zero():
    assert twice(0) == 0

def test_one():
    assert twice(1) == 2

def test_more():
    while twice(2) < 4:
        sleep(0.01)
    assert twice(2) == 4

def test_wrong():
    assert False
"""
# plugins that take longer to import than pytest itself
PLUGINS = ("hypothesispytest", "jaxtyping", "pytest_cov", "xdist", "xdist.looponfail")
INI = "[pytest]\naddopts = " + " ".join(f"-p no:{name}" for name in PLUGINS) + "\n"


@pytest.mark.slow("a second or more")
def test_the_test_that_sees_a_bug_is_named_and_the_copy_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "code_of.py").write_text(CODE)
    (root / "test_code.py").write_text(TESTS)
    (root / "pytest.ini").write_text(INI)
    subprocess.run(["git", "init", "-q", root], check=True)
    tree = Tree(copy_of(root, root / "tests", tmp_path / "copy"))
    FORKS.set_forkserver_preload(["pytest"])

    def seen(new: str, by: str = "") -> str:
        return tree.seen_by(Mutation("Twice.", "code_of.py", "2 * x", new, ("test_code.py",), by))

    assert (
        seen("3 * x") == seen("3 * x", by="test_code.py::test_renamed") == "test_code.py::test_one"
    )
    assert seen("3 * x", by="test_code.py::test_more") == "test_code.py::test_more"
    assert seen("x * 2") == f"{ALWAYS}test_code.py::test_wrong"
    (tree.path / "test_code.py").write_text(TESTS.replace("False", "True"))
    assert seen("x * 2") == SURVIVED
    monkeypatch.setattr("tests.mutations.SECONDS", 1.0)
    assert seen("x", by="test_code.py::test_more") == HANGS
    assert (tree.path / "code_of.py").read_text() == CODE
