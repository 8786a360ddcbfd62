"""Commands that Ctrl-C reaches, also where the tests run in the background.

A process started in the background of a shell ignores SIGINT, and its children inherit that.
"""

from __future__ import annotations

import sys

_RESTORE = (
    "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def interruptible(*command: str) -> list[str]:
    """The command, run with SIGINT as a foreground process has it."""
    return [sys.executable, "-c", _RESTORE, *command]
