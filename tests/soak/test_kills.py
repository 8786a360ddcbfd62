"""Seventy kills, spread over engines and the phases of a run; the number survived is recorded."""

from __future__ import annotations

import itertools
import multiprocessing
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Record
from tests.kills import CASES, NATURAL, PHASES, Ended, Moment, survive

IN_SAVES = ("saving", "naming")
IN_SVI = ("set-up", "training", *IN_SAVES)
IN_SAMPLERS = ("set-up", "warm-up", "sampling", *IN_SAVES)
KILLS = {"SVI": 14, "NUTS": 16, "HMC": 14, "SVI compiled": 6}  # 50
KILLS |= {cls.__name__: 4 for cls in NATURAL}  # 20
AT_ONCE = 2  # kills of one run, but for the last of an odd number


@pytest.mark.soak
@pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="needs a fork server"
)
@pytest.mark.parametrize("case", list(CASES))
def test_runs_that_are_killed_go_on(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record: Record
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    rng = np.random.default_rng(100 + list(CASES).index(case))
    phases = itertools.cycle(IN_SAMPLERS if case in ("NUTS", "HMC") else IN_SVI)
    moments = [Moment.random(phase, rng) for phase in itertools.islice(phases, KILLS[case])]
    rng.shuffle(moments)
    ended = Ended(case, tmp_path / "whole")
    places: list[str] = []
    for i in range(0, len(moments), AT_ONCE):
        places += survive(ended, tmp_path / f"parts-{i}", moments[i : i + AT_ONCE])
    assert len(places) == KILLS[case]
    by_phase = Counter(moment.phase for moment in moments)
    record(
        kills=len(places),
        survived=len(places),
        **{f"in {phase}": by_phase[phase] for phase in PHASES if by_phase[phase]},
    )
