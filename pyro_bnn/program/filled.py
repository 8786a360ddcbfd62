"""Tensors that a model makes and then writes draws into, on many draws at once.

``torch.func.vmap`` refuses ``x = torch.zeros(n); x[0] = site``: a tensor of one draw has no room
for the values of many. ``OrderedLogistic`` is written so, as are loops over time that fill a
series, and missing entries that a site fills. Nor does vmap take a number at a mask that draws
decide, which ``Multinomial`` writes, nor the kernels of recurrent layers. In the mode of this
module each new tensor has an entry for each draw, and the layers are plain operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pyro_bnn.program.recurrent import is_plain, recurrence

T = TypeVar("T")

_MADE = frozenset(
    {
        *(torch.zeros, torch.ones, torch.empty, torch.full, torch.eye, torch.tensor),
        *(torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like),
        *(Tensor.new, Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full),
        *(torch.clone, Tensor.clone),
    }
)


def filled(fn: Callable[[Tensor], T]) -> Callable[[Tensor], T]:
    """A function of one draw ``[P]`` that can write draws into tensors of its own under vmap."""

    def of_draw(draw: Tensor) -> T:
        with Filled(draw):
            return fn(draw)

    return of_draw


class Filled(TorchFunctionMode):
    """Within it new floating tensors are computed from the draw, of which they hold no value."""

    def __init__(self, draw: Tensor) -> None:
        super().__init__()
        self._zero = torch.zeros_like(draw.detach()[0])  # of the batch that the draw is of

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.__setitem__ and _is_number_at_mask(*args):
            at, mask, number = args
            at.masked_fill_(mask.reshape((*mask.shape, *[1] * (at.ndim - mask.ndim))), number)
            return None
        if is_plain(func, args):
            return recurrence(func, args)
        made = func(*args, **(kwargs or {}))
        if func in _MADE and made.is_floating_point():
            made = made + self._zero.to(made)
        return made


def _is_number_at_mask(at: Any, mask: Any, number: Any) -> bool:
    """Whether one number is written where a mask is true."""
    is_mask = isinstance(mask, Tensor) and mask.dtype is torch.bool and mask.ndim <= at.ndim
    return is_mask and (isinstance(number, int | float) or _is_one(number))


def _is_one(number: Any) -> bool:
    return isinstance(number, Tensor) and number.ndim == 0
