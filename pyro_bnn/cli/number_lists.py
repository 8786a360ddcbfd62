"""Lists of whole numbers of a command line, such as ``0-4`` or ``0,3,7``."""

from __future__ import annotations

import typer

from pyro_bnn.cli.methods import comma_parts
from pyro_bnn.cli.terminal import given
from pyro_bnn.errors import OptionError

MAX_NUMBERS = 1_000  # runs of one command: more is a typing error


def numbers(text: str, option: str, largest: int = 2**32 - 1) -> list[int]:
    """Whole numbers from 0, each once: ``0-4``, ``0,3,7`` or both.

    Args:
        text: Numbers and ranges, both ends included, separated by commas.
        option: Flag that an error names.
        largest: Largest number that is allowed; that of a seed where nothing is said.

    Raises:
        OptionError: If it is anything else, a number is too large or there twice, or there are too
            many.

    Example:
        >>> numbers("0-2,7", "--splits")
        [0, 1, 2, 7]
    """
    expected = f"{option} takes whole numbers from 0 such as 0-4 or 0,3,7"
    values: list[int] = []
    for part in comma_parts(text, expected):
        low, dash, high = (end.strip() for end in part.partition("-"))
        ends = (low, high) if dash else (low, low)
        if not all(end.isascii() and end.isdigit() for end in ends):
            raise OptionError(f"{expected}, not {text!r}")
        first, last = map(int, ends)
        if last < first:
            raise OptionError(f"{expected}; {part.strip()!r} runs backwards")
        if last > largest:
            raise OptionError(f"{expected}, at most {largest}; {part.strip()!r} is above")
        if last - first + len(values) >= MAX_NUMBERS:
            raise OptionError(f"{expected}; {text!r} holds more than {MAX_NUMBERS:,}")
        values.extend(range(first, last + 1))
    if len(set(values)) < len(values):
        raise OptionError(f"{expected}, each once; {text!r} names one twice")
    return values


def one_or_several(context: typer.Context, name: str, several: str) -> list[int]:
    """Values of a pair of options such as ``--split 3``, an older spelling, and ``--splits 0-4``.

    Args:
        context: The command's.
        name: Of the option for one, such as ``"split"``.
        several: Value of the option for several.

    Raises:
        OptionError: If both are given, or the numbers cannot be read.
    """
    if not given(context, name):
        return numbers(several, f"--{name}s")
    if given(context, f"{name}s"):
        raise OptionError(f"--{name} and --{name}s are both given: leave one of them out")
    return [context.params[name]]
