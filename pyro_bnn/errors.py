"""Errors of the package: each message says what was expected, what came, and how to mend it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class BNNError(Exception):
    """Base class of every error that this package raises on purpose."""


class DataError(BNNError, ValueError):
    """Data that cannot be used: missing, non-finite, wrong labels, a failed checksum."""


class ShapeError(BNNError, ValueError):
    """Arrays whose shapes do not fit each other or the model."""


class ModelError(BNNError, ValueError):
    """A model that breaks the contract: no ``f``, no plate ``"data"``, no observed site ``"y"``."""


class SiteError(BNNError, ValueError):
    """A sample site that is missing, unknown, or of a kind that is not supported."""


class OptionError(BNNError, ValueError):
    """An option with a value that is not allowed, or that is not built yet."""


class UnknownNameError(BNNError, KeyError):
    """A name that is not registered; the message suggests the nearest one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        folded = {other.lower(): other for other in known}
        near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
        hint = f"did you mean {folded[near[0]]!r}? " if near else ""
        super().__init__(f"unknown {kind} {name!r}: {hint}known are {', '.join(known)}")

    def __reduce__(self) -> tuple[Any, ...]:  # from a process that raised it
        return _unknown, (str(self),)

    def __str__(self) -> str:  # KeyError would print the message in quotes
        return str(self.args[0])


def _unknown(message: str) -> UnknownNameError:
    return UnknownNameError.__new__(UnknownNameError, message)


class DivergenceError(BNNError, ArithmeticError):
    """Training met a loss or gradient that is not finite.

    Attributes:
        posterior: The posterior at the last finite state, or None.
    """

    posterior: object | None = None


class CaptureError(BNNError, RuntimeError):
    """A function of tensors that cannot be recorded as a graph of operations, or compiled."""


class FileFormatError(BNNError, ValueError):
    """A file that is truncated, foreign, or written by a newer version."""


class OutputError(BNNError, OSError):
    """A file or folder that cannot be written."""


class BNNWarning(UserWarning):
    """A condition the user should know of; the result is still what the documentation says."""
