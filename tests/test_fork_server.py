"""The server that processes are forked from: what it has imported, its threads, Ctrl-C."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from pyro_bnn.cli import fork_server
from pyro_bnn.cli.commands.compare import CompareOptions, start_server
from pyro_bnn.cli.options import FitOptions

pytestmark = pytest.mark.skipif(
    "forkserver" not in mp.get_all_start_methods(), reason="no server here"
)

SCRIPT = """
import json, os, signal, sys
from pyro_bnn.cli import fork_server

if __name__ == "__main__":
    before = signal.getsignal(signal.SIGINT), dict(os.environ)
    fork_server.start(3)
    fork_server.start(5)  # one is enough
    assert (signal.getsignal(signal.SIGINT), dict(os.environ)) == before
    assert "torch" not in sys.modules
    asked = "{m: m in __import__('sys').modules for m in ('torch', 'pyro_bnn.infer.svi.svi')}"
    threads = "__import__('os').environ.get('OMP_NUM_THREADS')"
    ctrl_c = "str(__import__('signal').getsignal(2))"
    found = {}
    for count in (3, 5):
        pool = fork_server.context(count).Pool(1)
        found[count] = [pool.apply(eval, (text,)) for text in (asked, threads, ctrl_c)]
        pool.close()  # not the SIGTERM of terminate(), which processes of the server ignore
        pool.join()
    print(json.dumps(found))
"""


@pytest.mark.slow("imports torch twice")
def test_processes_of_the_server_have_imported_and_have_its_threads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True, timeout=120
    )
    found = json.loads(done.stdout)
    assert list(found["3"][0].values()) == [True, True]
    assert found["3"][1:] == ["3", str(signal.SIG_IGN)]  # a terminal's Ctrl-C passes it by
    assert list(found["5"][0].values()) == [False, False]


CLOSED = """
import os, signal, time
from multiprocessing import forkserver, resource_tracker
from pyro_bnn.cli import fork_server

fork_server.MODULES.clear()
fork_server.start(1)
of_python = forkserver._forkserver._forkserver_pid, resource_tracker._resource_tracker._pid
for process in of_python:
    os.kill(process, signal.SIGHUP)
time.sleep(0.5)
for process in of_python:
    assert os.waitpid(process, os.WNOHANG) == (0, 0)  # it runs
"""


def test_a_terminal_that_closes_ends_neither_the_server_nor_the_tracker_of_semaphores() -> None:
    """Python starts both again else, and tells it with warnings and tracebacks."""
    subprocess.run([sys.executable, "-c", CLOSED], check=True, timeout=120)


@pytest.mark.parametrize(
    ("options", "cores", "starts"),
    [
        ({}, 2, True),
        ({}, 1, False),  # of a machine with more
        ({"methods": "nuts"}, 2, False),
        ({"methods": "nuts", "seeds": "0-1"}, 2, True),
        ({"methods": "nuts", "splits": "0,3"}, 2, True),
        ({"num_jobs": 1}, 2, False),
        ({"num_jobs": 2}, 1, True),
        ({"backend": "loky"}, 2, False),
    ],
)
def test_it_is_started_where_several_fits_may_go_side_by_side(
    options: dict[str, Any], cores: int, starts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(fork_server, "start", started.append)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    asked = CompareOptions(**{"methods": "auto-normal,nuts", **options})
    start_server(asked, FitOptions(threads=1))
    assert started == ([1] if starts else [])
