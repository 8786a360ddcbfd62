"""Chains give the same results wherever they run, and leave nothing running behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pyro_bnn.infer.chains import Report, State, chain_seeds, run_chains, single_threaded
from tests.interruptible import interruptible

LOGGER = logging.getLogger("pyro_bnn")


class Counting:
    """Chains of ten draws that say where they ran; ``work`` happens in the middle."""

    def __init__(self, work: Callable[[int], Any] = lambda chain: chain**2) -> None:
        self.work = work

    def prepare(self) -> Callable[[int, Report], tuple[Any, int, int]]:
        LOGGER.warning("prepared")

        def run(chain: int, report: Report) -> tuple[Any, int, int]:
            result = self.work(chain)
            for draw in range(10):
                report(State(draw + 1, draw % 2, 0.5, 0.25))
            return result, os.getpid(), torch.get_num_threads()

        return run


class Unloadable(Counting):
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _refuse, ()


def _refuse() -> None:
    raise RuntimeError("not in this process")


def run(chains: Any, num_chains: int = 3, num_processes: int = 1, **options: Any) -> list[Any]:
    options = {"progress": False, "title": "T", **options}
    return run_chains(chains, num_chains, 10, num_processes=num_processes, **options)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# --- in this process -----------------------------------------------------------------------------


def test_results_come_in_order_from_one_thread() -> None:
    torch.set_num_threads(2)
    try:
        results = run(Counting())
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert results == [(0, os.getpid(), 1), (1, os.getpid(), 1), (4, os.getpid(), 1)]


def test_one_core_runs_here_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LOKY_MAX_CPU_COUNT", "1")
    with caplog.at_level(logging.INFO, "pyro_bnn"):
        (result, *_) = run_chains(Counting(), 2, 10, progress=False, title="NUTS")
    assert result[1] == os.getpid()
    assert caplog.messages == ["NUTS runs its 2 chains in this process, one core", "prepared"]


def test_chains_that_cannot_be_pickled_run_here(caplog: pytest.LogCaptureFixture) -> None:
    generator = (i for i in range(3))
    results = run(Counting(lambda chain: (chain, generator is None)), num_processes=2)
    assert [r[0][0] for r in results] == [0, 1, 2]
    assert {r[1] for r in results} == {os.getpid()}
    assert "in this process: the model cannot be pickled: " in caplog.messages[0]
    assert len(caplog.messages) == 2


def test_progress_false_is_silent_and_true_counts_all_draws(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(Counting())
    assert capsys.readouterr().err == ""
    run(Counting(), title="NUTS", progress=True)
    shown = capsys.readouterr().err
    assert "NUTS" in shown
    assert "30/30" in shown
    assert "3 divergences, acceptance 0.50, step 0.25" in shown


def test_threads_are_restored_after_an_error() -> None:
    before = torch.get_num_threads()

    def fail(_: int) -> None:
        raise ValueError("chain broke")

    with pytest.raises(ValueError, match="chain broke"):
        run(Counting(fail))
    with single_threaded():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_seeds_are_distinct_and_do_not_depend_on_the_number_of_chains() -> None:
    seeds = [
        *chain_seeds(0, 50),
        *chain_seeds(1, 50),
        *chain_seeds(0, 50, stream=1),
    ]
    assert len(set(seeds)) == 150
    assert chain_seeds(7, 50)[:3] == chain_seeds(7, 3)
    assert all(0 <= seed < 2**63 for seed in seeds)


# --- in workers ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_give_the_same_results_and_say_things_once(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    factor = 3  # held by a lambda: only cloudpickle can carry it
    results = run(Counting(lambda chain: factor * chain), num_processes=2, progress=True)
    assert [r[0] for r in results] == [0, 3, 6]
    pids = {r[1] for r in results}
    assert os.getpid() not in pids
    assert {r[2] for r in results} == {1}
    assert caplog.messages == ["prepared"]
    shown = capfd.readouterr().err
    assert "30/30" in shown
    assert "prepared" not in shown
    assert not any(is_running(pid) for pid in pids)


@pytest.mark.slow
def test_error_of_a_chain_stops_the_others(tmp_path: Path) -> None:
    def fail(chain: int) -> None:
        (tmp_path / str(chain)).write_text(str(os.getpid()))
        if chain == 0:
            while not (tmp_path / "1").exists():
                time.sleep(0.01)
            raise ValueError("chain 0 broke")
        time.sleep(600)

    with pytest.raises(ValueError, match="chain 0 broke"):
        run(Counting(fail), num_chains=2, num_processes=2)
    assert not is_running(int((tmp_path / "1").read_text()))


@pytest.mark.slow
def test_chains_that_a_worker_cannot_load_run_here(caplog: pytest.LogCaptureFixture) -> None:
    results = run(Unloadable(), num_chains=2, num_processes=2)
    assert [r[:2] for r in results] == [(0, os.getpid()), (1, os.getpid())]
    assert caplog.messages[0] == (
        "the chains run one after the other in this process: a worker cannot load the model: "
        "not in this process"
    )


@pytest.mark.slow
def test_interrupt_leaves_no_workers(tmp_path: Path) -> None:
    """Ctrl-C, sent to parent and workers as a terminal does, in a script without main guard."""
    script = tmp_path / "script.py"
    script.write_text(f"""
import os, time, pathlib
from pyro_bnn.infer.chains import run_chains

class Sleeping:
    def prepare(self):
        def run(chain, report):
            pathlib.Path({str(tmp_path)!r}, str(chain)).write_text(str(os.getpid()))
            time.sleep(600)
        return run

run_chains(Sleeping(), 2, 1, progress=False, title="T", num_processes=2)
""")
    with subprocess.Popen(
        interruptible(sys.executable, str(script)),
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        files = [tmp_path / "0", tmp_path / "1"]
        deadline = time.monotonic() + 100
        while not all(f.exists() and f.read_text() for f in files) and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
        try:
            _, error = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # a failure, not a hang
            raise
    assert process.returncode == -signal.SIGINT
    assert error.strip().endswith("KeyboardInterrupt")
    assert not any(is_running(int(f.read_text())) for f in files)
