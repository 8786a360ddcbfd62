"""Standard output or error on a full disk: the run goes on, and its exit code says it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command_line import run
from tests.rows import houses

FULL = Path("/dev/full")
pytestmark = [
    pytest.mark.skipif(not FULL.exists(), reason="the device is one of Linux"),
    pytest.mark.usefixtures("uncaptured"),
]
FIT = ("fit", "--data", "houses.csv", "--method", "auto-delta", "--hidden", "2", "--steps", "3")
SAID = "pyro-bnn: cannot write to standard output: No space left on device\n"


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose standard output is on a full disk, and a table to fit."""
    monkeypatch.chdir(tmp_path)
    houses().to_csv("houses.csv", index=False)


@pytest.mark.parametrize("args", [(), ("--help",), ("--version",), ("list",), ("fit", "--help")])
def test_what_cannot_be_printed_is_told_in_one_line(args: tuple[str, ...]) -> None:
    with FULL.open("w") as out:
        done = run(*args, out=out)
    assert (done.code, done.err) == (1, SAID)


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize("as_json", [(), ("--json",)])
def test_a_fit_is_written_all_the_same(as_json: tuple[str, ...]) -> None:
    with FULL.open("w") as out:
        done = run(*FIT, "--out", "out", *as_json, out=out)
    assert done.code == 1
    assert done.err.endswith(SAID)
    assert "Traceback" not in done.err
    assert Path("out", "posterior.safetensors").stat().st_size > 1_000
    with FULL.open("w") as out:
        done = run("predict", "houses.csv", "--posterior", "out", "--samples", "2", out=out)
    assert (done.code, done.err.splitlines()[-1:]) == (1, SAID.splitlines())


@pytest.mark.usefixtures("full")
def test_messages_that_cannot_be_shown_stop_no_run() -> None:
    """Warnings, notes and errors."""
    with FULL.open("w", buffering=1) as err:
        assert run(*FIT, "--out", "out", "--json", err=err).code == 0
        assert run("fit", "--bad", err=err).code == 2


@pytest.mark.slow("processes of their own")
@pytest.mark.parametrize(
    ("redirect", "code", "said"),
    [(">/dev/full", 1, SAID), (">&-", 0, ""), ("2>/dev/full >/dev/null", 0, "")],
)
def test_a_process_ends_without_noise(redirect: str, code: int, said: str) -> None:
    """Python flushes the streams once more at its end."""
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m pyro_bnn list {redirect}', sys.executable],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, said)
