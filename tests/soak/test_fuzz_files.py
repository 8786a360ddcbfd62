"""Damaged and forged files, for minutes: each is read or refused, in bounded time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Record

SECONDS = float(os.environ.get("PYRO_BNN_FUZZ_SECONDS", "300"))
SEED = int(os.environ.get("PYRO_BNN_FUZZ_SEED", "0"))
START = 300.0  # s to make the files


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="the bounds on a process are those of Linux")
def test_damaged_files(tmp_path: Path, record: Record) -> None:
    command = [sys.executable, "-m", "tests.soak.fuzz", str(tmp_path), str(SECONDS), str(SEED)]
    found = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=SECONDS + START
    )
    if found.returncode:
        name = (tmp_path / "last.name").read_text()
        pytest.fail(f"{tmp_path}/last, of {name}, ends in {found.returncode}: {found.stderr}")
    figures = json.loads(found.stdout.splitlines()[-1])
    record(seconds=SECONDS, seed=SEED, **figures)
    assert figures["tried"] > SECONDS / 5  # on a laptop some in a second
    assert min(refused for _, refused in figures["by_file"].values()) > 0
