"""The README's code runs as written, and its commands exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
SHELL_LINES = [
    line.split("#")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
    for line in block.splitlines()
]


def test_there_are_blocks_to_run() -> None:
    assert len(PYTHON_BLOCKS) >= 3
    assert "make report" in SHELL_LINES
    assert "make test" in SHELL_LINES


@pytest.mark.slow("a process of its own, whole fits")
@pytest.mark.parametrize("number", range(len(PYTHON_BLOCKS)))
def test_python_block_runs_as_written(number: int, tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text(PYTHON_BLOCKS[number])
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning:__main__", str(script)],
        cwd=tmp_path,
        env={**os.environ, "MPLBACKEND": "Agg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("line", [line for line in SHELL_LINES if line.startswith("make ")])
def test_make_target_exists(line: str) -> None:
    done = subprocess.run(
        ["make", "--dry-run", *line.split()[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", [line for line in SHELL_LINES if line.startswith("pyro-bnn ")])
def test_shell_line_uses_options_that_exist(line: str) -> None:
    words = line.split()
    script = Path(sys.executable).parent / "pyro-bnn"
    done = subprocess.run(
        [str(script), words[1], "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for word in words[2:]:
        if word.startswith("--"):
            assert word in done.stdout


def test_every_image_and_link_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_every_registered_name_is_in_the_collection_table() -> None:
    from pyro_bnn.registry import KINDS, entries

    missing = [
        cls.__name__
        for kind in KINDS
        for cls in entries(kind).values()
        if f"`{cls.__name__}`" not in README and f".{cls.__name__}`" not in README
    ]
    assert missing == []
