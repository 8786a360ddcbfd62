"""A few ends of a command; ``make soak`` has sixty, of all commands."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.kills_of_commands import Life, Series, assert_same

COMMAND = (
    *("compare", "--data", "moons", "--hidden", "2", "--steps", "300"),
    *("--methods", "auto-normal,auto-delta,auto-low-rank"),
)


@pytest.mark.slow("four whole commands")
@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_comparison_that_is_ended_loses_no_fit_that_had_ended(tmp_path: Path) -> None:
    whole, parts = Series(COMMAND, tmp_path / "whole"), Series(COMMAND, tmp_path / "parts")
    assert whole.live().code == 0
    for count, by in ((1, signal.SIGKILL), (2, signal.SIGTERM)):
        life = parts.live(partial(parts.has, count), by)
        parts.check(life)
        assert life.code in (-by, 128 + by), life
        assert parts.has(count)
    assert parts.live().code == 0
    assert_same(parts.out, whole.out)


def test_what_a_kill_has_lost_is_seen(tmp_path: Path) -> None:
    said, series = "AutoNormal    1.2 s  (SVI, 300 steps)\n", Series(COMMAND, tmp_path)
    assert series.check(Life(-signal.SIGKILL, "", "", [])) == 0
    with pytest.raises(AssertionError, match="AutoNormal"):  # it is not on disk
        series.check(Life(-signal.SIGKILL, said, "", []))
    for life in (
        Life(143, "", "Traceback", []),
        Life(143, "", "pyro-bnn: interrupted by SIGTERM\n", []),  # and how to go on?
        Life(143, "", "pyro-bnn: interrupted by SIGTERM; to go on: pyro-bnn compare\n", ["pymp-1"]),
    ):
        with pytest.raises(AssertionError):
            series.check(life)
    series.check(
        Life(143, "", "pyro-bnn: interrupted by SIGTERM; to go on: pyro-bnn compare\n", [])
    )
