"""Cholesky factors that do not exist are not finite, as one draw of many must not end a run.

A kernel of close points has no Cholesky factor in finite precision at some length scales. The log
joint there is not a number: a sampler counts a divergence and goes on, as Pyro's own NUTS does.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_CHOLESKY = (torch.linalg.cholesky, torch.cholesky, Tensor.cholesky)


class Factorised(TorchFunctionMode):
    """Within it ``torch.linalg.cholesky`` returns nan where there is no factor."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _CHOLESKY or "out" in kwargs:
            return func(*args, **kwargs)
        factor, code = torch.linalg.cholesky_ex(*args, **kwargs)
        return torch.where((code == 0)[..., None, None], factor, math.nan)
