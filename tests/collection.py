"""What tests run over: the guides of the registry, and pairs of two collections that cover both.

A guide is here by being exported. Where a law is of two things, such as a model and a guide, ``make
test`` takes the pairs of :func:`cover` and ``make soak`` the rest of the product.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import TypeAlias

import pytest
from _pytest.mark import ParameterSet

from pyro_bnn import registry
from pyro_bnn.guides import AutoDropout, AutoLowRankMultivariateNormal, Guide
from pyro_bnn.guides.low_rank_precision import AutoLowRankPrecision
from tests.laws import MakeGuide

GUIDES: dict[str, type[Guide]] = registry.entries("guide")
GENERAL = {name: cls for name, cls in GUIDES.items() if cls.needs_model is None}

# what the defaults of a class do not run
KINDS_WITH_DENSITY: dict[str, MakeGuide] = {
    "low rank by layer": functools.partial(AutoLowRankMultivariateNormal, block="layer"),
    "gaussian dropout": functools.partial(AutoDropout, kind="gaussian"),
}
KINDS: dict[str, MakeGuide] = {
    **KINDS_WITH_DENSITY,
    "concrete dropout": functools.partial(AutoDropout, kind="concrete"),
}
OF_ENGINES: dict[str, MakeGuide] = {  # guides that an engine makes, here SLANG
    "low-rank precision": functools.partial(AutoLowRankPrecision, rank=2),
}
EVERY_KIND: dict[str, MakeGuide] = {**GENERAL, **KINDS}
DENSITIES: dict[str, MakeGuide] = {
    **{name: cls for name, cls in GENERAL.items() if cls.has_log_prob},
    **KINDS_WITH_DENSITY,
    **OF_ENGINES,
}

Pair: TypeAlias = tuple[str, str]


def cover(
    firsts: Iterable[str],
    seconds: Iterable[str],
    *,
    times: int = 2,
    once: Collection[str] = (),
    suits: Callable[[str, str], bool] = lambda first, second: True,
) -> list[Pair]:
    """Pairs in which everybody meets at least ``times`` others, or all where fewer suit.

    The next partner is the one that was met least, so that turns go round.

    Args:
        firsts: Names of one collection, such as models.
        seconds: Names of the other, such as guides; none is in both.
        times: How many partners each meets.
        once: Names of either that are dear, and meet one.
        suits: Whether a first goes with a second.
    """
    firsts, seconds = list(firsts), list(seconds)
    met: Counter[str] = Counter()
    pairs: list[Pair] = []

    def missing(name: str) -> int:
        return (1 if name in once else times) - met[name]

    for name in [*firsts, *seconds]:
        own = [(f, s) for f in firsts for s in seconds if name in (f, s) and suits(f, s)]
        left = {f if name == s else s: (f, s) for f, s in own if (f, s) not in pairs}
        while missing(name) > 0 and left:
            partner = min(left, key=lambda p: (missing(p) <= 0, p in once, met[p]))
            pairs.append(left.pop(partner))
            met.update((name, partner))
    return pairs


def rest_in_soak(
    cases: Sequence[tuple[Hashable, ...]], kept: Collection[tuple[Hashable, ...]]
) -> list[ParameterSet]:
    """All cases as parameters of a test, those that are not kept for ``make soak`` alone."""
    assert set(kept) <= set(cases), set(kept) - set(cases)
    return [pytest.param(*case, marks=() if case in kept else pytest.mark.soak) for case in cases]


def dear_in_soak(names: Iterable[str], dear: Collection[str]) -> list[ParameterSet]:
    """Names as parameters of a test, those of dear members for ``make soak`` alone."""
    cases = [(name,) for name in names]
    return rest_in_soak(cases, [case for case in cases if case[0] not in dear])
