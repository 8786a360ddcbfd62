"""Noise of a step: the published rounds, the moments of N(0, 1), no number used twice."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from pyro_bnn.capture.inductor.compiling import compile_graph
from pyro_bnn.infer.svi.counted_noise import make_key, normal, threefry

WORD = (1 << 32) - 1

KNOWN_ANSWERS = [  # of Random123, kat_vectors: "threefry2x32 13", counter, key and answer
    ((0, 0), (0, 0), (0x9D1C5EC6, 0x8BD50731)),
    ((WORD, WORD), (WORD, WORD), (0xFD36D048, 0x2D17272C)),
    ((0x243F6A88, 0x85A308D3), (0x13198A2E, 0x03707344), (0xBA3E4725, 0xF27D669E)),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_the_bits_are_the_published_ones(
    counter: tuple[int, int], key: tuple[int, int], answer: tuple[int, int]
) -> None:
    words = torch.tensor(counter).to(torch.int32)  # modulo 2^32
    found = threefry(words[:1], words[1:], key)
    assert tuple(int(x) & WORD for x in found) == answer


def test_compiled_bits_are_those_of_operations() -> None:
    def noise(step: torch.Tensor) -> tuple[torch.Tensor]:
        return (normal(step, 101, make_key(7), torch.float32),)

    step = torch.tensor(12_345, dtype=torch.int32)
    compiled = compile_graph(noise, (step,)).run
    assert_close(compiled(step)[0], noise(step)[0])


def test_keys_are_irregular_and_differ_by_seed() -> None:
    keys = {make_key(seed) for seed in range(1_000)}
    assert len(keys) == 1_000
    for words in zip(*keys, strict=True):
        ones = torch.tensor([float(word.bit_count()) for word in words])
        z = (ones.mean() - 16) / (32**0.5 / 2) * len(ones) ** 0.5
        assert abs(z) < 5


def at(step: int) -> torch.Tensor:
    return torch.tensor(step, dtype=torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_have_the_moments_of_a_standard_normal(dtype: torch.dtype) -> None:
    count = 1_000_000
    e = normal(at(0), count, make_key(3), dtype)
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
    pairs = (e[:half] * e[half:]).mean()  # cosine and sine of one pair of words
    neighbours = (e[1:half] * e[: half - 1]).mean()
    assert abs(pairs) * half**0.5 < 5
    assert abs(neighbours) * half**0.5 < 5


def test_no_number_is_that_of_another_place_or_step() -> None:
    steps = [
        normal(at(step), 40, make_key(0), torch.float64) for step in (0, 1, 2, 65_536, 2**31 - 1)
    ]
    assert len(set(torch.cat(steps).tolist())) == 5 * 40
    count = 200_000
    a, b = (normal(at(step), count, make_key(0), torch.float64) for step in (0, 1))
    assert abs((a * b).mean()) * count**0.5 < 5


@pytest.mark.parametrize("count", [1, 2, 7])
def test_an_odd_count_drops_the_last_number(count: int) -> None:
    even = normal(at(5), count + count % 2, make_key(1), torch.float32)
    assert_close(normal(at(5), count, make_key(1), torch.float32), even[:count])


@pytest.mark.parametrize("x0", [0, -1, 2**31 - 1, -(2**31)])
def test_every_word_gives_a_number(x0: int, monkeypatch: pytest.MonkeyPatch) -> None:
    words = torch.tensor([x0], dtype=torch.int32), torch.tensor([0], dtype=torch.int32)
    monkeypatch.setattr("pyro_bnn.infer.svi.counted_noise.threefry", lambda *_: words)
    largest = math.sqrt(2 * math.log(2**32))
    assert 0 <= normal(at(0), 1, make_key(0), torch.float32) <= largest * (1 + 1e-6)


def test_streams_of_different_seeds_are_independent() -> None:
    count = 200_000
    a, b = (normal(at(0), count, make_key(s), torch.float64) for s in (0, 1))
    assert abs((a * b).mean()) * count**0.5 < 5
