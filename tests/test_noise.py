"""Noise of a counter: the published rounds, the moments of N(0, 1), no number used twice."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.infer.svi.counted_noise import make_key, normal, squares

WORD = (1 << 64) - 1


def rounds(counter: int, key: int) -> int:
    """Widynski (2020), listing of the 64-bit generator, in integers of any size."""

    def swapped(x: int) -> int:
        return (x >> 32) | (x << 32) & WORD

    y = counter * key & WORD
    z = y + key & WORD
    x = swapped(y * y + y & WORD)
    x = swapped(x * x + z & WORD)
    x = swapped(x * x + y & WORD)
    t = x * x + z & WORD
    x = swapped(t)
    return t ^ ((x * x + y & WORD) >> 32)


@pytest.mark.parametrize("seed", [0, 1, 12_345, 2**63])
def test_the_bits_are_those_of_the_published_rounds(seed: int) -> None:
    key = make_key(seed)
    counters = [0, 1, 2, 7_777, 2**31, 2**40 + 3, 2**62]
    bits = squares(torch.tensor(counters), key)
    assert [int(b) & WORD for b in bits] == [rounds(c, key & WORD) for c in counters]


def test_keys_are_odd_irregular_and_differ_by_seed() -> None:
    keys = {make_key(seed) for seed in range(1_000)}
    assert len(keys) == 1_000
    assert all(key % 2 == 1 for key in keys)
    ones = torch.tensor([float((key & WORD).bit_count()) for key in keys])
    z = (ones.mean() - 32.5) / (63**0.5 / 2) * len(ones) ** 0.5  # the last bit is always 1
    assert abs(z) < 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_have_the_moments_of_a_standard_normal(dtype: torch.dtype) -> None:
    count = 1_000_000
    e = normal(torch.tensor(0), count, make_key(3), dtype)
    assert e.dtype == dtype
    e = e.double()
    assert abs(e.mean()) * count**0.5 < 5
    assert abs(e.square().mean() - 1) * (count / 2) ** 0.5 < 5
    assert abs((e**3).mean()) * (count / 15) ** 0.5 < 5
    assert abs((e**4).mean() - 3) * (count / 96) ** 0.5 < 5
    for level in (-2.0, -0.5, 1.0, 3.0):
        p = 0.5 * math.erfc(-level / 2**0.5)
        share = (e < level).double().mean()
        assert abs(share - p) * (count / (p * (1 - p))) ** 0.5 < 5
    half = count // 2
    pairs = (e[:half] * e[half:]).mean()  # cosine and sine of one word
    neighbours = (e[1:half] * e[: half - 1]).mean()
    assert abs(pairs) * half**0.5 < 5
    assert abs(neighbours) * half**0.5 < 5


def test_steps_take_consecutive_counters_and_share_none() -> None:
    key = make_key(0)
    both = normal(torch.tensor(0), 40, key, torch.float64)
    first, second = (normal(torch.tensor(s), 20, key, torch.float64) for s in (0, 10))
    assert_close(torch.cat([first[:10], second[:10], first[10:], second[10:]]), both)
    assert len(set(both.tolist())) == 40


@pytest.mark.parametrize("count", [1, 2, 7])
def test_an_odd_count_drops_the_last_number(count: int) -> None:
    even = normal(torch.tensor(5), count + count % 2, make_key(1), torch.float32)
    assert_close(normal(torch.tensor(5), count, make_key(1), torch.float32), even[:count])


def test_streams_of_different_seeds_are_independent() -> None:
    count = 200_000
    a, b = (normal(torch.tensor(0), count, make_key(s), torch.float64) for s in (0, 1))
    assert abs((a * b).mean()) * count**0.5 < 5
