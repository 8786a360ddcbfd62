"""The command ``pyro-bnn``: its arguments, its exit codes, and what it says of errors."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import shlex
import sys
from collections.abc import Sequence
from signal import SIGINT
from typing import Any

import typer

from pyro_bnn.cli import commands  # noqa: F401 - they belong to the program once imported
from pyro_bnn.cli.app import app
from pyro_bnn.cli.config_file import with_file
from pyro_bnn.cli.option_groups import values_taken
from pyro_bnn.cli.results import UnwantedError
from pyro_bnn.cli.signals import taken_as_ctrl_c
from pyro_bnn.cli.terminal import (
    FAILURE,
    OPTIONS,
    PROGRAM,
    UNWANTED,
    USAGE,
    USAGE_ERROR,
    fail,
    plain_notes,
    standard_streams,
    too_large,
    usage,
)
from pyro_bnn.errors import (
    BNNError,
    DataError,
    DivergenceError,
    FileFormatError,
    OutputError,
    ShapeError,
)

__all__ = ["app", "main"]

FAILURES = (DataError, DivergenceError, FileFormatError, OutputError, ShapeError)
"""What may go wrong with a command that is right."""
OF_PATHS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS, errno.ENOSPC)
"""Errors of paths that say nothing against this package."""
INTERRUPTED = 130  # what click makes of an interrupt
COLLECT_AFTER = 50_000  # objects made, in place of 700


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line.

    Errors of usage, such as an option that does not suit the method, become one line and exit code
    2; those of data, files, disks and fits that diverge one line and 1; a verdict that --fail-on
    names one line and 3; Ctrl-C one line, on how a run that was saved goes on, and 130, SIGTERM and
    SIGHUP the same and 143 and 129; a standard output that does not take all that is printed one
    line at the end and 1, and so are memory that does not suffice and a path that is too long or
    not for this user; any other exception is a bug and keeps its traceback.

    Args:
        args: Arguments after the program's name; by default those of the process.

    Returns:
        The exit code.
    """
    if args is None:
        _collect_less()
    args = sys.argv[1:] if args is None else list(args)
    with standard_streams() as out, taken_as_ctrl_c() as came:
        code = _run(args)
        if code is None:  # interrupted
            by = f" by {came[0].name}" if came else ""
            code = fail(f"interrupted{by}{_how_to_go_on(args)}", 128 + (came or [SIGINT])[0])
        with contextlib.suppress(BrokenPipeError):
            out.flush()
        if out.failure and not code:
            code = fail(f"cannot write to standard output: {out.failure}", FAILURE)
    return code


def _run(args: list[str]) -> int | None:
    """The exit code of a command, None where it was interrupted."""
    before = OPTIONS.set(OPTIONS.get())
    try:
        program: Any = typer.main.get_command(app)
        if args and (chosen := program.commands.get(args[0])):
            OPTIONS.set({name for one in chosen.params for name in one.opts})
            args = [args[0], *with_file(args[1:], args[0], values_taken(chosen))]
        obj = shlex.join([PROGRAM, *args])
        with plain_notes():
            code = program.main(args, prog_name=PROGRAM, standalone_mode=False, obj=obj)
    except BNNError as error:
        is_failure = type(error) is BNNError or isinstance(error, FAILURES)  # a process that ended
        return fail(str(error), FAILURE if is_failure else USAGE)
    except UnwantedError as error:
        return fail(str(error), UNWANTED)
    except USAGE_ERROR as error:
        return fail(usage(error), USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return None
    except MemoryError:
        return fail(too_large(), FAILURE)
    except (RuntimeError, OSError, ImportError) as error:
        from pyro_bnn.memory import is_exceeded

        if is_exceeded(error):
            return fail(too_large(), FAILURE)
        if isinstance(error, OSError) and error.errno in OF_PATHS and error.filename is not None:
            return fail(f"{error.filename}: {error.strerror}; choose another path", FAILURE)
        raise
    finally:
        OPTIONS.reset(before)
    return None if code == INTERRUPTED else int(code or 0)


def _collect_less() -> None:
    """Collect garbage seldom: 300,000 objects of imports stay to the end, and end with it."""
    gc.set_threshold(COLLECT_AFTER)
    atexit.register(gc.freeze)


def _how_to_go_on(args: Sequence[str]) -> str:
    """What to do after a command that was stopped, so that it, or the next one, goes on."""
    if any(arg.partition("=")[0] == "--checkpoint" for arg in args):
        more = [] if "--resume" in args else ["--resume"]
        return f"; to go on: {shlex.join([PROGRAM, *args, *more])}"
    has_it = list(args[:1]) in (["compare"], ["fit"], ["trust"], ["sbc"])
    return "; with --checkpoint FOLDER a run can go on" if has_it else ""
