"""SIGTERM and SIGHUP, of a batch system or a terminal that closes, end a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

ENDS = ("SIGTERM", "SIGHUP")  # those that the system has
LATER = 0.05  # s after which a signal that came in an import is looked at again
INTERRUPTS = "pyro_bnn.infer.checkpoints.interrupts"


@contextmanager
def taken_as_ctrl_c() -> Iterator[list[signal.Signals]]:
    """Take these signals as Ctrl-C inside; one that is ignored, as under ``nohup``, stays so.

    Yields:
        Those that came.
    """
    came: list[signal.Signals] = []
    before = {}

    def stop(signum: int, frame: FrameType | None) -> None:
        if _imports(frame):
            again = threading.Timer(LATER, os.kill, (os.getpid(), signum))
            again.daemon = True
            again.start()
            return
        came.append(signal.Signals(signum))
        module = sys.modules.get(INTERRUPTS)  # with torch; before it, no run is watched
        (module.stop if module else signal.default_int_handler)(signal.SIGINT, frame)

    if threading.current_thread() is threading.main_thread():
        numbers = [getattr(signal, name) for name in ENDS if hasattr(signal, name)]
        before = {one: signal.getsignal(one) for one in numbers}
    try:
        for one, handler in before.items():
            if handler is signal.SIG_DFL:
                signal.signal(one, stop)
        yield came
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _imports(frame: FrameType | None) -> bool:
    """Whether an import is under way: an exception is lost there, or breaks a package."""
    while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


def ignore_all() -> dict[signal.Signals, Any]:
    """Leave Ctrl-C and these signals to the process that began this one, which passes them on.

    Returns:
        The handlers of before.
    """
    numbers = [getattr(signal, name) for name in ("SIGINT", *ENDS) if hasattr(signal, name)]
    return {one: signal.signal(one, signal.SIG_IGN) for one in numbers}


@contextmanager
def ignored() -> Iterator[None]:
    """Begin processes inside that a terminal which closes, and its Ctrl-C, do not end."""
    before = ignore_all()
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
