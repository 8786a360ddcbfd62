"""Models on many draws at once, by ``torch.func.vmap``: what torch says of it, in other words."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, cast

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from pyro_bnn.errors import ModelError

T = TypeVar("T")


@contextmanager
def without_vmap_warnings() -> Iterator[None]:
    """Torch warns of kernels that it batches by a loop of its own, such as that of attention."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


@contextmanager
def plain_attention() -> Iterator[None]:
    """Attention of torch as matrix products, which have second and forward derivatives."""
    with sdpa_kernel(SDPBackend.MATH):
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    """Attention in evaluation mode by kernels that have a derivative: torch's fast path has none.

    Torch takes it where no parameter asks for a gradient, as where draws stand in for weights.
    """
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def batched_or_looped(
    fn: Callable[[Tensor], T], z: Tensor, *, as_batch: bool, is_random: bool = False
) -> tuple[T, str]:
    """What a function makes of each draw ``[S, ...]``, and why not as a batch.

    The reason is empty if it was one, or if that was not tried.

    Args:
        fn: Takes one draw.
        z: The draws.
        as_batch: Whether to try that, before draws are taken one by one.
        is_random: Whether the function draws random numbers, others for each draw.
    """
    reason = ""
    if as_batch:
        try:
            return as_one_batch(fn, z, is_random=is_random), ""
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    rows = [fn(row) for row in z]
    return cast(T, tree_map(lambda *values: torch.stack(values), *rows)), reason


def as_one_batch(fn: Callable[[Tensor], T], z: Tensor, *, is_random: bool = False) -> T:
    """What a function makes of each draw ``[S, ...]``, as one batch.

    Raises:
        RuntimeError: If torch cannot batch it.
    """
    with without_vmap_warnings():
        return torch.func.vmap(fn, randomness="different" if is_random else "error")(z)


def over_draws(fn: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """A function of each draw of z ``[S, P]``, one after the other where it refuses all at once."""
    return batched_or_looped(fn, z, as_batch=True)[0]


@contextmanager
def refused_as(message: str) -> Iterator[None]:
    """Say of a model that vmap refuses what it is needed for.

    Raises:
        ModelError: The message, and torch's reason.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise ModelError(f"{message} ({str(error).splitlines()[0]})") from error
