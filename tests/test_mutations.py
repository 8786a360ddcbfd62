"""The list of deliberate bugs fits the code, and the script names the test that sees one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.mutations import ROOT, SURVIVED, Mutation, copy_of, read, seen_by

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


def test_text_that_is_not_there_once_is_refused() -> None:
    mutation = Mutation("All.", "code.py", "a", "b", ("test_code.py",))
    for text in ("", "a a"):
        with pytest.raises(ValueError, match=r"code.py has \d times, not once: 'a'"):
            mutation.applied(text)


@pytest.mark.slow("a second or more")
def test_the_test_that_sees_a_bug_is_named_and_the_copy_is_mended(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    (root / "code.py").write_text("def twice(x):\n    return 2 * x\n")
    (root / "test_code.py").write_text(
        "from code_of import twice\n\n\ndef test_zero():\n    assert twice(0) == 0\n\n\n"
        "def test_one():\n    assert twice(1) == 2\n"
    )
    (root / "code.py").rename(root / "code_of.py")
    subprocess.run(["git", "init", "-q", root], check=True)
    tree = copy_of(root, root / "tests", tmp_path / "copy")
    seen = Mutation("Twice.", "code_of.py", "2 * x", "3 * x", ("test_code.py",))
    assert seen_by(seen, tree, "") == "test_code.py::test_one"
    same = Mutation("Nothing.", "code_of.py", "2 * x", "x * 2", ("test_code.py",))
    assert seen_by(same, tree, "") == SURVIVED
    assert (tree / "code_of.py").read_text() == (root / "code_of.py").read_text()
