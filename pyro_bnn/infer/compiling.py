"""Whether a graph is compiled: yes if the run is long enough to gain from it."""

from __future__ import annotations

from typing import Literal

from pyro_bnn.errors import OptionError

COMPILE_TIME = 7.0  # seconds that Inductor takes, with an empty cache
C_TIME = 1.0  # seconds that a C compiler takes for a step of few numbers
GAIN_PER_CALL = 7.5e-4  # seconds that a compiled step of a small network saves at each call
GAIN_PER_NUMBER = 1e-8  # seconds that it saves for each parameter, of a large network


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

    The rule takes sizes alone, no measured times, so that a run with one seed stays the same.

    Args:
        option: The engine's option ``compile``.
        num_calls: How often the graph is replayed.
        num_numbers: Number of parameters that the graph updates.
        seconds: How long the compiler takes; default ``COMPILE_TIME``.
    """
    if option != "auto":
        return option
    gain = num_calls * (GAIN_PER_CALL + GAIN_PER_NUMBER * num_numbers)
    return gain >= (COMPILE_TIME if seconds is None else seconds)
