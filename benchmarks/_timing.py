"""Interleaved timing: every contender in turn, so that all meet the same load of the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def medians(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int = 15
) -> dict[str, float]:
    """Median seconds of one call of each contender; each is warmed up by two calls."""
    for call in contenders.values():
        call()
        call()
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def print_table(title: str, seconds: Mapping[str, float], base: str) -> None:
    """Milliseconds and the ratio to one contender, a line each."""
    print(title)
    for name, value in seconds.items():
        print(f"  {name:<42} {value * 1e3:9.3f} ms   {value / seconds[base]:7.2f}")
    print()
