"""Ctrl-C while an engine runs: the step is finished, and what there is is kept."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# a signal is the process's, and so are these; no lock, which a handler may hold
_asked = False
_is_watched = False


class Interrupted(KeyboardInterrupt):
    """A run was stopped by Ctrl-C between two of its steps; the message says how to go on.

    Attributes:
        posterior: What the run had reached, or None where that is no posterior yet.
    """

    posterior: object | None = None

    def __str__(self) -> str:
        held = "" if self.posterior is None else "; what there is, is in the exception's .posterior"
        return f"{super().__str__()}{held}"


def is_asked() -> bool:
    """Whether Ctrl-C came since the outermost :func:`watch` began."""
    return _asked


@contextmanager
def watch() -> Iterator[None]:
    """Take the first Ctrl-C as a question, see :func:`is_asked`; the second interrupts at once.

    It does so in the main thread alone, where Python's own handler is in place: a program that has
    set another, or an outer ``watch``, keeps it. Other signals do the same where their handler is
    :func:`stop`.

    Raises:
        KeyboardInterrupt: At the end, if the question came and no exception answered it; an error
            that came instead is its cause.
    """
    global _asked, _is_watched
    if _is_watched or threading.current_thread() is not threading.main_thread():
        yield
        return
    takes_ctrl_c = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    _asked, _is_watched = False, True
    try:
        if takes_ctrl_c:
            signal.signal(signal.SIGINT, stop)
        yield
    except Exception as error:
        if _asked:  # who catches errors of one run and begins the next shall stop too
            raise KeyboardInterrupt(str(error)) from error
        raise
    finally:
        if takes_ctrl_c:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        was_asked, _asked, _is_watched = _asked, False, False
    if was_asked:
        raise KeyboardInterrupt


def stop(signum: int, frame: FrameType | None) -> None:
    """Handler of a signal: a run that is watched stops after its step, all else at once.

    Raises:
        KeyboardInterrupt: If no run is watched, or one was asked already.
    """
    global _asked  # noqa: PLW0603 (of the module, as the signal is of the process)
    if _is_watched and not _asked:
        _asked = True
        return
    _asked = False  # this second interrupt stops the process
    if signal.getsignal(signal.SIGINT) is stop:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.default_int_handler(signum, frame)
