"""What the command line says beside its results: notes, errors of one line, refused options."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, cast

import typer

from pyro_bnn.errors import BNNWarning, OptionError

PROGRAM = "pyro-bnn"
WIDTH = 100
USAGE, FAILURE, UNWANTED = 2, 1, 3  # exit codes: of what was asked for, happened, was found
TAKES_LESS = {
    "--batch-size": "rows a step",
    "--samples": "draws",
    "--draws": "draws",
    "--chains": "chains",
    "--max-rows": "training rows",
    "--rows": "rows",
    "--simulations": "simulations",
    "--hidden": "units",
    "--jobs": "processes",
}
"""Options that memory depends on: what there is less of."""
OPTIONS: ContextVar[Collection[str]] = ContextVar("OPTIONS", default=tuple(TAKES_LESS))
"""Those of the command that runs."""
# UsageError, whose module differs between releases of typer
USAGE_ERROR = cast(type[Exception], typer.BadParameter.__mro__[1])


def too_large() -> str:
    """What to say where there is no memory left, in terms of the command's options."""
    has = [f"{less} ({name})" for name, less in TAKES_LESS.items() if name in OPTIONS.get()]
    if not has:
        return "there is not enough memory: end other programs, or take a machine with more"
    *others, last = has
    what = f"{', '.join(others)} or {last}" if others else last
    return f"there is not enough memory: fewer {what} take less"


def refuse_idle(context: typer.Context, parameters: Iterable[str], where: Iterable[str]) -> None:
    """Refuse options that were given and do nothing.

    Args:
        context: The command's.
        parameters: Those that do nothing.
        where: What they do nothing for.

    Raises:
        OptionError: If there is one.
    """
    for parameter in parameters:
        if given(context, parameter):
            raise OptionError(
                f"--{parameter.replace('_', '-')} does nothing for {', '.join(where)}: leave it out"
            )


def given(context: typer.Context, parameter: str) -> bool:
    """Whether an option stood on the command line."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


@contextmanager
def plain_notes() -> Iterator[None]:
    """Show what this package logs and warns of as one plain line each; others' as they come."""
    logger, handler = logging.getLogger("pyro_bnn"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"{PROGRAM}: note: %(message)s"))
    with warnings.catch_warnings():
        show_as_usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, BNNWarning):
                typer.echo(f"{PROGRAM}: note: {message}", err=True)
            else:
                show_as_usual(message, category, *rest, **more)

        warnings.showwarning = show
        logger.addHandler(handler)
        try:
            yield
        finally:
            logger.removeHandler(handler)


class Stream:
    """Standard output or error, which drops what its file does not take: the run goes on.

    A pipe that nobody reads is an error all the same, as of any program.

    Attributes:
        failure: Why something was dropped, or nothing.
    """

    def __init__(self, file: Any) -> None:
        if hasattr(file, "reconfigure"):  # no terminal's encoding may end a long run
            file.reconfigure(errors="replace")
        self._file, self.failure = file or io.StringIO(), ""  # a closed one takes anything

    def write(self, text: str) -> int:
        """Write a text, and return its length."""
        return self._try(self._file.write, text) or len(text)

    def flush(self) -> None:
        """Give the file what was written."""
        self._try(self._file.flush)

    def _try(self, do: Callable[..., Any], *args: str) -> Any:
        try:
            return do(*args)
        except OSError as error:
            with contextlib.suppress(OSError):  # what waits to be written has nowhere to go
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._file.fileno())
            if error.errno == errno.EPIPE:
                raise
            self.failure = error.strerror or str(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def standard_streams() -> Iterator[Stream]:
    """What is written to standard output and error goes through such streams; gives the output."""
    out, err = sys.stdout, sys.stderr
    standard: Any = Stream(out)
    sys.stdout, sys.stderr = standard, cast(Any, Stream(err))
    try:
        yield standard
    finally:
        sys.stdout, sys.stderr = out, err


def usage(error: Any) -> str:
    """A usage error and where to read on."""
    context = error.ctx
    where = PROGRAM if context is None else context.command_path
    return f"{error.format_message().rstrip('.')}; see '{where} --help'"


def write_standard(text: Iterable[str]) -> None:
    """Write data to standard output: UTF-8 as in a file, whatever a terminal would take."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="strict")
    for part in text:
        sys.stdout.write(part)


def fail(message: str, code: int) -> int:
    """Print the one line of an error, return the exit code."""
    line = " ".join(part.strip() for part in message.splitlines())
    typer.echo(f"{PROGRAM}: {line}", err=True)
    return code
