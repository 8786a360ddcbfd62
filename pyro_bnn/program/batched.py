"""Models on many draws at once, by ``torch.func.vmap``: what torch says of it, in other words."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from pyro_bnn.errors import ModelError


@contextmanager
def without_vmap_warnings() -> Iterator[None]:
    """Torch warns of kernels that it batches by a loop of its own, such as that of attention."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        yield


def over_draws(fn: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """A function of each draw of z ``[S, P]``, one after the other where it refuses all at once."""
    try:
        with without_vmap_warnings():
            return torch.func.vmap(fn)(z)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return torch.stack([fn(draw) for draw in z])


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
