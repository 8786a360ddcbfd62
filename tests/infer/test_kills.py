"""Five runs that SIGKILL ends, in each phase once, go on to the end of one that it does not."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from tests.kills import CASES, Ended, Moment, survive

pytestmark = pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="needs a fork server"
)


@pytest.mark.slow("processes of its own")
@pytest.mark.parametrize(
    ("case", "phases"),
    [
        ("SVI", ["training", "saving"]),
        pytest.param("NUTS", ["warm-up", "sampling"], marks=pytest.mark.soak),
        pytest.param("HMC", ["set-up"], marks=pytest.mark.soak),
    ],
)
def test_a_run_that_is_killed_goes_on(
    case: str, phases: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rng = np.random.default_rng(list(CASES).index(case))
    ended = Ended(case, tmp_path / "whole")
    places = survive(ended, tmp_path / "parts", [Moment.random(phase, rng) for phase in phases])
    assert len(places) == len(phases)
