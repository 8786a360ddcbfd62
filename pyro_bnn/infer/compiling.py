"""When a graph is compiled: where the run is long enough to gain from it."""

from __future__ import annotations

from typing import Literal

from pyro_bnn.errors import OptionError

COMPILE_TIME = 7.0  # seconds by Inductor, with an empty cache


C_TIME = 1.0  # seconds by a C compiler, of a step of few numbers


GAIN_PER_CALL = 7.5e-4  # seconds that a compiled step of a small network saves


GAIN_PER_NUMBER = 1e-8  # and for each parameter of a large one


def check_compile(value: object) -> None:
    """Check the option ``compile``.

    Raises:
        OptionError: If it is not one of its three values.
    """
    if not isinstance(value, bool) and value != "auto":
        raise OptionError(f'compile is "auto", True or False, not {value!r}')


def is_compiled(
    option: Literal["auto"] | bool,
    num_calls: int,
    num_numbers: int,
    seconds: float | None = None,
) -> bool:
    """Whether a graph is compiled.

    A rule of sizes alone, not of measured times, so that a run with one seed stays the same.

    Args:
        option: The engine's option ``compile``.
        num_calls: How often the graph is replayed.
        num_numbers: Parameters that it moves.
        seconds: How long that takes; default ``COMPILE_TIME``.
    """
    if option != "auto":
        return option
    gain = num_calls * (GAIN_PER_CALL + GAIN_PER_NUMBER * num_numbers)
    return gain >= (COMPILE_TIME if seconds is None else seconds)
