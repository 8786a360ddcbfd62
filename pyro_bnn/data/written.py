"""How fields of text are written: numbers with a mark, dates, codes with leading zeros.

pandas and pyarrow make such a column text without a word, and each of its values would be an input.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

CURRENCY = (
    r"(?:[A-Z]{0,2}[$\u00a2-\u00a5\u0e3f\u20a0-\u20cf]|EUR|USD|GBP|CHF|JPY|CNY|INR|Rs\.?|kr\.?)"
)
GROUPS = r"\d{1,3}(?:[\s'’_]\d{3})+(?:[.,]\d+)?|\d{1,3}(?:\.\d{3}){2,}(?:,\d+)?"  # of thousands
UNIT = (  # its digits are those of powers, as in kg/m2, or of water: 1Q24 and 2x4 have none
    r"(?!(?:th|e|º|ª)(?!\w))[^\W\d_](?:[^\W\d_]|[/.²³%]|(?<=[mtndis])[23](?!\w)|(?<=H)2(?=O))*"
)
MARKED = re.compile(
    rf"""(?![12]\d\d0s)  (?# decades)
    (?P<bracket>\()? \s*+ (?P<bound>[<>≤≥~≈]=?)? \s*+ (?P<sign>[-+\u2212\u2013])? \s*+
    (?P<before>{CURRENCY})? \s*+ [-+]?
    (?: (?P<groups>{GROUPS}) | (?:\d[\d.,]*|[.,]\d+)(?:[eE][-+]?\d+)? )
    (?P<gap>\s*+) (?: (?P<after>[%‰℃℉]|°\s?[CFK]?|{CURRENCY})
    | (?P<unit>{UNIT}|[-+"'′″]) )? \s*+
    (?(bracket)\))""",
    re.VERBOSE,
)
DATE = re.compile(
    r"(?:\d{4}([-/.])\d{1,2}(?:\1\d{1,2})?|\d{1,2}([-/.])\d{1,2}\2\d{4}|\d{1,2}/\d{1,2}/\d{2}"
    r"|(?=.*\d)(?=.*\d{4}).*\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b.*)"
    r"(?:[T ].*)?|\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:\s*[ap]\.?m\.?)?",
    re.IGNORECASE,
)
SEASON = re.compile(r"(\d{4})[-/](\d{2})")  # 2005/06, not June
DURATION = re.compile(r"-?\d+ days?(?: \+?\d+:\d{2}:\d{2}.*)?")
FEWEST = 3  # values that are numbers with a unit or a bound, and no two classes such as <=50K, >50K
MOST_UNITS = 5
LONGEST = 40  # characters of a number or date
MOST_DATES = 1_000  # that are read, of many


def marks(values: Collection[str]) -> Mapping[str, str]:
    """The marks of those values that are numbers but for a mark, such as ``%`` of ``5 %``.

    Marks are currencies, ``%``, separators of thousands, brackets, dashes for a minus, bounds as in
    ``<5``, and units. Units and bounds mark numbers only where all values are numbers, three or
    more, with fewer units than values: ``1st`` and ``2nd``, ``<18``, ``18-30`` and ``>30`` are
    categories.

    Args:
        values: The different fields of a column.

    Example:
        >>> marks(["5 %", "-$5", "ill"]), marks(["5 kg", "6 kg", "7"])
        ({'5 %': '%', '-$5': '$'}, {'5 kg': 'kg', '6 kg': 'kg'})
        >>> marks(["1st", "2nd", "3rd"]), marks(["<=50K", ">50K"]), marks(["4th", "5th", "6th"])
        ({}, {}, {})
    """
    parts = {value: match for value in values if (match := _whole(MARKED, value))}
    with_unit = [match for match in parts.values() if match["unit"]]
    units = {match["unit"] for match in with_unit}
    few = min(len(values) - 1, MOST_UNITS)
    are_units = len(units) < 2 or (len(units) <= few and all(match["gap"] for match in with_unit))
    is_measured = len(parts) == len(values) >= FEWEST and are_units
    named = {value: _mark(match, is_measured) for value, match in parts.items()}
    return {value: mark for value, mark in named.items() if mark}


def _whole(pattern: re.Pattern[str], value: str) -> re.Match[str] | None:
    return pattern.fullmatch(value) if len(value) <= LONGEST else None


def _mark(match: re.Match[str], is_measured: bool) -> str:
    """The mark of a number, empty where it has none or may be a category."""
    if (match["unit"] or match["bound"]) and not (is_measured or match["before"]):
        return ""
    dash = (match["sign"] or "").strip("+-")
    separator = re.search(r"[^\d]", match["groups"] or "")
    brackets = "()" if match["bracket"] else ""
    named = (match["bound"], match["before"], match["after"], match["unit"], dash, brackets)
    return next(filter(None, named), separator[0] if separator else "")


def are_dates(values: Iterable[str]) -> bool:
    """Whether all values are dates, times or durations: ``2024-01-31``, ``5 Jan 2024``, ``10:30``.

    Args:
        values: The different fields of a column.

    Example:
        >>> are_dates(["2024-01-31", "2024-02-28"]), are_dates(["18-30", "31-50"])
        (True, False)
        >>> are_dates(["2005-06", "2006-07"]), are_dates(["2005-06", "2005-07"])
        (False, True)
    """
    import pandas as pd

    values = sorted(values)
    if all(_whole(DURATION, value) for value in values):
        return True
    if not all(_whole(DATE, value) for value in values) or _are_seasons(values):
        return False
    some = pd.Series(values[:MOST_DATES])
    for day_first in (False, True):
        options = {"format": "mixed", "errors": "coerce", "utc": True, "dayfirst": day_first}
        if pd.to_datetime(some, **options).notna().all():
            return True
    return False


def _are_seasons(values: Iterable[str]) -> bool:
    """Whether values are of a year and the next one, of two digits: ``2005/06``, ``2006/07``."""
    match = [SEASON.fullmatch(value) for value in values]
    return all(year and (int(year[1]) + 1) % 100 == int(year[2]) for year in match)


def padded_codes(values: Iterable[str]) -> list[str]:
    """The codes with leading zeros, such as ``01234``, where all values are of digits alone.

    Args:
        values: Fields of a column.

    Example:
        >>> padded_codes(["01234", "99999"]), padded_codes(["0", "10"]), padded_codes(["07", "1.5"])
        (['01234'], [], [])
    """
    values = list(values)
    padded = [value for value in values if len(value) > 1 and value[0] == "0"]
    return padded if all(value.isdecimal() for value in values) else []
