"""Interleaved timing: every contender in turn, so that all meet the same load of the machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Call = Callable[[], object]


class Spread(NamedTuple):
    """Median and quartiles of one contender's seconds."""

    median: float
    low: float
    high: float


def samples(
    contenders: Mapping[str, Call], *, rounds: int, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds of each call, by contender; a round calls every contender once, in order."""
    for call in contenders.values():
        for _ in range(warmup):
            call()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def spreads(
    contenders: Mapping[str, Call], *, rounds: int = 15, warmup: int = 2
) -> dict[str, Spread]:
    """Median and quartiles of the seconds of one call, by contender."""
    seconds = samples(contenders, rounds=rounds, warmup=warmup)
    return {name: spread(values) for name, values in seconds.items()}


def medians(contenders: Mapping[str, Call], *, rounds: int = 15) -> dict[str, float]:
    """Median seconds of one call, by contender; each is warmed up by two calls."""
    return {name: found.median for name, found in spreads(contenders, rounds=rounds).items()}


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; the extremes where there are fewer than four values."""
    if len(values) < 4:
        return Spread(statistics.median(values), min(values), max(values))
    low, middle, high = statistics.quantiles(values, method="inclusive")
    return Spread(middle, low, high)


def seconds_of(call: Call) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class Slope(NamedTuple):
    """A fitted exponent and its standard error."""

    exponent: float
    standard_error: float


def fit_exponent(sizes: Sequence[float], seconds: Sequence[float]) -> Slope:
    r"""The exponent b of :math:`t = a\,n^b`, least squares of log t on log n.

    Its standard error is that of the regression, so it says how straight the curve is; with two
    points there is none (NaN).
    """
    if len(sizes) != len(seconds) or len(set(sizes)) < 2:
        raise ValueError(f"a slope needs two sizes or more, with a time each, not {list(sizes)}")
    u, v = [math.log(n) for n in sizes], [math.log(t) for t in seconds]
    mean_u, mean_v = statistics.fmean(u), statistics.fmean(v)
    total = sum((a - mean_u) ** 2 for a in u)
    slope = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True)) / total
    if len(u) == 2:
        return Slope(slope, math.nan)
    residual = sum((b - mean_v - slope * (a - mean_u)) ** 2 for a, b in zip(u, v, strict=True))
    return Slope(slope, math.sqrt(residual / (len(u) - 2) / total))
