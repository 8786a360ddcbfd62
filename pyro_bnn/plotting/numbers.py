"""Numbers as text: as many digits as they carry."""

from __future__ import annotations

import math

MINUS = "\N{MINUS SIGN}"
SPACE = "\N{NO-BREAK SPACE}"

ROUNDING = 1e-12  # a relative error below it is rounding
SMALLEST, LARGEST = 1e-6, 1e9  # written without an exponent


def number(value: float, digits: int = 3) -> str:
    """Writes a number with ``digits`` significant digits; blank for NaN.

    Only below a millionth and from a milliard on it has an exponent.

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
    return _fixed(value, _decimals(value, digits)) + _exponent(power)


def with_error(value: float, error: float, digits: int = 2) -> str:
    r"""Writes a number with its standard error, both to ``digits`` significant digits of the error.

    Example:
        >>> with_error(5.40631, 0.0921), with_error(1.0, 0.0), with_error(2.5, float("nan"))
        ('5.406\xa0±\xa00.092', '1.00', '2.50')
    """
    if math.isnan(value):
        return ""
    if not (math.isfinite(value) and math.isfinite(error)) or error <= ROUNDING * abs(value):
        return number(value)
    power = _power(max(abs(value), error), 1 + digits)
    value, error = _without(power, value), _without(power, error)
    decimals = _decimals(error, digits)
    text = f"{_fixed(value, decimals)}{SPACE}±{SPACE}{_fixed(error, decimals)}"
    return f"({text}){_exponent(power)}" if power else text


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
