"""Pairs that stand for a product: everybody meets enough others."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.collection import cover, rest_in_soak
from tests.conftest import pytest_collection_modifyitems

NUMBERS, LETTERS = [str(i) for i in range(7)], list("abc")


@pytest.mark.parametrize(("firsts", "seconds"), [(NUMBERS, LETTERS), (LETTERS, NUMBERS)])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_everybody_meets_as_many_as_asked(
    firsts: list[str], seconds: list[str], times: int
) -> None:
    pairs = cover(firsts, seconds, times=times)
    assert len(set(pairs)) == len(pairs) == 7 * times  # the least that the longer side needs
    assert {first for first, _ in pairs} == {*firsts}
    met = Counter(name for pair in pairs for name in pair)
    assert all(met[name] == times for name in NUMBERS)
    assert max(met[name] for name in LETTERS) - min(met[name] for name in LETTERS) <= 1


def test_the_dear_meet_one() -> None:
    met = Counter(name for pair in cover(NUMBERS, LETTERS, once=("3", "6")) for name in pair)
    assert [met[name] for name in NUMBERS] == [2, 2, 2, 1, 2, 2, 1]


def test_who_suits_few_meets_those() -> None:
    def suits(number: str, letter: str) -> bool:
        return letter != "c" or number == "5"

    pairs = cover(NUMBERS, LETTERS, suits=suits)
    assert [pair for pair in pairs if "c" in pair] == [("5", "c")]
    met = Counter(name for pair in pairs for name in pair)
    assert all(met[name] >= 2 for name in (*NUMBERS, "a", "b"))


def test_what_is_not_kept_is_for_soak() -> None:
    cases = rest_in_soak([("a", 1), ("a", 2)], [("a", 2)])
    assert [case.values for case in cases] == [("a", 1), ("a", 2)]
    assert [[mark.name for mark in case.marks] for case in cases] == [["soak"], []]
    with pytest.raises(AssertionError, match="b"):
        rest_in_soak([("a", 1)], [("b", 1)])


class Item:
    """What a collected test says of itself."""

    def __init__(self, nodeid: str, *marks: str) -> None:
        self.nodeid, self.marks = nodeid, marks

    def get_closest_marker(self, name: str) -> bool:
        return name in self.marks

    def iter_markers(self, name: str) -> list[Any]:
        return [pytest.mark.slow("a reason").mark] if name in self.marks else []


@pytest.mark.parametrize(
    ("quick", "expression", "expected"),
    [
        (False, "", ["a[1]", "a[2]", "a[3]", "b", "c"]),
        (True, "", ["a[2]", "c"]),
        (False, "soak", ["a[1]", "a[2]", "a[3]", "b", "c", "c[long]"]),
    ],
)
def test_sizes_of_the_suite(quick: bool, expression: str, expected: list[str]) -> None:
    items = [Item("a[1]", "slow"), Item("a[2]"), Item("a[3]"), Item("b", "slow"), Item("c")]
    items.append(Item("c[long]", "soak"))
    dropped: list[Item] = []

    def deselected(items: list[Item]) -> None:
        dropped.extend(items)

    config: Any = SimpleNamespace(
        option=SimpleNamespace(markexpr=expression, quick=quick),
        hook=SimpleNamespace(pytest_deselected=deselected),
    )
    everything = list(items)
    pytest_collection_modifyitems(config, cast(Any, items))
    assert [item.nodeid for item in items] == expected
    assert {*items, *dropped} == {*everything}
    assert len(items) + len(dropped) == len(everything)
