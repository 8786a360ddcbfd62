"""Roots of functions that rise, which have no closed form: quantiles, and inverses of a flow."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

BISECTIONS = 80  # each halves the bracket


def root(rising: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Where a function that rises in each entry passes 0, between ``low`` and ``high``."""
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = rising(middle) > 0
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return (low + high) / 2
