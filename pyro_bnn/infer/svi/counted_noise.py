r"""Standard normal numbers as a pure function of a key, a step and a place.

torch's own generator is sequential, which at many weights costs half as much as the network. A
counter-based generator is arithmetic: it runs on all cores, inside a compiled graph, and its state
is the number of the step. The bits are those of Threefry-2x32 with 13 rounds (Salmon, Moraes, Dror
& Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011): of two words of 32 bits each round
makes

.. math:: x_0 \leftarrow x_0 + x_1, \qquad x_1 \leftarrow \mathrm{rotate}(x_1, r) \oplus x_0

modulo :math:`2^{32}`, and every fourth adds words of the key. The normals are Box & Muller's
(1958), two of each pair of words.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROUNDS = 13
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA  # the third word of a key is this one xor the other two
_MASK = (1 << 64) - 1
_POSITIVE = (1 << 31) - 1


def make_key(seed: int) -> tuple[int, int]:
    """Two words of 32 irregular bits (SplitMix64 of the seed)."""
    z = (seed + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    z ^= z >> 31
    return z & 0xFFFFFFFF, z >> 32


def threefry(x0: Tensor, x1: Tensor, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Random bits, two int32 words from two; use no pair of words twice with one key."""
    words = (*key, _PARITY ^ key[0] ^ key[1])
    x0, x1 = x0 + _signed(words[0]), x1 + _signed(words[1])
    for done in range(1, ROUNDS + 1):
        x0 = x0 + x1
        x1 = _rotated(x1, _ROTATIONS[(done - 1) % 8]) ^ x0
        if done % 4 == 0:
            turn = done // 4
            x0 = x0 + _signed(words[turn % 3])
            x1 = x1 + _signed(words[(turn + 1) % 3] + turn)
    return x0, x1


def normal(step: Tensor, count: int, key: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Standard normal numbers ``[count]`` for a step.

    Args:
        step: Number of the step, ``[]``, int32; no other step of the key has the same numbers.
        count: How many numbers, below 2^32.
        key: Key of the stream; see :func:`make_key`.
        dtype: Dtype of the numbers, whose absolute values are at most 6.7.
    """
    half = (count + 1) // 2
    places = torch.arange(half, dtype=torch.int32, device=step.device)
    x0, x1 = threefry(places, step, key)
    u = ((x0 & _POSITIVE).to(dtype) + 0.5) * 2**-31  # in (0, 1]
    angle = x1.to(dtype) * (math.pi * 2**-31)
    radius = (-2 * u.log()).sqrt()
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]


def _rotated(x: Tensor, by: int) -> Tensor:
    return (x << by) | ((x >> (32 - by)) & ((1 << by) - 1))  # the shift to the right keeps the sign


def _signed(word: int) -> int:
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word
