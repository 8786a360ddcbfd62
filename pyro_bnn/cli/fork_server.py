"""A process that imports what fits need while this one does the same, for others to fork from.

Torch and this package take seconds to import. A process of the method ``spawn`` begins that when it
is started; one that is forked from a server has it done. Of joblib's processes each imports anew.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

from pyro_bnn.cli.signals import ignored

POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")  # of other libraries
MODULES = ["pyro_bnn.cli.many_runs", "pyro_bnn.infer", "pyro_bnn.guides"]

_threads: int | None = None  # of the pools of the server


def start(threads: int) -> None:
    """Start the server, where the system has one; call it before torch is imported here.

    Args:
        threads: Of each process that is forked.
    """
    global _threads  # noqa: PLW0603 (of the process, as its server is)
    if _threads is not None or "forkserver" not in mp.get_all_start_methods():
        return
    mp.get_context("forkserver").set_forkserver_preload(MODULES)
    # the server inherits what is ignored, and so does Python's tracker of semaphores
    with ignored(), environment(dict.fromkeys(POOLS, str(threads))):
        forkserver.ensure_running()
    _threads = threads


def context(threads: int) -> BaseContext:
    """How processes of so many threads are begun: by the server, where it was started for them."""
    return mp.get_context("forkserver" if _threads == threads else "spawn")


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for the processes that start inside."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
