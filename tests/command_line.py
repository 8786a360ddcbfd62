"""The command line in this process, for tests."""

from __future__ import annotations

from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import NamedTuple, TextIO

from pyro_bnn.cli import main as cli


class Result(NamedTuple):
    code: int
    out: str
    err: str


def run(*args: str | Path, out: TextIO | None = None, err: TextIO | None = None) -> Result:
    """The command line in this process, with other standard streams, of which nothing is read."""
    said, told = StringIO(), StringIO()
    with redirect_stdout(out or said), redirect_stderr(err or told):
        code = cli.main([str(arg) for arg in args])
    return Result(code, said.getvalue(), told.getvalue())
