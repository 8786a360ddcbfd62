"""Numbers as text: as many digits as they carry."""

from __future__ import annotations

import math
from collections.abc import Sequence

MINUS = "\N{MINUS SIGN}"
SPACE = "\N{NO-BREAK SPACE}"

ROUNDING = 1e-12  # a relative error below it is rounding
SMALLEST, LARGEST = 1e-6, 1e9  # written without an exponent
MOST_APART = 1e3  # sizes of one column that share their places


def number(value: float, digits: int = 3, *, decimals: int | None = None) -> str:
    """Writes a number with ``digits`` significant digits; blank for NaN.

    Only below a millionth and from a milliard on it has an exponent. ``decimals`` places in place
    of so many digits, as of a column, are for numbers of an ordinary size.

    Example:
        >>> number(0.012345), number(53.25), number(12345.6), number(1.234e12), number(float("nan"))
        ('0.0123', '53.2', '12,346', '1.23e12', '')
    """
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    power = _power(value, digits)
    value = _without(power, value)
    places = _decimals(value, digits) if decimals is None or power else decimals
    return _fixed(value, places) + _exponent(power)


def with_error(value: float, error: float, digits: int = 2, *, decimals: int | None = None) -> str:
    r"""Writes a number with its standard error, both to ``digits`` significant digits of the error.

    Example:
        >>> with_error(5.40631, 0.0921), with_error(1.0, 0.0), with_error(2.5, float("nan"))
        ('5.406\xa0±\xa00.092', '1.00', '2.50')
    """
    if math.isnan(value):
        return ""
    if not (math.isfinite(value) and math.isfinite(error)) or error <= ROUNDING * abs(value):
        return number(value, decimals=decimals)
    power = _power(max(abs(value), error), 1 + digits)
    value, error = _without(power, value), _without(power, error)
    places = _decimals(error, digits) if decimals is None or power else decimals
    text = f"{_fixed(value, places)}{SPACE}±{SPACE}{_fixed(error, places)}"
    return f"({text}){_exponent(power)}" if power else text


def counted(count: int, noun: str) -> str:
    """Writes how many there are of something.

    Example:
        >>> counted(1, "run"), counted(2, "run")
        ('1 run', '2 runs')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def decimals_of(
    values: Sequence[float], errors: Sequence[float] | None = None, digits: int = 3
) -> int | None:
    """Decimal places for a column: errors get two digits, most of them, and each at least one.

    Without errors it is the values that get ``digits``. None where their sizes are so far apart
    that places of one would hide or swell another.

    Example:
        >>> decimals_of([-5.43, -5.439], [0.11, 0.091]), decimals_of([55.04, 7.2])
        (2, 1)
        >>> decimals_of([0.001, 5_000.0]) is None
        True
    """
    sizes = [abs(value) for value in (values if errors is None else errors)]
    sizes = [size for size in sizes if math.isfinite(size) and size > ROUNDING]
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if not sizes or max(sizes) > MOST_APART * min(sizes) or largest >= LARGEST:
        return None
    middle = sorted(sizes)[len(sizes) // 2]
    return max(_decimals(middle, digits if errors is None else 2), _decimals(min(sizes), 1))


def percent(share: float, decimals: int = 1) -> str:
    r"""Writes a share as a percentage; blank for NaN.

    Example:
        >>> percent(0.95454), percent(1.0, 0)
        ('95.5\xa0%', '100\xa0%')
    """
    return "" if math.isnan(share) else f"{100 * share:.{decimals}f}{SPACE}%"


def _power(value: float, digits: int) -> int:
    """The power of ten that is written apart; 0 for numbers of an ordinary size."""
    if value == 0 or SMALLEST <= abs(value) < LARGEST:
        return 0
    return int(f"{value:.{digits - 1}e}".partition("e")[2])  # once rounded: 9.996 is 1.00e1


def _without(power: int, value: float) -> float:
    half = power // 2  # 10 ** -310 has lost digits
    return value / 10.0**half / 10.0 ** (power - half)


def _exponent(power: int) -> str:
    return f"e{power}".replace("-", MINUS) if power else ""


def _decimals(value: float, digits: int) -> int:
    if value == 0:
        return digits - 1
    magnitude = math.floor(math.log10(abs(value)))
    # rounding may carry into the next magnitude: 0.9996 to three digits is 1.00
    magnitude = math.floor(math.log10(abs(round(value, digits - 1 - magnitude))))
    return max(digits - 1 - magnitude, 0)


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:,.{decimals}f}"
    if float(text.replace(",", "")) == 0:
        return text.lstrip("-")
    return text.replace("-", MINUS)
