"""Checks of options: each says what is expected and what came."""

from __future__ import annotations

import math
from typing import Any, TypeGuard, get_args

import numpy as np

from pyro_bnn.errors import OptionError

LARGEST_SEED = 2**32 - 1


def plain(value: Any) -> Any:
    """A number of NumPy as one of Python; anything else as it is."""
    return value.item() if isinstance(value, np.generic) else value


def check_positive_int(name: str, value: object, *, minimum: int = 1) -> None:
    """Check an integer option.

    Raises:
        OptionError: If it is not an integer of at least ``minimum``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise OptionError(f"{name} is an integer of at least {minimum}, not {value!r}")


def check_seed(seed: object, name: str = "seed") -> None:
    """Check a seed: the generators of torch look at 32 bits of it.

    Raises:
        OptionError: If it is no integer from 0 to 2^32 - 1.
    """
    seed = plain(seed)
    check_positive_int(name, seed, minimum=0)
    if isinstance(seed, int) and seed > LARGEST_SEED:
        raise OptionError(
            f"{name} is at most 2^32 - 1, not {seed}: its numbers would be those of {name}="
            f"{seed % 2**32}, which you can pass"
        )


def check_positive(name: str, value: object, *, also: str = "") -> None:
    """Check a positive finite number, or the one word allowed beside it.

    Raises:
        OptionError: If it is neither.
    """
    if not (also and value == also) and not (_is_number(value) and 0 < value < math.inf):
        expected = f"a positive number or {also!r}" if also else "a positive number"
        raise OptionError(f"{name} is {expected}, not {value!r}")


def check_finite(name: str, value: object) -> None:
    """Check a finite number.

    Raises:
        OptionError: If it is none.
    """
    if not (_is_number(value) and math.isfinite(value)):
        raise OptionError(f"{name} is a finite number, not {value!r}")


def check_not_negative(name: str, value: object) -> None:
    """Check a finite number of at least 0.

    Raises:
        OptionError: If it is not.
    """
    if not (_is_number(value) and 0 <= value < math.inf):
        raise OptionError(f"{name} is a number of at least 0, not {value!r}")


def check_choice(name: str, value: object, kinds: Any) -> None:
    """Check an option that is one of the values of a ``Literal`` type.

    Raises:
        OptionError: If it is not.
    """
    if value not in get_args(kinds):
        known = ", ".join(map(repr, get_args(kinds)))
        raise OptionError(f"{name} is one of {known}, not {value!r}")


def check_share(name: str, value: object) -> None:
    """Check a number in [0, 1), such as a momentum.

    Raises:
        OptionError: If it is not.
    """
    if not (_is_number(value) and 0 <= value < 1):
        raise OptionError(f"{name} is a number of at least 0 and below 1, not {value!r}")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
