"""The command line in this process, for tests."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from pyro_bnn.cli import main as cli


class Result(NamedTuple):
    code: int
    out: str
    err: str


def run(*args: str | Path) -> Result:
    """The command line in this process."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.main([str(arg) for arg in args])
    return Result(code, out.getvalue(), err.getvalue())
