"""Checks of options: each says what is expected and what came."""

from __future__ import annotations

from typing import Any, get_args

from pyro_bnn.errors import OptionError


def check_positive_int(name: str, value: object, *, minimum: int = 1) -> None:
    """Check an integer option.

    Raises:
        OptionError: If it is not an integer of at least ``minimum``.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise OptionError(f"{name} is an integer of at least {minimum}, not {value!r}")


def check_positive(name: str, value: object) -> None:
    """Check a positive finite number.

    Raises:
        OptionError: If it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):  # type: ignore[operator]
        raise OptionError(f"{name} is a positive number, not {value!r}")


def check_not_negative(name: str, value: object) -> None:
    """Check a finite number of at least 0.

    Raises:
        OptionError: If it is not.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf"):  # type: ignore[operator]
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
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < 1:  # type: ignore[operator]
        raise OptionError(f"{name} is a number of at least 0 and below 1, not {value!r}")
