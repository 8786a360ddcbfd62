r"""Standard normal numbers as a pure function of a key and a counter.

torch's own generator is sequential, which at many weights costs half as much as the network. A
counter-based generator is arithmetic: it runs on all cores, inside a compiled graph, and its state
is one number. The bits are Squares (Widynski 2020, arXiv:2004.06278), five rounds of

.. math:: x \leftarrow \mathrm{swap}\,(x^2 + y)

modulo :math:`2^{64}` with the halves of the word exchanged, from :math:`x = y = \text{counter}
\cdot \text{key}`; the normals are Box & Muller's (1958), two of each word.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MASK = (1 << 64) - 1


def make_key(seed: int) -> int:
    """An odd key with irregular bits, as a signed 64-bit number (SplitMix64 of the seed)."""
    z = (seed + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    key = (z ^ (z >> 31)) | 1
    return key - (1 << 64) if key >> 63 else key


def squares(counter: Tensor, key: int) -> Tensor:
    """64 random bits of each counter, int64; counters and keys of one stream are never reused."""
    y = counter * key
    z = y + key
    x = _swap(y * y + y)
    x = _swap(x * x + z)
    x = _swap(x * x + y)
    t = x * x + z
    x = _swap(t)
    return t ^ _high(x * x + y)


def normal(start: Tensor, count: int, key: int, dtype: torch.dtype) -> Tensor:
    """Standard normal numbers ``[count]`` of the ``(count + 1) // 2`` counters from ``start`` on.

    Args:
        start: First counter, ``[]``, int64.
        count: How many numbers.
        key: Of the stream; see :func:`make_key`.
        dtype: Of the numbers; they are at most 6.8 in size.
    """
    half = (count + 1) // 2
    bits = squares(start + torch.arange(half, device=start.device), key)
    u = (_high(bits).to(dtype) + 0.5) * 2**-32  # in (0, 1]
    angle = (bits & _LOW).to(dtype) * (2 * math.pi * 2**-32)
    radius = (-2 * u.log()).sqrt()
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]


def _high(x: Tensor) -> Tensor:
    return (x >> 32) & _LOW


def _swap(x: Tensor) -> Tensor:
    return _high(x) | (x << 32)
