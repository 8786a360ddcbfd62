"""A million rows by a thousand draws under the bound on memory, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pyro_bnn.memory import GIB
from tests.conftest import Record

ROWS, DRAWS = 1_000_000, 1_000


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of a process from /proc")
def test_a_million_rows_by_a_thousand_draws(tmp_path: Path, record: Record) -> None:
    """Moments, scores, quantiles of 4 GB an array; a tree of the draws that fit, and its file."""
    command = [sys.executable, "-m", "tests.soak.peaks", str(tmp_path), str(ROWS), str(DRAWS)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    record(**found)
    for name, step in found["steps"].items():
        assert step["anonymous"] < GIB, name
        assert step["resident"] < GIB, name
