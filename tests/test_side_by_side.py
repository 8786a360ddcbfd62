"""Work in processes side by side: what comes back, what is shown meanwhile, Ctrl-C, errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tqdm import tqdm

from pyro_bnn.cli import side_by_side
from pyro_bnn.cli.side_by_side import Say, _Screen, _Sent, run
from pyro_bnn.errors import BNNError, OptionError
from pyro_bnn.posterior.provenance import Provenance

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def facts(number: int, say: Say) -> dict[str, Any]:
    say(f"{number} is said")
    sys.stderr.write(f"{number} is noted\n")
    for _ in tqdm(range(3), desc=f"bar {number}", mininterval=0):
        time.sleep(0.01)
    provenance = Provenance("NUTS", "NUTS")
    return {
        "number": number,
        "pid": os.getpid(),
        "group": os.getpgid(0) if hasattr(os, "getpgid") else None,
        "threads": (provenance.threads, torch.get_num_threads()),
        "processes": provenance.processes,
        "environment": os.environ["OMP_NUM_THREADS"],
    }


def refuse(say: Say) -> None:
    raise OptionError("not this one")


def end_at_once(say: Say) -> None:
    os._exit(3)


def sleep_until_asked(folder: Path, name: str, say: Say) -> str:
    """Notes that it began; how often it was asked to stop it writes down as it ends."""
    try:
        (folder / f"{name} began").touch()
        time.sleep(60)
    except KeyboardInterrupt:
        say(f"{name} was asked")
        time.sleep(0.3)  # a second signal would come now
        (folder / f"{name} ended").touch()
        raise
    return name


@pytest.mark.slow("processes")
def test_what_tasks_return_comes_in_their_order_and_what_they_say_meanwhile(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said: list[str] = []
    before = dict(os.environ)
    tasks = {str(n): partial(facts, n) for n in (2, 0, 1)}
    found = run(tasks, 2, 1, said.append, progress=False)
    assert list(found) == ["2", "0", "1"]
    assert [one["number"] for one in found.values()] == [2, 0, 1]
    assert sorted(said) == ["0 is said", "1 is said", "2 is said"]
    noted = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert sorted(noted) == ["0 is noted", "1 is noted", "2 is noted"]  # and no bars
    for one in found.values():
        assert one["pid"] != os.getpid()
        assert one["group"] in (None, one["pid"])  # out of reach of a terminal's Ctrl-C
        assert one["threads"] == (1, 1)
        assert (one["processes"], one["environment"]) == (2, "1")
    assert dict(os.environ) == before


@pytest.mark.slow("processes")
def test_ctrl_c_is_passed_on_once_and_what_has_not_begun_does_not_begin(tmp_path: Path) -> None:
    said: list[str] = []
    names = ("a", "b", "c", "d")
    tasks = {name: partial(sleep_until_asked, tmp_path, name) for name in names}

    def ask() -> None:
        until = time.monotonic() + 40
        while not (tmp_path / "b began").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    asking = threading.Thread(target=ask)
    asking.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(tasks, 2, 1, said.append, progress=False)
    asking.join()
    assert time.monotonic() - start < 50
    began, ended = (
        {path.name[0] for path in tmp_path.glob(f"* {what}")} for what in ("began", "ended")
    )
    assert began == ended  # none was asked twice
    assert began == {"a", "b"}
    assert sorted(said) == [f"{name} was asked" for name in sorted(ended)]


INTERRUPTED = """
import threading, time
from functools import partial
from pyro_bnn.cli.side_by_side import run
from tests.test_side_by_side import sleep_a_second

def enter(condition):
    entered = condition._lock.__enter__()
    if time.monotonic() > at and threading.current_thread() is threading.main_thread() and left:
        left.clear()
        raise KeyboardInterrupt  # as a signal does that comes now: the lock stays taken
    return entered

if __name__ == "__main__":
    at, left = time.monotonic() + 1e9, [True]
    threading.Condition.__enter__ = enter

    def begun(_):
        global at
        at = time.monotonic()

    try:
        run({"sleeps": sleep_a_second}, 1, 1, begun, progress=False)
    except KeyboardInterrupt:
        print("interrupted")
"""


def sleep_a_second(say: Say) -> None:
    say("begins")
    time.sleep(1)


@pytest.mark.slow("processes")
def test_ctrl_c_that_comes_within_a_lock_of_the_pool_does_not_wait_for_ever(tmp_path: Path) -> None:
    script = tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED, "utf-8")
    done = subprocess.run(
        [sys.executable, script], check=True, capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )  # fmt: skip
    assert done.stdout == "interrupted\n"


@pytest.mark.slow("processes")
def test_an_error_of_one_ends_the_others(tmp_path: Path) -> None:
    tasks: dict[str, Any] = {
        "sleeps": partial(sleep_until_asked, tmp_path, "sleeps"),
        "refuses": refuse,
    }
    with pytest.raises(OptionError, match="not this one"):
        run(tasks, 2, 1, str, progress=False)
    assert (tmp_path / "sleeps began").exists() == (tmp_path / "sleeps ended").exists()


@pytest.mark.slow("processes")
def test_a_process_that_ends_by_itself_is_told() -> None:
    with pytest.raises(BNNError, match="ended by itself, perhaps for want of memory"):
        run({"ends": end_at_once}, 1, 1, str, progress=False)


@pytest.mark.slow("processes")
def test_a_process_that_ends_by_itself_takes_no_other_with_it() -> None:
    """Neither one that runs beside it, nor those that begin after it."""
    said: list[str] = []
    tasks: dict[str, Any] = {"ends": end_at_once} | {str(n): partial(facts, n) for n in range(3)}
    found = run(tasks, 2, 1, said.append, progress=False, if_killed=lambda name: {"lost": name})
    assert list(found) == list(tasks)
    assert found["ends"] == {"lost": "ends"}
    assert [found[str(n)]["number"] for n in range(3)] == [0, 1, 2]
    assert f"ends: {side_by_side.ENDED}" in said


def test_lines_are_notes_and_what_follows_a_carriage_return_is_a_bar(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[tuple[str, str, str]] = []
    monkeypatch.setattr(side_by_side, "_send", lambda *parts: sent.append(parts))
    stream = _Sent("fit")
    stream.write("a note\nthe first ")
    stream.write("half\n")
    stream.write("\r 10% |#   |")
    stream.write("\r 20% |##  |  ")
    stream.write("\n")
    stream.write("at the end\n")
    assert sent == [
        ("fit", "note", "a note"),
        ("fit", "note", "the first half"),
        ("fit", "bar", " 10% |#   |"),
        ("fit", "bar", " 20% |##  |"),
        ("fit", "note", "at the end"),
    ]


def test_every_task_has_a_bar_while_it_runs() -> None:
    screen = _Screen(2, str)
    shown = [bar.desc for bar in screen._bars]

    def state() -> list[str]:
        return [bar.desc for bar in screen._bars]

    screen.show("a", "bar", "a 10%")
    screen.show("b", "bar", "b 5%")
    screen.show("a", "bar", "a 20%")
    assert state() == ["a 20%", "b 5%"]
    screen.show("a", "ends", None)
    assert state() == ["", "b 5%"]
    screen.show("c", "bar", "c 1%")
    assert state() == ["c 1%", "b 5%"]
    screen.close()
    assert shown == ["", ""]
    quiet = _Screen(0, str)
    quiet.show("a", "bar", "a 10%")
    quiet.show("a", "ends", None)
