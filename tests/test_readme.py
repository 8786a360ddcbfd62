"""Code of the README and of the pages of ``docs/howto`` runs as written; their commands exist."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import command_line

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
BLOCKS = {
    f"{page.stem}-{number}": block
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
}
SHELL_LINES = [
    line.split("#")[0].strip()
    for page in PAGES
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), flags=re.DOTALL)
    for line in block.splitlines()
]


def test_there_are_blocks_to_run() -> None:
    assert len(BLOCKS) >= 10
    assert "make report" in SHELL_LINES
    assert "make test" in SHELL_LINES


@pytest.mark.slow("whole examples")
@pytest.mark.usefixtures("short_trajectories")
@pytest.mark.parametrize("name", BLOCKS)
def test_python_block_runs_with_shorter_fits(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As written but for the numbers of steps and draws; ``make soak`` takes those too."""
    monkeypatch.chdir(tmp_path)
    whole = re.sub(r"(SVI\([\w.]+)\)", r"\1, num_steps=1)", BLOCKS[name])  # ends by itself
    shorter, num_fits = re.subn(r"num_steps=[\d_]+", "num_steps=20", whole)
    shorter = re.sub(r"seconds=[\d_]+", "seconds=1", shorter)
    shorter = re.sub(r"num_simulations=[\d_]+", "num_simulations=20", shorter)
    # no row is left out of chains of a few draws, and no truth is ranked among them
    if "stack_chains" in shorter or "num_draws" in shorter:
        num_fits += 1
    else:
        # trees are long
        shorter, num_runs = re.subn(r"(warmup_steps|num_samples)=[\d_]+", r"\1=4", shorter)
        num_fits += num_runs
    assert num_fits >= 1
    exec(compile(shorter, name, "exec"), {"__name__": "readme"})
    assert capsys.readouterr().out.strip()


@pytest.mark.soak
@pytest.mark.parametrize("name", BLOCKS)
def test_python_block_runs_as_written(name: str, tmp_path: Path) -> None:
    script = tmp_path / "readme.py"
    script.write_text(BLOCKS[name])
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


@functools.cache
def help_of(command: str) -> str:
    code, out, _ = command_line.run(command, "--help")
    assert code == 0
    return out


@pytest.mark.parametrize("line", [line for line in SHELL_LINES if line.startswith("pyro-bnn ")])
def test_shell_line_uses_options_that_exist(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    _, command, *words = line.split()
    for word in words:
        if word.startswith("--"):
            assert word in help_of(command)


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
