"""Ctrl-C on commands in processes of their own, and the line that goes on from there."""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from pyro_bnn.cli.saved_fit import SavedFit
from pyro_bnn.cli.signals import taken_as_ctrl_c
from pyro_bnn.infer.checkpoints.checkpoint import NAME, read_checkpoint
from tests.command_line import run
from tests.interruptible import interruptible

pytestmark = pytest.mark.slow("processes that are stopped")

SLOWLY = """
import sys, time
from pyro_bnn.cli.main import main
from pyro_bnn.infer.svi.training import Training

advance = Training._advance

def slow(self, *args):
    time.sleep(0.1)
    return advance(self, *args)

Training._advance = slow
sys.exit(main(sys.argv[1:]))
"""
COMMAND = "import sys; from pyro_bnn.cli.main import main; sys.exit(main())"
STEPS = 200  # of 100 ms, but for those of the run that goes on
FIT = ("fit", "--data", "moons", "--hidden", "2", "--method", "auto-normal", "--batch-size", "50")
LONGEST = 300.0  # s, under a load that is not ours


def stopped(
    *args: str, saved: Path, by: signal.Signals = signal.SIGINT, temporary: Path | None = None
) -> tuple[int, str, str]:
    """The exit code, output and errors of a command that is stopped after its first save."""
    own = {} if temporary is None else {"TMPDIR": str(temporary)}
    process = subprocess.Popen(
        interruptible(sys.executable, "-c", SLOWLY, *args),
        env={**os.environ, "OMP_NUM_THREADS": "1", **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        end = time.monotonic() + LONGEST
        while not (saved / NAME).exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)
        process.send_signal(by)
        out, err = process.communicate(timeout=LONGEST)
    finally:
        process.kill()  # a failure, not a hang
    return process.returncode, out, err


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal on POSIX")
def test_a_fit_that_ctrl_c_stops_goes_on_to_the_same_end(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    fit, saved = (*FIT, "--steps", str(STEPS)), tmp_path / "a run"
    command = [*fit, "--out", str(tmp_path / "parts"), "--checkpoint", str(saved)]
    code, out, err = stopped(*command, saved=saved)
    assert code == 130
    assert err == f"pyro-bnn: interrupted; to go on: pyro-bnn {shlex.join(command)} --resume\n"
    document = read_checkpoint(saved)
    assert document is not None
    assert not document["is_complete"]
    place = document["place"]
    assert 0 < int(place.split()[1]) < STEPS
    assert f"AutoNormal  interrupted, and saved at {place}" in out
    assert not (tmp_path / "parts").exists()

    try:
        code, out, err = run(*shlex.split(err.split("to go on: pyro-bnn ")[1]))
        assert (code, err) == (0, "")
        assert f"AutoNormal  resumed at {place}" in out
        assert run(*fit, "--out", tmp_path / "whole").code == 0
    finally:
        torch.set_num_threads(threads)
    parts, whole = (SavedFit.load(tmp_path / name).posterior for name in ("parts", "whole"))
    np.testing.assert_array_equal(parts.losses, whole.losses)
    assert torch.equal(parts.unconstrained(5)[0], whole.unconstrained(5)[0])


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Commands inherit the defaults, also where the tests run under ``nohup``."""
    if os.name != "posix":
        yield
        return
    before = {one: signal.signal(one, signal.SIG_DFL) for one in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for one, handler in before.items():
        signal.signal(one, handler)


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.usefixtures("default_signals")
@pytest.mark.parametrize(("name", "expected"), [("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.parametrize("ignores_ctrl_c", [False, True])
def test_a_batch_system_or_a_closed_terminal_stops_a_command_as_ctrl_c_does(
    name: str, expected: int, ignores_ctrl_c: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the background of a shell, where Ctrl-C is ignored."""
    if ignores_ctrl_c:
        monkeypatch.setattr("tests.test_cli_interrupts.interruptible", ignoring)
    saved, temporary = tmp_path / "saved", tmp_path / "temporary"
    temporary.mkdir()
    command = [*FIT, "--steps", str(STEPS), "--out", str(tmp_path / "out")]
    command += ["--checkpoint", str(saved)]
    code, out, err = stopped(*command, saved=saved, by=signal.Signals[name], temporary=temporary)
    assert code == expected
    how = f"to go on: pyro-bnn {shlex.join(command)} --resume"
    assert err == f"pyro-bnn: interrupted by {name}; {how}\n"
    document = read_checkpoint(saved)
    assert document is not None
    assert not document["is_complete"]
    assert f"AutoNormal  interrupted, and saved at {document['place']}" in out
    assert not [*temporary.glob("pyro-bnn-*"), *temporary.glob("pymp-*")]
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_signal_in_an_import_waits_for_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that an exception leaves half imported fails in ways of its own."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "signalled", None)  # is taken out again at the end
    del sys.modules["signalled"]
    come = "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(0.2)"
    (tmp_path / "signalled.py").write_text(f"{come}; is_whole = True")
    with taken_as_ctrl_c() as came:
        module = importlib.import_module("signalled")
        assert (module.is_whole, came) == (True, [])
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)
    assert came == [signal.SIGTERM]


def ignoring(*command: str) -> list[str]:
    """The command, run as a shell runs what is in its background."""
    ignore = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    return [sys.executable, "-c", f"{ignore}os.execv(sys.argv[1], sys.argv[1:])", *command]


@pytest.mark.soak  # of one run alone above
@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal on POSIX")
@pytest.mark.parametrize(
    ("name", "code", "by"), [("SIGINT", 130, ""), ("SIGHUP", 129, " by SIGHUP")]
)
def test_runs_side_by_side_that_a_terminal_stops_go_on_to_the_same_end(
    name: str, code: int, by: str, tmp_path: Path
) -> None:
    """Its Ctrl-C, or its end, reaches the processes of all runs."""
    saved = tmp_path / "saved"
    compare = ["compare", "--data", "moons", "--hidden", "2", "--methods", "auto-normal"]
    compare += ["--splits", "0-1", "--steps", "20000", "--batch-size", "50"]
    beside = [*compare, "--jobs", "2", "--checkpoint", str(saved), "--out", str(tmp_path / "parts")]
    process = subprocess.Popen(
        interruptible(sys.executable, "-c", COMMAND, *beside),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + LONGEST
        while len(list(saved.glob(f"*/*/{NAME}"))) < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)
        os.killpg(process.pid, signal.Signals[name])
        out, err = process.communicate(timeout=LONGEST)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == code, (out, err)
    how = f"pyro-bnn: interrupted{by}; to go on: pyro-bnn {shlex.join(beside)} --resume"
    assert err.splitlines()[0] == how  # joblib may add that it cleans up
    assert "Traceback" not in err
    places = [read_checkpoint(path.parent) for path in saved.glob(f"*/*/{NAME}")]
    assert any(place is not None and not place["is_complete"] for place in places)

    threads = torch.get_num_threads()
    try:
        resumed = run(*beside, "--resume")
        assert resumed.code == 0
        assert run(*compare, "--out", tmp_path / "whole").code == 0
    finally:
        torch.set_num_threads(threads)
    parts, whole = (pd.read_csv(tmp_path / name / "runs.csv") for name in ("parts", "whole"))
    scores = ["log_score", "elbo"]
    assert set(scores) <= set(whole.columns)
    pd.testing.assert_frame_equal(parts[scores], whole[scores], check_exact=True)
