"""Sixty ends of commands, 40 by SIGKILL and 20 by SIGTERM: what had ended is on disk after each."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Record
from tests.kills_of_commands import HAS_ENDED, Series, assert_same, is_after

MOONS = ("--data", "moons", "--hidden", "2", "--steps", "3000")
COMMANDS = {
    "compare": ("compare", *MOONS, "--methods", "auto-normal,auto-delta,auto-low-rank"),
    "compare side by side": (
        *("compare", *MOONS, "--methods", "auto-normal,auto-delta,auto-low-rank"),
        *("--jobs", "2"),
    ),
    "trust": (
        *("trust", "--data", "digits", "--max-rows", "60", "--hidden", "4", "--steps", "1000"),
        *("--methods", "auto-normal,auto-delta", "--seeds", "0-1", "--draws", "10"),
    ),
    "sbc": ("sbc", *MOONS, "--method", "auto-normal", "--rows", "10", "--simulations", "40"),
    "fit": ("fit", *MOONS, "--method", "auto-normal"),
}
FITS = {"compare": 3, "compare side by side": 3, "trust": 4, "sbc": 0, "fit": 1}  # that are told
KILLS, TERMS = 8, 4  # of each command: 40 and 20


@pytest.mark.soak
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize("case", list(COMMANDS))
def test_commands_that_are_ended_lose_nothing_that_had_ended(
    case: str, tmp_path: Path, record: Record
) -> None:
    command, rng = COMMANDS[case], np.random.default_rng(200 + list(COMMANDS).index(case))
    whole = Series(command, tmp_path / "whole")
    start = time.monotonic()
    life = whole.live()
    assert life.code == 0
    assert len(HAS_ENDED.findall(life.out)) == FITS[case]
    length = time.monotonic() - start
    signals = [signal.SIGKILL] * KILLS + [signal.SIGTERM] * TERMS
    rng.shuffle(signals)
    series, ended, kept, number, early = None, 0, 0, 0, 0
    while signals:
        series = series or Series(command, tmp_path / f"parts-{number}")
        number += 1
        by = signal.Signals(signals[-1])
        end = time.monotonic() + float(rng.uniform(0.05, 1)) * length
        is_time = partial(is_after, end)
        if FITS[case] and rng.random() < 0.5:  # chance seldom meets what comes after a short fit
            is_time = partial(series.has, len(series.ended) + 1)
        life = series.live(is_time, by)
        kept += series.check(life)
        ended += len(HAS_ENDED.findall(life.out))
        early += life.code == -signal.SIGTERM
        if life.code == 0:  # it was faster than the signal
            assert_same(series.out, whole.out)
            series = None
        else:
            assert life.code in (-by, 128 + by), life
            signals.pop()
    if series is not None:
        assert series.live().code == 0
        assert_same(series.out, whole.out)
    assert kept > 0 or not FITS[case]
    record(
        kills=KILLS, terms=TERMS, terms_before_the_command=early, fits_ended=ended, fits_kept=kept
    )
