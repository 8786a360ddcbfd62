"""Words of several captions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pyro_bnn.plotting.numbers import number, percent

if TYPE_CHECKING:
    from pyro_bnn.report.evaluation.comparison import Evaluations


def span(values: Mapping[str, float], text: Callable[[float], str] = number) -> str:
    r"""The smallest and the largest value with the names that have them; blank if all are NaN.

    Example:
        >>> span({"a": 2.0, "b": float("nan"), "c": 1.0})
        'from 1.00 (c) to 2.00 (a)'
        >>> span({"a": 2.0}), span({"a": 2.0, "b": 2.0})
        ('2.00 (a)', '2.00 (all)')
    """
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    if not known:
        return ""
    low, high = (pick(known, key=known.__getitem__) for pick in (min, max))
    if len(known) == 1:
        return f"{text(known[low])} ({low})"
    if text(known[low]) == text(known[high]):
        return f"{text(known[low])} (all)"
    return f"from {text(known[low])} ({low}) to {text(known[high])} ({high})"


def coverages(comparison: Evaluations) -> str:
    """Range of the coverage of 95 % intervals."""
    shares = {
        entry.name: entry.held_out.coverage.observed
        for entry in comparison.ranked
        if entry.held_out.coverage is not None
    }
    return span(shares, percent)
