"""Numbers of splits and seeds as the command line takes them."""

from __future__ import annotations

import pytest

from pyro_bnn.errors import OptionError
from pyro_bnn.repeats import numbers, one_or_several


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0-4", [0, 1, 2, 3, 4]),
        ("0,3,7", [0, 3, 7]),
        ("7, 0 - 2", [7, 0, 1, 2]),
        ("5", [5]),
        ("3-3", [3]),
        ("4294967295", [2**32 - 1]),
    ],
)
def test_numbers_and_ranges_are_read(text: str, expected: list[int]) -> None:
    assert numbers(text, "--seeds") == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "takes whole numbers from 0 such as 0-4 or 0,3,7, not ''"),
        ("0,,1", "such as 0-4 or 0,3,7, not '0,,1'"),
        ("a", "such as 0-4 or 0,3,7, not 'a'"),
        ("-1", "such as 0-4 or 0,3,7, not '-1'"),
        ("0-1-2", "such as 0-4 or 0,3,7, not '0-1-2'"),
        ("1.5", "such as 0-4 or 0,3,7, not '1.5'"),
        ("²", "such as 0-4 or 0,3,7, not '²'"),
        ("0, 4-2", "such as 0-4 or 0,3,7; '4-2' runs backwards"),
        ("0-2,1", "each once; '0-2,1' names one twice"),
        ("0-1000", "; '0-1000' holds more than 1,000"),
        ("4294967296", "at most 4294967295; '4294967296' is above"),
    ],
)
def test_anything_else_is_refused(text: str, said: str) -> None:
    with pytest.raises(OptionError) as caught:
        numbers(text, "--seeds")
    assert str(caught.value).startswith("--seeds takes whole numbers from 0")
    assert said in str(caught.value)


def test_a_thousand_numbers_are_not_too_many() -> None:
    assert len(numbers("0-999", "--seeds")) == 1_000
    with pytest.raises(OptionError, match="holds more than 1,000"):
        numbers("0-998,1000,1001", "--seeds")


def test_one_option_or_the_other() -> None:
    assert one_or_several(3, None, "split", given=True) == [3]
    assert one_or_several(0, None, "split", given=False) == [0]
    assert one_or_several(0, "1-2", "split", given=False) == [1, 2]
    with pytest.raises(OptionError, match="--seed and --seeds are both given: leave one of them"):
        one_or_several(3, "1-2", "seed", given=True)
    with pytest.raises(OptionError, match="--splits takes whole numbers"):
        one_or_several(0, "x", "split", given=False)
